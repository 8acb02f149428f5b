"""How a VM moves from one state to the next. Each step is safe to run twice.

A step gets a frozen view and a World, does host work, and says what follows: Hop, Nap or Fail. It opens no session,
catches nothing and logs nothing: the worker applies the outcome, and only if nobody took the row over meanwhile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from vmgpu import guest, licensing, specs
from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.hypervisor import HostDevice, Power, Simulated
from vmgpu.models import OnStop, VMState, Wanted
from vmgpu.steps import Fail, Hop, Nap, Outcome, Step, StepOf, World
from vmgpu.views import VMView, devices_as

S = VMState

MOVES: Mapping[VMState, frozenset[VMState]] = {
    S.pending: frozenset({S.carving, S.stopped}),
    S.carving: frozenset({S.building, S.stopping}),
    S.building: frozenset({S.booting, S.stopping}),
    S.booting: frozenset({S.building, S.booting, S.checking, S.stopping, S.lost}),
    S.checking: frozenset({S.running, S.booting, S.stopping, S.lost}),
    S.running: frozenset({S.booting, S.building, S.capturing, S.stopping, S.lost}),
    S.stopping: frozenset({S.stopped}),
    S.stopped: frozenset({S.carving, S.pending, S.building, S.capturing, S.lost}),
    S.capturing: frozenset({S.booting, S.stopping, S.stopped}),
    S.failed: frozenset({S.pending}),
    S.lost: frozenset({S.pending}),
    S.releasing: frozenset({S.gone}),
    S.gone: frozenset(),
}
ALWAYS = frozenset({S.failed, S.releasing})  # reachable from every state but gone
BEFORE_RUNNING = frozenset({S.carving, S.building, S.booting, S.checking})


STEPS: dict[VMState, StepOf] = {}


def step(state: VMState, *, within: float) -> Callable[[Step], Step]:
    """Declare the step of a state; `within` is in seconds."""

    def declare(run: Step) -> Step:
        STEPS[state] = StepOf(run, timedelta(seconds=within))
        return run

    return declare


def steer(vm: VMView) -> Hop | None:
    """Where a wish pulls the VM before its state's step is run; None: nowhere."""
    if vm.wanted is Wanted.gone:
        return None if vm.state in (S.releasing, S.gone) else Hop(S.releasing)
    if vm.wanted is Wanted.stopped:
        if vm.state is S.pending:
            return Hop(S.stopped)
        if vm.state in BEFORE_RUNNING or (vm.state is S.running and not vm.capture_as):
            return Hop(S.stopping)
    if vm.state in (S.running, S.stopped) and vm.capture_as:
        return Hop(S.capturing)
    if vm.wanted is Wanted.running:
        if vm.state is S.running and vm.build > vm.built:
            return Hop(S.building)
        if vm.state is S.running and vm.boots > vm.booted:
            return Hop(S.booting)
        if vm.state is S.stopped:
            return Hop(S.carving, {"keep_until": None}) if vm.holds else Hop(S.pending)
        if vm.state in (S.failed, S.lost) and not vm.slices and not vm.holds:
            return Hop(S.pending)
    return None


@step(S.carving, within=120)
def carve(vm: VMView, world: World) -> Outcome:
    """Cut the slices this VM holds; after a crash, find them already cut."""
    devices, moved = _cut(vm, world)
    return Hop(S.building, {"devices": devices_as(devices)}, moved=moved)


@step(S.building, within=300)
def build(vm: VMView, world: World) -> Outcome:
    """Make disk, seed and domain. A raised build number takes the power off and drops the old disk first."""
    if vm.built < vm.build:
        if vm.copy_state == "failed":
            return Fail(Reason.of(vm.copy_reason) or reason(ReasonCode.image_broken, image=vm.image_name))
        if vm.copy_state != "ready":
            why = reason(ReasonCode.uploading_image, image=vm.image_name, host=vm.host_name, percent=vm.copy_percent)
            return Nap(None, why)
        world.host.power_off(vm.id)
        world.host.drop_disk(vm.id)
        world.host.ensure_disk(specs.spec(vm, our_login=world.our_login, our_key=world.our_public_key))
    elif not world.host.has_disk(vm.id):
        return Fail(reason(ReasonCode.disk_gone, host=vm.host_name))
    node, not_there = specs.numa(vm)
    vm = replace(vm, numa_node=node)
    world.host.ensure_defined(specs.spec(vm, our_login=world.our_login, our_key=world.our_public_key))
    made = {"built": vm.build, "has_disk": True, "booted": vm.boots, "address": None}
    return Hop(S.booting, made | {"numa_node": node, "numa_why": not_there})


