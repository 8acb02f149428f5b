"""A real host: the Hypervisor protocol on libvirt and QEMU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import libvirt
from defusedxml import ElementTree

from vmgpu.errors import HostRefused, HostUnreachable
from vmgpu.hypervisor import (
    Carver,
    DomainSeen,
    Held,
    HostFacts,
    HostRef,
    Hypervisor,
    ImageRef,
    Network,
    NetworkRef,
    Power,
    Progress,
    VMSpec,
    boot,
    checkup,
    domain,
    networks,
    remote,
    start,
)
from vmgpu.hypervisor.carvers import carver_for
from vmgpu.hypervisor.connection import Link, maybe
from vmgpu.hypervisor.doctor import Check
from vmgpu.hypervisor.hostctl_client import HostCtl, LocalHostCtl, SshHostCtl
from vmgpu.hypervisor.seed_iso import seed_iso
from vmgpu.hypervisor.ssh_login import Login, our_keys
from vmgpu.hypervisor.survey import is_local, survey
from vmgpu.hypervisor.volumes import FOLDER, Pool

_FORGET = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
)


def open_kvm(ref: HostRef, *, on_change: Callable[[str], None]) -> Hypervisor:
    """The host of this address; `on_change` is told the id of a VM that something happened to, and must return at once.

    Nothing is asked of the host yet: the first call connects.
    """
    return KvmHost(ref, on_change=on_change)


class KvmHost:
    """One host; its methods are those of Hypervisor, where they are explained."""

    def __init__(self, ref: HostRef, *, on_change: Callable[[str], None], root: Path = Path("/")) -> None:
        """`root` is where this machine's own files lie, for a host that is this machine."""
        self._ref, self._on_change, self._root = ref, on_change, root
        self._local = is_local(ref.uri)
        keys = our_keys(ref)
        self._login = Login(ref, keys.hostctl) if keys else None  # beside the tunnel's: each key has its own command
        self._ctl: HostCtl | None = SshHostCtl(self._login) if self._login else None
        if self._local:
            self._ctl = LocalHostCtl(root, name=ref.name)
        self._link = Link(remote.libvirt_uri(ref), self._changed)
        self._tunnel = None if self._local else remote.Tunnel(ref)
        self._marks: dict[str, domain.Mark] = {}
        self._marks_lock, self._changes = threading.Lock(), 0

    # the host

    def survey(self) -> HostFacts:
        with self._link.use() as connection:
            network = networks.ready(connection, self._ref.network, local=self._local)
            pool = self._pool(connection).facts()
            facts = survey(connection, self._ref, pool=pool, network=network, ctl=self._ctl, root=self._root)
        shut = self._shut_off(network.range)
        return replace(facts, warnings=(*facts.warnings, shut)) if shut else facts

    def checkup(self) -> tuple[Check, ...]:
        try:
            with self._link.use() as connection:
                return checkup.with_libvirt(connection, self._ref, ctl=self._ctl, root=self._root)
        except HostUnreachable as bad:
            if self._ctl is None:
                raise
            return checkup.without_libvirt(bad, ctl=self._ctl)

    def boot_id(self) -> str:
        with self._link.use() as connection:
            return boot.boot_id(connection, self._root if self._local else None)

    def carver(self, mode: str, framework: str | None = None) -> Carver:
        return carver_for(mode, framework, ask=self._ctl.call if self._ctl else None, use=self._link.use)

    def withdraw(self) -> None:
        with self._link.use() as connection:
            self._pool(connection).withdraw()
            if self._ref.network.kind is Network.nat:
                networks.withdraw(connection, self._ref.network.name)

    # images and disks

    def has_image(self, image: ImageRef) -> bool:
        with self._pooled() as pool:
            return pool.has_image(image)

    def ensure_image(self, image: ImageRef, source: Path, *, progress: Progress) -> None:
        with self._pooled() as pool:
            pool.put_image(image, source, progress=progress)

    def drop_image(self, image: ImageRef) -> None:
        with self._pooled() as pool:
            pool.drop_image(image)

    def ensure_disk(self, spec: VMSpec) -> None:
        with self._pooled() as pool:
            pool.make_disk(spec)

    def drop_disk(self, vm_id: str) -> None:
        with self._link.use() as connection:
            self._must_be_off(connection, vm_id)
            self._pool(connection).drop_disk(vm_id)

    def has_disk(self, vm_id: str) -> bool:
        with self._pooled() as pool:
            return pool.has_disk(vm_id)

    def see_room(self, vm_id: str, target: Path) -> None:
        with self._pooled() as pool:
            pool.see_room(vm_id, target)

    def copy_flat(self, vm_id: str, target: Path, *, progress: Progress) -> None:
        with self._link.use() as connection:
            self._must_be_off(connection, vm_id)
            self._pool(connection).copy_flat(vm_id, target, progress=progress)

    # the domain

    def ensure_defined(self, spec: VMSpec) -> None:
        with self._link.use() as connection:
            found = self._ours(connection, spec.id)
            if found is not None and found.isActive():
                return
            networks.ready(connection, spec.network, local=self._local)
            pool = self._pool(connection)
            pool.put_seed(spec.id, seed_iso(spec.seed.files))
            pool.make_console(spec.id)
            if found is not None and found.name() != spec.name:
                found.undefineFlags(_FORGET | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM)  # libvirt does not rename by XML
            connection.defineXML(domain.domain_xml(spec, folder=FOLDER, cpus=_cpus_of_node(connection, spec.numa_node)))

    def ensure_running(self, vm_id: str) -> None:
        with self._link.use() as connection:
            found = self._ours(connection, vm_id)
            if found is None:
                raise HostRefused("The VM is not defined on this host", hint="Start it to define it again.")
            networks.ready(connection, self._ref.network, local=self._local)
            state, _reason = found.state()
            if state == libvirt.VIR_DOMAIN_PAUSED:
                found.resume()
            elif not found.isActive():
                start.within(found, self._ref)

    def look(self, vm_id: str) -> DomainSeen:
        with self._link.use() as connection:
            found = maybe(connection.lookupByUUIDString, vm_id)
            state = maybe(found.state) if found else None
            if found is None or state is None:
                return DomainSeen(vm_id, "", Power.absent)
            return domain.seen(found, state[0], state[1], maybe(domain.mark, found) or domain.NOBODYS)

    def domains(self) -> tuple[DomainSeen, ...]:
        with self._link.use() as connection:
            return tuple(
                domain.seen(found, stats["state.state"], stats["state.reason"], self._mark(found))
                for found, stats in connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE, 0)
            )

    def holds(self, vm_id: str) -> tuple[Held, ...]:
        with self._link.use() as connection:
            found = maybe(connection.lookupByUUIDString, vm_id)
            return domain.holds(found) if found is not None else ()

    def shutdown(self, vm_id: str) -> None:
        with self._link.use() as connection:
            found = self._ours(connection, vm_id)
            if found is not None:
                _ask_down(found)

    def power_off(self, vm_id: str) -> None:
        with self._link.use() as connection:
            found = self._ours(connection, vm_id)
            if found is not None:
                _unless_off(found, found.destroy)

    def erase(self, vm_id: str) -> None:
        with self._link.use() as connection:
            found = self._ours(connection, vm_id)
            if found is not None:
                _unless_off(found, found.destroy)
                _undefine(found)
            self._pool(connection).sweep(vm_id)

    def leftovers(self, vm_id: str) -> tuple[str, ...]:
        with self._link.use() as connection:
            found = maybe(connection.lookupByUUIDString, vm_id)
            return (*([f"domain {found.name()}"] if found else []), *self._pool(connection).files(vm_id))

    # the guest

    def address(self, vm_id: str, mac: str, network: NetworkRef) -> str | None:
        with self._link.use() as connection:
            if network.kind is Network.nat:
                return networks.leased(connection, network.name, mac)
            found = maybe(connection.lookupByUUIDString, vm_id)
            # Only an agent that is there is asked: libvirt would wait for the others.
            return networks.told(found, mac) if found and maybe(domain.agent_connected, found) else None

    def wait_guest(self, vm_id: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        with self._link.hearing(vm_id) as heard:
            while True:
                heard.clear()
                with self._link.use() as connection:
                    found = maybe(connection.lookupByUUIDString, vm_id)
                    if found is None or not found.isActive():
                        return False
                    if maybe(domain.agent_connected, found):
                        return True
                if not heard.wait(max(0.0, deadline - time.monotonic())):
                    return False

    def console(self, vm_id: str, limit: int = 256 * 1024) -> bytes:
        with self._pooled() as pool:
            return pool.console(vm_id, limit)

    def dial(self, address: str, port: int) -> object | None:
        # our key opens guests of the host's own network alone; those on a bridge have an address for everybody
        direct = self._login is not None and self._ref.network.kind is Network.bridge
        return None if self._tunnel is None or direct else self._tunnel.dial(address, port)

    def close(self) -> None:
        self._link.close()
        for login in (self._tunnel, self._login):
            if login is not None:
                login.close()

    # helpers

    def _shut_off(self, network: str) -> str:
        """What is wrong where our key may not reach the host's guests; empty where it may."""
        if not network or self._tunnel is None or self._login is None or self._tunnel.permits(network):
            return ""
        cure = f"run vmgpu host setup {self._ref.name} again"
        return f"The host's SSH server lets us to no guest of its network {network}: {cure}"

    @contextmanager
    def _pooled(self) -> Iterator[Pool]:
        with self._link.use() as connection:
            yield self._pool(connection)

    def _pool(self, connection: Any) -> Pool:
        return Pool(connection, host=self._ref.name, local=self._local, locks=self._ref.state_dir / self._ref.id)

    def _ours(self, connection: Any, vm_id: str) -> Any | None:
        """The VM's domain, None where there is none; a domain that another installation made is not touched."""
        found = maybe(connection.lookupByUUIDString, vm_id)
        if found is None:
            return None
        installation, _build = domain.mark(found)
        if installation != self._ref.installation:
            raise HostRefused(
                f"The domain {found.name()} is not ours", hint="It carries our VM's id, and another owner's mark."
            )
        return found

    def _must_be_off(self, connection: Any, vm_id: str) -> None:
        found = self._ours(connection, vm_id)
        if found is not None and found.isActive():
            raise HostRefused("The VM is running: its disk is in use", hint="Stop it first.")

    def _mark(self, found: Any) -> domain.Mark:
        """A domain's mark, asked once: libvirt has no call for those of all domains, and tells of each change."""
        vm_id = found.UUIDString()
        with self._marks_lock:
            known, before = self._marks.get(vm_id), self._changes
        if known is not None:
            return known
        fresh = maybe(domain.mark, found) or domain.NOBODYS
        with self._marks_lock:
            if self._changes == before:
                self._marks[vm_id] = fresh
        return fresh

    def _changed(self, vm_id: str | None) -> None:
        with self._marks_lock:
            self._changes += 1
            if vm_id is None:
                self._marks.clear()
            else:
                self._marks.pop(vm_id, None)
        if vm_id is not None:
            self._on_change(vm_id)


def _ask_down(found: Any) -> None:
    try:
        maybe(found.shutdownFlags, libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
    except libvirt.libvirtError:
        # a guest that has ended while its QEMU has not can no longer be asked, and libvirt still calls it active
        state = maybe(found.state)
        if state is not None and state[0] not in (libvirt.VIR_DOMAIN_SHUTDOWN, libvirt.VIR_DOMAIN_SHUTOFF):
            raise


def _unless_off(found: Any, call: Callable[..., object], *args: Any) -> None:
    try:
        maybe(call, *args)
    except libvirt.libvirtError:
        if maybe(found.isActive):
            raise


def _undefine(found: Any) -> None:
    try:
        maybe(found.undefineFlags, _FORGET | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)
    except libvirt.libvirtError:
        if maybe(found.isPersistent):  # one undefined by hand while it ran went away with its power
            raise


def _cpus_of_node(connection: Any, node: int | None) -> str | None:
    """The CPUs of a NUMA node; None where the host has but one, so that nothing is pinned for nothing."""
    if node is None:
        return None
    cells = ElementTree.fromstring(connection.getCapabilities()).findall("host/topology/cells/cell")
    if len(cells) < 2:
        return None
    chosen = [cpu.get("id", "") for cell in cells if cell.get("id") == str(node) for cpu in cell.iter("cpu")]
    return ",".join(chosen) or None
