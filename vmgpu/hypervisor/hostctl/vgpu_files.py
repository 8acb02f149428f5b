"""vGPUs on virtual functions (vendor-specific VFIO): the folder `nvidia/` of a VF, read, and its types understood."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .bus import Function
from .files import Files

_NUMBER = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True)
class Modes:
    """What NVML says of a card; None is unknown."""

    mig: bool | None = None
    mixed: bool | None = None


def look(files: Files, vfs: Sequence[Function], modes: Modes) -> dict[str, dict[str, Any]]:
    """The vGPU of each VF by address; {} where the host does not work this way.

    What can be made is asked of the first free VF alone: every free VF offers the same framebuffer, so that to add
    them up would promise a card many times over.
    """
    if not vfs or not files.exists(f"{vfs[0].folder}/nvidia/current_vgpu_type"):
        return {}
    found: dict[str, dict[str, Any]] = {}
    asked = False
    for vf in vfs:
        current = files.number(f"{vf.folder}/nvidia/current_vgpu_type")
        state: dict[str, Any] = {"creatable": None, "current": current, "gpu_instance": None, "placement": None}
        if current == 0 and not asked:
            state["creatable"] = creatable(files, vf.folder)
            asked = state["creatable"] is not None
        elif current:
            if modes.mig is not False:
                state["gpu_instance"] = instance(files, vf.folder)
            if modes.mixed is not False:
                state["placement"] = placement(files, vf.folder)
        found[vf.address] = state
    return found


def creatable(files: Files, folder: str) -> list[dict[str, Any]] | None:
    """What can be made on a VF now; [] is full, None is unknown."""
    text = files.text(f"{folder}/nvidia/creatable_vgpu_types")
    return None if text is None else types_of(text)


def instance(files: Files, folder: str) -> int | None:
    """The GPU instance that the driver put a vGPU on."""
    number = files.number(f"{folder}/nvidia/gpu_instance_id")
    return None if number == 0xFFFFFFFF else number


def placement(files: Files, folder: str) -> int | None:
    """Where on the card the driver put a vGPU."""
    number = files.number(f"{folder}/nvidia/placement_id")
    return None if number == 0xFFFFFFFF else number


def types_of(text: str) -> list[dict[str, Any]]:
    """Both forms: a header and `ID : NAME` lines, as drivers print, or `NAME ID` lines, as the guide has them."""
    found = []
    for line in text.splitlines():
        words = line.replace(" : ", " ").split()
        if words and _NUMBER.fullmatch(words[0].rstrip(":")):
            number, name = words[0].rstrip(":"), words[1:]
        elif words and _NUMBER.fullmatch(words[-1]):
            number, name = words[-1], words[:-1]
        else:
            continue  # the header, or a line cut short
        found.append({"id": int(number), "name": " ".join(name).strip(" :") or None})
    return found


def short(name: str) -> str:
    """A type's name without the maker: `NVIDIA L40S-4Q` and `GRID M60-2Q` are known by their last part as well."""
    return re.sub(r"^(NVIDIA|GRID) ", "", name)
