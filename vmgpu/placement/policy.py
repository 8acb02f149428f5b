"""Which legal place a wish gets: best fit with a good start order; ties go by id: the same fleet answers the same."""

from __future__ import annotations

from fractions import Fraction

from vmgpu.placement import tables
from vmgpu.placement.fleet import Bucket, Fleet, Spot
from vmgpu.placement.tables import CardModel, Mode, Profile, Window
from vmgpu.placement.values import ByProfile, GpuWish, HostState, Placed, Wish

Rank = tuple[Fraction, bool, Fraction, int]


def choose(wish: Wish, fleet: Fleet) -> Placed | None:
    """The best place for a wish, or None where it fits nowhere now."""
    return _on_card(wish, fleet, wish.gpu) if wish.gpu else _without_card(wish, fleet)


def profile_on(gpu: GpuWish, shape: CardModel, mode: Mode, fleet: Fleet) -> Profile | None:
    """The profile that meets a GPU wish on such a card, or None."""
    if isinstance(gpu, ByProfile):
        name = gpu.name.strip().lower()
        named = next((p for p in tables.offered(shape, mode) if p.name.lower() == name), None)
        return named if named and (named.cuda or not gpu.cuda) else None
    return tables.profile_for(shape, gpu.fgpu * fleet.unit(shape), cuda=gpu.cuda)


def is_pinned(host: HostState, mode: Mode | None) -> bool:
    """Say whether a VM is given threads of its own: one with a whole physical card, which has a NUMA node."""
    return host.pins and mode is Mode.passthrough


def has_cpu(host: HostState, wish: Wish, mode: Mode | None) -> bool:
    """Say whether the host has vCPUs for it now."""
    need = wish.vcpus if is_pinned(host, mode) else wish.vcpus / host.overcommit
    # thirds do not add up exactly in floats; a millionth of a thread is nobody's
    return need <= host.threads_free + 1e-6


def has_memory(host: HostState, wish: Wish) -> bool:
    """Say whether the host has memory for it now; memory is never promised twice."""
    return wish.memory_mib <= host.memory_free_mib


def has_disk(host: HostState, wish: Wish) -> bool:
    """Say whether the host has room for its disk now, and for its image where that is new there."""
    return host.new_disk_gib(wish) <= max(0, host.disk_free_gib)


def may_use(wish: Wish, host_id: str) -> bool:
    """Say whether this host is one the VM may go to at all: it runs such images, has its disk, and is not blamed."""
    return wish.disk_on in (None, host_id) and host_id not in wish.not_hosts and host_id not in wish.other_kind


def _on_card(wish: Wish, fleet: Fleet, gpu: GpuWish) -> Placed | None:
    options: list[tuple[Rank, int, Bucket, Profile, list[Spot]]] = []
    for bucket, spots in fleet.buckets():
        profile = profile_on(gpu, bucket.shape, bucket.mode, fleet)
        starts = tables.starts(bucket.shape, bucket.layout, profile) if profile else ()
        if profile and starts:
            options.append((_rank(bucket, profile, starts[0]), starts[0], bucket, profile, spots))
    best: tuple[Rank, Spot, int, Bucket, Profile] | None = None
    for rank, start, bucket, profile, spots in sorted(options, key=lambda o: (o[0], o[4][0])):
        if best and rank > best[0]:
            break
        spot = next((s for s in spots if _fits(wish, fleet, s, bucket.mode)), None)
        if spot and (best is None or spot < best[1]):
            best = (rank, spot, start, bucket, profile)
    if best is None:
        return None
    _, (host_id, gpu_id), start, bucket, profile = best
    return _placed(
        wish,
        fleet.hosts[host_id],
        pinned=is_pinned(fleet.hosts[host_id], bucket.mode),
        gpu_id=gpu_id,
        gpu_version=fleet.cards[gpu_id].version,
        piece=Window(start, profile.cells, profile.compute, profile.name),
        slice_mib=profile.memory_mib,
    )


def _rank(bucket: Bucket, profile: Profile, start: int) -> Rank:
    # the least of a card first (a name may mean 2 cells of one model and 1 of another), then a card that takes no other
    # with it, then the fullest card, so that empty ones stay whole for large wishes, then the start that closes the
    # fewest others
    cells = bucket.shape.cells
    free = cells - bucket.layout.mask.bit_count()
    return Fraction(profile.cells, cells), bucket.shared, Fraction(free, cells), profile.starts.index(start)


def _fits(wish: Wish, fleet: Fleet, spot: Spot, mode: Mode) -> bool:
    host_id, gpu_id = spot
    host = fleet.hosts[host_id]
    return (
        gpu_id not in wish.not_gpus
        and may_use(wish, host_id)
        and has_cpu(host, wish, mode)
        and has_memory(host, wish)
        and has_disk(host, wish)
    )


def _without_card(wish: Wish, fleet: Fleet) -> Placed | None:
    fitting = (
        host
        for host in ([fleet.hosts[wish.disk_on]] if wish.disk_on in fleet.hosts else fleet.hosts.values())
        if host.closed is None
        and may_use(wish, host.id)
        and has_cpu(host, wish, None)
        and has_memory(host, wish)
        and has_disk(host, wish)
    )
    # a VM without a card must not use up CPU and memory beside one: hosts with the fewest cards first, then best fit
    host = min(fitting, key=lambda h: (sum(1 for _ in fleet.cards_on(h.id)), h.memory_free_mib, h.id), default=None)
    return _placed(wish, host) if host else None


def _placed(
    wish: Wish,
    host: HostState,
    *,
    pinned: bool = False,
    gpu_id: str | None = None,
    gpu_version: int | None = None,
    piece: Window | None = None,
    slice_mib: int = 0,
) -> Placed:
    return Placed(
        vm_id=wish.vm_id,
        host_id=host.id,
        host_version=host.version,
        vcpus=wish.vcpus,
        memory_mib=wish.memory_mib,
        disk_gib=0 if wish.disk_on else wish.disk_gib,
        image=wish.image,
        image_gib=host.new_image_gib(wish),
        pinned=pinned,
        gpu_id=gpu_id,
        gpu_version=gpu_version,
        slice=piece,
        slice_mib=slice_mib,
    )
