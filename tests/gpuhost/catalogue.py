"""What NVIDIA sells: MIG profiles and vGPU types of a card, made from a few numbers by the vendor's own rules.

Facts restated from the MIG user guide (profiles, placements), the vGPU 17 user guide and the driver's type
list (sizes, limits, placement ids in mixed-size mode, appendix A.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_TYPE = re.compile(r"(?:(?P<slices>\d+)-)?(?P<gb>\d+)(?P<series>[QBAC])(?P<rest>ME|4)?")
_CLASS = {"Q": "Quadro", "B": "NVS", "A": "NVS", "C": "Compute"}
_LICENSE = {
    "Q": "GRID-Virtual-WS,2.0;Quadro-Virtual-DWS,5.0",
    "B": "GRID-Virtual-PC,2.0;GRID-Virtual-WS,2.0;Quadro-Virtual-DWS,5.0",
    "A": "GRID-Virtual-Apps,3.0",
    "C": "NVIDIA-vComputeServer,9.0;Quadro-Virtual-DWS,5.0",
}
# The seven-slice chips (A100 to B200) share ids, shapes and starts; only names, memory and SM counts differ.
# profile id, NVML enum, compute slices, cells of the memory grid, most instances, legal starts
_SEVEN = (
    (19, 0, 1, 1, 7, (0, 1, 2, 3, 4, 5, 6)),
    (20, 7, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    (15, 9, 1, 2, 4, (0, 2, 4, 6)),
    (14, 1, 2, 2, 3, (0, 2, 4)),
    (9, 2, 3, 4, 2, (0, 4)),
    (5, 3, 4, 4, 1, (0,)),
    (0, 4, 7, 8, 1, (0,)),
)


@dataclass(frozen=True)
class Profile:
    """A GPU instance profile; `size` and `starts` are cells of the memory grid."""

    name: str
    id: int
    enum: int
    slices: int
    size: int
    most: int
    starts: tuple[int, ...]
    sms: int
    memory_mib: int

    @property
    def media(self) -> bool:
        """Whether it takes the media engines of which a GPU has one set to give away."""
        return "+me" in self.name


@dataclass(frozen=True)
class VgpuType:
    """A vGPU type; `profile` is the GPU instance it needs, None when time-sliced."""

    id: int
    name: str
    series: str
    gb: int
    framebuffer_mib: int
    most: int
    starts: tuple[int, ...]
    profile: int | None
    per_instance: int

    @property
    def heads(self) -> int:
        if self.series in "AC":
            return 1
        return 2 if self.gb == 0 else 4

    @property
    def frame_rate(self) -> int:
        return 45 if self.series == "B" else 60

    @property
    def resolution(self) -> tuple[int, int]:
        if self.series == "A":
            return (1280, 1024)
        if self.series == "C":
            return (4096, 2160)
        if self.gb == 0:
            return (2560, 1600)
        return (7680, 4320) if self.series == "Q" and self.gb > 1 else (5120, 2880)

    @property
    def klass(self) -> str:
        return _CLASS[self.series]

    @property
    def license(self) -> str:
        return _LICENSE[self.series]

    @property
    def description(self) -> str:
        """The one line that mdev's `description` shows."""
        wide, high = self.resolution
        return (
            f"num_heads={self.heads}, frl_config={self.frame_rate}, framebuffer={self.framebuffer_mib}M, "
            f"max_resolution={wide}x{high}, max_instance={self.most}"
        )


@dataclass(frozen=True)
class Model:
    """A card as sold. `vgpu`: "" none, "mdev" (on the PF without VFs, else on VFs), "vendor" (the VF itself)."""

    name: str
    vendor: str
    device: str
    subvendor: str
    subdevice: str
    class_code: str
    architecture: str
    memory_mib: int
    bars_mib: tuple[int, ...]
    reset_methods: tuple[str, ...]
    vgpu: str
    total_vfs: int
    mixed: bool
    same_type: bool
    keeps_mig: bool
    cells: int
    slices: int
    companions: tuple[str, ...]
    profiles: tuple[Profile, ...] = ()
    types: tuple[VgpuType, ...] = ()
    _by_id: dict[int, VgpuType] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self._by_id.update({each.id: each for each in self.types})

    def type(self, number: int) -> VgpuType | None:
        return self._by_id.get(number)

    def profile(self, number: int) -> Profile | None:
        return next((each for each in self.profiles if each.id == number), None)


