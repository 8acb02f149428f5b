"""A guest is asked to end, however near its end it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import libvirt
import pytest

from vmgpu.errors import HostRefused
from vmgpu.hypervisor import HostRef, Network, NetworkRef
from vmgpu.hypervisor.domain import MARK
from vmgpu.hypervisor.kvm import KvmHost


class Domain:
    """Refuses to be asked, in the state it is in by then."""

    def __init__(self, state: int) -> None:
        self._state = state

    def metadata(self, kind: int, uri: str) -> str:
        return f"<vm xmlns='{MARK}' installation='here' build='1'/>"

    def state(self) -> list[int]:
        return [self._state, 0]

    def isActive(self) -> bool:
        return self._state != libvirt.VIR_DOMAIN_SHUTOFF

    def shutdownFlags(self, flags: int) -> None:
        raise libvirt.libvirtError("Requested operation is not valid: domain is not running")


def ask(state: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a domain that is in this state to shut down."""
    network = NetworkRef(Network.nat, "vmgpu")
    host = KvmHost(HostRef("h", "h", "qemu:///system", "here", network, "tcg", folder), on_change=lambda _: None)

    class Connection:
        def lookupByUUIDString(self, vm_id: str) -> Domain:
            return Domain(state)

    @contextmanager
    def use() -> Iterator[Connection]:
        try:
            yield Connection()
        except libvirt.libvirtError as refused:
            raise HostRefused(str(refused)) from None

    monkeypatch.setattr(host, "_link", type("Link", (), {"use": staticmethod(use)})())
    host.shutdown("the-vm")


@pytest.mark.parametrize("state", [libvirt.VIR_DOMAIN_SHUTDOWN, libvirt.VIR_DOMAIN_SHUTOFF])
def test_one_that_has_ended_meanwhile_is_no_failure(
    state: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU 10 takes seconds to end after its guest: asked again in between, libvirt says that it does not run."""
    ask(state, tmp_path, monkeypatch)


def test_one_that_runs_and_refuses_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostRefused):
        ask(libvirt.VIR_DOMAIN_RUNNING, tmp_path, monkeypatch)
