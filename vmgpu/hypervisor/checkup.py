"""The doctor's visit: what a host's libvirt and its hostctl tell is gathered and looked at, and left as it is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar
from xml.etree.ElementTree import Element, ParseError

import libvirt
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from vmgpu.errors import HostRefused, HostUnreachable, VmgpuError
from vmgpu.hypervisor import HostRef, Network, NetworkRef, accel, boot, networks
from vmgpu.hypervisor.carvers import mdev
from vmgpu.hypervisor.connection import maybe
from vmgpu.hypervisor.doctor import Check, LibvirtSeen, examine, explain
from vmgpu.hypervisor.doctor.findings import broken, warning
from vmgpu.hypervisor.hostctl_client import HostCtl, LocalHostCtl
from vmgpu.hypervisor.survey import is_local
from vmgpu.hypervisor.volumes import FOLDER, POOL

T = TypeVar("T")

SECONDS = 30.0  # for the libvirt of this machine, which nobody else watches
_GIB = 2**30
_ROOT = Path("/")


def with_libvirt(connection: Any, ref: HostRef, *, ctl: HostCtl | None, root: Path = _ROOT) -> tuple[Check, ...]:
    """All checks of a host whose libvirt is open; `ctl`: its hostctl, None where it has none."""
    seen, unknown = _looked(connection, ref, root)
    return (*_examined(ctl, seen), *unknown)


def without_libvirt(bad: VmgpuError, *, ctl: HostCtl | None) -> tuple[Check, ...]:
    """What can be said of a host whose libvirt does not answer."""
    causes = explain(bad.message)
    cure = causes[0].cure if causes else bad.hint or "Install libvirt and start it: systemctl enable --now libvirtd."
    closed = broken("libvirt-connection", bad.message, "vmgpu cannot run any guest on this host.", cure)
    return (closed, *_examined(ctl, LibvirtSeen(remote=False)))


def here(
    *, wish: str, state_dir: Path, uri: str = "qemu:///system", root: Path = _ROOT, seconds: float = SECONDS
) -> tuple[Check, ...]:
    """All checks of this machine, whoever asks: what the account may not see is said. `wish`: the settings' accel."""
    ref = HostRef("here", "this machine", uri, "", NetworkRef(Network.nat, POOL), wish, state_dir)
    ctl = LocalHostCtl(root, name=ref.name)
    account = tuple(_account())

    def looked() -> tuple[tuple[Check, ...], LibvirtSeen, tuple[Check, ...]]:
        connection, limits = _opened(uri)
        with closing(connection):
            return (limits, *_looked(connection, ref, root))

    try:
        limits, seen, unknown = _in_time(looked, seconds)
    except HostUnreachable as bad:
        return (*account, *without_libvirt(bad, ctl=ctl))
    except libvirt.libvirtError as bad:
        causes = explain(_words(bad))
        if not causes or causes[0].id != "libvirt-refuses":
            return (*account, *without_libvirt(HostUnreachable(_words(bad)), ctl=ctl))
        # another account, the service's, may well be let in
        means = "Unknown: all that libvirt knows. vmgpu itself must be let in."
        limits, seen = (warning("libvirt-access", _words(bad), means, causes[0].cure),), LibvirtSeen(remote=False)
        unknown = ()
    return (*account, *limits, *_examined(ctl, seen), *unknown)


