"""What people ask of VMs: request, stop, start, reboot, reset, extend, capture, release."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from datetime import timedelta

from sqlmodel import Session, col, select

from vmgpu import ledger, placement, sshkeys
from vmgpu.db import HOLD, Database, next_number, wake
from vmgpu.errors import Conflict, Forbidden, Impossible, Invalid, NotFound, Reason, ReasonCode, TooLarge, reason
from vmgpu.leases import passed
from vmgpu.models import (
    VM,
    Console,
    Event,
    Flavor,
    Host,
    Image,
    ImageState,
    OnStop,
    User,
    VMMember,
    VMState,
    Wanted,
    new_id,
    now,
)
from vmgpu.render import logins
from vmgpu.requests import CaptureRequest, ExtendRequest, StopRequest, VMRequest
from vmgpu.service.access import Actor, find_image, find_user, find_vm
from vmgpu.settings import Settings

_SETTLED = (VMState.running, VMState.stopped)
_TALKING = (VMState.booting, VMState.checking, VMState.running, VMState.stopping)


def request(db: Database, settings: Settings, actor: Actor, asked: VMRequest) -> list[VM]:
    """Queue 1..N VMs: each gets a row of its own, all or none. Raises Impossible where no host could ever hold one."""
    if asked.count > settings.max_vms_per_request:
        raise TooLarge(
            f"{asked.count} VMs are more than one call takes ({settings.max_vms_per_request})",
            hint="Send several requests" + (", or raise VMGPU_MAX_VMS_PER_REQUEST." if actor.admin else "."),
            where="count",
        )
    lease = asked.lease or settings.lease
    if lease > settings.max_lease:
        raise Invalid(
            f"A lease is at most {settings.max_lease.days} days", hint="Extend it later instead.", where="lease"
        )
    keys = [sshkeys.make_pair() for _ in range(asked.count)]
    with db.write() as session:
        owner = find_user(session, asked.owner, where="owner") if asked.owner else session.get_one(User, actor.id)
        if owner.id != actor.id and not actor.admin:
            raise Forbidden("Only an admin requests VMs for somebody else", hint="Leave the owner out.", where="owner")
        flavor = _flavor(session, asked.flavor)
        image = find_image(session, actor, asked.image)
        session.refresh(image, with_for_update={"read": True})  # nobody deletes it while it is asked for
        if image.state in (ImageState.failed, ImageState.deleting):
            raise Conflict(f"Image {image.name} is {image.state}", hint="Choose another image.", where="image")
        disk_gib = _disk_gib(flavor, image)
        people = {owner.id: owner} | {
            user.id: user for user in (find_user(session, name, where="members") for name in asked.members)
        }
        login_of = logins([person.name for person in people.values()], taken=(settings.ssh_user,))
        _refuse_taken(session, owner, asked.names())
        first = next_number(session, "ticket", asked.count)
        made = [
            VM(
                id=new_id(),
                name=name,
                owner_id=owner.id,
                image_id=image.id,
                flavor=flavor.name,
                vcpus=flavor.vcpus,
                memory_mib=flavor.memory_mib,
                disk_gib=disk_gib,
                profile=flavor.profile,
                fgpu=flavor.fgpu,
                cuda=flavor.cuda or "cuda" in image.labels,
                on_stop=asked.on_stop or flavor.on_stop,
                lease_seconds=round(lease.total_seconds()),
                ticket=first + number,
                host_key=pair.public,
                host_key_private=pair.private,
            )
            for number, (name, pair) in enumerate(zip(asked.names(), keys, strict=True))
        ]
        _refuse_impossible(session, made[0])
        session.add_all(made)
        session.flush()
        for vm in made:
            for person in people.values():
                session.add(VMMember(vm_id=vm.id, user_id=person.id, login=login_of[person.name]))
            session.add(Event(vm_id=vm.id, kind="requested", state=vm.state, who=actor.name))
        return made


def start(db: Database, actor: Actor, ref: str) -> VM:
    """Wish the VM running; a lease that has ended begins anew."""
    with db.write() as session:
        vm = _locked(session, find_vm(session, actor, ref))
        if vm.wanted is Wanted.gone:
            raise Conflict(f"{vm.name} is being released", hint="Request a new VM.")
        image = session.get_one(Image, vm.image_id)
        if not vm.has_disk and image.state in (ImageState.failed, ImageState.deleting):
            raise Conflict(f"Its image {image.name} is {image.state}", hint="Request a new VM from another image.")
        if vm.wanted is Wanted.stopped:
            _begin_anew(session, vm)
        return _wished(session, actor, vm, "start")


def stop(db: Database, actor: Actor, ref: str, asked: StopRequest) -> VM:
    """Wish the VM stopped; its slices are kept or given back as said, else as its `on_stop` says."""
    with db.write() as session:
        vm = _locked(session, find_vm(session, actor, ref))
        _not_leaving(vm)
        # after the lease's end its slices are others' already, whatever is said now
        vm.wanted, vm.stop_mode = Wanted.stopped, OnStop.release if vm.delete_at else asked.slices
        return _wished(session, actor, vm, "stop")


def reboot(db: Database, actor: Actor, ref: str) -> VM:
    """Wish one more boot of a running VM."""
    with db.write() as session:
        vm = _locked(session, find_vm(session, actor, ref))
        if vm.state is not VMState.running or vm.wanted is not Wanted.running:
            raise Conflict(f"{vm.name} is {vm.state}: only a running VM is rebooted", hint=f"vmgpu vm start {vm.name}")
        vm.boots += 1
        return _wished(session, actor, vm, "reboot")


def reset(db: Database, actor: Actor, ref: str) -> VM:
    """Wish a fresh disk of the same image; what was on the old one is lost, so this is for its owner and admins."""
    with db.write() as session:
        vm = _locked(session, find_vm(session, actor, ref, to_own=True))
        _not_leaving(vm)
        if vm.state not in (*_SETTLED, VMState.failed, VMState.lost) or vm.capture_as:
            raise Conflict(f"{vm.name} is {vm.state}", hint="Wait until it is running, stopped or failed.")
        if session.get_one(Image, vm.image_id).state is not ImageState.ready:
            raise Conflict("Its image is not there any more", hint="Request a new VM from another image.")
        vm.build += 1
        if vm.host_id:
            ledger.want_copy(session, vm.image_id, vm.host_id)
        if vm.wanted is not Wanted.running:
            _begin_anew(session, vm)
        return _wished(session, actor, vm, "reset")


def extend(db: Database, settings: Settings, actor: Actor, ref: str, asked: ExtendRequest) -> VM:
    """Move the lease's end; from now where it has ended. Raises Invalid past the longest lease."""
    with db.write() as session:
        vm = _locked(session, find_vm(session, actor, ref))
        _not_leaving(vm)
        at = now()
        begun = max(at, vm.expires_at) if vm.expires_at else at + timedelta(seconds=vm.lease_seconds)
        end = begun + asked.by
        if end - at > settings.max_lease:
            raise Invalid(
                f"The lease would end in more than {settings.max_lease.days} days",
                hint="Extend by less, and again later.",
                where="by",
            )
        if vm.expires_at is None:
            vm.lease_seconds = round((end - at).total_seconds())
        else:
            vm.expires_at, vm.warned = end, passed(end, at)
        vm.delete_at = None
        return _wished(session, actor, vm, "extend")


