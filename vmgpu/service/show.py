"""Rows as people see them: the shapes that REST answers, the command line prints and the pages draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from sqlmodel import Session, SQLModel, col, select

from vmgpu import ledger, placement
from vmgpu.errors import Reason
from vmgpu.models import (
    VM,
    Event,
    Flavor,
    Gpu,
    GpuUnit,
    Host,
    Image,
    ImageCopy,
    Key,
    Slice,
    Token,
    User,
    VMMember,
    VMState,
)
from vmgpu.service import plain
from vmgpu.service.access import Actor, visible_vms
from vmgpu.service.flavors import never
from vmgpu.service.shapes import (
    EventOut,
    FlavorOut,
    GpuOut,
    HostOut,
    ImageOut,
    KeyOut,
    LicenceOut,
    OtherOut,
    Said,
    ShareOut,
    SliceOut,
    StepOut,
    TokenOut,
    UnitOut,
    UserOut,
    VMOut,
)
from vmgpu.service.vms import listed

Row = TypeVar("Row", bound=SQLModel)

_CUT_BY_ITS_DRIVER = (placement.Mode.vgpu, placement.Mode.mixed, placement.Mode.mig)
# what `vms` reads of a row: loading whole rows, with all their JSON, costs several times as much
VM_COLUMNS = (
    "id", "name", "owner_id", "state", "wanted", "state_since", "reason", "address", "flavor", "image_id", "host_id",
    "vcpus", "memory_mib", "disk_gib", "profile", "fgpu", "card", "licence", "licence_at",
    "warnings", "on_stop", "capture_as", "expires_at",
    "lease_seconds", "delete_at", "keep_until", "holds", "host_key", "created_at",
)  # fmt: skip


def said(stored: Any, *, to: Actor | None = None) -> Said | None:
    """A stored Reason in words; `to`: as this person may read it."""
    found = stored if isinstance(stored, Reason) else Reason.of(stored)
    if found is None:
        return None
    sentence, cure = plain.words(found, to)
    return Said(code=found.code.value, sentence=sentence, cure=cure)


def vms(session: Session, rows: Sequence[VM], *, to: Actor | None = None) -> list[VMOut]:
    """These VMs, in this order, as this person may see them; a handful of queries however many they are.

    `VM_COLUMNS` are all it reads of a row.
    """
    ids = [vm.id for vm in rows]
    users = dict(session.exec(select(User.id, User.name)).all())
    hosts = {host_id: (name, uri.startswith("fake:")) for host_id, name, uri in _hosts(session)}
    images = dict(session.exec(select(Image.id, Image.name)).all())
    members, logins = _members(session, ids, users)
    cuts: dict[str, list[SliceOut]] = defaultdict(list)
    for vm_id, cut in _slices(session, vm_ids=ids):
        cuts[vm_id].append(cut)
    places = listed(session, rows)
    answer = []
    for vm in rows:
        host, simulated = hosts.get(vm.host_id or "", (None, False))
        answer.append(
            VMOut(
                id=vm.id,
                name=vm.name,
                owner=users.get(vm.owner_id, ""),
                members=sorted(members[vm.id]),
                state=vm.state,
                wanted=vm.wanted,
                since=vm.state_since,
                position=places.get(vm.id),
                reason=said(vm.reason, to=to) if vm.reason else None,
                address=vm.address,
                login=logins.get((vm.id, vm.owner_id)),
                flavor=vm.flavor,
                image=images[vm.image_id],
                host=host,
                simulated=simulated,
                vcpus=vm.vcpus,
                memory_mib=vm.memory_mib,
                disk_gib=vm.disk_gib,
                profile=vm.profile,
                fgpu=vm.fgpu,
                slices=cuts[vm.id],
                card=vm.card,
                licence=vm.licence,
                licence_at=vm.licence_at,
                warnings=vm.warnings,
                on_stop=vm.on_stop,
                capturing=images.get(vm.capture_as) if vm.capture_as else None,
                lease_ends=vm.expires_at,
                lease_seconds=vm.lease_seconds,
                delete_at=vm.delete_at,
                keeps_slices_until=vm.keep_until if vm.holds else None,
                host_key=vm.host_key,
                created_at=vm.created_at,
            )
        )
    return answer


def vm(session: Session, row: VM, *, to: Actor | None = None) -> VMOut:
    """One VM."""
    return vms(session, [row], to=to)[0]


def gpus(session: Session, host: Host | None = None, *, to: Actor | None = None) -> list[GpuOut]:
    """The cards of one host, or of all, with their slices where they lie; `to`: without VMs this person cannot see."""
    hosts = {row.id: row for row in ([host] if host else session.exec(select(Host)).all())}
    rows = session.exec(select(Gpu).where(col(Gpu.host_id).in_(list(hosts))).order_by(col(Gpu.key))).all()
    seen = select(VM.id, VM.name).where(col(VM.holds))
    names = dict(session.exec(seen.where(visible_vms(to)) if to else seen).all())
    cuts: dict[str, list[SliceOut]] = defaultdict(list)
    for vm_id, cut in _slices(session):
        cuts[cut.gpu].append(replace(cut, vm=names.get(vm_id)))
    lost = ledger.to_cut_again(session)
    answer = [
        _gpu(gpu, hosts[gpu.host_id], cuts[gpu.id], ledger.room(gpu, cuts, rows), lost.get(gpu.id, [])) for gpu in rows
    ]
    if to is None or to.admin:
        return answer
    # what is wrong with a card names processes of its host
    hidden: dict[str, Any] = {"reason": None, "refusals": {}, "held_by": "", "orphans": [], "uuid": "", "serial": ""}
    return [card.model_copy(update=hidden) for card in answer]


def hosts(session: Session, rows: Sequence[Host], *, to: Actor | None = None) -> list[HostOut]:
    """These hosts with their cards and what VMs hold on them; `to`: as this person may see them."""
    held: dict[str, list[VM]] = defaultdict(list)
    for row in session.exec(select(VM).where(col(VM.host_id).is_not(None), VM.state != VMState.gone)).all():
        held[str(row.host_id)].append(row)
    cards: dict[str, list[GpuOut]] = defaultdict(list)
    for gpu in gpus(session, to=to):
        cards[gpu.host].append(gpu)
    answer = [_host(host, held[host.id], cards[host.name]) for host in rows]
    if to is None or to.admin:
        return answer
    # how a host is opened, and what runs there beside ours, is an admin's business
    return [
        host.model_copy(update={"uri": "", "reason": None, "facts": None, "orphans": [], "licence": None})
        for host in answer
    ]


def flavors(session: Session, rows: Sequence[Flavor]) -> list[FlavorOut]:
    """These flavors, each with what its wish becomes on the cards there are."""
    cards = session.exec(select(Gpu).where(col(Gpu.mode).is_not(None))).all()
    kinds = {(gpu.model, str(gpu.mode), ledger.shape(gpu.model, str(gpu.mode), gpu.facts)) for gpu in cards}
    units = {unit.model: Fraction(unit.share) for unit in session.exec(select(GpuUnit)).all()}
    answer = []
    for row in rows:
        offers = [
            _becomes(row, model, mode, shape, units.get(model, Fraction(1)))
            for model, mode, shape in sorted(kinds, key=lambda kind: kind[:2])
        ]
        becomes = [offer for offer in offers if offer]
        answer.append(FlavorOut(**row.model_dump(exclude={"id", "created_at"}), becomes=becomes))
    return answer


def flavor(session: Session, row: Flavor) -> FlavorOut:
    """One flavor, with a warning where no host that there is could ever hold it."""
    return flavors(session, [row])[0].model_copy(update={"warning": said(never(session, [row]).get(row.name))})


def units(session: Session) -> list[UnitOut]:
    """What 1 fGPU is, for every model that has cards or a setting."""
    known = {unit.model: unit.share for unit in session.exec(select(GpuUnit)).all()}
    # of a model's cards one that is given out, where there is one
    cards = {gpu.model: gpu for gpu in sorted(session.exec(select(Gpu)).all(), key=lambda gpu: gpu.mode is not None)}
    one = Flavor(name="", vcpus=1, memory_mib=1, disk_gib=1, fgpu="1")
    answer = []
    for model in sorted({*known, *cards}):
        card = cards.get(model)
        mode = (card.mode or placement.Mode.passthrough.value) if card else placement.Mode.emulated.value
        shape = ledger.shape(model, mode, card.facts if card else {})
        share = known.get(model, "1")
        becomes = _becomes(one, model, mode, shape, Fraction(share))
        answer.append(UnitOut(model=model, share=share, is_set=model in known, becomes=becomes))
    return answer


def images(session: Session, rows: Sequence[Image], *, to: Actor | None = None) -> list[ImageOut]:
    """These images with their copies on hosts."""
    users = {user.id: user.name for user in session.exec(select(User)).all()}
    names = {host.id: host.name for host in session.exec(select(Host)).all()}
    copies: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for copy in _where_in(session, ImageCopy, ImageCopy.image_id, [image.id for image in rows]):
        copies[copy.image_id].append(
            {"host": names.get(copy.host_id), "state": copy.state.value, "percent": copy.percent}
        )
    kept = {"id", "name", "labels", "format", "virtual_mib", "size_bytes", "sha256", "created_at"}
    return [
        ImageOut(
            **row.model_dump(include=kept),
            owner=users.get(row.owner_id or ""),
            state=row.state.value,
            reason=said(row.reason, to=to),
            copies=copies[row.id],
        )
        for row in rows
    ]


def people(session: Session, rows: Sequence[User]) -> list[UserOut]:
    """These people, with how many keys and VMs they have."""
    keys: dict[str, int] = defaultdict(int)
    for key in session.exec(select(Key.user_id)).all():
        keys[key] += 1
    owned: dict[str, int] = defaultdict(int)
    for owner in session.exec(select(VM.owner_id).where(VM.state != VMState.gone)).all():
        owned[owner] += 1
    return [UserOut(**row.model_dump(), keys=keys[row.id], vms=owned[row.id]) for row in rows]


def key(row: Key, user: str) -> KeyOut:
    """One key."""
    return KeyOut(**row.model_dump(exclude={"user_id"}), user=user)


def token(row: Token, user: str, *, secret: str | None = None) -> TokenOut:
    """One token."""
    return TokenOut(
        **row.model_dump(exclude={"user_id", "digest", "kind"}), kind=row.kind.value, user=user, secret=secret
    )


def events(session: Session, rows: Sequence[Event], *, to: Actor | None = None) -> list[EventOut]:
    """These events, with names for ids."""
    names = {vm.id: vm.name for vm in _where_in(session, VM, VM.id, [e.vm_id for e in rows if e.vm_id])}
    hosts = {host.id: host.name for host in session.exec(select(Host)).all()}
    kept = {"at", "kind", "vm_id", "state", "was", "seconds", "who"}
    return [
        EventOut(
            **row.model_dump(include=kept),
            id=row.id or 0,
            vm=names.get(row.vm_id or ""),
            host=hosts.get(row.host_id or ""),
            reason=said(row.reason, to=to),
        )
        for row in rows
    ]


def why(steps: Sequence[placement.Step], *, to: Actor | None = None) -> list[StepOut]:
    """A placement's filters in words."""
    return [StepOut(filter=step.filter.value, left=step.left, reason=said(step.reason, to=to)) for step in steps]


