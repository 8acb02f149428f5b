"""What visits to a host bring, as rows: its state, its survey, its cards, and its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session, col, delete, select

from vmgpu import ledger, outcomes
from vmgpu.db import wake
from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.hypervisor import DomainSeen, GpuFacts, Held, HostFacts
from vmgpu.machines import Findings, HostNews, doctor_due, facts_as, gone_by_hand, orphans
from vmgpu.models import VM, CopyState, Event, Gpu, GpuState, Host, HostState, ImageCopy, Slice, VMState, Wanted, now

# libvirt's own service takes up to five minutes to shut guests down, one after another
_GOING_DOWN = timedelta(minutes=10)


def apply_host(session: Session, host: Host, news: HostNews, installation: str, sync_every: timedelta) -> None:
    """Write what a visit brought: the host answers; its survey; the VMs that are not as their rows say."""
    rebooted = bool(host.boot_id) and news.boot_id != host.boot_id
    was_away = host.state is HostState.unreachable
    if news.facts:
        _surveyed(session, host, news.facts)
    if was_away or host.state is HostState.new or rebooted:
        kind = "host_back" if was_away else "host_rebooted" if rebooted else "host_ready"
        session.add(Event(host_id=host.id, kind=kind))
    went = host.unreachable_since or now()
    host.state, host.reason, host.unreachable_since, host.boot_id = HostState.ready, None, None, news.boot_id
    rows = session.exec(select(VM).where(VM.host_id == host.id, VM.state != VMState.gone)).all()
    if rebooted:
        _start_again(session, rows, went)
    known = {vm.id for vm in session.exec(select(VM).where(VM.state != VMState.gone)).all()}
    left = orphans(news.domains, installation, known)
    host.orphans = [f"{each.name} ({each.id})" for each in left]
    _held_by_orphans(session, host, left, news.held)
    running = {vm.id for vm in rows if vm.state is VMState.running}
    off = {vm.id for vm in rows if vm.state is VMState.stopped}
    odd = {vm.id for vm in rows} if rebooted or was_away else gone_by_hand(running, off, news.domains)
    if odd:
        # nobody could look at the guests of a host that was away: they have their time anew
        anew = {"step_since": now()} if rebooted or was_away else {}
        wake(session, VM, col(VM.id).in_(odd), **anew)
    if was_away:
        wake(session, ImageCopy, col(ImageCopy.host_id) == host.id, col(ImageCopy.state) == CopyState.wanted)
    _visited(host, sync_every)


def _start_again(session: Session, rows: Iterable[VM], went: datetime) -> None:
    """Want those VMs running that their host shut down on its way down: of a reboot in good order that comes first.

    It looks as if their guests had done it; nobody's guest does so minutes before its host goes, or it may start again.
    """
    for vm in rows:
        because = Reason.of(vm.reason)
        off = vm.state in (VMState.stopping, VMState.stopped) and vm.wanted is Wanted.stopped
        by_itself = because is not None and because.code is ReasonCode.stopped_by_guest
        if off and by_itself and vm.state_since > went - _GOING_DOWN:
            vm.wanted = Wanted.running
            vm.reason = reason(ReasonCode.restarted_after_host, detail="its host's reboot").as_dict()
            session.add(Event(vm_id=vm.id, host_id=vm.host_id, kind="started_again", reason=vm.reason))


def examined(host: Host, findings: Findings | None) -> None:
    """Write what the doctor found, where he was there."""
    if findings is not None:
        host.doctor, host.doctor_at = [each.as_dict() for each in findings.checks], findings.at


def twin(session: Session, host: Host, news: HostNews) -> str | None:
    """The name of the host that this machine already is, asked at its first survey: its cards would count twice."""
    if host.facts or not news.facts or not news.facts.machine:
        return None
    others = session.exec(select(Host).where(Host.id != host.id)).all()
    return next((other.name for other in others if (other.facts or {}).get("machine") == news.facts.machine), None)


def host_away(session: Session, host: Host, because: Reason, *, again: timedelta) -> None:
    """Write that a host does not answer; its VMs keep state and slices. A host never surveyed stays new."""
    if host.state is HostState.ready:
        session.add(Event(host_id=host.id, kind="host_unreachable", reason=because.as_dict()))
        host.state, host.unreachable_since = HostState.unreachable, now()
        host.version += 1
    host.reason = because.as_dict()
    _visited(host, again)


def survey_refused(session: Session, host: Host, because: Reason, *, again: timedelta) -> None:
    """Write that a host answers and cannot be used as it is: its VMs go on, no new ones are placed there."""
    host.reason, host.version = because.as_dict(), host.version + 1
    _visited(host, again)


def _visited(host: Host, again: timedelta) -> None:
    """End a visit; who asked for the doctor while it lasted does not wait for the next one."""
    outcomes.let_go(host, now() if doctor_due(host.doctor_asked, host.doctor_at) else now() + again)


def forget_host(session: Session, host: Host) -> None:
    """Remove a host's rows; VMs keep their history without it, and those that lay on a lost one are gone with it."""
    for vm in session.exec(select(VM).where(VM.host_id == host.id).order_by(VM.id)).all():
        if vm.state is not VMState.gone:
            outcomes.give_up(session, vm, reason(ReasonCode.host_given_up, host=host.name))
        vm.host_id = None
    session.flush()
    session.execute(delete(ImageCopy).where(col(ImageCopy.host_id) == host.id))
    session.execute(delete(Gpu).where(col(Gpu.host_id) == host.id))
    session.delete(host)


