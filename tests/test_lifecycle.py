"""Every step of every state, with plain values and a host on paper: no database, no thread, no clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import CUT, DEVICE, NOON, PlayedWorld, a_view
from vmgpu import guest
from vmgpu.errors import HostRefused, HostUnreachable, ReasonCode, reason
from vmgpu.hypervisor import Power
from vmgpu.leases import lease, next_moment, passed
from vmgpu.lifecycle import ALWAYS, MOVES, STEPS, steer
from vmgpu.models import CopyState, OnStop, VMState, Wanted
from vmgpu.settings import Settings
from vmgpu.steps import Fail, Hop, Nap
from vmgpu.views import VMView, devices_as

S = VMState
MINUTES = timedelta(minutes=1)
HOURS = timedelta(hours=1)
DAYS = timedelta(days=1)
Play = Callable[..., PlayedWorld]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return lambda **given: PlayedWorld(tmp_path, **given)


def step(vm: VMView, world: Any) -> Any:
    """What follows; wherever it hops must be on the map."""
    done = STEPS[vm.state].run(vm, world)
    assert not isinstance(done, Hop) or done.state in MOVES[vm.state] | ALWAYS
    return done


def code(outcome: Any) -> ReasonCode | None:
    return outcome.because.code if outcome.because else None


class TestTheMap:
    def test_every_state_has_its_moves(self) -> None:
        assert set(MOVES) == set(VMState)

    def test_every_state_but_the_queue_and_the_end_has_a_step(self) -> None:
        assert set(STEPS) == set(VMState) - {S.pending, S.gone}

    def test_the_end_is_the_end(self) -> None:
        assert MOVES[S.gone] == frozenset()
        assert not any(S.gone in moves for state, moves in MOVES.items() if state is not S.releasing)

    def test_nobody_goes_straight_to_a_host_but_the_leader(self) -> None:
        """carving is reached from the queue, or by a VM that holds its slices."""
        assert {state for state, moves in MOVES.items() if S.carving in moves} == {S.pending, S.stopped}

    def test_each_way_is_short_enough_to_be_watched(self) -> None:
        assert all(timedelta(0) < one.within <= timedelta(hours=1) for one in STEPS.values())


WISHES = {
    # (wanted, state): where the wish pulls a VM that holds its slices and has no other wish
    **{(Wanted.gone, state): S.releasing for state in VMState if state not in (S.releasing, S.gone)},
    (Wanted.stopped, S.pending): S.stopped,
    (Wanted.stopped, S.carving): S.stopping,
    (Wanted.stopped, S.building): S.stopping,
    (Wanted.stopped, S.booting): S.stopping,
    (Wanted.stopped, S.checking): S.stopping,
    (Wanted.stopped, S.running): S.stopping,
    (Wanted.running, S.stopped): S.carving,
}


class TestWishes:
    @pytest.mark.parametrize(("wanted", "state"), list(product(Wanted, VMState)))
    def test_pull_from_each_state(self, wanted: Wanted, state: VMState) -> None:
        hop = steer(a_view(wanted=wanted, state=state))
        assert (hop.state if hop else None) == WISHES.get((wanted, state))

    @pytest.mark.parametrize(
        ("given", "state"),
        [
            ({"state": S.stopped, "holds": False, "slices": ()}, S.pending),
            ({"state": S.failed, "holds": False, "slices": ()}, S.pending),
            ({"state": S.lost, "holds": False, "slices": ()}, S.pending),
            ({"state": S.failed, "holds": True, "slices": ()}, None),
            ({"state": S.lost, "holds": False, "slices": (CUT,)}, None),
            ({"state": S.running, "build": 2}, S.building),
            ({"state": S.running, "boots": 2}, S.booting),
            ({"state": S.running, "build": 2, "boots": 2}, S.building),
            ({"state": S.running, "capture_as": "image-2"}, S.capturing),
            ({"state": S.running, "capture_as": "image-2", "wanted": Wanted.stopped}, S.capturing),
            ({"state": S.stopped, "capture_as": "image-2", "wanted": Wanted.stopped}, S.capturing),
            ({"state": S.booting, "capture_as": "image-2"}, None),
            ({"state": S.running, "capture_as": "image-2", "wanted": Wanted.gone}, S.releasing),
            ({"state": S.booting, "boots": 2, "booted": 1}, None),
        ],
    )
    def test_with_more_to_be_wished(self, given: dict[str, Any], state: VMState | None) -> None:
        hop = steer(a_view(**given))
        assert (hop.state if hop else None) == state

    @pytest.mark.parametrize("state", VMState)
    def test_never_pull_off_the_map(self, state: VMState) -> None:
        names = ("wanted", "holds", "slices", "capture_as", "build", "boots")
        for values in product(Wanted, (True, False), ((CUT,), ()), (None, "image-2"), (1, 2), (1, 2)):
            given: dict[str, Any] = dict(zip(names, values, strict=True))
            hop = steer(a_view(state=state, **given))
            assert hop is None or hop.state in MOVES[state] | ALWAYS, given

    def test_a_vm_that_starts_with_its_slices_no_longer_has_a_time_to_lose_them(self) -> None:
        hop = steer(a_view(state=S.stopped, keep_until=NOON + MINUTES))
        assert hop == Hop(S.carving, {"keep_until": None})


class TestCarving:
    def test_cuts_each_slice(self, play: Play) -> None:
        world = play()
        assert step(a_view(state=S.carving), world) == Hop(S.building, {"devices": devices_as((DEVICE,))})
        assert world.asked == ["carve slice-1"]

    def test_without_a_card_there_is_nothing_to_cut(self, play: Play) -> None:
        world = play()
        assert step(a_view(state=S.carving, slices=(), gpu=None), world) == Hop(S.building, {"devices": []})
        assert world.asked == []


class TestBuilding:
    def test_makes_the_disk_and_the_domain(self, play: Play) -> None:
        world = play(power=Power.absent, disk=False)
        done = step(a_view(state=S.building, built=0, booted=0), world)
        anywhere = {"numa_node": None, "numa_why": ""}
        assert done == Hop(S.booting, anywhere | {"built": 1, "has_disk": True, "booted": 1, "address": None})
        assert world.asked == ["power_off", "drop_disk", "ensure_disk", "ensure_defined"]

    def test_waits_for_the_image_and_says_how_far_it_is(self, play: Play) -> None:
        world = play()
        vm = a_view(state=S.building, built=0, copy_state=CopyState.wanted, copy_percent=40)
        done = step(vm, world)
        assert (done.seconds, code(done), done.because.args["percent"]) == (None, ReasonCode.uploading_image, 40)
        assert world.asked == []

    def test_fails_with_the_image(self, play: Play) -> None:
        because = reason(ReasonCode.image_broken, image="base", detail="bad checksum")
        vm = a_view(state=S.building, built=0, copy_state=CopyState.failed, copy_reason=because.as_dict())
        assert step(vm, play()) == Fail(because)

    def test_a_reset_drops_the_old_disk_only_once_the_power_is_off(self, play: Play) -> None:
        world = play(power=Power.running)
        assert step(a_view(state=S.building, build=2), world).changes["built"] == 2
        assert world.asked == ["power_off", "drop_disk", "ensure_disk", "ensure_defined"]

    def test_a_start_keeps_the_disk(self, play: Play) -> None:
        world = play(power=Power.off)
        assert step(a_view(state=S.building), world).state is S.booting
        assert world.asked == ["ensure_defined"]

    def test_a_start_without_its_disk_fails_and_makes_no_fresh_one(self, play: Play) -> None:
        world = play(power=Power.off, disk=False)
        assert code(step(a_view(state=S.building), world)) == ReasonCode.disk_gone
        assert world.asked == []

    def test_the_domain_has_all_the_row_says(self, play: Play) -> None:
        world = play()
        step(a_view(state=S.building, build=3), world)
        spec = world.host.spec
        assert (spec.id, spec.build, spec.devices, spec.installation) == (a_view().id, 3, (DEVICE,), "here")
        assert b"anna" in spec.seed.files["user-data"]
        assert b"-3" in spec.seed.files["meta-data"]


class TestBooting:
    def test_starts_and_finds_the_address(self, play: Play) -> None:
        world = play(power=Power.off)
        done = step(a_view(state=S.booting, address=None), world)
        assert done == Hop(S.checking, {"address": "192.0.2.7", "host_boot_id": "boot-1"})
        assert world.asked == ["carve slice-1", "ensure_running"]

    def test_leaves_alone_what_runs(self, play: Play) -> None:
        world = play(power=Power.running)
        step(a_view(state=S.booting), world)
        assert world.asked == ["ensure_running"]

    def test_waits_for_an_address(self, play: Play) -> None:
        world = play(addr=None, now=NOON + MINUTES, settings={"guest_timeout": timedelta(seconds=60.2)})
        done = step(a_view(state=S.booting), world)
        assert (done.seconds, code(done)) == (0.5, ReasonCode.waiting_address)

    def test_gives_up_in_the_end(self, play: Play) -> None:
        world = play(addr=None, now=NOON + 16 * MINUTES)
        done = step(a_view(state=S.booting), world)
        assert isinstance(done, Fail)
        assert (code(done), done.blame) == (ReasonCode.no_address, "")

    def test_time_in_which_nobody_could_look_is_not_the_guests(self, play: Play) -> None:
        world = play(addr=None, now=NOON + 16 * MINUTES, settings={"guest_timeout": 60.2 * timedelta(seconds=1)})
        assert isinstance(step(a_view(state=S.booting, step_since=NOON + 15 * MINUTES), world), Nap)

    def test_does_not_wait_for_a_guest_that_is_off_again(self, play: Play) -> None:
        world = play(power=Power.off, addr=None)
        world.host.ensure_running = lambda vm_id: None
        world.host.why = "crashed"
        begun = time.monotonic()
        assert code(step(a_view(state=S.booting), world)) == ReasonCode.restarted_after_host
        assert time.monotonic() - begun < 5

    def test_a_reboot_asks_the_guest_first(self, play: Play) -> None:
        world = play(power=Power.running)
        done = step(a_view(state=S.booting, boots=2), world)
        assert (done.seconds, code(done), world.asked) == (2, ReasonCode.shutting_down, ["shutdown"])

    def test_a_reboot_is_counted_once_it_is_off(self, play: Play) -> None:
        world = play(power=Power.off)
        assert step(a_view(state=S.booting, boots=2), world) == Hop(S.booting, {"booted": 2, "address": None})
        assert world.asked == []

    def test_a_guest_that_does_not_listen_is_forced(self, play: Play) -> None:
        world = play(power=Power.running, now=NOON + 2 * MINUTES)
        assert step(a_view(state=S.booting, boots=2), world).changes["booted"] == 2
        assert world.asked == ["power_off"]

    def test_no_domain_is_a_loss(self, play: Play) -> None:
        done = step(a_view(state=S.booting), play(power=Power.absent))
        assert (done.state, done.changes, code(done)) == (S.lost, {"wanted": Wanted.stopped}, ReasonCode.domain_gone)

    @pytest.mark.parametrize(
        ("why", "restarts", "outcome"),
        [
            ("shutdown", 0, Fail(reason(ReasonCode.guest_powered_off, vm="anna/s1"))),
            ("destroyed", 0, Fail(reason(ReasonCode.guest_powered_off, vm="anna/s1"))),
            (
                "crashed",
                3,
                Fail(reason(ReasonCode.guest_crashed, detail="crashed", vm="anna/s1"), blame="host"),
            ),
            ("crashed", 0, Nap(1, reason(ReasonCode.restarted_after_host, detail="crashed"), {"restarts": 1})),
        ],
    )
    def test_off_again_before_it_answers(self, play: Play, why: str, restarts: int, outcome: Any) -> None:
        world = play(addr=None, now=NOON + 16 * MINUTES)
        starts = world.host.ensure_running

        def starts_and_ends(vm_id: str) -> None:
            starts(vm_id)
            world.host.power, world.host.why = Power.off, why

        world.host.ensure_running = starts_and_ends
        assert step(a_view(state=S.booting, restarts=restarts), world) == outcome


class TestChecking:
    def test_proves_a_simulated_guest(self, play: Play) -> None:
        done = step(a_view(state=S.checking, ever_ran=False, tries=1), play())
        assert done.state is S.running
        unread = {"licence": None, "licence_at": None}
        assert done.changes == unread | {"card": "seen", "warnings": [], "ever_ran": True, "tries": 0, "ran_at": NOON}

    def test_waits_for_what_is_not_there_yet(self, play: Play) -> None:
        done = step(a_view(state=S.checking), play(ready=False))
        assert (done.seconds, code(done)) == (0.5, ReasonCode.waiting_guest)

    def test_gives_up_in_the_end(self, play: Play) -> None:
        done = step(a_view(state=S.checking), play(ready=False, now=NOON + 16 * MINUTES))
        assert isinstance(done, Fail)
        assert code(done) == ReasonCode.waiting_cloud_init

    def test_a_card_that_is_not_there_is_the_hosts_refusal(self, play: Play) -> None:
        with pytest.raises(HostRefused):
            step(a_view(state=S.checking), play(card_there=False))

    @pytest.mark.parametrize(
        ("power", "why", "state"),
        [(Power.absent, "", S.lost), (Power.crashed, "crashed", S.booting), (Power.off, "unknown", S.booting)],
    )
    def test_sees_that_the_domain_went_away(self, play: Play, power: Power, why: str, state: VMState) -> None:
        assert step(a_view(state=S.checking), play(ready=False, power=power, why=why)).state is state

    def test_a_guest_that_powers_itself_off_has_failed(self, play: Play) -> None:
        done = step(a_view(state=S.checking), play(ready=False, power=Power.off, why="shutdown"))
        assert code(done) == ReasonCode.guest_powered_off

    def test_looks_into_a_real_guest(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Any] = []

        def check(door: guest.Door, want: object) -> guest.Checked:
            seen.append((door.address, door.host_key, want))
            return guest.Checked(card=guest.Card.works, cloud_init=guest.CloudInit.done, warnings=("slow disk",))

        monkeypatch.setattr(guest, "check", check)
        world = play(text=b"Cloud-init v. 22.4.2 finished at Tue, 01 Jan 2030. Datasource DataSourceNoCloud")
        done = step(a_view(state=S.checking, simulated=False), world)
        assert (done.state, done.changes["card"], done.changes["warnings"]) == (S.running, "works", ["slow disk"])
        assert seen == [("192.0.2.7", "ssh-ed25519 BBBB", guest.EmulatedCard(DEVICE.video_mib, DEVICE.label))]

    @pytest.mark.slow
    def test_does_not_log_in_before_the_console_says_done(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(guest, "check", lambda door, want: pytest.fail("it logged in"))
        world = play(text=b"Cloud-init v. 22.4.2 running 'modules:config'", ready=False)
        done = step(a_view(state=S.checking, simulated=False), world)
        assert code(done) == ReasonCode.waiting_guest

    @pytest.mark.parametrize("waited", [2 * MINUTES, 16 * MINUTES])
    def test_a_real_guest_that_does_not_answer(
        self, play: Play, monkeypatch: pytest.MonkeyPatch, waited: timedelta
    ) -> None:
        waiting, verdict = reason(ReasonCode.waiting_cloud_init), reason(ReasonCode.cloud_init_error, detail="x")

        def check(door: guest.Door, want: object) -> guest.Checked:
            raise guest.NotYet(waiting, verdict)

        monkeypatch.setattr(guest, "check", check)
        world = play(now=NOON + waited)
        done = step(a_view(state=S.checking, simulated=False), world)
        if waited == 2 * MINUTES:
            assert done == Nap(1, waiting)
        else:
            assert code(done) == ReasonCode.cloud_init_error

    def test_says_that_the_seed_was_not_found(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(guest, "says_no_seed", lambda console: True)
        done = step(a_view(state=S.checking), play(ready=False, now=NOON + 16 * MINUTES))
        assert code(done) == ReasonCode.seed_not_found


class TestRunning:
    def test_all_is_well(self, play: Play) -> None:
        world = play()
        assert step(a_view(), world) == Nap(None)
        assert world.asked == []

    def test_halted_by_its_host_is_said_and_left_alone(self, play: Play) -> None:
        world = play(power=Power.paused, why="a full pool")
        assert step(a_view(), world) == Nap(30, reason(ReasonCode.paused, detail="a full pool"))
        assert world.asked == []

    def test_undefined_by_hand(self, play: Play) -> None:
        done = step(a_view(), play(power=Power.absent))
        assert (done.state, done.changes) == (S.lost, {"wanted": Wanted.stopped})

    @pytest.mark.parametrize("why", ["shutdown", "destroyed"])
    def test_shut_off_is_a_stop(self, play: Play, why: str) -> None:
        done = step(a_view(), play(power=Power.off, why=why))
        assert (done.state, done.changes) == (S.stopping, {"wanted": Wanted.stopped})
        assert code(done) == ReasonCode.stopped_by_guest

    @pytest.mark.parametrize("why", ["shutdown", "destroyed", "unknown", "crashed"])
    def test_off_after_the_hosts_reboot_is_started_again(self, play: Play, why: str) -> None:
        done = step(a_view(restarts=3), play(power=Power.off, why=why, boot="boot-2"))
        assert (done.state, done.changes["restarts"]) == (S.booting, 0)

    def test_a_crash_is_started_again(self, play: Play) -> None:
        done = step(a_view(), play(power=Power.crashed, why="crashed"))
        assert (done.state, done.changes["restarts"], done.changes["address"]) == (S.booting, 1, None)

    def test_a_fourth_crash_is_a_failure(self, play: Play) -> None:
        assert code(step(a_view(restarts=3), play(power=Power.crashed, why="crashed"))) == ReasonCode.guest_crashed


class TestStopping:
    def test_asks_the_guest(self, play: Play) -> None:
        world = play()
        assert step(a_view(state=S.stopping), world) == Nap(2, reason(ReasonCode.shutting_down))
        assert world.asked == ["shutdown"]

    def test_forces_a_guest_that_does_not_listen(self, play: Play) -> None:
        world = play(now=NOON + 2 * MINUTES)
        assert step(a_view(state=S.stopping), world).state is S.stopped
        assert world.asked == ["power_off"]

    def test_does_not_force_a_guest_whose_host_was_away(self, play: Play) -> None:
        world = play(now=NOON + 20 * MINUTES)
        assert isinstance(step(a_view(state=S.stopping, step_since=NOON + 19 * MINUTES), world), Nap)

    @pytest.mark.parametrize("power", [Power.off, Power.absent, Power.crashed])
    @pytest.mark.parametrize(
        ("on_stop", "stop_mode", "kept"),
        [
            (None, None, 15 * MINUTES),
            (OnStop.keep, None, None),
            (OnStop.release, None, False),
            (OnStop.keep, OnStop.release, False),
            (OnStop.release, OnStop.keep, None),
        ],
    )
    def test_keeps_or_gives_back(self, play: Play, power: Power, on_stop: Any, stop_mode: Any, kept: Any) -> None:
        world = play(power=power)
        done = step(a_view(state=S.stopping, on_stop=on_stop, stop_mode=stop_mode), world)
        assert (done.state, done.slices_back) == (S.stopped, kept is False)
        assert world.asked == (["release slice-1"] if kept is False else [])
        assert done.changes == {
            "address": None,
            "stop_mode": None,
            "keep_until": NOON + kept if isinstance(kept, timedelta) else None,
        }

    def test_what_was_half_built_does_not_stay(self, play: Play) -> None:
        world = play(power=Power.off)
        step(a_view(state=S.stopping, has_disk=False), world)
        assert world.asked == ["erase"]


class TestStopped:
    def test_rests(self, play: Play) -> None:
        world = play(power=Power.off)
        vm = a_view(state=S.stopped, wanted=Wanted.stopped, keep_until=NOON + MINUTES)
        assert step(vm, world) == Nap(None)
        assert world.asked == []

    def test_without_a_disk_no_host_is_asked(self, play: Play) -> None:
        world = play()
        step(a_view(state=S.stopped, has_disk=False), world)
        assert world.asked == []

    def test_started_by_hand_it_is_switched_off(self, play: Play) -> None:
        world = play(power=Power.running)
        step(a_view(state=S.stopped), world)
        assert world.asked == ["power_off"]

    @pytest.mark.parametrize("given", [{"keep_until": NOON}, {"stop_mode": OnStop.release}])
    def test_gives_its_slices_back(self, play: Play, given: dict[str, Any]) -> None:
        world = play(power=Power.off)
        done = step(a_view(state=S.stopped, **given), world)
        assert (done.seconds, done.slices_back, world.asked) == (None, True, ["release slice-1"])

    def test_a_wish_to_keep_them_ends_the_time(self, play: Play) -> None:
        done = step(a_view(state=S.stopped, keep_until=NOON, stop_mode=OnStop.keep), play(power=Power.off))
        assert done == Nap(None, changes={"stop_mode": None, "keep_until": None})

    def test_what_it_does_not_hold_it_does_not_give_back(self, play: Play) -> None:
        world = play(power=Power.off)
        vm = a_view(state=S.stopped, holds=False, slices=(), keep_until=NOON, stop_mode=OnStop.release)
        assert step(vm, world) == Nap(None)
        assert world.asked == []


class TestCapturing:
    def test_waits_until_it_is_off(self, play: Play) -> None:
        world = play()
        assert isinstance(step(a_view(state=S.capturing, capture_as="image-2"), world), Nap)
        assert world.asked == ["shutdown"]

    def test_a_guest_is_not_stopped_for_a_copy_that_has_no_room(self, play: Play) -> None:
        world = play(room=False)
        with pytest.raises(HostRefused, match="100 MiB are free in the image store of vmgpu: the VM was left as it is"):
            step(a_view(state=S.capturing, capture_as="image-2"), world)
        assert world.asked == []

    @pytest.mark.parametrize(
        ("given", "state"),
        [
            ({}, S.booting),
            ({"holds": False, "slices": ()}, S.stopped),
            ({"wanted": Wanted.stopped, "address": None}, S.stopped),
            # a stop that was wished during the copy still decides about the slices
            ({"wanted": Wanted.stopped}, S.stopping),
            ({"wanted": Wanted.stopped, "address": None, "stop_mode": OnStop.release}, S.stopping),
        ],
    )
    def test_copies_and_goes_on_as_it_was(self, play: Play, given: dict[str, Any], state: VMState) -> None:
        world = play(power=Power.off)
        done = step(a_view(state=S.capturing, capture_as="image-2", **given), world)
        assert (done.state, world.asked) == (state, ["copy_flat"])
        assert world.host.copied == world.store_path("image-2")
        assert world.said == [(ReasonCode.copying_disk, 50)]


class TestReleasing:
    def test_erases_first_and_gives_back_after(self, play: Play) -> None:
        world = play()
        done = step(a_view(state=S.releasing), world)
        assert (done.state, done.slices_back, done.changes["gone_at"]) == (S.gone, True, NOON)
        assert world.asked == ["erase", "release slice-1"]

    def test_what_never_had_a_host_needs_none(self, play: Play) -> None:
        world = play()
        assert step(a_view(state=S.releasing, host_id=None, slices=()), world).state is S.gone
        assert world.asked == []


class TestFailed:
    def test_is_proved_off_before_its_slices_go_back(self, play: Play) -> None:
        world = play()
        assert step(a_view(state=S.failed, wanted=Wanted.stopped), world) == Nap(None, slices_back=True)
        assert world.asked == ["power_off", "release slice-1"]

    def test_asks_no_host_twice(self, play: Play) -> None:
        world = play()
        step(a_view(state=S.failed, wanted=Wanted.stopped, holds=False, slices=()), world)
        assert world.asked == []

    def test_the_retry_of_one_that_never_ran_leaves_nothing(self, play: Play) -> None:
        world = play()
        done = step(a_view(state=S.failed, retry=True, ever_ran=False), world)
        assert (done.state, done.slices_back) == (S.pending, True)
        again = {"retry": False, "tries": 1, "has_disk": False, "built": 0}
        assert done.changes == again
        assert world.asked == ["power_off", "release slice-1", "erase"]

    def test_the_retry_of_one_that_ran_keeps_its_disk(self, play: Play) -> None:
        world = play()
        done = step(a_view(state=S.failed, retry=True), world)
        assert done.changes == {"retry": False, "tries": 1}
        assert world.asked == ["power_off", "release slice-1"]

    def test_what_was_half_built_does_not_stay(self, play: Play) -> None:
        world = play()
        step(a_view(state=S.failed, wanted=Wanted.stopped, has_disk=False, ever_ran=False), world)
        assert world.asked == ["power_off", "release slice-1", "erase"]


class TestLost:
    def test_gives_back_and_touches_nothing_else(self, play: Play) -> None:
        world = play(power=Power.absent)
        assert step(a_view(state=S.lost, wanted=Wanted.stopped), world) == Nap(None, slices_back=True)
        assert world.asked == ["release slice-1"]


@pytest.mark.parametrize("state", list(STEPS))
def test_a_step_catches_nothing(play: Play, state: VMState) -> None:
    """That a host does not answer is the worker's to know."""
    world = play()

    def silent(*args: object, **named: object) -> None:
        raise HostUnreachable("no route to host")

    for verb in ("look", "has_disk", "ensure_disk", "power_off", "ensure_defined", "ensure_running", "guest_checked"):
        setattr(world.host, verb, silent)
    for verb in ("shutdown", "erase", "see_room", "copy_flat", "drop_disk", "address"):
        setattr(world.host, verb, silent)
    world.carver = silent  # type: ignore[method-assign, assignment]
    with pytest.raises(HostUnreachable):
        step(a_view(state=state, capture_as="image-2"), world)