def _hosts(session: Session) -> Sequence[tuple[str, str, str]]:
    return session.exec(select(Host.id, Host.name, Host.uri)).all()


def _members(
    session: Session, vm_ids: list[str], users: Mapping[str, str]
) -> tuple[dict[str, list[str]], dict[tuple[str, str], str]]:
    """The names of each VM's members, and the login of each member of each VM."""
    query = select(VMMember.vm_id, VMMember.user_id, VMMember.login)
    if len(vm_ids) < 500:
        query = query.where(col(VMMember.vm_id).in_(vm_ids))
    names: dict[str, list[str]] = defaultdict(list)
    logins: dict[tuple[str, str], str] = {}
    for vm_id, user_id, login in session.exec(query).all():
        logins[vm_id, user_id] = login
        if user_id in users:
            names[vm_id].append(users[user_id])
    return names, logins


def _slices(session: Session, *, vm_ids: list[str] | None = None) -> Sequence[tuple[str, SliceOut]]:
    """The ids of VMs with what each holds, in the order in which it lies on its card."""
    query = select(  # type: ignore[call-overload]
        Slice.vm_id, Slice.gpu_id, Slice.profile, Slice.start, Slice.cells, Slice.compute, Slice.memory_mib,
        Gpu.model, Gpu.mode, Gpu.emulated,
    ).join(Gpu, col(Gpu.id) == Slice.gpu_id)  # fmt: skip
    if vm_ids is not None and len(vm_ids) < 500:
        query = query.where(col(Slice.vm_id).in_(vm_ids))
    found = session.exec(query.order_by(col(Slice.gpu_id), col(Slice.start))).all()
    # facts are large: they are read of the cards only whose shape the tables do not know
    real = select(Gpu.id, Gpu.facts).where(col(Gpu.mode).in_(_CUT_BY_ITS_DRIVER))
    facts = dict(session.exec(real).all()) if found else {}
    grids: dict[str, tuple[int, int]] = {}
    answer = []
    for vm_id, gpu, profile, start, cells, compute, memory_mib, model, mode, emulated in found:
        if gpu not in grids:
            shape = ledger.shape(model, mode, facts.get(gpu, {})) if mode else None
            grids[gpu] = (shape.cells, shape.compute) if shape else (cells, compute)
        of_cells, of_compute = grids[gpu]
        shown = SliceOut(
            gpu=gpu,
            model=model,
            emulated=emulated,
            profile=profile,
            start=start,
            cells=cells,
            compute=compute,
            memory_mib=memory_mib,
            memory_share=cells / of_cells,
            compute_share=compute / of_compute,
        )
        answer.append((vm_id, shown))
    return answer


