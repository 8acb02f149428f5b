"""The ways a card can be given out on its host, what each would be cut into, and why the others are not possible.

The input is what hostctl tells of the card, its virtual functions and NVML's view of it; what is absent is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from vmgpu.hypervisor import Cut, Cuts

Facts = Mapping[str, Any]

PASSTHROUGH, VGPU, MIXED, MIG = "passthrough", "vgpu", "mixed", "mig"
NVIDIA = "10de"
# GM107 and GM204 boards (M10, M60, M6): CUDA runs only in the type that is the whole GPU. NVIDIA vGPU guide, release 9.
_MAXWELL = frozenset({"13bd", "13f2", "13f3"})
_TYPE_NAME = re.compile(r"(?P<slices>\d+-)?(?P<gb>\d+)(?P<series>[QABC])(?P<me>ME)?\d?$")
_DESCRIBED = "max_instance"  # what fits on an empty card, where the driver describes its types
_DESCRIPTION = re.compile(r"(\w+)=([^,\s]+)")


@dataclass(frozen=True)
class Ways:
    """`framework`: how a vGPU reaches a guest here (mdev, vfio), None while that cannot be told."""

    cuts: Mapping[str, Cuts] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    now: str | None = None
    framework: str | None = None


def ways(card: Facts, functions: Sequence[Facts], nvml: Facts | None, *, nvml_state: str) -> Ways:
    """How this card can be cut; `functions` are its virtual functions, `nvml` its device there, None if not seen."""
    framework = _framework(card, functions)
    cuts: dict[str, Cuts] = {}
    refusals: dict[str, str] = {}
    sizes = _mixed_sizes(functions, nvml, framework)
    busy = _in_the_other_mode(functions, nvml)
    for mode, found in (
        (VGPU, busy.get(VGPU) or _time_sliced(card, nvml, framework, nvml_state)),
        (MIXED, sizes and (busy.get(MIXED) or sizes)),
        (MIG, _mig_backed(card, nvml, framework, nvml_state)),
    ):
        found = found and (_lost(functions, nvml) or found)
        if isinstance(found, Cuts):
            cuts[mode] = found
        elif found:
            refusals[mode] = found
    return Ways(cuts, refusals, _mode_now(card, functions, nvml), framework)


def _lost(functions: Sequence[Facts], nvml: Facts | None) -> str:
    """Why a card is left alone whose MIG instances are somebody else's: ours lie under functions that are on."""
    count = len((nvml or {}).get("instances") or ())
    if functions or not count:
        return ""
    return (
        f"{count} MIG instance(s) that are not ours lie on it, and would be lost when its virtual functions are "
        "switched on: destroy them by hand first (nvidia-smi mig -dci, then -dgi)"
    )


def best_first(piece: tuple[int, Iterable[int]], others: Iterable[tuple[int, Iterable[int]]]) -> tuple[int, ...]:
    """The starts of a size (cells, starts), first the one that closes the fewest places of larger sizes."""
    cells, starts = piece
    larger = [(size, start) for size, places in others if size > cells for start in places]

    def closed(at: int) -> int:
        return sum(at < start + size and start < at + cells for size, start in larger)

    return tuple(sorted(starts, key=lambda at: (closed(at), at)))


def _framework(card: Facts, functions: Sequence[Facts]) -> str | None:
    if card.get("mdev_types"):
        return "mdev"
    if any(each.get("nvidia") is not None for each in functions):
        return "vfio"
    return "mdev" if any(each.get("mdev_types") for each in functions) else None


def _time_sliced(card: Facts, nvml: Facts | None, framework: str | None, nvml_state: str) -> Cuts | str:
    if nvml is None:
        types = card.get("mdev_types") or ()
        return from_mdev_types(types) if types else _no_manager(card, nvml_state)
    types = [each for each in nvml.get("vgpu_types") or () if each.get("gi_profile") is None]
    if not types:
        return _no_manager(card, nvml_state)
    if framework is None and not card.get("vfs_most"):
        return "The driver knows vGPU types, but has neither mdev nor virtual functions: its vGPU manager does not run"
    return _from_types(types, maxwell=card.get("device") in _MAXWELL)


