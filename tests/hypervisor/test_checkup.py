"""A check-up gathers what libvirt and hostctl tell, changes nothing, and turns silence and refusals into findings."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import libvirt
import pytest

from tests.gpuhost.machine import OpenMachine
from vmgpu.errors import HostUnreachable
from vmgpu.hypervisor import HostRef, Network, NetworkRef, checkup
from vmgpu.hypervisor.doctor import Check, Level
from vmgpu.hypervisor.hostctl_client import HostCtlRefused
from vmgpu.hypervisor.kvm import KvmHost

from .host_tree import Connection

LOCAL, REMOTE = "qemu:///system", "qemu+ssh://root@gpu1.example/system"
NOBODY = "qemu+unix:///system?socket=/nonexistent/libvirt-sock"

DOMAIN = """
  <domainCapabilities>
    <os supported='yes'><enum name='firmware'>{firmware}</enum></os>
    <devices><hostdev supported='yes'>
      <enum name='subsysType'><value>usb</value><value>pci</value><value>scsi</value></enum>
      <enum name='pciBackend'>{backends}</enum>
    </hostdev></devices>
  </domainCapabilities>"""
GIB = 2**30


class Asked(Connection):
    """A host whose libvirt also knows domains' capabilities, a pool and a network; what it is told to do is noted."""

    def __init__(self, *, firmware: str = "efi", backends: str = "<value>vfio</value>", **more: Any) -> None:
        super().__init__(**more)
        self.domain = DOMAIN.format(firmware=f"<value>{firmware}</value>", backends=backends)
        self.pool: Any = Pool()
        self.network: Any = Net()
        self.kinds: list[tuple[object, ...]] = []

    def getDomainCapabilities(self, *kind: object) -> str:
        self.kinds.append(kind)
        return self.domain

    def getCapabilities(self) -> str:
        return super().getCapabilities().replace("<host>", "<host><iommu support='yes'/>")

    def storagePoolLookupByName(self, name: str) -> Any:
        return Pool() if name == "vmgpu-boot" else self.pool or _absent(libvirt.VIR_ERR_NO_STORAGE_POOL)

    def networkLookupByName(self, name: str) -> Any:
        return self.network or _absent(libvirt.VIR_ERR_NO_NETWORK)


class Pool:
    """20 of 100 GiB are free, and that is known after a refresh alone."""

    running = True
    free = 0

    def isActive(self) -> bool:
        return self.running

    def refresh(self, flags: int) -> None:
        self.free = 20 * GIB

    def listVolumes(self) -> list[str]:
        return ["mark-of-this-boot", "image-7.qcow2", "image-3.raw"]

    def info(self) -> list[int]:
        return [2, 100 * GIB, 80 * GIB, self.free]


class Net:
    running = True

    def isActive(self) -> bool:
        return self.running

    def XMLDesc(self) -> str:
        return "<network><ip address='192.168.140.1' netmask='255.255.252.0'/></network>"


class Ctl:
    """hostctl that tells these facts, or fails."""

    def __init__(self, told: Mapping[str, Any] | Exception) -> None:
        self.told = told

    def call(self, verb: str, arguments: object = None, timeout: float | None = None) -> dict[str, Any]:
        assert verb == "facts"
        if isinstance(self.told, Exception):
            raise self.told
        return dict(self.told)


def _absent(code: int) -> Any:
    error = libvirt.libvirtError("not found")
    error.err = (code, 0, "not found", 0, "", None, None, 0, 0)
    raise error


@pytest.fixture
def ref(tmp_path: Path) -> HostRef:
    return HostRef("h1", "gpu1", REMOTE, "inst-1", NetworkRef(Network.nat, "vmgpu"), "auto", tmp_path / "state")


def look(connection: Any, ref: HostRef, told: Mapping[str, Any] | Exception | None = None) -> dict[str, Check]:
    ctl = None if told is None else Ctl(told)
    found = checkup.with_libvirt(connection, ref, ctl=ctl, root=ref.state_dir)
    assert len({each.id for each in found}) == len(found)
    return {each.id: each for each in found}


