"""A simulated host behaves, misbehaves and remembers as a real one does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from vmgpu.errors import HostRefused, HostUnreachable, Invalid, ReasonCode
from vmgpu.hypervisor import (
    Emulated,
    GpuRef,
    HostRef,
    ImageRef,
    Mdev,
    Network,
    NetworkRef,
    Pci,
    Power,
    Seed,
    SliceRef,
    VMSpec,
)
from vmgpu.hypervisor.fake import BASE_VOLUME, FakeAdmin, FakeHost, Mood, fake_admin, open_fake, parse

T = TypeVar("T")
NAT = NetworkRef(Network.nat, "vmgpu")
BASE = ImageRef("base-id", BASE_VOLUME, 2048)
CARD = GpuRef("gpu-1", "emulated", "A100-40GB", "0000:10:00.0")
MOODS = [mood for mood in Mood if mood not in (Mood.unreachable, Mood.mute, Mood.cardless)]
QUICK = {"boot": 0.05, "off": 0.02, "after": 0.05, "pause": 0.0}


def vm_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def spec(number: int = 1, **changes: object) -> VMSpec:
    plain = VMSpec(
        id=vm_id(number),
        name=f"vm{number}",
        title=f"ann/vm{number}",
        installation="here",
        build=1,
        vcpus=2,
        memory_mib=4096,
        disk_gib=10,
        image=BASE,
        mac=f"52:54:00:00:{number // 256:02x}:{number % 256:02x}",
        network=NAT,
        seed=Seed({"user-data": b"#cloud-config\n", "meta-data": b"instance-id: 1\n"}),
        accel="simulated",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def piece(number: int = 1, *, start: int = 0, cells: int = 4, compute: int = 3, gpu: GpuRef = CARD) -> SliceRef:
    return SliceRef(f"slice-{number}", vm_id(number), gpu, "3g.20gb", start, cells, compute, 19968)


@pytest.fixture
def ref(tmp_path: Path) -> HostRef:
    return HostRef("host-1", "h1", "fake://2xA100-40GB", "here", NAT, "auto", tmp_path / "fake")


@pytest.fixture
def opened(ref: HostRef) -> Iterator[Callable[..., FakeHost]]:
    """Opens the host again, as another process of the installation would."""
    hosts: list[FakeHost] = []

    def opened(on_change: Callable[[str], None] = lambda vm: None, **changes: object) -> FakeHost:
        hosts.append(open_fake(replace(ref, **changes), on_change=on_change))  # type: ignore[arg-type]
        return hosts[-1]

    yield opened
    for host in hosts:
        host.close()


@pytest.fixture
def host(opened: Callable[..., FakeHost]) -> FakeHost:
    return opened()


@pytest.fixture
def admin(ref: HostRef) -> Iterator[FakeAdmin]:
    hand = fake_admin(ref)
    hand.set_mood("cheerful", **QUICK)
    yield hand
    hand.close()


def build(host: FakeHost, what: VMSpec) -> None:
    host.ensure_disk(what)
    host.ensure_defined(what)


def bring_up(host: FakeHost, what: VMSpec) -> str:
    build(host, what)
    host.ensure_running(what.id)
    assert host.wait_guest(what.id, 5)
    address = host.address(what.id, what.mac, NAT)
    assert address
    return address


def eventually(true: Callable[[], bool], seconds: float = 5) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def until_it_works(call: Callable[[], T], tries: int = 50) -> T:
    for _ in range(tries):
        try:
            return call()
        except (HostUnreachable, HostRefused):
            continue
    raise AssertionError("it never worked")


class TestTheUri:
    def test_names_cards_and_sizes(self) -> None:
        shape = parse("fake://8xA100-80GB,2xA30?cpus=64&memory=512g&disk=2t&mood=slow")
        assert [card.model.name for card in shape.cards] == ["A100-80GB"] * 8 + ["A30-24GB"] * 2
        assert (shape.threads, shape.memory_mib, shape.disk_mib) == (64, 512 * 1024, 2 * 1024 * 1024)
        assert shape.mood is Mood.slow
        assert len({card.address for card in shape.cards}) == 10
        assert {card.numa_node for card in shape.cards} == {0, 1}

    def test_says_little_and_means_a_large_host(self) -> None:
        shape = parse("fake://A100-40GB")
        assert len(shape.cards) == 1
        assert (shape.threads, shape.memory_mib) == (128, 1024 * 1024)

    @pytest.mark.parametrize("uri", ["fake://", "fake://cpu", "fake://cpu?cpus=1"])
    def test_may_name_no_card(self, uri: str) -> None:
        assert parse(uri).cards == ()

    @pytest.mark.parametrize(
        ("uri", "culprit"),
        [
            ("fake://8xB100", "B100"),
            ("fake://0xA30", "1 to 256"),
            ("fake://9999xA30", "1 to 256"),
            ("fake://A30,,A30", "''"),
            ("fake://A30?mood=grumpy", "grumpy"),
            ("fake://A30?cpus=0", "cpus='0'"),
            ("fake://A30?cpus=٣", "cpus="),
            ("fake://A30?memory=lots", "lots"),
            ("fake://A30?disk=0", "disk='0'"),
            ("fake://A30?colour=red", "colour"),
            ("fake://A30?cpus=1&cpus=2", "twice"),
            ("fake://A30?cpus", "name=value"),
            ("fake://[", "'['"),
            ("qemu:///system", "fake://"),
        ],
    )
    def test_is_refused_with_what_is_wrong_and_what_is_known(self, uri: str, culprit: str) -> None:
        if "mood" in uri:
            with pytest.raises(Invalid, match=culprit) as bad:
                parse(uri)
            assert "cheerful" in bad.value.hint
            return
        with pytest.raises(Invalid) as bad:
            parse(uri)
        assert culprit in bad.value.message
        assert "A100-80GB" in bad.value.hint
        assert "cheerful" in bad.value.hint


class TestACheerfulHost:
    def test_surveys_itself_as_simulated(self, host: FakeHost) -> None:
        facts = host.survey()
        assert facts.libvirt == facts.accel == "simulated"
        assert [gpu.model for gpu in facts.gpus] == ["A100-40GB", "A100-40GB"]
        assert all("simulated" in gpu.name for gpu in facts.gpus)
        assert facts.boot_id == host.boot_id()
        assert facts.numa[1].cpus == "64-127"
        assert host.simulated

    def test_runs_a_vm_and_forgets_it_whole(self, host: FakeHost, admin: FakeAdmin) -> None:
        devices = host.carver("emulated").carve(piece()).devices
        vm = spec(devices=devices)
        build(host, vm)
        assert host.address(vm.id, vm.mac, NAT) is None
        assert (host.look(vm.id).power, host.look(vm.id).why) == (Power.off, "unknown")
        host.ensure_running(vm.id)
        assert host.guest_checked(vm.id, devices) == (False, "none")
        assert host.wait_guest(vm.id, 5)
        address = host.address(vm.id, vm.mac, NAT)
        assert address
        assert address.startswith(("192.0.2.", "198.51.100.", "203.0.113."))
        assert host.address(vm.id, "52:54:00:ff:ff:ff", NAT) is None
        assert host.guest_checked(vm.id, devices) == (True, "seen")
        assert b"vm1 login:" in host.console(vm.id)
        assert host.console(vm.id, limit=3) == host.console(vm.id)[-3:]
        assert admin.seed_of(vm.id)["user-data"] == "#cloud-config\n"
        assert set(host.leftovers(vm.id)) == {"domain", "nvram", "disk", "seed", "console"}

        host.shutdown(vm.id)
        assert eventually(lambda: host.look(vm.id).why == "shutdown")
        host.erase(vm.id)
        host.carver("emulated").release(piece())
        assert host.leftovers(vm.id) == ()
        assert host.look(vm.id).power is Power.absent
        assert admin.everything().leaks() == ()

    def test_takes_each_verb_twice(self, host: FakeHost, admin: FakeAdmin) -> None:
        vm = spec()
        for _ in range(2):
            build(host, vm)
            host.ensure_running(vm.id)
        for _ in range(2):
            host.power_off(vm.id)
        assert host.look(vm.id).why == "destroyed"
        for _ in range(2):
            host.drop_disk(vm.id)
            host.erase(vm.id)
        counts = admin.counts(vm.id)
        assert counts["ensure_running"] == 2
        effects = ("disk_made", "defined", "started", "powered_off", "disk_dropped")
        assert {what: counts[what] for what in effects} == dict.fromkeys(effects, 1)

    def test_gives_each_guest_an_address_of_its_own(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("cheerful", boot=0)
        addresses = [bring_up(host, spec(n)) for n in range(1, 101)]
        assert len(set(addresses)) == 100
        assert all(a.startswith(("192.0.2.", "198.51.100.", "203.0.113.")) for a in addresses)

    def test_needs_the_disk_to_start(self, host: FakeHost, admin: FakeAdmin) -> None:
        build(host, spec())
        admin.delete_disk_by_hand(vm_id(1))
        with pytest.raises(HostRefused) as no:
            host.ensure_running(vm_id(1))
        assert no.value.reason
        assert no.value.reason.code is ReasonCode.disk_gone

    def test_keeps_hands_off_what_runs(self, host: FakeHost, tmp_path: Path) -> None:
        bring_up(host, spec())
        for refused in (
            lambda: host.drop_disk(vm_id(1)),
            lambda: host.copy_flat(vm_id(1), tmp_path / "copy", progress=print),
        ):
            with pytest.raises(HostRefused, match="is running"):
                refused()
        assert host.look(vm_id(1)).power is Power.running

    def test_lets_two_domains_share_neither_name_nor_uuid(self, host: FakeHost) -> None:
        build(host, spec(1))
        with pytest.raises(HostRefused, match="already defined"):
            host.ensure_defined(spec(1, name="other"))
        with pytest.raises(HostRefused, match="another domain"):
            host.ensure_defined(spec(2, name="vm1"))

    def test_does_not_promise_memory_twice(self, opened: Callable[..., FakeHost], admin: FakeAdmin) -> None:
        host = opened(uri="fake://cpu?memory=6g")
        bring_up(host, spec(1))
        build(host, spec(2))
        with pytest.raises(HostRefused, match="memory"):
            host.ensure_running(vm_id(2))
        assert admin.counts()["memory_overrun"] == 1
        assert host.look(vm_id(2)).power is Power.off

    def test_captures_into_an_image_that_boots_again(self, host: FakeHost, admin: FakeAdmin, tmp_path: Path) -> None:
        build(host, spec(1))
        admin.write_in_guest(vm_id(1), "a file of the first")
        seen: list[int] = []
        host.copy_flat(vm_id(1), tmp_path / "copy.qcow2", progress=seen.append)
        assert (tmp_path / "copy.qcow2").read_text().startswith("vmgpu simulated disk\n")
        assert seen == sorted(seen)
        assert seen[-1] == 100

        image = ImageRef("mine", "mine.qcow2", 10240)
        with pytest.raises(HostRefused, match="no volume"):
            host.ensure_disk(spec(2, image=image))
        for _ in range(2):
            host.ensure_image(image, tmp_path / "copy.qcow2", progress=lambda percent: None)
        assert admin.counts()["image_copied"] == 1
        build(host, spec(2, image=image))
        assert admin.read_in_guest(vm_id(2)) == ("a file of the first",)
        with pytest.raises(HostRefused, match="stands on"):
            host.drop_image(image)
        host.drop_disk(vm_id(2))
        host.drop_image(image)
        assert not host.has_image(image)
        assert host.has_image(BASE)

    def test_calls_half_a_copy_no_image(self, host: FakeHost, admin: FakeAdmin, tmp_path: Path) -> None:
        image = ImageRef("mine", "mine.qcow2", 10240)
        (tmp_path / "master").write_text("x")

        def dies(percent: int) -> None:
            if percent >= 50:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            host.ensure_image(image, tmp_path / "master", progress=dies)
        assert admin.everything().images == {"mine.qcow2": 50}
        assert not host.has_image(image)
        host.ensure_image(image, tmp_path / "master", progress=lambda percent: None)
        assert host.has_image(image)

    def test_leaves_what_it_is_not_told_of(self, host: FakeHost, admin: FakeAdmin, tmp_path: Path) -> None:
        (tmp_path / "master").write_text("x")
        mine, theirs = (ImageRef(name, f"{name}.qcow2", 10240) for name in ("mine", "theirs"))
        for image in (mine, theirs):
            host.ensure_image(image, tmp_path / "master", progress=lambda percent: None)
        host.drop_image(mine)
        host.withdraw()
        assert admin.everything().images == {"theirs.qcow2": 100}

    def test_says_which_master_file_is_missing(self, host: FakeHost, tmp_path: Path) -> None:
        with pytest.raises(HostRefused, match=r"none\.qcow2"):
            host.ensure_image(ImageRef("i", "i.qcow2", 1), tmp_path / "none.qcow2", progress=lambda percent: None)

    def test_holds_a_thousand_vms(self, host: FakeHost, admin: FakeAdmin) -> None:
        for n in range(1000):
            admin.define_foreign(f"vm{n}", installation="here", vm_id=vm_id(n))
        began = time.monotonic()
        assert len(host.domains()) == 1000
        assert time.monotonic() - began < 0.2


class TestCutting:
    @pytest.mark.parametrize(
        ("mode", "kind"), [("emulated", Emulated), ("mig", Mdev), ("passthrough", Pci)], ids=lambda value: str(value)
    )
    def test_gives_the_same_device_each_time_and_frees_it_once(
        self, mode: str, kind: type, host: FakeHost, admin: FakeAdmin
    ) -> None:
        carver = host.carver(mode)
        first, again = carver.carve(piece()), carver.carve(piece())
        assert first == again
        assert isinstance(first.devices[0], kind)
        (cut,) = admin.everything().cuts
        assert (cut.vm_id, cut.mode, cut.calls) == (vm_id(1), mode, 2)
        for _ in range(2):
            carver.release(piece())
        assert admin.everything().cuts == ()
        counts = admin.counts(vm_id(1))
        assert (counts["cut"], counts["freed"], counts["release"]) == (1, 1, 2)

    def test_scales_the_emulated_memory(self, host: FakeHost) -> None:
        carver = host.carver("emulated")
        sizes = {
            mib: carver.carve(replace(piece(), memory_mib=mib)).devices[0] for mib in (4864, 19968, 40192, 80 * 1024)
        }
        assert [d.video_mib for d in sizes.values() if isinstance(d, Emulated)] == [16, 64, 128, 256]

    @pytest.mark.parametrize(
        "other",
        [piece(2), piece(2, start=3), piece(2, start=2, cells=1, compute=1), piece(2, start=4, compute=5)],
        ids=["same place", "from inside", "within", "compute"],
    )
    def test_refuses_what_another_vm_has(self, other: SliceRef, host: FakeHost, admin: FakeAdmin) -> None:
        carver = host.carver("emulated")
        carver.carve(piece(1))
        with pytest.raises(HostRefused):
            carver.carve(other)
        assert admin.counts(vm_id(2))["double_carve"] == 1
        assert [cut.vm_id for cut in admin.everything().cuts] == [vm_id(1)]
        carver.carve(piece(2, start=4))
        assert len(admin.everything().cuts) == 2

    def test_refuses_two_modes_on_one_card(self, host: FakeHost) -> None:
        host.carver("passthrough").carve(piece(1, cells=1, compute=1))
        with pytest.raises(HostRefused, match="already cut"):
            host.carver("emulated").carve(piece(2, start=4))

    @pytest.mark.parametrize(
        "wrong",
        [piece(start=5), piece(cells=0), piece(start=-1), piece(gpu=replace(CARD, address="0000:99:00.0"))],
        ids=["past the end", "nothing", "before", "no card"],
    )
    def test_refuses_what_no_card_has(self, wrong: SliceRef, host: FakeHost, admin: FakeAdmin) -> None:
        with pytest.raises(HostRefused):
            host.carver("emulated").carve(wrong)
        assert admin.everything().cuts == ()

    def test_does_not_take_another_vms_cut_away(self, host: FakeHost, admin: FakeAdmin) -> None:
        host.carver("emulated").carve(piece(1))
        host.carver("emulated").release(piece(2))
        assert admin.counts()["freed"] == 0
        assert len(admin.everything().cuts) == 1

    def test_starts_no_guest_whose_card_is_not_cut(self, host: FakeHost, admin: FakeAdmin) -> None:
        build(host, spec(devices=(Mdev("0"),)))
        with pytest.raises(HostRefused, match="not cut"):
            host.ensure_running(vm_id(1))
        assert admin.counts()["uncut_device"] == 1

    def test_shows_in_the_guest_only_what_the_domain_was_defined_with(self, host: FakeHost, admin: FakeAdmin) -> None:
        devices = host.carver("emulated").carve(piece()).devices
        bring_up(host, spec())
        with pytest.raises(HostRefused, match="does not show"):
            host.guest_checked(vm_id(1), devices)

    def test_does_not_free_what_a_guest_uses(self, host: FakeHost, admin: FakeAdmin) -> None:
        bring_up(host, spec(devices=host.carver("emulated").carve(piece()).devices))
        with pytest.raises(HostRefused, match="in use"):
            host.carver("emulated").release(piece())
        host.power_off(vm_id(1))
        host.carver("emulated").release(piece())
        assert admin.counts()["freed"] == 1

    def test_happens_once_however_many_ask_at_once(self, opened: Callable[..., FakeHost], admin: FakeAdmin) -> None:
        hosts = [opened() for _ in range(4)]

        def cut(number: int) -> bool:
            try:
                hosts[number % 4].carver("emulated").carve(piece(number, start=4 * (number % 2)))
            except HostRefused:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(cut, range(1, 41)))
        assert sum(won) == 2
        assert admin.counts()["cut"] == 2
        assert admin.counts()["double_carve"] == 38

    def test_is_not_known_in_an_unheard_mode(self, host: FakeHost) -> None:
        with pytest.raises(HostRefused, match="quantum"):
            host.carver("quantum")


class TestItsMoods:
    @pytest.mark.parametrize("mood", MOODS)
    def test_are_all_survived_by_asking_again(self, mood: Mood, host: FakeHost, admin: FakeAdmin) -> None:
        """The story of one VM, told by somebody who repeats each sentence until it is heard."""
        numbers = QUICK | ({"pause": 0.01} if mood is Mood.slow else {})
        admin.set_mood(mood, **numbers)
        waker = threading.Timer(0.1, admin.wake)
        waker.start()
        carver, vm = host.carver("emulated"), spec()
        devices = until_it_works(lambda: carver.carve(piece())).devices
        vm = spec(devices=devices)
        until_it_works(lambda: host.ensure_disk(vm))
        calm = 0
        while calm < 5:  # five looks in a row at a running guest: the mood has nothing more in store
            until_it_works(lambda: host.ensure_defined(vm))
            until_it_works(lambda: host.ensure_running(vm.id))
            calm = calm + 1 if until_it_works(lambda: host.wait_guest(vm.id, 1)) else 0
            time.sleep(0.02)
        assert until_it_works(lambda: host.guest_checked(vm.id, devices)) == (True, "seen")
        until_it_works(lambda: host.erase(vm.id))
        until_it_works(lambda: carver.release(piece()))
        waker.join()
        assert admin.everything().leaks() == ()
        counts = admin.counts(vm.id)
        assert (counts["disk_made"], counts["cut"], counts["freed"]) == (1, 1, 1)
        sign = {
            Mood.forgetful: counts["reply_lost"] >= 1,
            Mood.refusing: counts["ensure_running"] > 5 and counts["started"] == 1,
            Mood.crashing: counts["guest_crashed"] == 1 and counts["started"] == 2,
            Mood.restless: counts["guest_off"] == 1 and counts["started"] == 2,
            Mood.amnesic: counts["lost_by_hand"] == 1 and counts["defined"] == 2,
            Mood.rebooting: admin.counts()["rebooted"] == 1 and counts["started"] == 2,
        }
        assert sign.get(mood, counts["started"] == 1), counts

    def test_slow_takes_its_time(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("slow", pause=0.05)
        began = time.monotonic()
        host.boot_id()
        assert time.monotonic() - began >= 0.05
        build(host, spec())
        host.ensure_running(vm_id(1))
        assert not host.wait_guest(vm_id(1), 0.3)

    def test_forgetful_does_the_work_and_loses_the_reply(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("forgetful", every=1)
        with pytest.raises(HostUnreachable, match="lost"):
            host.ensure_disk(spec())
        assert host.has_disk(vm_id(1))
        host.ensure_disk(spec())
        assert admin.counts()["disk_made"] == 1

    def test_forgetful_lets_a_step_of_three_changes_end(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("forgetful", **QUICK)

        def step() -> None:
            build(host, spec())
            host.ensure_running(vm_id(1))

        until_it_works(step, tries=5)

    def test_refusing_refuses_each_vm_once(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("refusing", **QUICK)
        for n in (1, 2):
            build(host, spec(n))
            with pytest.raises(HostRefused, match="process exited"):
                host.ensure_running(vm_id(n))
            assert host.look(vm_id(n)).power is Power.off
            host.ensure_running(vm_id(n))

    def test_unreachable_answers_nothing_and_changes_nothing(
        self, host: FakeHost, admin: FakeAdmin, tmp_path: Path
    ) -> None:
        bring_up(host, spec())
        carver = host.carver("emulated")
        before = admin.everything()
        admin.set_mood("unreachable")
        calls: list[Callable[[], object]] = [
            host.survey,
            host.withdraw,
            host.boot_id,
            host.domains,
            lambda: host.has_image(BASE),
            lambda: host.ensure_image(ImageRef("i", "i", 1), tmp_path, progress=print),
            lambda: host.drop_image(BASE),
            lambda: host.ensure_disk(spec(2)),
            lambda: host.drop_disk(vm_id(2)),
            lambda: host.has_disk(vm_id(1)),
            lambda: host.ensure_defined(spec(2)),
            lambda: host.ensure_running(vm_id(1)),
            lambda: host.look(vm_id(1)),
            lambda: host.shutdown(vm_id(1)),
            lambda: host.power_off(vm_id(1)),
            lambda: host.erase(vm_id(1)),
            lambda: host.leftovers(vm_id(1)),
            lambda: host.address(vm_id(1), spec().mac, NAT),
            lambda: host.wait_guest(vm_id(1), 1),
            lambda: host.guest_checked(vm_id(1), ()),
            lambda: host.console(vm_id(1)),
            lambda: host.copy_flat(vm_id(1), tmp_path / "x", progress=print),
            lambda: carver.carve(piece()),
            lambda: carver.release(piece()),
        ]
        for call in calls:
            with pytest.raises(HostUnreachable):
                call()
        assert admin.everything() == before
        admin.set_mood("cheerful")
        assert host.look(vm_id(1)).power is Power.running

    def test_hanging_holds_one_call_and_no_other(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("hanging", **QUICK)
        build(host, spec(1))
        with ThreadPoolExecutor(1) as pool:
            hung = pool.submit(host.ensure_running, vm_id(1))
            assert eventually(lambda: admin.counts()["hung"] == 1)
            bring_up(host, spec(2))
            assert not hung.done()
            assert host.look(vm_id(1)).power is Power.off
            admin.wake()
            hung.result(timeout=5)
        assert host.look(vm_id(1)).power is Power.running

    def test_hanging_ends_with_the_connection(self, opened: Callable[..., FakeHost], admin: FakeAdmin) -> None:
        admin.set_mood("hanging", **QUICK)
        host = opened()
        build(host, spec(1))
        with ThreadPoolExecutor(1) as pool:
            hung = pool.submit(host.ensure_running, vm_id(1))
            assert eventually(lambda: admin.counts()["hung"] == 1)
            host.close()
            with pytest.raises(HostUnreachable):
                hung.result(timeout=5)

    def test_crashing_leaves_a_crashed_domain(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("crashing", **QUICK)
        bring_up(host, spec())
        assert eventually(lambda: host.look(vm_id(1)).power is Power.crashed)
        assert host.look(vm_id(1)).why == "crashed"

    def test_rebooting_changes_the_boot_id_and_stops_all(self, host: FakeHost, admin: FakeAdmin) -> None:
        before = host.boot_id()
        bring_up(host, spec(1))
        admin.set_mood("rebooting", **QUICK)
        bring_up(host, spec(2))
        assert eventually(lambda: host.boot_id() != before)
        assert {d.why for d in host.domains()} == {"unknown"}
        assert admin.everything().running() == frozenset()

    def test_amnesic_keeps_the_disk(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("amnesic", **QUICK)
        bring_up(host, spec())
        assert eventually(lambda: host.look(vm_id(1)).power is Power.absent)
        assert host.has_disk(vm_id(1))

    def test_cardless_fails_the_check_with_its_reason(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("cardless", **QUICK)
        devices = host.carver("emulated").carve(piece()).devices
        bring_up(host, spec(1, devices=devices))
        with pytest.raises(HostRefused) as no:
            host.guest_checked(vm_id(1), devices)
        assert no.value.reason
        assert no.value.reason.code is ReasonCode.card_missing
        bring_up(host, spec(2))
        assert host.guest_checked(vm_id(2), ()) == (True, "none")

    def test_mute_guests_run_without_an_address(self, host: FakeHost, admin: FakeAdmin) -> None:
        admin.set_mood("mute", **QUICK)
        build(host, spec())
        host.ensure_running(vm_id(1))
        assert not host.wait_guest(vm_id(1), 0.2)
        assert host.address(vm_id(1), spec().mac, NAT) is None
        assert host.look(vm_id(1)).power is Power.running

    def test_come_from_the_uri_first_and_from_the_admin_later(
        self, opened: Callable[..., FakeHost], ref: HostRef
    ) -> None:
        unkind = f"{ref.uri}?mood=unreachable"
        host = opened(uri=unkind)
        with pytest.raises(HostUnreachable):
            host.boot_id()
        hand = fake_admin(replace(ref, uri=unkind))
        hand.set_mood("cheerful")
        opened(uri=unkind).boot_id()
        host.boot_id()
        hand.close()

    @pytest.mark.parametrize(("mood", "numbers"), [("grumpy", {}), ("slow", {"speed": 1}), ("slow", {"boot": -1})])
    def test_must_be_known(self, mood: str, numbers: dict[str, float], admin: FakeAdmin) -> None:
        with pytest.raises(Invalid):
            admin.set_mood(mood, **numbers)
        assert admin.mood().mood is Mood.cheerful


class TestAHandAtTheHost:
    @pytest.mark.parametrize(
        ("act", "power", "why"),
        [
            ("power_off_by_hand", Power.off, "destroyed"),
            ("guest_poweroff", Power.off, "shutdown"),
            ("guest_crash", Power.crashed, "crashed"),
            ("undefine_by_hand", Power.absent, ""),
        ],
    )
    def test_is_seen_and_told(
        self, act: str, power: Power, why: str, opened: Callable[..., FakeHost], admin: FakeAdmin
    ) -> None:
        told: list[str] = []
        host = opened(told.append)
        bring_up(host, spec())
        assert eventually(lambda: told != [])
        time.sleep(0.25)
        told.clear()
        getattr(admin, act)(vm_id(1))
        assert (host.look(vm_id(1)).power, host.look(vm_id(1)).why) == (power, why)
        began = time.monotonic()
        assert not host.wait_guest(vm_id(1), 5)
        assert time.monotonic() - began < 2
        assert host.has_disk(vm_id(1))
        assert eventually(lambda: told == [vm_id(1)])

    def test_is_told_though_a_listener_fails(self, opened: Callable[..., FakeHost], admin: FakeAdmin) -> None:
        told: list[str] = []

        def listener(vm: str) -> None:
            told.append(vm)
            raise RuntimeError("a bug of the listener")

        opened(listener)
        for n in (1, 2):
            admin.define_foreign(f"f{n}", vm_id=vm_id(n))
            assert eventually(lambda n=n: vm_id(n) in told)  # type: ignore[misc]

    def test_is_told_after_the_host_was_out_of_reach(self, opened: Callable[..., FakeHost], admin: FakeAdmin) -> None:
        told: list[str] = []
        opened(told.append)
        admin.set_mood("unreachable")
        vm = admin.define_foreign("theirs")
        time.sleep(0.3)
        assert told == []
        admin.set_mood("cheerful")
        assert eventually(lambda: told == [vm])

    def test_keeps_foreign_domains_from_us(self, host: FakeHost, admin: FakeAdmin) -> None:
        theirs = admin.define_foreign("theirs")
        for touch in (host.power_off, host.shutdown, host.erase, host.ensure_running, host.drop_disk):
            with pytest.raises(HostRefused, match="belongs to"):
                touch(theirs)
        seen = host.look(theirs)
        assert (seen.power, seen.installation) == (Power.running, None)
        assert admin.counts()["foreign_touched"] == 5
        admin.reboot_host()
        assert admin.everything().leaks() == ()

    def test_loses_cuts_only_when_asked(self, host: FakeHost, admin: FakeAdmin) -> None:
        host.carver("mig").carve(piece())
        admin.reboot_host()
        assert len(admin.everything().cuts) == 1
        admin.lose_cuts()
        assert admin.everything().cuts == ()

    def test_finds_what_leaked(self, host: FakeHost, admin: FakeAdmin) -> None:
        bring_up(host, spec(1, devices=host.carver("emulated").carve(piece()).devices))
        kinds = {leak.split()[0] for leak in admin.everything().leaks()}
        assert kinds == {"domain", "cut", "disks", "seeds", "nvram", "consoles", "leases"}
        assert admin.everything().leaks({vm_id(1)}) == ()


def _work_until_killed(ref: HostRef, ready: str) -> None:
    host = open_fake(ref, on_change=lambda vm: None)
    bring_up(host, spec())
    Path(ready).touch()
    while True:
        host.ensure_disk(spec(2))
        host.drop_disk(vm_id(2))


def _start_many(ref: HostRef, first: int) -> None:
    host = open_fake(ref, on_change=lambda vm: None)
    for number in range(first, first + 10):
        build(host, spec(number))
        host.ensure_running(vm_id(number))
    host.ensure_disk(spec(1))
    host.close()


@pytest.mark.slow
class TestItsState:
    def test_outlives_a_killed_process(self, ref: HostRef, opened: Callable[..., FakeHost], tmp_path: Path) -> None:
        ready = tmp_path / "ready"
        process = multiprocessing.get_context("spawn").Process(target=_work_until_killed, args=(ref, str(ready)))
        process.start()
        assert process.pid
        assert eventually(ready.exists, 20)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        host = opened()
        assert host.look(vm_id(1)).power is Power.running
        assert host.guest_checked(vm_id(1), ()) == (True, "none")
        host.ensure_disk(spec(2))

    def test_is_shared_by_processes_that_open_it_at_once(self, ref: HostRef, opened: Callable[..., FakeHost]) -> None:
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_start_many, args=(ref, 10 + 10 * n)) for n in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0]
        assert sum(d.power is Power.running for d in opened().domains()) == 30
        hand = fake_admin(ref)
        assert hand.counts(vm_id(1))["disk_made"] == 1
        hand.close()

    def test_is_readable_by_its_owner_alone(self, host: FakeHost, ref: HostRef) -> None:
        (file,) = ref.state_dir.glob("*.sqlite")
        assert file.stat().st_mode & 0o077 == 0

    def test_is_one_file_for_each_host_name(self, opened: Callable[..., FakeHost], ref: HostRef) -> None:
        opened(name="../h2")
        opened(name="h1")
        assert sorted(file.name for file in ref.state_dir.glob("*.sqlite")) == ["..%2Fh2.sqlite", "h1.sqlite"]

    def test_that_cannot_be_read_is_a_host_out_of_reach(self, opened: Callable[..., FakeHost], ref: HostRef) -> None:
        ref.state_dir.mkdir(parents=True)
        (ref.state_dir / "h1.sqlite").write_bytes(b"no database" * 1000)
        with pytest.raises(HostUnreachable, match=r"h1\.sqlite"):
            opened()

    def test_is_let_go_on_close(self, host: FakeHost) -> None:
        host.close()
        host.close()
        with pytest.raises(HostUnreachable):
            host.boot_id()
