"""Small fleets and wishes to test with, and a second opinion on what may lie on a card."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from hypothesis import settings

from tests.depth import examples
from vmgpu.placement import ByProfile, ByShare, CardModel, CardState, Fleet, HostState, Mode, Window, Wish, parse_fgpu

MODELS = ("A100-40GB", "A100-80GB", "H100-80GB", "A30-24GB")
quick = settings(derandomize=True, deadline=None, database=None, max_examples=examples(250))
_number = count(1)


def host(name: str = "h1", **changes: object) -> HostState:
    """A roomy host: 64 threads, 256 GiB, 4,000 GiB of disk."""
    made = HostState(name, name, threads=64, memory_mib=262144, disk_gib=4000, disk_free_gib=4000)
    return replace(made, **changes)  # type: ignore[arg-type]


def card(name: str = "g1", model: str = "A100-40GB", /, *, on: str = "h1", **changes: object) -> CardState:
    """An empty emulated card."""
    return replace(CardState(name, on, model, Mode.emulated), **changes)  # type: ignore[arg-type]


def wish(gpu: str | None = None, **changes: object) -> Wish:
    """A small wish, behind those made before it; `gpu` is a profile, or fGPU where it is a number."""
    number = next(_number)
    kind = (
        None if gpu is None else ByShare(parse_fgpu(gpu)) if gpu.replace("/", "").replace(".", "").isdigit() else None
    )
    made = Wish(f"vm{number:05}", (0, float(number), f"vm{number:05}"), vcpus=1, memory_mib=1024, disk_gib=1)
    return replace(made, gpu=kind or (ByProfile(gpu) if gpu else None), **changes)  # type: ignore[arg-type]


def is_legal(shape: CardModel, taken: Sequence[Window]) -> bool:
    """NVIDIA's rules again, written plainly and apart from the code under test."""
    known = {p.name: p for p in (*shape.profiles, shape.whole)}
    cells: set[int] = set()
    for window in taken:
        own = known[window.profile]
        mine = set(range(window.start, window.start + window.cells))
        if window.start not in own.starts or cells & mine or (window.cells, window.compute) != (own.cells, own.compute):
            return False
        cells |= mine
    names = [w.profile for w in taken]
    return (
        cells <= set(range(shape.cells))
        and sum(w.compute for w in taken) <= shape.compute
        and len(taken) <= shape.instances
        and all(names.count(n) <= known[n].most for n in names)
        and sum(n.endswith("+me") for n in names) <= 1
        and ("whole" not in names or len(names) == 1)
    )


def still(fleet: Fleet) -> tuple[dict[str, HostState], dict[str, CardState], object]:
    """Everything a fleet says, without the versions."""
    hosts = {i: replace(h, version=0) for i, h in fleet.hosts.items()}
    cards = {i: replace(c, version=0) for i, c in fleet.cards.items()}
    return hosts, cards, {bucket: list(spots) for bucket, spots in fleet.buckets()}