def test_libvirt_alone_is_looked_at(ref: HostRef) -> None:
    connection = Asked(kvm=True)
    found = look(connection, ref)
    seen = {name: found[name].seen for name in ("libvirt", "qemu", "guest-firmware", "pool", "network")}
    assert seen == {
        "libvirt": "libvirt 9.0.0",
        "qemu": "QEMU 7.2.22",
        "guest-firmware": "libvirt finds a UEFI firmware",
        "pool": "pool vmgpu: 20 GiB free of 100 GiB",
        "network": "vmgpu 192.168.140.0/22",
    }
    assert {found[name].level for name in seen} == {Level.ok}
    assert "vmgpu host survey NAME" in found["kvm"].cure and "Put a kernel" not in found["kvm"].cure
    assert found["kvm"].seen == "not probed" and found["helper"].level is Level.warning
    assert connection.kinds == [(None, "x86_64", "q35", "kvm", 0)]
    assert not ref.state_dir.exists()


def test_what_is_missing_is_broken(ref: HostRef) -> None:
    connection = Asked(firmware="bios")
    connection.network.running = False
    found = look(connection, replace(ref, accel="tcg"), {"pci": []})
    assert found["guest-firmware"].level is found["network"].level is Level.broken
    assert connection.kinds[0][3] == "qemu"
    assert found["kvm"].seen == "set by the administrator"


def test_what_is_made_when_it_is_needed_is_no_finding(ref: HostRef) -> None:
    connection = Asked()
    connection.network, connection.pool.running = None, False
    assert {"pool", "network"}.isdisjoint(look(connection, ref))
    connection.pool = None
    assert {"pool", "libvirt-pool"}.isdisjoint(look(connection, ref))
    connection.pool = Pool()
    assert look(connection, replace(ref, uri=LOCAL))["pool"].seen.startswith("pool vmgpu: 20 GiB free")
    (ref.state_dir / "var/lib/libvirt/images/vmgpu").mkdir(parents=True)
    assert look(connection, replace(ref, uri=LOCAL))["pool"].seen != "pool vmgpu: 20 GiB free of 100 GiB"


def test_copies_of_images_are_what_lies_in_the_pool(ref: HostRef) -> None:
    """None yet is nothing to mend: an image comes with the first VM that needs it."""
    connection = Asked()
    found = look(connection, ref)["images"]
    assert (found.level, found.seen) == (Level.ok, "image-3.raw, image-7.qcow2")
    connection.pool.listVolumes = lambda: ["vm.qcow2"]
    assert look(connection, ref)["images"].level is Level.ok
    connection.pool = None
    assert "images" not in look(connection, ref)


@pytest.mark.parametrize(
    ("backends", "level", "says"),
    [("", Level.broken, "usb, scsi"), ("<value>vfio</value>", Level.ok, "usb, pci, scsi, mdev")],
)
def test_libvirt_takes_cards_only_where_it_has_vfio(ref: HostRef, backends: str, level: Level, says: str) -> None:
    """It lists `pci` all the same, and `mdev` never."""
    card = {"address": "0000:65:00.0", "vendor": "10de", "device": "20b5", "class": "0302"}
    found = look(Asked(backends=backends), ref, {"pci": [card]})["libvirt-hostdev"]
    assert (found.level, found.seen) == (level, f"domains may take: {says}")


def test_a_refused_question_is_a_finding_and_the_others_are_answered(ref: HostRef) -> None:
    connection = Asked()

    def refuse(*_: object) -> Any:
        raise libvirt.libvirtError("internal error: Cannot find suitable emulator for x86_64")

    connection.getVersion = connection.getDomainCapabilities = refuse  # type: ignore[method-assign]
    connection.network.XMLDesc = lambda: "<network"
    found = look(connection, replace(ref, accel="tcg"))
    assert "Cannot find suitable emulator" in found["libvirt-domains"].seen
    assert "Install qemu" in found["libvirt-emulator"].cure
    assert "cannot be read" in found["libvirt-network"].seen
    assert found["libvirt"].level is Level.ok and "guest-firmware" not in found and "qemu" not in found


def test_a_connection_that_breaks_is_no_finding(ref: HostRef) -> None:
    connection = Asked()
    connection.isAlive = lambda: 0  # type: ignore[method-assign]
    connection.getVersion = lambda: connection.lookupByUUIDString("none")  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(libvirt.libvirtError):
        look(connection, ref)


