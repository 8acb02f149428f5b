"""Cards that are not there: each slice becomes a display device whose video memory is a scale model of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vmgpu.hypervisor import Carved, Emulated, GpuFacts, Held, SliceRef

_SAYS = "vmgpu emulated"
_MIB_PER_5_GB = 16
_MOST_MIB = 256  # QEMU's limit for bochs-display


class EmulatedCarver:
    """Pure data: the slice's row is all there is to cut, so every verb may be repeated for ever."""

    def carve(self, ref: SliceRef) -> Carved:
        """The display device that stands for the slice, and the words the guest reads of it."""
        label = f"{_SAYS} {ref.gpu.model} {ref.profile} {ref.memory_mib} MiB"
        return Carved((Emulated(video_mib=scale(ref.memory_mib), label=label),))

    def release(self, ref: SliceRef) -> None:
        """Nothing was cut."""


def label_read(label: str) -> Held | None:
    """The piece that a guest was told it has; None for anything else."""
    said = re.fullmatch(rf"{_SAYS} (\S+) (\S+) \d+ MiB", label)
    return Held(said.group(2), model=said.group(1)) if said else None


def cards(models: Sequence[str]) -> tuple[GpuFacts, ...]:
    """The emulated cards of a host, as a survey shows them; named emulated wherever a name is shown."""
    return tuple(
        GpuFacts(
            key=f"emulated:{number}",
            address=None,
            vendor="1234",
            device="1111",
            name=f"emulated {model}",
            model=model,
            emulated=True,
            class_code="0380",
            memory_mib=_named_memory(model),
            modes=("emulated",),
        )
        for number, model in enumerate(models)
    )


def scale(memory_mib: int) -> int:
    """16 MiB of video memory per 5 GB begun, rounded up to a power of two, at most 256 MiB."""
    pieces = max(1, -(-memory_mib // 5120))
    return min(_MOST_MIB, 1 << (pieces * _MIB_PER_5_GB - 1).bit_length())


def _named_memory(model: str) -> int | None:
    named = re.search(r"-(\d+)GB", model)
    return int(named.group(1)) * 1024 if named else None