@pytest.mark.parametrize("state", list(STEPS))
@pytest.mark.parametrize("power", list(Power))
@pytest.mark.parametrize("why", ["shutdown", "destroyed", "crashed", "unknown"])
def test_a_step_stays_on_the_map_and_may_be_run_twice(play: Play, state: VMState, power: Power, why: str) -> None:
    """After a crash the same step runs again on what the first run left: it must not do more, nor end elsewhere."""
    vm = a_view(state=state, capture_as="image-2" if state is S.capturing else None)
    world = play(power=power, why=why)
    first = step(vm, world)
    second = step(vm, world)
    settled = state in (S.booting, S.building) or power in (Power.off, Power.absent)
    assert type(second) is type(first) or not settled
    if isinstance(first, Hop) and isinstance(second, Hop):
        assert (second.state, second.slices_back) == (first.state, first.slices_back)


class TestTheLease:
    settings = Settings(data_dir=Path("unused"))
    long = a_view(lease_seconds=48 * 3600, expires_at=NOON + 48 * HOURS)

    @pytest.mark.parametrize(
        ("left", "warned"),
        [
            (25 * HOURS, None),
            (24 * HOURS, ["1 d"]),
            (HOURS, ["1 d", "1 h"]),
            (10 * MINUTES, ["1 d", "1 h", "10 m"]),
        ],
    )
    def test_warns_before_its_end(self, left: timedelta, warned: list[str] | None) -> None:
        news = lease(self.long, NOON + 48 * HOURS - left, self.settings)
        assert (news.changes if news else None) == ({"warned": warned} if warned else None)
        assert news is None or (news.kind, news.because.code) == ("lease_warning", ReasonCode.lease_warning)

    def test_warns_once(self) -> None:
        vm = a_view(lease_seconds=48 * 3600, expires_at=NOON + HOURS, warned=("1 d", "1 h"))
        assert lease(vm, NOON, self.settings) is None
        news = lease(vm, NOON + 50 * MINUTES, self.settings)
        assert news and news.changes == {"warned": ["1 d", "1 h", "10 m"]}

    def test_a_short_lease_is_not_warned_of_long_before(self) -> None:
        already = passed(NOON + 2 * HOURS, NOON)
        vm = a_view(expires_at=NOON + 2 * HOURS, warned=tuple(already))
        assert lease(vm, NOON + MINUTES, self.settings) is None
        news = lease(vm, NOON + HOURS, self.settings)
        assert news and news.changes == {"warned": ["1 d", "1 h"]}

    def test_an_end_moved_far_away_is_warned_of_a_day_before(self) -> None:
        assert passed(NOON + 3 * DAYS, NOON) == []
        vm = a_view(expires_at=NOON + 3 * DAYS, lease_seconds=8 * 3600)
        news = lease(vm, NOON + 2 * DAYS, self.settings)
        assert news and news.changes == {"warned": ["1 d"]}

    def test_stops_the_vm_at_its_end_and_gives_the_slices_back(self) -> None:
        news = lease(a_view(expires_at=NOON), NOON, self.settings)
        assert news
        assert news.changes == {
            "delete_at": NOON + 7 * DAYS,
            "stop_mode": OnStop.release,
            "warned": [],
            "wanted": Wanted.stopped,
        }
        assert (news.kind, news.because.code) == ("lease_ended", ReasonCode.lease_ended)

    def test_counts_the_grace_from_the_end_though_nobody_looked_then(self) -> None:
        news = lease(a_view(expires_at=NOON), NOON + 3 * DAYS, self.settings)
        assert news and news.changes["delete_at"] == NOON + 7 * DAYS

    def test_ends_for_a_stopped_vm_too_and_its_slices_go_back(self) -> None:
        vm = a_view(state=S.stopped, wanted=Wanted.stopped, expires_at=NOON)
        news = lease(vm, NOON, self.settings)
        assert news and "wanted" not in news.changes
        assert news.changes["stop_mode"] is OnStop.release

    @pytest.mark.parametrize(
        ("left", "warned"), [(25 * HOURS, None), (24 * HOURS, ["1 d"]), (10 * MINUTES, ["1 d", "1 h", "10 m"])]
    )
    def test_warns_before_the_disk_goes_however_short_the_lease_was(self, left: timedelta, warned: Any) -> None:
        vm = a_view(state=S.stopped, wanted=Wanted.stopped, expires_at=NOON - 7 * DAYS, delete_at=NOON + left)
        news = lease(vm, NOON, self.settings)
        assert (news.changes if news else None) == ({"warned": warned} if warned else None)
        assert news is None or news.kind == "grace_warning"

    def test_the_end_of_the_grace_is_the_vms(self) -> None:
        vm = a_view(state=S.stopped, wanted=Wanted.stopped, expires_at=NOON - 7 * DAYS, delete_at=NOON)
        news = lease(vm, NOON, self.settings)
        assert news and (news.changes, news.kind) == ({"wanted": Wanted.gone}, "grace_ended")

    @pytest.mark.parametrize("given", [{"state": S.releasing}, {"state": S.gone}, {"wanted": Wanted.gone}])
    def test_asks_nothing_of_those_who_leave(self, given: dict[str, Any]) -> None:
        assert lease(a_view(expires_at=NOON, delete_at=NOON, **given), NOON, self.settings) is None

    def test_asks_nothing_before_it_has_begun(self) -> None:
        assert lease(a_view(state=S.pending), NOON, self.settings) is None