@step(S.booting, within=120)
def boot(vm: VMView, world: World) -> Outcome:
    """Start the domain if it is not running, then wait for its address; a wished reboot powers it down first."""
    if vm.booted < vm.boots:
        return _power_down(vm, world) or Hop(S.booting, {"booted": vm.boots, "address": None})
    seen = world.host.look(vm.id)
    if seen.power is Power.absent:
        return Hop(S.lost, {"wanted": Wanted.stopped}, reason(ReasonCode.domain_gone, vm=vm.title))
    if seen.power not in (Power.running, Power.paused):
        devices, moved = _cut(vm, world)  # a host's reboot may have taken what was cut
        if devices != vm.devices:
            return Hop(S.building, {"devices": devices_as(devices)}, moved=moved)
    world.host.ensure_running(vm.id)
    patience = world.settings.guest_timeout - _waited(vm, world)
    address = _wait_address(vm, world, seconds=min(15.0, patience.total_seconds()))
    if address:
        return Hop(S.checking, {"address": address, "host_boot_id": world.boot_id})
    if off := _found_off(vm, world):
        return off
    if patience <= timedelta(0):
        seconds = round(world.settings.guest_timeout.total_seconds())
        return Fail(reason(ReasonCode.no_address, seconds=seconds, vm=vm.title, network=vm.network.name))
    return Nap(0.5, reason(ReasonCode.waiting_address))


@step(S.checking, within=400)
def check(vm: VMView, world: World) -> Outcome:
    """See SSH with the pinned key, cloud-init done and the card there; what is not yet there is waited for."""
    waiting, verdict = reason(ReasonCode.waiting_guest), reason(ReasonCode.waiting_cloud_init)
    if vm.simulated:
        ready, card = cast(Simulated, world.host).guest_checked(vm.id, vm.devices)
        if ready:
            return _proved(vm, world, guest.Checked(card=card, cloud_init=guest.CloudInit.done))
    elif not vm.image.has_init or _console_says_done(vm, world):
        try:
            return _proved(vm, world, _look_inside(vm, world))
        except guest.NotYet as not_yet:
            waiting, verdict = not_yet.reason, not_yet.verdict
        except guest.CheckFailed as failed:
            said = world.host.console(vm.id)
            if failed.reason.code is not ReasonCode.ssh_wrong_host_key or not _keys_may_be_its_own(said):
                raise
            if guest.says_no_seed(said):
                return Fail(reason(ReasonCode.seed_not_found, vm=vm.title))
            verdict = failed.reason
    if off := _found_off(vm, world):
        return off
    if _waited(vm, world) > world.settings.guest_timeout:
        if guest.says_no_seed(world.host.console(vm.id)):
            verdict = reason(ReasonCode.seed_not_found)
        return Fail(reason(verdict.code, **verdict.args, vm=vm.title))
    return Nap(0.5 if vm.simulated else 1, waiting)


@step(S.running, within=60)
def watch(vm: VMView, world: World) -> Outcome:
    """See that the domain still runs. Shut off is a stop; gone with the host's boot, or crashed, is started again."""
    seen = world.host.look(vm.id)
    if seen.power is Power.running:
        return licensing.read(vm, world)
    if seen.power is Power.paused:
        return Nap(30, reason(ReasonCode.paused, detail=seen.why))
    if seen.power is Power.absent:
        return Hop(S.lost, {"wanted": Wanted.stopped}, reason(ReasonCode.domain_gone, vm=vm.title))
    same_boot = world.boot_id == vm.host_boot_id
    if same_boot and seen.why in ("shutdown", "destroyed"):
        stopped = reason(ReasonCode.stopped_by_guest, detail=seen.why, vm=vm.title)
        return Hop(S.stopping, {"wanted": Wanted.stopped}, stopped)
    if same_boot and vm.restarts >= 3:
        return Fail(reason(ReasonCode.guest_crashed, detail=seen.why, vm=vm.title))
    found = reason(ReasonCode.restarted_after_host, detail=seen.why if same_boot else "the host's reboot")
    return Hop(S.booting, {"restarts": vm.restarts + 1 if same_boot else 0, "address": None}, found)