def model(told: Mapping[str, Any]) -> Model:
    """A card from its description; all long lists are made here."""
    vendor, device = told["ids"].split(":")
    subvendor, subdevice = told.get("sub", "10de:0000").split(":")
    profiles = tuple(_profiles(told.get("mig", {})))
    cells, slices = (8, 7) if "seven" in told.get("mig", {}) else (told.get("mig", {}).get("grid", (0, 0)))
    architecture = told["architecture"]
    return Model(
        name=told["name"],
        vendor=vendor,
        device=device,
        subvendor=subvendor,
        subdevice=subdevice,
        class_code=told.get("class", "030200"),
        architecture=architecture,
        memory_mib=told["memory_mib"],
        bars_mib=tuple(told["bars_mib"]),
        reset_methods=tuple(told.get("reset", "flr bus").split()),
        vgpu=told.get("vgpu", ""),
        total_vfs=told.get("vfs", 0),
        # mixed sizes need vGPU 17 and Ampere; before 17 every vGPU of a GPU had to be of one type
        mixed=told.get("mixed", False),
        same_type=told.get("same_type", False),
        # Ampere keeps MIG mode in the card; from Hopper on a reboot forgets it
        keeps_mig=told.get("keeps_mig", architecture == "Ampere"),
        cells=cells,
        slices=slices,
        companions=tuple(told.get("companions", ())),
        profiles=profiles,
        types=tuple(_types(told.get("types", {}), profiles)),
    )


def split(board: int, size: int) -> tuple[int, ...]:
    """Legal placement ids of a size in mixed-size mode: halve the board while a half still holds it; the left
    half keeps its left end, the right half its right end (vGPU 17 guide, appendix A.3)."""

    def starts(start: float, length: float, end: bool) -> Iterator[int]:
        if length / 2 < size:
            yield int(start + length - size if end else start)
            return
        yield from starts(start, length / 2, False)
        yield from starts(start + length / 2, length / 2, True)

    return tuple(starts(0, board, False))


def _profiles(told: Mapping[str, Any]) -> Iterator[Profile]:
    for row, (name, sms, memory) in zip(_SEVEN, told.get("seven", ()), strict=False):
        number, enum, slices, size, most, starts = row
        yield Profile(name, number, enum, slices, size, most, starts, sms, memory)
    for name, number, enum, slices, size, most, starts, sms, memory in told.get("rows", ()):
        yield Profile(name, number, enum, slices, size, most, tuple(starts), sms, memory)


def _types(told: Mapping[str, Any], profiles: Sequence[Profile]) -> Iterator[VgpuType]:
    """`runs`: each text is the first type id, then short names with consecutive ids."""
    for run in told.get("runs", ()):
        first, *names = run.split()
        for number, short in enumerate(names, int(first)):
            yield _type(number, short, told, profiles)


def _type(number: int, short: str, told: Mapping[str, Any], profiles: Sequence[Profile]) -> VgpuType:
    found = _TYPE.fullmatch(short)
    if found is None:
        raise ValueError(f"not a vGPU type: {short}")
    gb, series, board = int(found["gb"]), found["series"], told["board_gb"]
    profile = _profile(found["slices"], gb, series, found["rest"] == "ME", profiles) if found["slices"] else None
    per_instance = max(1, _nominal(profile) // gb) if profile and told.get("sliced_instances") else 1
    most = profile.most * per_instance if profile else min(told.get("most", 32), int(board // (gb or 0.5)))
    starts: tuple[int, ...] = ()
    if profile is None and gb:
        starts = tuple(range(0, board - gb + 1, gb)) if told.get("regular") else split(board, gb)
        if gb == 1 and board == 48:
            starts = starts[::2]  # Ada has 16 ids for the 1 GB types; which ones is inferred
    most = told.get("limits", {}).get(short, most)
    return VgpuType(
        id=number,
        name=f"{told['prefix']}{short}",
        series=series,
        gb=gb,
        framebuffer_mib=gb * 1024 or 512,
        most=most,
        starts=starts[:most],  # NVML's lists of places are as long as the type's most instances
        profile=profile.id if profile else None,
        per_instance=per_instance,
    )


def _profile(slices: str, gb: int, series: str, media: bool, profiles: Sequence[Profile]) -> Profile:
    """C types name their instance; graphics types sit on the +gfx instance of as many slices."""
    if series == "C":
        wanted = f"{slices}g.{gb}gb" + ("+me" if media else "")
        return next(each for each in profiles if each.name == wanted)
    return next(each for each in profiles if each.slices == int(slices) and each.name.endswith("+gfx"))


def _nominal(profile: Profile) -> int:
    found = re.search(r"\.(\d+)gb", profile.name)
    return int(found[1]) if found else 0