class TestTheNextMoment:
    @pytest.mark.parametrize(
        ("given", "moment"),
        [
            ({}, None),
            ({"expires_at": NOON + 8 * HOURS}, NOON - 16 * HOURS),
            ({"expires_at": NOON + 8 * HOURS, "warned": ("1 d",)}, NOON + 7 * HOURS),
            ({"expires_at": NOON + 8 * HOURS, "warned": ("1 d", "1 h")}, NOON + 8 * HOURS - 10 * MINUTES),
            ({"expires_at": NOON + 8 * HOURS, "warned": ("1 d", "1 h", "10 m")}, NOON + 8 * HOURS),
            ({"expires_at": NOON, "delete_at": NOON + 7 * DAYS}, NOON + 6 * DAYS),
            ({"state": S.stopped, "keep_until": NOON + MINUTES}, NOON + MINUTES),
            ({"state": S.stopped, "keep_until": NOON + MINUTES, "holds": False}, None),
            # once it is started again the time of keeping is nobody's business: it would be due for ever
            ({"state": S.running, "keep_until": NOON + MINUTES}, None),
            ({"state": S.releasing, "expires_at": NOON}, None),
            ({"state": S.gone, "expires_at": NOON, "delete_at": NOON}, None),
        ],
    )
    def test_is_the_first_of_all(self, given: dict[str, Any], moment: Any) -> None:
        assert next_moment(a_view(**given)) == moment

    def test_something_is_done_at_each_moment(self) -> None:
        """From the lease's start to the end of the grace: whenever a moment has come, the lease or the step acts."""
        vm = a_view(state=S.stopped, wanted=Wanted.stopped, lease_seconds=172800, expires_at=NOON + 2 * DAYS)
        told: list[str] = []
        for _ in range(20):
            at = next_moment(vm)
            assert at is not None
            news = lease(vm, at, self.settings)
            assert news, f"nothing is done at {at}: the worker would spin"
            told.append(news.kind)
            changes = {k: tuple(v) if k == "warned" else v for k, v in news.changes.items()}
            vm = a_view(**{**vars(vm), **changes})
            if vm.wanted is Wanted.gone:
                break
        assert told == [*["lease_warning"] * 3, "lease_ended", *["grace_warning"] * 3, "grace_ended"]

    settings = Settings(data_dir=Path("unused"))


def test_names_and_addresses_follow_from_the_id() -> None:
    assert a_view().mac == a_view(name="other").mac
    assert a_view().mac != a_view(id="22222222-2222-4222-8222-222222222222").mac
    assert a_view().mac.startswith("52:") and len(a_view().mac) == 17