@step(S.stopping, within=120)
def stop(vm: VMView, world: World) -> Outcome:
    """Shut the guest down, by force if it will not; then keep the slices or give them back, as was wished."""
    if waiting := _power_down(vm, world):
        return waiting
    if not vm.has_disk:
        world.host.erase(vm.id)  # half built: what lies here would be forgotten when it starts elsewhere
    mode = vm.stop_mode or vm.on_stop
    if mode is OnStop.release:
        _give_back(vm, world)
        return Hop(S.stopped, {"address": None, "stop_mode": None, "keep_until": None}, slices_back=True)
    keep_until = None if mode is OnStop.keep else world.now + world.settings.keep_gpu
    return Hop(S.stopped, {"address": None, "stop_mode": None, "keep_until": keep_until})


@step(S.stopped, within=60)
def rest(vm: VMView, world: World) -> Outcome:
    """Stay off; give the slices back when the time of keeping them is over."""
    if vm.host_id and vm.has_disk:
        seen = world.host.look(vm.id)
        if seen.power in (Power.running, Power.paused):
            # started by hand at the host: its slices may be another's by now
            world.host.power_off(vm.id)
    if vm.holds and vm.stop_mode is OnStop.release:
        _give_back(vm, world)
        return Nap(None, changes={"stop_mode": None}, slices_back=True)
    if vm.holds and vm.stop_mode is OnStop.keep:
        return Nap(None, changes={"stop_mode": None, "keep_until": None})
    if vm.holds and vm.keep_until and vm.keep_until <= world.now:
        _give_back(vm, world)
        minutes = round(world.settings.keep_gpu.total_seconds() / 60)
        return Nap(None, reason(ReasonCode.keep_ended, minutes=minutes), slices_back=True)
    return Nap(None)


@step(S.capturing, within=3600)
def capture(vm: VMView, world: World) -> Outcome:
    """Power off, copy the disk flat into the store, and go back to what it was; the copy is generalised by itself."""
    assert vm.capture_as  # noqa: S101 - steer hops here for nothing else
    target = world.store_path(vm.capture_as)
    world.host.see_room(vm.id, target)  # before the guest is stopped for nothing
    if waiting := _power_down(vm, world):
        return waiting
    world.host.copy_flat(vm.id, target, progress=world.progress(ReasonCode.copying_disk))
    return Hop(after_capture(vm), {"address": None})


def after_capture(vm: VMView) -> VMState:
    """Where a capture leaves the VM: as it was, or on the way to what was asked meanwhile."""
    if vm.wanted is Wanted.running:
        # one that was started during the copy, and holds nothing, queues like any other
        return S.booting if vm.holds else S.stopped
    # a VM that ran still has its address; stopping then decides about its slices
    return S.stopping if vm.address or vm.stop_mode else S.stopped


@step(S.releasing, within=120)
def release(vm: VMView, world: World) -> Outcome:
    """Erase the domain and its disk, give the slices back; nothing left is fine."""
    if vm.host_id:
        world.host.erase(vm.id)
        _give_back(vm, world)
    return Hop(S.gone, {"gone_at": world.now, "has_disk": False, "address": None}, slices_back=True)


@step(S.failed, within=120)
def settle(vm: VMView, world: World) -> Outcome:
    """Prove the domain off, then give the slices back; a VM that never ran leaves nothing and is tried elsewhere."""
    if vm.host_id and (vm.slices or vm.holds or vm.retry):
        world.host.power_off(vm.id)
        _give_back(vm, world)
        if (vm.retry and not vm.ever_ran) or not vm.has_disk:
            world.host.erase(vm.id)
    if vm.retry:
        again: dict[str, Any] = {"retry": False, "tries": vm.tries + 1}
        if not vm.ever_ran:
            again |= {"has_disk": False, "built": 0}
        return Hop(S.pending, again, slices_back=True)
    return _given_back(vm)


@step(S.lost, within=120)
def let_go(vm: VMView, world: World) -> Outcome:
    """The domain is no longer defined: give the slices back once, keep the disk."""
    _give_back(vm, world)
    return _given_back(vm)


def _given_back(vm: VMView) -> Outcome:
    """A start that was wished while the slices were not back yet is served now."""
    return Hop(S.pending, slices_back=True) if vm.wanted is Wanted.running else Nap(None, slices_back=True)


def _power_down(vm: VMView, world: World) -> Nap | None:
    """None once the domain is off; until then it is asked, and forced when it has not listened for long."""
    seen = world.host.look(vm.id)
    if seen.power in (Power.off, Power.absent, Power.crashed):
        return None
    if _waited(vm, world) > world.settings.shutdown_timeout or vm.state is S.building:
        world.host.power_off(vm.id)
        return None
    world.host.shutdown(vm.id)
    return Nap(2, reason(ReasonCode.shutting_down))


