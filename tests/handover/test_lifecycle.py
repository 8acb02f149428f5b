"""What a guest, a hand or a night does to a VM that holds a card: who has the card afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import libvirt
import pytest

from tests.gpuhost.machine import OpenMachine as Open
from tests.handover import hosts
from tests.site import Site
from vmgpu.errors import HostRefused
from vmgpu.hypervisor import HostRef, Network, NetworkRef
from vmgpu.hypervisor.domain import MARK
from vmgpu.hypervisor.fake import FakeHost
from vmgpu.hypervisor.kvm import KvmHost
from vmgpu.models import VMState

RUNNING, PENDING, STOPPED, GONE = VMState.running, VMState.pending, VMState.stopped, VMState.gone


class TestAGuestThatPowersItselfOff:
    """F04: its card is its own as long as the policy says, and another's after; never both."""

    def test_keeps_its_card_for_a_while(self, site: Site, machine: Open) -> None:
        bench = site.take_in(machine(hosts.one_t4()), mode="passthrough")
        site.ask("whole", "first")
        first = site.reaches(RUNNING, "first")
        card = bench.functions(first.id)
        site.ask("whole", "second")
        site.waits("second")
        site.hands["gpu1"].guest_poweroff(first.id)
        site.reaches(STOPPED, "first")
        assert site.show("first")["keeps_slices_until"] and site.show("first")["reason"]["code"] == "stopped_by_guest"
        assert site.vm("second").state is PENDING
        site.rest("POST", "/vms/first/start")
        site.reaches(RUNNING, "first")
        assert bench.functions(first.id) == card and site.vm("second").state is PENDING

    def test_or_gives_it_back_and_its_start_queues(self, site: Site, machine: Open) -> None:
        bench = site.take_in(machine(hosts.one_t4()), mode="passthrough")
        site.ask("whole", "first", on_stop="release")
        first = site.reaches(RUNNING, "first")
        site.ask("whole", "second")
        site.waits("second")
        site.hands["gpu1"].guest_poweroff(first.id)
        second = site.reaches(RUNNING, "second")
        site.rest("POST", "/vms/first/start")
        assert site.waits("first")["code"] in ("no_slice_free", "disk_elsewhere")
        assert site.show("first")["position"] == 1
        assert list(bench.running) == [second.id]
        site.rest("POST", "/vms/second/release")
        site.reaches(RUNNING, "first")


def test_a_new_place_leaves_nothing_of_the_old_one(site: Site, machine: Open) -> None:
    """F05: B had a card that is A's now. B's start brings B the other card alone, and A is not touched."""
    bench = site.take_in(machine(hosts.two_p4()), mode="passthrough")
    site.ask("whole", "b")
    b = site.reaches(RUNNING, "b")
    before = bench.functions(b.id)
    site.rest("POST", "/vms/b/stop", {"slices": "release"})
    site.until(lambda: site.vm("b").state is STOPPED and not site.slices("b"))
    assert site.vm("b").devices == []
    site.ask("whole", "a")
    a = site.reaches(RUNNING, "a")
    assert bench.functions(a.id) == before
    described, booted = bench.xml[a.id], site.vm("a").state_since
    site.rest("POST", "/vms/b/start")
    site.reaches(RUNNING, "b")
    (now,) = bench.functions(b.id)
    assert now not in before
    assert [each["address"] for each in site.vm("b").devices] == [now[0]]
    assert (bench.xml[a.id], site.vm("a").state_since, site.vm("a").state) == (described, booted, RUNNING)