def _mixed_sizes(functions: Sequence[Facts], nvml: Facts | None, framework: str | None) -> Cuts | str | None:
    """Sizes side by side, each at the places that the driver names; None where the card has no such thing."""
    told = (nvml or {}).get("mixed")
    if nvml is None or told is None:
        return None
    if not (told.get("supported") or told.get("on")):
        return "It holds time-sliced vGPUs of one size at a time only: this card or its driver has no mixed-size mode"
    if framework == "mdev":
        return "Mixed sizes are given out only where the vGPU manager works by virtual functions without mdev"
    types = [each for each in nvml.get("vgpu_types") or () if each.get("placements") and each.get("placement_size")]
    if not types:
        return "Its driver has a mixed-size mode, but does not tell where each size may lie"
    sizes = [(int(each["placement_size"]), tuple(each["placements"])) for each in types]
    cells = max(size + max(starts) for size, starts in sizes)
    pieces = tuple(
        _vgpu(each, int(each.get("framebuffer_mib") or 0), size, best_first((size, starts), sizes), len(starts))
        for each, (size, starts) in zip(types, sizes, strict=True)
    )
    return Cuts(cells, cells, cells, pieces)


def _in_the_other_mode(functions: Sequence[Facts], nvml: Facts | None) -> dict[str, str]:
    """What cannot be had while vGPUs are there: mixed-size mode is switched on and off only while there are none."""
    told = (nvml or {}).get("mixed")
    if told is None or not any((each.get("nvidia") or {}).get("current") for each in functions):
        return {}
    if told.get("on"):
        return {VGPU: "It is in mixed-size mode and holds vGPUs: to leave that mode the last of them must go first"}
    return {MIXED: "It holds vGPUs of one size: mixed-size mode is switched on only while there are none"}


