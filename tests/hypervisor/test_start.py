"""A start takes as long as its memory needs to be pinned, and one that takes longer leaves nothing half started."""

from __future__ import annotations

import threading
from pathlib import Path

import libvirt
import pytest

from vmgpu.errors import HostRefused, ReasonCode
from vmgpu.hypervisor import HostRef, Network, NetworkRef, start

GIB = 1024 * 1024  # as libvirt counts memory
HOSTDEV = "<domain><devices><hostdev mode='subsystem' type='pci'/></devices></domain>"
NETWORK = NetworkRef(Network.nat, "vmgpu")


def host(**given: float) -> HostRef:
    return HostRef("h", "h", "qemu:///system", "here", NETWORK, "kvm", Path("/nowhere"), **given)  # type: ignore[arg-type]


class Slow:
    """A domain whose start takes so long; libvirt ends it early when it is destroyed."""

    def __init__(self, seconds: float, *, gib: int = 1, xml: str = HOSTDEV, deaf: bool = False) -> None:
        self._seconds, self._gib, self._xml, self._deaf = seconds, gib, xml, deaf
        self._killed, self.running = threading.Event(), False

    def name(self) -> str:
        return "slow"

    def XMLDesc(self, flags: int) -> str:
        return self._xml

    def maxMemory(self) -> int:
        return self._gib * GIB

    def isActive(self) -> bool:
        return self.running

    def create(self) -> None:
        if self._killed.wait(self._seconds):
            raise libvirt.libvirtError("process exited while connecting to monitor")
        self.running = True

    def destroy(self) -> None:
        if self._deaf:
            raise libvirt.libvirtError("cannot acquire state change lock")
        self._killed.set()
        self.running = False


@pytest.mark.parametrize(
    ("gib", "xml", "seconds"), [(200, HOSTDEV, 260), (8, HOSTDEV, 68), (200, "<domain><devices/></domain>", 60)]
)
def test_the_time_grows_with_the_memory_that_is_pinned(gib: int, xml: str, seconds: float) -> None:
    """200 GiB take 90 s on some hosts: they have 260."""
    assert start.seconds_for(Slow(0, gib=gib, xml=xml), host()) == seconds


def test_an_admin_sets_both_parts() -> None:
    assert start.seconds_for(Slow(0, gib=10), host(start_seconds=5, start_seconds_per_gib=0.5)) == 10


def test_a_start_in_time_is_left_running() -> None:
    domain = Slow(0.05)
    start.within(domain, host())
    assert domain.running


def test_a_start_that_takes_too_long_is_broken_off() -> None:
    domain = Slow(60, gib=200)
    with pytest.raises(HostRefused) as refused:
        start.within(domain, host(start_seconds=0.1, start_seconds_per_gib=0))
    assert not domain.running
    why = refused.value.reason
    assert why and why.code is ReasonCode.start_too_long
    assert why.args["memory_gib"] == 200 and "VMGPU_START_TIMEOUT_PER_GIB" in refused.value.hint


def test_a_start_that_ends_well_while_it_is_broken_off_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_ENDING_SECONDS", 1.0)

    class Late(Slow):
        def destroy(self) -> None:
            if not self.running:
                self._seconds = 0
                return  # too early: there was no QEMU yet
            super().destroy()

    domain = Late(0.4)
    with pytest.raises(HostRefused):
        start.within(domain, host(start_seconds=0.1, start_seconds_per_gib=0))
    assert not domain.running


def test_a_host_that_does_not_even_end_it_is_said_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_ENDING_SECONDS", 0.1)
    with pytest.raises(HostRefused, match="broken off"):
        start.within(Slow(60, deaf=True), host(start_seconds=0.1, start_seconds_per_gib=0))


def test_what_libvirt_says_is_passed_on() -> None:
    class Refused(Slow):
        def create(self) -> None:
            raise libvirt.libvirtError("no such device")

    with pytest.raises(libvirt.libvirtError, match="no such device"):
        start.within(Refused(0), host())