def test_a_layout_that_a_reboot_took_is_made_again_before_its_vms_start(site: Site, machine: Open) -> None:
    """F10: MIG mode, functions and vGPUs are gone after the night. What stopped VMs hold is kept and counted."""
    bench = site.take_in(machine("h100"), mode="mig")
    names = ("s1", "s2")
    site.ask("1g.10gb", *names)
    for name in names:
        site.reaches(RUNNING, name)
        site.rest("POST", f"/vms/{name}/stop", {"slices": "keep"})
    for name in names:
        site.reaches(STOPPED, name)
    free = site.cards()[0]["free"]
    assert free["1g.10gb"] == 5
    site.reboot()
    state = bench.model.state()["cards"]
    assert all(not card["vfs"] and card["mig"] == [False, False] and not card["vgpus"] for card in state.values())
    site.until(lambda: site.cards()[0]["to_cut_again"] == ["1g.10gb"] * 2)
    assert site.cards()[0]["free"] == free and len(site.cards()[0]["slices"]) == 2
    site.rest("POST", "/vms/s2/start")
    site.reaches(RUNNING, "s2")
    (cut,) = site.show("s2")["slices"]
    (card,) = bench.model.state()["cards"].values()
    assert [start for _, _, start in card["instances"]] == [cut["start"]]
    assert site.cards()[0]["to_cut_again"] == ["1g.10gb"]


def test_a_host_without_mediated_devices_is_cut_by_the_drivers_own_files(site: Site, machine: Open) -> None:
    """F11: the function itself goes in, unmanaged and never rebound; its type is cleared once QEMU has gone."""
    bench = site.take_in(machine("l40s"), mode="vgpu")
    cleared_under: list[list[str]] = []
    call = bench.machine.ctl.call

    def watched(verb: str, arguments: Any = None, timeout: float | None = None) -> dict[str, Any]:
        if verb == "vgpu" and (arguments or {}).get("action") == "clear":
            cleared_under.append(list(bench.running))
        return call(verb, arguments, timeout)

    bench.machine.ctl.call = watched  # type: ignore[method-assign]
    site.ask("L40S-8Q", "s1")
    vm = site.reaches(RUNNING)
    site.survey()
    assert (site.cards()[0]["framework"], bench.mdevs(vm.id)) == ("vfio", [])
    ((function, managed),) = bench.functions(vm.id)
    assert managed == "no" and bench.libvirt.driver(function) == "nvidia"
    assert [vgpu["type"] for vgpu in bench.vgpus()] == ["NVIDIA L40S-8Q"]
    site.rest("POST", "/vms/s1/release")
    site.reaches(GONE)
    assert cleared_under == [[]] and bench.vgpus() == []


