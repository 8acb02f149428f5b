"""The guest agent of a full distribution guest: its connecting is an event, its word is the address on a bridge."""

from __future__ import annotations

import time

import pytest

from tests.hypervisor.live import SpecMaker, wait_address
from vmgpu.hypervisor import ImageRef, Network, NetworkRef, Power, Seed
from vmgpu.hypervisor.kvm import KvmHost
from vmgpu.lab.guestimage import ensure_guest_image

pytestmark = [pytest.mark.libvirt, pytest.mark.guest, pytest.mark.timeout(600)]


def test_the_agent_is_awaited_and_asked(host: KvmHost, make_spec: SpecMaker) -> None:
    image = ImageRef("guest", "guest.qcow2", 2048)
    host.ensure_image(image, ensure_guest_image(), progress=lambda _percent: None)
    seed = Seed({"meta-data": b"instance-id: agent\nlocal-hostname: agent\n", "user-data": b"#cloud-config\n"})
    spec = make_spec(image=image, memory_mib=1024, disk_gib=4, seed=seed)
    host.ensure_disk(spec)
    host.ensure_defined(spec)
    host.ensure_running(spec.id)
    assert host.wait_guest(spec.id, 300), host.console(spec.id).decode(errors="replace")[-3000:]
    assert host.wait_guest(spec.id, 0)
    leased = wait_address(host, spec)
    bridge = NetworkRef(Network.bridge, "any")
    deadline = time.monotonic() + 60
    while (said := host.address(spec.id, spec.mac, bridge)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert said == leased
    assert host.address(spec.id, "52:54:00:00:00:00", bridge) is None
    deadline = time.monotonic() + 120
    while host.look(spec.id).power is not Power.off:
        assert time.monotonic() < deadline, host.console(spec.id).decode(errors="replace")[-3000:]
        host.shutdown(spec.id)  # again and again: nobody in the guest listens for the button until logind is up
        time.sleep(2)
    assert host.look(spec.id).why == "shutdown"