def _gpu(gpu: Gpu, host: Host, cuts: list[SliceOut], free: dict[str, int], lost: list[str]) -> GpuOut:
    shape, facts = ledger.shape(gpu.model, gpu.mode, gpu.facts) if gpu.mode else None, gpu.facts
    can_be = {mode: _pieces(gpu, mode) for mode in facts.get("modes", ())}
    return GpuOut(
        **gpu.model_dump(include={"id", "name", "model", "address", "emulated", "mode"}),
        host=host.name,
        simulated=host.simulated,
        state=gpu.state.value,
        reason=said(gpu.reason),
        cells=shape.cells if shape else 1,
        compute=shape.compute if shape else 1,
        memory_mib=facts.get("memory_mib") or (shape.memory_gb * 1024 if shape and shape.memory_gb else None),
        numa_node=facts.get("numa_node"),
        iommu_group=facts.get("iommu_group"),
        driver=facts.get("driver"),
        uuid=facts.get("uuid", ""),
        serial=facts.get("serial", ""),
        now=facts.get("now"),
        framework=facts.get("framework"),
        reset_methods=facts.get("reset_methods"),
        companions=list(facts.get("companions", ())),
        bars_mib=list(facts.get("bars_mib", ())),
        link=facts.get("link", ""),
        held_by=facts.get("held_by", ""),
        offers={mode: list(pieces) for mode, pieces in can_be.items()},
        per_card=can_be,
        free=free,
        to_cut_again=lost,
        refusals=dict(facts.get("refusals", {})),
        others=[OtherOut(each.profile, each.start, each.cells) for each in ledger.of_others(gpu, cuts)],
        foreign=[str(each["name"]) for each in facts.get("foreign", ())],
        orphans=[f"{each['name']} by orphan domain {each['by']}" for each in facts.get("orphans", ())],
        slices=cuts,
    )