def release(db: Database, actor: Actor, ref: str) -> VM:
    """Wish the VM gone, with its disk; its owner and admins may."""
    with db.write() as session:
        vm = _locked(session, find_vm(session, actor, ref, to_own=True))
        if vm.state is VMState.gone:
            raise NotFound(f"{ref} is gone already", hint="List what there is: vmgpu vm list.")
        if vm.wanted is Wanted.gone:
            return vm
        vm.wanted = Wanted.gone
        return _wished(session, actor, vm, "release")


def capture(db: Database, settings: Settings, actor: Actor, ref: str, asked: CaptureRequest) -> Image:
    """Wish the VM's disk as a private image of its owner; the VM stops for the copy and goes on as it was."""
    with db.write() as session:
        vm = _locked(session, find_vm(session, actor, ref, to_own=True))
        _not_leaving(vm)
        if vm.state not in _SETTLED or not vm.has_disk:
            raise Conflict(f"{vm.name} is {vm.state}", hint="Take the snapshot when it is running or stopped.")
        if vm.capture_as:
            raise Conflict(f"{vm.name} is being captured already", hint="Wait until that has ended.")
        taken = select(Image).where(Image.name == asked.image, Image.owner_id == vm.owner_id)
        old = session.exec(taken).first()
        if old and old.state is ImageState.failed and not _is_referred_to(session, old):
            for kept in settings.images_dir.glob(f"{old.volume}*"):  # perhaps not yet generalised: nobody's business
                kept.unlink(missing_ok=True)
            session.delete(old)
            session.flush()
        elif old:
            raise Conflict(f"There is an image {asked.image} already", hint="Take another name or tag.", where="image")
        base = session.get_one(Image, vm.image_id)
        _refuse_without_room(session, settings, vm, base)
        members = session.exec(select(VMMember.login).where(VMMember.vm_id == vm.id)).all()
        image = Image(
            name=asked.image,
            owner_id=vm.owner_id,
            state=ImageState.copying,
            labels=dict(base.labels),
            virtual_mib=vm.disk_gib * 1024,
            source_vm=vm.id,
            logins=sorted({*base.logins, *members, settings.ssh_user}),
        )
        session.add(image)
        session.flush()
        vm.capture_as = image.id
        session.add(Event(image_id=image.id, vm_id=vm.id, kind="capture", who=actor.name))
        _wished(session, actor, vm, "snapshot")
        return image


