"""Why a wish waits, and what could never be: the filters a wish passes, one after the other, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.placement import policy, tables
from vmgpu.placement.fleet import Fleet
from vmgpu.placement.tables import CardModel, Mode, Profile
from vmgpu.placement.values import ByProfile, CardState, GpuWish, HostState, Wish


class Filter(StrEnum):
    """What may rule a place out, in the order in which it is asked: lasting facts first, then what is short now."""

    disk_place = "disk_place"
    kind = "kind"
    retry = "retry"
    offer = "offer"
    host_open = "host_open"
    card_open = "card_open"
    slice_free = "slice_free"
    group_free = "group_free"
    cpu = "cpu"
    memory = "memory"
    disk = "disk"


@dataclass(frozen=True, slots=True)
class Step:
    """One filter, how many places (cards, or hosts where no GPU is wished) it left, and why if it left none."""

    filter: Filter
    left: int
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    host: HostState
    card: CardState | None
    shape: CardModel | None
    profile: Profile | None
    held_mate: CardState | None = None

    @property
    def mode(self) -> Mode | None:
        return self.card.mode if self.card else None


def explain(wish: Wish, fleet: Fleet) -> tuple[Step, ...]:
    """Each filter in order and what it left; ends at the first that left nothing."""
    if not fleet.hosts:
        return (Step(Filter.host_open, 0, reason(ReasonCode.no_host)),)
    steps: list[Step] = []
    before = _places(wish, fleet)
    if not before and wish.disk_on is None:
        return (Step(Filter.offer, 0, _why_no_offer(wish, fleet, before)),)
    for name, passes, why in _FILTERS:
        if wish.gpu is None and name in (Filter.offer, Filter.card_open, Filter.slice_free, Filter.group_free):
            continue
        after = [place for place in before if passes(wish, place)]
        if not after:
            return (*steps, Step(name, 0, why(wish, fleet, before)))
        steps.append(Step(name, len(after)))
        before = after
    return tuple(steps)


def why_waiting(wish: Wish, fleet: Fleet) -> Reason | None:
    """The reason of the filter that left nothing, or None where the wish fits now."""
    short = explain(wish, fleet)[-1].reason
    if short is None or wish.disk_on not in fleet.hosts or short.code in _OF_THE_HOST:
        return short
    return reason(ReasonCode.disk_elsewhere, host=fleet.hosts[wish.disk_on].name, detail=short.sentence())


def never(wish: Wish, fleet: Fleet) -> Reason | None:
    """Why no host could hold this even when empty, with the nearest that fits; None while any host is not known."""
    if not fleet.hosts or not all(host.known for host in fleet.hosts.values()):
        return None
    if wish.disk_on is not None and wish.disk_on not in fleet.hosts:
        return _why_not_here(wish, fleet, [])
    places = [place for place in _places(wish, fleet) if place.host.id not in wish.other_kind]
    if not places and wish.other_kind:
        return _why_other_kind(wish, fleet, places)
    left = [place for place in places if _passes_retry(wish, place)]
    if places and not left:
        return _why_excluded(wish, fleet, places)
    offering = [place for place in left if wish.gpu is None or place.profile]
    if wish.gpu and not offering:
        return _impossible("gpu", f"no card here offers {_say(wish.gpu)}", _nearest(wish.gpu, fleet, left))
    return _never_on(wish, offering)


def _never_on(wish: Wish, places: list[_Place]) -> Reason | None:
    """The first of CPU, memory and disk that the empty hosts lack."""
    beside = " with such a card" if wish.gpu else ""
    enough = [p for p in places if wish.vcpus <= _vcpus_most(p)]
    if not enough:
        best = max(places, key=_vcpus_most)
        most = f"{_vcpus_most(best)} vCPUs on host {best.host.name}"
        return _impossible("cpu", f"{wish.vcpus} vCPUs are more than any host{beside} has", most)
    places = enough
    enough = [p for p in places if wish.memory_mib <= p.host.memory_most_mib]
    if not enough:
        best = max(places, key=lambda p: p.host.memory_most_mib)
        detail = f"{_gib(wish.memory_mib)} of memory are more than any host{beside} has"
        kept = f"{_gib(best.host.memory_mib)} less {_gib(best.host.reserve_mib)} that the host keeps"
        return _impossible("memory", detail, f"{_gib(best.host.memory_most_mib)} on host {best.host.name} ({kept})")
    places = enough
    if all(wish.most_disk_gib > p.host.disk_gib for p in places):
        best = max(places, key=lambda p: p.host.disk_gib)
        image = f" (with {wish.image_gib} GiB of its image)" if wish.image_gib else ""
        detail = f"{wish.most_disk_gib} GiB of disk{image} are more than any host{beside} has"
        return _impossible("disk", detail, f"{best.host.disk_gib} GiB on host {best.host.name}")
    return None


def _nearest(gpu: GpuWish, fleet: Fleet, places: list[_Place]) -> str:
    if isinstance(gpu, ByProfile):
        return _nearest_profile(gpu.name, places)
    most = [(1 / fleet.unit(p.shape), p.shape.name) for p in places if p.shape]
    if not most:
        return "a flavor without a GPU"
    fgpu, name = max(most)
    return f"{tables.say_fgpu(fgpu)} fGPU, all of one {name}"


def _nearest_profile(name: str, places: list[_Place]) -> str:
    """The smallest at least as large as the profile meant, else the largest; all of them for an unknown name."""
    shapes = sorted({place.shape for place in places if place.shape}, key=lambda shape: shape.name)
    here = {p.name: (p.memory_mib, shape.name) for shape in shapes for p in shape.profiles if not p.attributes}
    if not here:
        return "a flavor without a GPU"
    meant = [p for m in tables.models() for p in m.profiles if p.name.lower() == name.strip().lower()]
    if not meant:
        return "one of " + ", ".join(sorted(here))
    by_size = sorted((mib, shape, own) for own, (mib, shape) in here.items())
    size = min(p.memory_mib for p in meant)
    _, shape, own = next((o for o in by_size if o[0] >= size), by_size[-1])
    return f"{own} on {shape}"


def _places(wish: Wish, fleet: Fleet) -> list[_Place]:
    # where a disk decides, only that host is looked at: a thousand stopped VMs must not each walk the whole fleet
    hosts = sorted(fleet.hosts) if wish.disk_on is None else [wish.disk_on] if wish.disk_on in fleet.hosts else []
    if wish.gpu is None:
        return [_Place(fleet.hosts[host_id], None, None, None) for host_id in hosts]
    found = []
    for host_id in hosts:
        host = fleet.hosts[host_id]
        for card in fleet.cards_on(host_id):
            size = policy.profile_on(wish.gpu, card.shape, card.mode, fleet)
            found.append(_Place(host, card, card.shape, size, fleet.held_mate(card)))
    return found


def _passes_retry(wish: Wish, place: _Place) -> bool:
    return place.host.id not in wish.not_hosts and not (place.card and place.card.id in wish.not_gpus)


def _passes_slice(wish: Wish, place: _Place) -> bool:
    if not (place.card and place.shape and place.profile):
        return False
    return bool(tables.starts(place.shape, tables.layout(place.shape, place.card.taken), place.profile))


def _why_other_kind(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    names = sorted(fleet.hosts[host].name for host in wish.other_kind if host in fleet.hosts)
    return reason(ReasonCode.other_kind, hosts=", ".join(names))


def _why_not_here(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    host = fleet.hosts.get(wish.disk_on or "")
    if host is None:
        return reason(ReasonCode.disk_elsewhere, host=wish.disk_on, detail="that host is not here")
    return reason(ReasonCode.disk_elsewhere, host=host.name, detail="it has no card")


def _why_excluded(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    cards = [fleet.cards[gpu] for gpu in wish.not_gpus if wish.gpu and gpu in fleet.cards]
    hosts = [fleet.hosts[host].name for host in wish.not_hosts if host in fleet.hosts]
    if cards and not hosts:
        return reason(ReasonCode.card_excluded, gpu=", ".join(sorted(card.name or card.id for card in cards)))
    return reason(ReasonCode.host_excluded, host=", ".join(sorted(hosts)))


def _why_no_offer(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    return reason(ReasonCode.no_gpu_of_kind, wish=_say(wish.gpu) if wish.gpu else "")


def _why_closed(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    """The one thing that closes all places, or that none of several can be used."""
    closed = [r for p in before if (r := p.host.closed or (p.card.closed if p.card else None))]
    if wish.gpu is None or all(r == closed[0] for r in closed):
        return closed[0]
    return _why_no_offer(wish, fleet, before)


def _why_no_slice(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    held = [(p.shape, p.profile) for p in before if p.shape and p.profile]
    others = [size for place in before if (size := _other_size(place))]
    if len(others) == len(before):
        return reason(
            ReasonCode.cut_otherwise,
            profile=" or ".join(sorted({own.name for _, own in held})),
            cards=len(others),
            held=sum(len(place.card.taken) for place in before if place.card),
            pieces=" or ".join(_gib(size) for size in sorted(set(others))),
        )
    return reason(
        ReasonCode.no_slice_free,
        profile=" or ".join(sorted({own.name for _, own in held})),
        places=sum(tables.places(shape, own) for shape, own in held),
        cards=len(held),
    )


def _why_group(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    names = sorted({place.held_mate.name or place.held_mate.id for place in before if place.held_mate})
    return reason(ReasonCode.group_held, cards=len(before), mates=", ".join(names))


def _other_size(place: _Place) -> int | None:
    """The size in MiB of the pieces that lie on a card which for now takes no other size than theirs."""
    if not (place.card and place.shape and place.profile and place.shape.equal and place.card.taken):
        return None
    held = tables.profile(place.shape, place.card.taken[0].profile)
    return held.memory_mib if held.cells != place.profile.cells else None


def _why_no_cpu(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    return reason(ReasonCode.no_host_cpu, needed=wish.vcpus, free=max(0, *(_vcpus_free(p) for p in before)))


def _why_no_memory(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    free = max(0, *(p.host.memory_free_mib for p in before))
    return reason(ReasonCode.no_host_memory, needed_mib=wish.memory_mib, free_mib=free)


def _why_no_disk(wish: Wish, fleet: Fleet, before: list[_Place]) -> Reason:
    host = max((p.host for p in before), key=lambda h: h.disk_free_gib - h.new_disk_gib(wish))
    return reason(ReasonCode.no_disk_space, needed_gib=host.new_disk_gib(wish), free_gib=max(0, host.disk_free_gib))


def _vcpus_free(place: _Place) -> int:
    per_thread = 1 if policy.is_pinned(place.host, place.mode) else place.host.overcommit
    return int(place.host.threads_free * per_thread + 1e-6)


def _vcpus_most(place: _Place) -> int:
    per_thread = 1 if policy.is_pinned(place.host, place.mode) else place.host.overcommit
    return int(place.host.threads * per_thread + 1e-6)


def _impossible(what: str, detail: str, nearest: str) -> Reason:
    return reason(ReasonCode.never_fits, what=what, detail=detail, nearest=nearest)


def _say(gpu: GpuWish) -> str:
    return f"profile {gpu.name}" if isinstance(gpu, ByProfile) else f"{tables.say_fgpu(gpu.fgpu)} fGPU on one card"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}".removesuffix(".0") + " GiB"


_Why = Callable[[Wish, Fleet, list[_Place]], Reason]
_FILTERS: tuple[tuple[Filter, Callable[[Wish, _Place], bool], _Why], ...] = (
    (Filter.disk_place, lambda wish, p: wish.disk_on in (None, p.host.id), _why_not_here),
    (Filter.kind, lambda wish, p: p.host.id not in wish.other_kind, _why_other_kind),
    (Filter.retry, _passes_retry, _why_excluded),
    (Filter.offer, lambda wish, p: p.profile is not None, _why_no_offer),
    (Filter.host_open, lambda wish, p: p.host.closed is None, _why_closed),
    (Filter.card_open, lambda wish, p: p.card is not None and p.card.closed is None, _why_closed),
    (Filter.slice_free, _passes_slice, _why_no_slice),
    (Filter.group_free, lambda wish, p: p.held_mate is None, _why_group),
    (Filter.cpu, lambda wish, p: policy.has_cpu(p.host, wish, p.mode), _why_no_cpu),
    (Filter.memory, lambda wish, p: policy.has_memory(p.host, wish), _why_no_memory),
    (Filter.disk, lambda wish, p: policy.has_disk(p.host, wish), _why_no_disk),
)
# these say already what the host lacks for good or for now; "its disk lies there" adds nothing
_OF_THE_HOST = {
    ReasonCode.host_draining,
    ReasonCode.host_unreachable,
    ReasonCode.host_unsurveyed,
    ReasonCode.disk_elsewhere,
    ReasonCode.card_excluded,
    ReasonCode.host_excluded,
}