def _pieces(gpu: Gpu, mode: str) -> dict[str, int]:
    """What a card can be cut into in this mode, the largest first, and how many of each it holds when it is empty."""
    if mode != placement.Mode.emulated and mode not in gpu.facts.get("cuts", {}):
        return {placement.WHOLE: 1}
    shape = ledger.shape(gpu.model, mode, gpu.facts)
    sizes = sorted(placement.offered(shape, placement.Mode(mode)), key=lambda size: -size.memory_mib)
    return {size.name: placement.places(shape, size) for size in sizes}


def _host(host: Host, held: list[VM], cards: list[GpuOut]) -> HostOut:
    holding = [row for row in held if row.holds]
    kept = {
        "id", "name", "uri", "draining", "threads", "overcommit", "memory_mib", "disk_gib", "bridge", "orphans",
        "surveyed_at", "device_ids", "mdev_parents",
    }  # fmt: skip
    facts = {name: fact for name, fact in host.facts.items() if name != "disk_written_mib"} if host.facts else None
    return HostOut(
        **host.model_dump(include=kept),
        simulated=host.simulated,
        state=host.state.value,
        reason=said(host.reason),
        vcpus_held=sum(row.vcpus for row in holding),
        memory_held_mib=sum(row.memory_mib for row in holding),
        memory_reserve_mib=max(1024, -(-host.memory_mib // 20)) if host.memory_mib else 0,
        disk_free_gib=facts.get("disk_free_gib") if facts else None,
        vms=len(held),
        facts=facts,
        gpus=cards,
        licence=LicenceOut(
            feature=host.licence.get("feature", 1),
            server=host.licence.get("server", ""),
            has_token=bool(host.licence.get("token")),
        ),
    )


def _becomes(row: Flavor, model: str, mode: str, shape: placement.CardModel, unit: Fraction) -> ShareOut | None:
    offered = placement.offered(shape, placement.Mode(mode))
    if row.profile:
        chosen = next((p for p in offered if p.name.lower() == row.profile.lower()), None)
    elif row.fgpu:
        found = placement.profile_for(shape, Fraction(row.fgpu) * unit, cuda=row.cuda)
        chosen = found if found in offered else None
    else:
        chosen = None
    if chosen is None or (row.cuda and not chosen.cuda):
        return None
    share_of = placement.share_of(chosen, shape)
    memory, compute = share_of.memory_percent, share_of.compute_percent
    return ShareOut(
        model=model,
        profile=chosen.name,
        per_card=placement.places(shape, chosen),
        memory_percent=memory,
        compute_percent=compute,
        says=f"{chosen.name} on {model}: {memory} % of memory, {compute} % of compute",
    )


def _where_in(session: Session, kind: type[Row], column: Any, ids: Sequence[str]) -> Sequence[Row]:
    if len(ids) < 500:
        return session.exec(select(kind).where(col(column).in_(ids))).all()
    wanted = set(ids)
    return [row for row in session.exec(select(kind)).all() if getattr(row, column.key) in wanted]