def _from_types(types: Sequence[Facts], *, maxwell: bool) -> Cuts:
    sized = [(each, int(each.get("framebuffer_mib") or 0)) for each in types]
    sized = [(each, size) for each, size in sized if size > 0]
    unit = gcd(*(size for _, size in sized)) or 1
    cells = max(size for _, size in sized) // unit
    pieces = []
    for each, size in sized:
        most = min(int(each.get("most") or cells), cells * unit // size)
        starts = tuple(at * (size // unit) for at in range(most))
        whole = size // unit == cells
        pieces.append(_vgpu(each, size, size // unit, starts, most, cuda=whole or not maxwell))
    return Cuts(cells, cells, cells, tuple(pieces), equal=True)


def _vgpu(each: Facts, memory_mib: int, cells: int, starts: tuple[int, ...], most: int, *, cuda: bool = True) -> Cut:
    name = short_name(str(each.get("name", "")))
    series = _series(name)
    return Cut(
        name,
        cells=cells,
        compute=cells,
        starts=starts,
        memory_mib=memory_mib,
        most=most,
        type=each.get("id"),
        cuda=cuda and series not in ("A", "B"),
        marks=(series,) if series in ("A", "B") else (),
    )


def from_mdev_types(types: Sequence[Facts]) -> Cuts | str:
    """Types of a parent that no NVML speaks for: their sizes are what their counts say of one another."""
    counts = {str(each["id"]): _most(each) for each in types}
    counts = {name: most for name, most in counts.items() if most}
    if not counts:
        return "All that this parent can give is taken by others"
    total = 1
    for most in counts.values():
        total = total * most // gcd(total, most)
    pieces = tuple(
        Cut(
            name,
            cells=total // most,
            compute=total // most,
            starts=tuple(range(0, total, total // most)),
            memory_mib=_framebuffer(next(each for each in types if str(each["id"]) == name)),
            most=most,
            cuda=False,
        )
        for name, most in sorted(counts.items())
    )
    return Cuts(total, total, total, pieces, left=any(_DESCRIBED not in str(each.get("description")) for each in types))


def _most(each: Facts) -> int:
    told = dict(_DESCRIPTION.findall(str(each.get("description") or "")))
    return int(told.get(_DESCRIBED) or each.get("available") or 0)


def _framebuffer(each: Facts) -> int:
    told = dict(_DESCRIPTION.findall(str(each.get("description") or "")))
    number = re.match(r"\d+", told.get("framebuffer", ""))
    return int(number.group()) if number else 0


def _mig_backed(card: Facts, nvml: Facts | None, framework: str | None, nvml_state: str) -> Cuts | str | None:
    if nvml is None or nvml.get("mig") is None:
        return None  # nothing is said of cards that have no such thing
    types = {each["gi_profile"]: each for each in nvml.get("vgpu_types") or () if _fills_its_instance(each)}
    profiles = [each for each in nvml.get("profiles") or () if each.get("id") in types and each.get("starts")]
    if not profiles:
        return (
            "A MIG instance is no PCI device and cannot enter a VM by itself: either pass the whole card through and "
            "switch MIG on in the guest, or install NVIDIA's vGPU host driver and give out MIG-backed vGPUs"
        )
    sizes = [(int(each["size"]), tuple(each["starts"])) for each in profiles]
    cells = max(size + max(starts) for size, starts in sizes)
    compute = max(int(each["slices"]) for each in profiles)
    pieces = tuple(
        Cut(
            str(each["name"]),
            cells=size,
            compute=int(each["slices"]),
            starts=best_first((size, starts), sizes),
            memory_mib=int(each.get("memory_mib") or 0),
            most=int(each.get("instances") or len(starts)),
            type=types[each["id"]].get("id"),
            marks=_marks(str(each["name"])),
        )
        for each, (size, starts) in zip(profiles, sizes, strict=True)
    )
    return Cuts(cells, compute, compute, pieces)


def _fills_its_instance(each: Facts) -> bool:
    """Several time-sliced vGPUs may share an instance; the type that is the instance's only one is the slice itself."""
    return each.get("gi_profile") is not None and (each.get("most_per_instance") or 1) == 1


def _no_manager(card: Facts, nvml_state: str) -> str:
    driver = card.get("driver")
    if card.get("vendor") != NVIDIA:
        return "Its driver offers no vGPU types"
    if driver == "vfio-pci":
        return "It is bound to vfio-pci: NVIDIA's vGPU manager must drive it"
    if driver != "nvidia" or nvml_state != "ok":
        return f"NVIDIA's vGPU manager does not drive it (driver: {driver or 'none'})"
    return "The installed NVIDIA driver is not the vGPU host driver, or the card is not licensed for vGPU"


def _mode_now(card: Facts, functions: Sequence[Facts], nvml: Facts | None) -> str | None:
    if nvml and (nvml.get("mig") or {}).get("current"):
        return MIG
    if functions:
        return MIXED if ((nvml or {}).get("mixed") or {}).get("on") else VGPU
    return PASSTHROUGH if card.get("driver") == "vfio-pci" else None


def type_number(mdev_type: str | None) -> int | None:
    """The vendor's number in a type's name: 746 of `nvidia-746`."""
    found = re.fullmatch(r"nvidia-(\d+)", mdev_type or "")
    return int(found[1]) if found else None


def short_name(name: str) -> str:
    """`NVIDIA A40-8Q` and `GRID A40-8Q` as people say it: `A40-8Q`."""
    return name.removeprefix("NVIDIA ").removeprefix("GRID ").strip()


def _series(name: str) -> str:
    found = _TYPE_NAME.search(name)
    return found["series"] if found else ""


def _marks(profile: str) -> tuple[str, ...]:
    """What follows the size in a MIG profile's name: `+me`, `+gfx`, `+me.all`, `-me`."""
    found = re.search(r"gb([+-].+)$", profile)
    return (found[1].lstrip("+"),) if found else ()