def _at_its_place(known: dict[str, Gpu], facts: GpuFacts) -> Gpu | None:
    """A card known by the slot and ids it is found at, while one of the two looks could not ask for its UUID."""
    for key, gpu in known.items():
        if facts.place and gpu.facts.get("place") == facts.place and not (facts.uuid and gpu.facts.get("uuid")):
            return known.pop(key)
    return None


def _as_seen_whole(gpu: Gpu, before: Mapping[str, Any]) -> None:
    """Keep what a card was that tells only what is left of it: with what lives there now that is the same card."""
    kept = {mode: cuts for mode, cuts in before.get("cuts", {}).items() if cuts.get("left")}
    facts = dict(gpu.facts)
    facts["cuts"] = {**facts["cuts"], **kept}
    facts["modes"] = tuple(dict.fromkeys((*facts["modes"], *kept)))
    facts["refusals"] = {mode: why for mode, why in facts["refusals"].items() if mode not in kept}
    gpu.facts = facts


def _surveyed(session: Session, host: Host, facts: HostFacts) -> None:
    host.facts, host.surveyed_at = facts_as(facts), now()
    size = (facts.threads, facts.memory_mib, facts.disk_total_gib)
    if size != (host.threads, host.memory_mib, host.disk_gib):
        host.threads, host.memory_mib, host.disk_gib = size
        host.version += 1
    _cards(session, host, facts.gpus)


def _held_by_orphans(
    session: Session, host: Host, left: Sequence[DomainSeen], held: Mapping[str, Sequence[Held]]
) -> None:
    """Note at each card what orphans have of it: it takes room until somebody removes the domain."""
    there = select(Gpu).where(Gpu.host_id == host.id).order_by(Gpu.id).with_for_update(key_share=True)
    cards = session.exec(there).all()
    noted: dict[str, list[dict[str, Any]]] = {gpu.id: [] for gpu in cards}
    for domain in left:
        for piece in held.get(domain.id, ()):
            taken = {"name": piece.profile, "start": piece.start, "slot": None, "by": domain.name}
            mine = [gpu for gpu in cards if _may_be_of(piece, gpu)]
            # of several emulated cards alike nobody knows which it was: the first with room for it
            gpu = next((gpu for gpu in mine if _has_room(session, gpu, noted[gpu.id], taken)), None)
            if gpu := gpu or next(iter(mine), None):
                noted[gpu.id].append(taken)
    for gpu in cards:
        if gpu.facts.get("orphans", []) != noted[gpu.id]:
            gpu.facts, gpu.version = {**gpu.facts, "orphans": noted[gpu.id]}, gpu.version + 1