def test_a_bridge_that_is_missing_is_named(ref: HostRef) -> None:
    there = replace(ref, uri=LOCAL, network=NetworkRef(Network.bridge, "br-none"))
    found = look(Asked(), there)["network"]
    assert found.level is Level.broken and "no bridge br-none" in found.seen and "ip link" in found.cure


def test_a_hostctl_that_fails_is_a_finding(ref: HostRef) -> None:
    late = HostUnreachable("gpu1: hostctl facts did not answer within 30 s", hint="Look at its kernel log.")
    found = look(Asked(), ref, late)
    assert found["hostctl"] == Check(
        "hostctl", Level.broken, late.message, "No card of this host can be cut or given back.", late.hint
    )
    assert found["libvirt"].level is Level.ok
    assert "Install hostctl" in look(Asked(), ref, HostCtlRefused("no"))["hostctl"].cure


def test_without_libvirt_the_host_itself_is_looked_at(ref: HostRef, tmp_path: Path) -> None:
    """A libvirtd that is down is one broken check of its own; of a remote host without hostctl nothing is known."""
    host = KvmHost(replace(ref, uri=NOBODY), on_change=lambda _: None, root=tmp_path)
    try:
        found = {each.id: each for each in host.checkup()}
    finally:
        host.close()
    assert found["libvirt-connection"].level is Level.broken
    assert "/nonexistent/libvirt-sock" in found["libvirt-connection"].seen
    assert "enable --now libvirtd" in found["libvirt-connection"].cure
    assert found["helper"].seen != "no facts from the host itself"


def test_this_machine_is_looked_at_by_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(uri: str = NOBODY, seconds: float = 20) -> dict[str, Check]:
        return {each.id: each for each in checkup.here(wish="auto", state_dir=tmp_path, uri=uri, seconds=seconds)}

    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert {"libvirt-connection", "helper"} <= set(here()) and "account" not in here()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert here()["account"].level is Level.warning
    connection = Asked()
    connection.close = lambda: None  # type: ignore[attr-defined]

    def denied(uri: str) -> Any:
        raise libvirt.libvirtError("Failed to connect socket to '/run/libvirt/libvirt-sock': Permission denied")

    monkeypatch.setattr(libvirt, "open", denied)
    found = here()
    assert found["libvirt-access"].level is Level.warning and "usermod -aG libvirt" in found["libvirt-access"].cure
    assert "libvirt-connection" not in found and "libvirt" not in found
    monkeypatch.setattr(libvirt, "openReadOnly", lambda uri: connection)
    assert {"libvirt-access", "libvirt", "guest-firmware"} <= set(here())
    for_ever = threading.Event()
    monkeypatch.setattr(libvirt, "open", lambda uri: for_ever.wait(30))
    assert here(seconds=0.1)["libvirt-connection"].seen == "libvirt did not answer within 0.1 s"
    for_ever.set()


def test_a_gpu_host_by_its_hostctl(ref: HostRef, machine: OpenMachine) -> None:
    """Every card of the host is looked at; what libvirt lacks to hand them out is broken."""
    host = machine("h100")
    found = {each.id: each for each in checkup.with_libvirt(Asked(kvm=True), ref, ctl=host.ctl)}
    cards = {card.address for card in host.cards()}
    assert cards and cards == {name.partition(":")[2] for name in found if name.startswith("card-group:")}
    assert found["helper"].level is Level.ok and found["libvirt-hostdev"].level is Level.ok
    assert [each for each in found.values() if each.level is Level.broken] == []
    without = {each.id: each for each in checkup.with_libvirt(Asked(backends=""), ref, ctl=host.ctl)}
    assert without["libvirt-hostdev"].level is Level.broken


@pytest.mark.libvirt
def test_a_real_libvirt_is_looked_at(uri: str, ref: HostRef) -> None:
    host = KvmHost(replace(ref, uri=uri, accel="tcg"), on_change=lambda _: None)
    try:
        host.survey()
        found = {each.id: each for each in host.checkup()}
    finally:
        host.close()
    for name in ("libvirt", "qemu", "guest-firmware", "network", "pool"):
        assert found[name].level is not Level.broken, found[name]
    assert found["kvm"].seen == "set by the administrator"
    assert "libvirt-connection" not in found and [name for name in found if name.startswith("libvirt-")] == []