class _Asked:
    """Questions to libvirt: one that it refuses leaves its answer unknown, and is a finding."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.found: dict[str, Check] = {}

    def __call__(self, what: str, unknown: str, call: Callable[..., T], *args: Any) -> T | None:
        try:
            return call(*args)
        except libvirt.libvirtError as no:
            if not self.connection.isAlive():
                raise
            causes = explain(_words(no))
            cure = causes[0].cure if causes else "Ask as root; else look at the journal: journalctl -u libvirtd -n 50."
            self.found[what] = warning(f"libvirt-{what}", _words(no), f"Unknown: {unknown}.", cure)
        except (ParseError, DefusedXmlException) as odd:
            cure = "Restart libvirt on the host; if it stays so, install it again."
            self.found[what] = warning(
                f"libvirt-{what}", f"its XML cannot be read: {odd}", f"Unknown: {unknown}.", cure
            )
        except HostRefused as no:
            self.found[what] = broken(what, no.message, f"Missing: {unknown}.", no.hint)
        return None


def _looked(connection: Any, ref: HostRef, root: Path) -> tuple[LibvirtSeen, tuple[Check, ...]]:
    """What libvirt says, and a finding for each thing that it does not say."""
    asked = _Asked(connection)
    return _seen(asked, ref, root), tuple(asked.found.values())


def _seen(asked: _Asked, ref: HostRef, root: Path) -> LibvirtSeen:
    connection, local = asked.connection, is_local(ref.uri)
    version = asked("version", "libvirt's version", connection.getLibVersion)
    emulator = asked("emulator", "QEMU's version", connection.getVersion)
    host = asked("host", "what libvirt knows of the host", lambda: fromstring(connection.getCapabilities()))
    domain = asked("domains", "UEFI firmware and devices that guests may take", _domain_capabilities, connection)
    choice = asked("accel", "whether guests run under KVM", _accel, connection, ref, root)
    total, free = asked("pool", "room for disks", _pool, connection, local, root) or (None, None)
    images = asked("images", "copies of images", _images, connection)
    known = asked("parents", "parents of mediated devices", mdev.parents, connection) if ref.mdev_parents else None
    network = asked("network", "the guests' network", _network, connection, ref.network, local)
    return LibvirtSeen(
        remote=not local,
        libvirt=accel.dotted(version) if version else None,
        qemu=accel.dotted(emulator) if emulator else None,
        efi=_offers_efi(domain),
        iommu=_says_iommu(host),
        hostdevs=_hostdevs(domain),
        accel=choice.accel if choice else None,
        accel_why=choice.why if choice else "",
        pool=POOL,
        pool_total_gib=total,
        pool_free_gib=free,
        images=images,
        network=ref.network.name,
        network_active=network[0] if network else None,
        network_range=network[1] if network else "",
        mdev_parents={name: None if known is None else name in known for name in ref.mdev_parents},
        device_ids=ref.device_ids,
    )


def _domain_capabilities(connection: Any) -> Element:
    """Of the kind of domain that vmgpu defines."""
    kind = "kvm" if accel.offers_kvm(connection) else "qemu"
    found: Element = fromstring(connection.getDomainCapabilities(None, "x86_64", "q35", kind, 0))
    return found


def _offers_efi(domain: Element | None) -> bool | None:
    firmware = domain.find("os/enum[@name='firmware']") if domain is not None else None
    return None if firmware is None else "efi" in {each.text for each in firmware.findall("value")}


def _says_iommu(host: Element | None) -> bool | None:
    found = host.find("host/iommu") if host is not None else None
    return None if found is None else found.get("support") == "yes"


def _hostdevs(domain: Element | None) -> tuple[str, ...] | None:
    """Kinds of host devices that a domain may take.

    libvirt lists `pci` even where the host has no VFIO, which shows in its backends alone; and `mdev` never, which
    every libvirt takes that has VFIO.
    """
    found = domain.find("devices/hostdev") if domain is not None else None
    if found is None:
        return None
    kinds = [each.text or "" for each in found.findall("enum[@name='subsysType']/value")]
    backends = {each.text for each in found.findall("enum[@name='pciBackend']/value")}
    if "vfio" in backends:
        return (*kinds, "mdev")
    return tuple(kind for kind in kinds if kind != "pci")


def _accel(connection: Any, ref: HostRef, root: Path) -> accel.Choice | None:
    local, device = is_local(ref.uri), root / "dev/kvm"
    boot_id = boot.boot_id(connection, root if local else None)
    # never a probe: that is the survey's, which has a pool for it
    return accel.known(ref.accel, connection, boot_id=boot_id, state_dir=ref.state_dir, local=local, device=device)


def _images(connection: Any) -> tuple[str, ...] | None:
    """The copies of images in our pool; None where there is no pool that runs."""
    pool = maybe(connection.storagePoolLookupByName, POOL)
    if pool is None or not pool.isActive():
        return None
    return tuple(sorted(name for name in pool.listVolumes() if name.startswith("image-")))


def _pool(connection: Any, local: bool, root: Path) -> tuple[int, int] | None:
    """Total and free GiB of our pool; None where there is none, or one that does not run: it is made when needed."""
    pool = maybe(connection.storagePoolLookupByName, POOL)
    if pool is None or not pool.isActive():
        return None
    if local:
        with suppress(OSError):
            stat = os.statvfs(root / FOLDER.lstrip("/"))
            return stat.f_blocks * stat.f_frsize // _GIB, stat.f_bavail * stat.f_frsize // _GIB
    with suppress(libvirt.libvirtError):  # busy, or not for this account: then what it last knew
        pool.refresh(0)
    _state, capacity, _allocation, available = pool.info()
    return capacity // _GIB, available // _GIB


def _network(connection: Any, ref: NetworkRef, local: bool) -> tuple[bool, str] | None:
    """Whether the guests' network runs, and its range; None where ours was not made yet. HostRefused: no bridge."""
    if ref.kind is Network.nat:
        return networks.look(connection, ref.name)
    return True, networks.ready(connection, ref, local=local).range  # of a bridge: nothing is made


def _examined(ctl: HostCtl | None, seen: LibvirtSeen) -> tuple[Check, ...]:
    """The doctor's look; a hostctl that is there and fails is a finding of its own."""
    if ctl is None:
        return examine(None, seen)
    try:
        return examine(ctl.call("facts"), seen)
    except (HostRefused, HostUnreachable) as bad:
        cure = bad.hint or "Install hostctl on the host again."
        failed = broken("hostctl", bad.message, "No card of this host can be cut or given back.", cure)
        return (failed, *examine(None, seen))


def _account() -> Iterator[Check]:
    if os.geteuid() != 0:
        yield warning(
            "account",
            f"asked by account {os.geteuid()}, not by root",
            "Unknown: the kernel's log, who holds a card open, and whether a card still answers.",
            "Run: sudo vmgpu doctor.",
        )


def _opened(uri: str) -> tuple[Any, tuple[Check, ...]]:
    """libvirt, for reading alone where it lets this account do no more."""
    libvirt.registerErrorHandler(lambda _context, _error: None, None)  # else each error is printed on stderr, too
    try:
        return libvirt.open(uri), ()
    except libvirt.libvirtError as refused:
        with suppress(libvirt.libvirtError):
            connection = libvirt.openReadOnly(uri)
            cure = "Run: sudo vmgpu doctor. For good: usermod -aG libvirt ACCOUNT, then log in again."
            means = "Unknown: what guests may take. vmgpu itself must be let in."
            return connection, (warning("libvirt-access", _words(refused), means, cure),)
        raise


def _in_time(call: Callable[[], T], seconds: float) -> T:
    """The call's answer; a libvirt that hangs is one that does not answer."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as bad:
            answer.set_exception(bad)

    threading.Thread(target=run, name="checkup", daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        hint = "Restart it: systemctl restart libvirtd."
        raise HostUnreachable(f"libvirt did not answer within {seconds:g} s", hint=hint) from None


def _words(error: libvirt.libvirtError) -> str:
    return str(error.get_error_message() or error)