def _may_be_of(piece: Held, gpu: Gpu) -> bool:
    return gpu.address == piece.address if piece.address else gpu.emulated and gpu.model == piece.model


def _has_room(session: Session, gpu: Gpu, noted: list[dict[str, Any]], more: dict[str, Any]) -> bool:
    cuts = session.exec(select(Slice).where(Slice.gpu_id == gpu.id)).all()
    before = ledger.taken(gpu, cuts, noted)
    return len(ledger.taken(gpu, cuts, [*noted, more])) > len(before)


def _strayed(gpu: Gpu, facts: GpuFacts) -> Reason | None:
    """Why a card is not as it is given out; MIG that is merely off is no reason: the carver switches it on."""
    sliced = ("vgpu", "mixed")
    other = (gpu.mode in sliced and facts.now == "mig") or (gpu.mode == "mig" and facts.now in sliced and facts.live)
    if gpu.emulated or not (other or (gpu.mode == "passthrough" and facts.now in (*sliced, "mig"))):
        return None
    return reason(ReasonCode.card_other_mode, gpu=gpu.name, mode=gpu.mode, now=facts.now)


def _cards(session: Session, host: Host, seen: Iterable[GpuFacts]) -> None:
    there = select(Gpu).where(Gpu.host_id == host.id).order_by(Gpu.id).with_for_update(key_share=True)
    known = {gpu.key: gpu for gpu in session.exec(there).all()}
    for facts in seen:
        gpu = known.pop(facts.key, None) or _at_its_place(known, facts)
        if gpu is None:
            # real cards are listed and left alone until an admin offers them
            given = (facts.emulated or host.simulated) and facts.modes
            # in the mode that it shows: in another one it would count as strayed at once
            mode = (facts.now if facts.now in facts.modes else facts.modes[0]) if given else None
            gpu = Gpu(host_id=host.id, key=facts.key, model=facts.model, mode=mode, emulated=facts.emulated)
        if gpu.state is GpuState.absent:
            gpu.state, gpu.reason, gpu.version = GpuState.ready, None, gpu.version + 1
        before = gpu.facts
        gpu.key = facts.key if facts.uuid or not before.get("uuid") else gpu.key
        gpu.name, gpu.address, gpu.model = facts.name, facts.address, facts.model
        cuts = session.exec(select(Slice).where(Slice.gpu_id == gpu.id)).all()
        kept = asdict(replace(facts, live=()))
        gpu.facts = {k: v for k, v in kept.items() if k not in ("key", "name", "model", "address", "emulated", "live")}
        gpu.facts["orphans"] = before.get("orphans", [])
        gpu.facts["foreign"] = [asdict(each) for each in ledger.foreign(facts.live, cuts)]
        if before.get("uuid") and not facts.uuid:
            # bound to vfio-pci nobody can ask the card: what was heard before still holds
            told = ("uuid", "serial", "module_id", "memory_mib", "partition")
            gpu.facts |= {name: before[name] for name in told if before.get(name) is not None}
        if gpu.mode in before.get("cuts", {}) and gpu.mode not in facts.cuts:
            gpu.facts["cuts"][gpu.mode] = before["cuts"][gpu.mode]
        if facts.live:
            _as_seen_whole(gpu, before)
        session.add(gpu)
        if strayed := _strayed(gpu, facts):
            session.flush()
            outcomes.quarantine(session, [gpu.id], strayed)
            refusals = {**facts.refusals, str(gpu.mode): strayed.sentence()}
            gpu.facts = {**gpu.facts, "modes": [each for each in facts.modes if each != gpu.mode], "refusals": refusals}
    for gpu in known.values():
        if gpu.state is not GpuState.absent:
            gpu.state, gpu.version = GpuState.absent, gpu.version + 1
            gpu.reason = reason(
                ReasonCode.card_unhealthy, gpu=gpu.name, detail="the last survey did not see it"
            ).as_dict()