def ask_console(db: Database, actor: Actor, ref: str) -> Callable[[], tuple[Console | None, bool]]:
    """Have the end of the VM's serial console read. The answer looks what is kept, and whether it was read since."""
    with db.read() as session:
        vm = find_vm(session, actor, ref)
    asked_at = now() if vm.host_id and vm.state in _TALKING else None
    if asked_at:
        with db.write() as session:
            wake(session, VM, col(VM.id) == vm.id, console_asked=asked_at)

    def look() -> tuple[Console | None, bool]:
        with db.read() as session:
            kept = session.get(Console, vm.id)
        return kept, asked_at is None or (kept is not None and kept.at >= asked_at)

    return look


def listed(session: Session, vms: Iterable[VM]) -> dict[str, int]:
    """The place in the queue of each of these VMs that waits, from 1."""
    ids = [vm.id for vm in vms if vm.state is VMState.pending and vm.wanted is Wanted.running]
    if not ids:
        return {}
    order = select(VM.id).where(VM.state == VMState.pending, VM.wanted == Wanted.running).order_by(col(VM.ticket))
    numbers = {vm_id: number for number, vm_id in enumerate(session.exec(order).all(), start=1)}
    return {vm_id: numbers[vm_id] for vm_id in ids if vm_id in numbers}


def _flavor(session: Session, name: str) -> Flavor:
    flavor = session.exec(select(Flavor).where(Flavor.name == name)).first()
    if not flavor:
        raise NotFound(f"There is no flavor {name!r}", hint="List them: vmgpu flavor list.", where="flavor")
    return flavor


def _disk_gib(flavor: Flavor, image: Image) -> int:
    if image.virtual_mib > flavor.disk_gib * 1024:
        raise Impossible(
            f"Image {image.name} is {image.virtual_mib / 1024:.1f} GiB, flavor {flavor.name} has {flavor.disk_gib} GiB",
            hint=f"The nearest that fits: a flavor with a disk of {-(-image.virtual_mib // 1024)} GiB.",
            where="flavor",
        )
    return flavor.disk_gib


def _refuse_taken(session: Session, owner: User, names: list[str]) -> None:
    query = select(VM.name).where(VM.owner_id == owner.id, VM.state != VMState.gone, col(VM.name).in_(names))
    taken = sorted(session.exec(query).all())
    if taken:
        raise Conflict(
            f"{owner.name} has a VM called {taken[0]!r} already",
            hint="Release it first, or take another name.",
            where="name",
        )


def _refuse_impossible(session: Session, vm: VM) -> None:
    (wish,) = ledger.wishes(session, [vm])
    never = placement.never(wish, ledger.fleet(session))
    if never:
        raise Impossible(never.sentence(), hint=never.cure(), where="flavor")


def _refuse_without_room(session: Session, settings: Settings, vm: VM, base: Image) -> None:
    """What the last survey saw of the disk must find room in the store; its host looks again before the VM stops."""
    host = session.get(Host, vm.host_id) if vm.host_id else None
    if host is None or host.simulated:
        return
    needed = base.copy_mib + (host.facts or {}).get("disk_written_mib", {}).get(vm.id, 0)
    settings.images_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(settings.images_dir).free // 2**20
    if free < needed:
        where = "the image store of vmgpu"
        short = reason(ReasonCode.no_room_for_copy, needed_mib=needed, free_mib=free, where=where)
        raise Conflict(short.sentence(), hint=short.cure(), where="image")


def _locked(session: Session, vm: VM) -> VM:
    """The row as it is now, ours until the write ends: two wishes at once must both be seen."""
    session.refresh(vm, with_for_update=HOLD)
    return vm


def _begin_anew(session: Session, vm: VM) -> None:
    """Wish a stopped VM running, with a lease that begins anew where it had ended, and every card open to it again."""
    vm.wanted, vm.stop_mode, vm.restarts, vm.tries, vm.excluded = Wanted.running, None, 0, 0, []
    if vm.delete_at or (vm.expires_at and vm.expires_at <= now()):
        vm.expires_at, vm.delete_at, vm.warned = None, None, []
    if not vm.holds:
        vm.ticket = next_number(session, "ticket")
    elif vm.expires_at is None:
        at = now()
        vm.expires_at = at + timedelta(seconds=vm.lease_seconds)
        vm.warned = passed(vm.expires_at, at)


def _is_referred_to(session: Session, image: Image) -> bool:
    return session.exec(select(VM.id).where(VM.image_id == image.id)).first() is not None


def _not_leaving(vm: VM) -> None:
    if vm.wanted is Wanted.gone or vm.state is VMState.gone:
        raise Conflict(f"{vm.name} is being released", hint="Request a new VM.")


def _wished(session: Session, actor: Actor, vm: VM, what: str) -> VM:
    said: Reason = reason(ReasonCode.asked, who=actor.name, what=what)
    if what in ("start", "stop"):
        vm.stopped_because = said.as_dict() if what == "stop" else None
    session.add(Event(vm_id=vm.id, kind="asked", state=vm.state, who=actor.name, reason=said.as_dict()))
    session.add(vm)
    session.flush()
    wake(session, VM, col(VM.id) == vm.id)
    session.refresh(vm)
    return vm