def _wait_address(vm: VMView, world: World, *, seconds: float) -> str | None:
    """The guest's address as soon as the host knows it; asking the host costs the guest nothing."""
    until, looks = time.monotonic() + seconds, 0
    while True:
        address = world.host.address(vm.id, vm.mac, vm.network)
        if address or time.monotonic() >= until:
            return address
        looks += 1
        if looks % 4 == 0 and world.host.look(vm.id).power not in (Power.running, Power.paused):
            return None  # a guest that is off again is not waited for
        time.sleep(0.25)


def _found_off(vm: VMView, world: World) -> Outcome | None:
    """The outcome when a domain that should be starting is not running; None when it runs."""
    seen = world.host.look(vm.id)
    if seen.power in (Power.running, Power.paused):
        return None
    if seen.power is Power.absent:
        return Hop(S.lost, {"wanted": Wanted.stopped}, reason(ReasonCode.domain_gone, vm=vm.title))
    if seen.why in ("shutdown", "destroyed"):
        return Fail(reason(ReasonCode.guest_powered_off, vm=vm.title))
    if vm.restarts >= 3:
        return Fail(reason(ReasonCode.guest_crashed, detail=seen.why, vm=vm.title), blame="host")
    found = reason(ReasonCode.restarted_after_host, detail=seen.why)
    if vm.state is S.booting:
        return Nap(1, found, {"restarts": vm.restarts + 1})
    return Hop(S.booting, {"restarts": vm.restarts + 1, "address": None}, found)


def _waited(vm: VMView, world: World) -> timedelta:
    """How long the guest had for this state; while nobody could look, or its host was away, it had no chance."""
    return world.now - max(vm.state_since, vm.step_since or vm.state_since)


def _cut(vm: VMView, world: World) -> tuple[tuple[HostDevice, ...], dict[str, int]]:
    """What goes into the guest, and slices that the driver put elsewhere than was planned, with their places."""
    carved = {cut.id: world.carver(cut.gpu.mode, cut.gpu.framework).carve(cut) for cut in vm.slices}
    devices = tuple(device for one in carved.values() for device in one.devices)
    return devices, {cut: one.start for cut, one in carved.items() if one.start is not None}


def _give_back(vm: VMView, world: World) -> None:
    for cut in vm.slices:
        world.carver(cut.gpu.mode, cut.gpu.framework).release(cut)


# cloud-init's last line on the console of every boot; by then sshd has long been up
_DONE = re.compile(rb"Cloud-init v\. \S+ finished at ")


def _console_says_done(vm: VMView, world: World) -> bool:
    """Whether it is time to log in. Reading the console's end costs the guest nothing, a login costs an emulated one
    a second that its owner is waiting for. An image that says nothing there is looked into after a while all the same.
    """
    patience = timedelta(seconds=15 if vm.accel == "kvm" else 90)
    if world.now - vm.state_since > patience:
        return True
    # the agent is there only in this boot; what the console says of an earlier one counts for nothing before
    until = time.monotonic() + 10
    while not (world.host.wait_guest(vm.id, 5) and _DONE.search(world.host.console(vm.id, 16 * 1024))):
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


def _keys_may_be_its_own(console: bytes) -> bool:
    """A guest shows host keys of its own until cloud-init has put ours there, and for ever where it finds no seed."""
    return guest.says_no_seed(console) or not _DONE.search(console)


def _proved(vm: VMView, world: World, done: guest.Checked) -> Hop:
    warnings = [*done.warnings, *([vm.numa_why] if vm.numa_why else [])]
    ran = {"card": str(done.card), "warnings": warnings, "ever_ran": True, "tries": 0, "ran_at": world.now}
    return Hop(S.running, ran | {"licence": None, "licence_at": None})


def _look_inside(vm: VMView, world: World) -> guest.Checked:
    door = specs.door(vm, world)
    if vm.image.has_init:
        return guest.check(door, specs.card_want(vm))
    if guest.host_key_matches(door):
        return guest.Checked(card=guest.Card.none, cloud_init=guest.CloudInit.done)
    # a lease may still name the machine that had this address before
    wrong = reason(ReasonCode.ssh_wrong_host_key, address=vm.address)
    raise guest.NotYet(reason(ReasonCode.waiting_ssh, address=vm.address), wrong)