class _Domain:
    """A UEFI domain that libvirt undefines by flags alone."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def metadata(self, kind: int, uri: str) -> str:
        return f"<vm xmlns='{MARK}' installation='here' build='1'/>"

    def isActive(self) -> bool:
        return False

    def isPersistent(self) -> bool:
        return not self.asked

    def destroy(self) -> None:
        raise libvirt.libvirtError("Requested operation is not valid: domain is not running")

    def undefine(self) -> None:
        raise libvirt.libvirtError("Requested operation is not valid: cannot undefine domain with nvram")

    def undefineFlags(self, flags: int) -> None:
        self.asked.append(flags)


class TestAUefiVm:
    """F17: plain undefine is refused where there is NVRAM, a snapshot, a managed save or a checkpoint."""

    def test_is_undefined_in_one_call_with_all_flags(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        network = NetworkRef(Network.nat, "vmgpu")
        host = KvmHost(HostRef("h", "h", "qemu:///system", "here", network, "tcg", tmp_path), on_change=lambda _: None)
        domain, swept = _Domain(), list[str]()

        class Connection:
            def lookupByUUIDString(self, vm_id: str) -> _Domain:
                return domain

        @contextmanager
        def use() -> Iterator[Connection]:
            yield Connection()

        class Pool:
            def sweep(self, vm_id: str) -> None:
                swept.append(vm_id)

        monkeypatch.setattr(host, "_link", type("Link", (), {"use": staticmethod(use)})())
        monkeypatch.setattr(host, "_pool", lambda connection: Pool())
        host.erase("the-vm")
        (flags,) = domain.asked
        for needed in ("NVRAM", "MANAGED_SAVE", "SNAPSHOTS_METADATA", "CHECKPOINTS_METADATA"):
            assert flags & getattr(libvirt, f"VIR_DOMAIN_UNDEFINE_{needed}"), needed
        assert swept == ["the-vm"]

    def test_whose_undefine_fails_keeps_its_card_and_is_tried_again(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = "Requested operation is not valid: cannot undefine domain with nvram"
        hand = site.host()
        vm = site.request("s1", "7g.40gb")
        site.reaches(RUNNING)
        site.request("next", "7g.40gb")
        _, unlock = _lock(monkeypatch, vm.id, words, "erase")
        site.rest("POST", "/vms/s1/release")
        site.until(lambda: bool(site.vm().reason and words in str(site.vm().reason)))
        assert site.vm().state is VMState.releasing
        assert words in site.show("s1")["reason"]["sentence"]
        assert len(site.slices()) == 1 and vm.id in hand.everything().running()
        assert site.vm("next").state is PENDING
        unlock()
        site.reaches(GONE)
        assert "nvram " + vm.id not in hand.everything().leaks()
        site.reaches(RUNNING, "next")


def _lock(
    monkeypatch: pytest.MonkeyPatch, vm_id: str, words: str, *verbs: str
) -> tuple[list[str], Callable[[], object]]:
    """From now on the host refuses these verbs for one VM: what is asked of it, and how that ends."""
    asked: list[str] = []
    locked = [vm_id]

    def refusing(verb: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: FakeHost, about: str, *args: Any, **named: Any) -> Any:
            if about not in locked:
                return plain(self, about, *args, **named)
            asked.append(verb)
            raise HostRefused(words)

        return call

    for verb in verbs:
        monkeypatch.setattr(FakeHost, verb, refusing(verb, getattr(FakeHost, verb)))
    return asked, locked.clear


def test_a_domain_whose_lock_is_held_for_ever_holds_up_no_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """F18: QEMU was killed during a snapshot, and each call for that domain times out. Only that VM is stuck."""
    words = (
        "Timed out during operation: cannot acquire state change lock "
        "(held by monitor=remoteDispatchDomainSnapshotCreateXML)"
    )
    hand = site.host("h1", "2xA100-40GB")
    vm = site.request("stuck", "7g.40gb")
    site.reaches(RUNNING, "stuck")
    every = ("look", "shutdown", "power_off", "copy_flat", "erase", "ensure_running", "address")
    asked, unlock = _lock(monkeypatch, vm.id, words, *every)
    site.rest("POST", "/vms/stuck/snapshot", {"image": "team/x:1"}, 202)
    site.until(lambda: "state change lock" in str(site.vm("stuck").reason))
    assert "state change lock" in site.show("stuck")["reason"]["sentence"]
    site.request("other", "7g.40gb")
    site.reaches(RUNNING, "other")
    site.rest("POST", "/vms/other/stop", {"slices": "release"})
    site.reaches(STOPPED, "other")
    assert site.vm("stuck").state not in (RUNNING, GONE) or site.slices("stuck")
    assert len(site.slices("stuck")) == 1 and "copy_flat" not in asked
    images = {image["name"]: image["state"] for image in site.rest("GET", "/images")["items"]}
    assert images["team/x:1"] == "failed"
    assert hand.counts(vm.id)["started"] == 1
    unlock()


def test_a_vm_removed_behind_our_back_frees_its_card_once(site: Site) -> None:
    """F23: `virsh destroy; virsh undefine` by an admin. Its disk stays until somebody releases the record."""
    hand = site.host()
    vm = site.request("s1", "7g.40gb")
    site.reaches(RUNNING)
    site.request("next", "7g.40gb")
    site.waits("next")
    hand.undefine_by_hand(vm.id)
    site.reaches(VMState.lost)
    said = site.show("s1")
    assert (said["state"], said["reason"]["code"]) == ("lost", "domain_gone")
    assert "disk is kept" in said["reason"]["sentence"] and "release" in said["reason"]["cure"]
    site.reaches(RUNNING, "next")
    assert hand.counts(vm.id)["freed"] == 1
    assert vm.id in hand.everything().disks
    site.rest("POST", "/vms/s1/release")
    site.reaches(GONE)
    assert vm.id not in hand.everything().disks
    assert hand.counts(vm.id)["freed"] == 1
