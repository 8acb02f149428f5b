"""Guests with cards need all of their memory at once."""

from __future__ import annotations

from types import SimpleNamespace

from tests.gpuhost.machine import OpenMachine as Open
from tests.handover import hosts
from tests.site import Site
from vmgpu.hypervisor import HostRef, Network, NetworkRef, start
from vmgpu.models import VMState
from vmgpu.settings import Settings


def test_memory_is_never_promised_twice_and_the_host_keeps_its_own(site: Site) -> None:
    """F22: three guests of 96 GiB on 256 GiB. The third waits for memory, though a card is free."""
    site.host("h1", "3xA100-80GB?memory=256g")
    flavor = {"name": "big", "vcpus": 1, "memory": "96g", "disk": "2g", "profile": "7g.80gb"}
    site.rest("POST", "/flavors", flavor, 201)
    for name in ("s1", "s2", "s3"):
        site.rest("POST", "/vms", {"name": name, "flavor": "big", "image": "base"}, 202)
    for name in ("s1", "s2"):
        site.reaches(VMState.running, name)
    reason = site.waits("s3")
    assert reason["code"] == "no_host_memory"
    free_mib = 256 * 1024 - -(-256 * 1024 // 20) - 2 * 96 * 1024
    assert f"{96 * 1024} MiB" in reason["sentence"] and f"{free_mib} MiB" in reason["sentence"]
    site.rest("POST", "/vms/s1/release")
    site.reaches(VMState.running, "s3")


def test_a_guest_with_a_card_has_no_balloon_and_time_for_its_memory(site: Site, machine: Open) -> None:
    """F22: 200 GiB take 90 s to pin, and are given more than that; without a card the time does not grow.

    tests/hypervisor/test_start.py breaks off a start that takes longer, and sees that no half-started domain stays.
    """
    bench = site.take_in(machine(hosts.one_t4()), mode="passthrough")
    site.ask("whole", "s1")
    described = bench.xml[site.reaches(VMState.running).id]
    assert '<memballoon model="none"/>' in described
    for never in ("<locked", "hard_limit", "<currentMemory"):
        assert never not in described
    settings = Settings(data_dir=site.settings.data_dir)
    ref = HostRef(
        *("h", "h", "qemu:///system", "here", NetworkRef(Network.nat, "vmgpu"), "kvm", settings.data_dir),
        start_seconds=settings.start_timeout.total_seconds(),
        start_seconds_per_gib=settings.start_timeout_per_gib.total_seconds(),
    )
    with_card = SimpleNamespace(XMLDesc=lambda flags: described, maxMemory=lambda: 200 << 20)
    without = SimpleNamespace(XMLDesc=lambda flags: "<domain><devices/></domain>", maxMemory=lambda: 200 << 20)
    assert start.seconds_for(with_card, ref) > 90 + start.seconds_for(without, ref)
