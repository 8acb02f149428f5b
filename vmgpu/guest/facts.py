"""What the probe's answer means: is cloud-init done, is the card there. Text in, values out, no connection."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from vmgpu.errors import Reason, ReasonCode, reason


class Card(StrEnum):
    """What was proved of a VM's card: nothing wished, there on the bus, or used through its driver."""

    none = "none"
    seen = "seen"
    works = "works"


class CloudInit(StrEnum):
    """How cloud-init ended; degraded is usable, with warnings."""

    done = "done"
    degraded = "degraded"


@dataclass(frozen=True)
class EmulatedCard:
    """A display device that stands for a slice: so much video memory, and this SMBIOS OEM string."""

    video_mib: int
    label: str


@dataclass(frozen=True)
class PciCard:
    """A card on the guest's bus: its ids (`10de:20b0`), sizes of the first one's BARs, its memory; None is unknown."""

    pci_ids: tuple[str, ...]
    bars_mib: tuple[int, ...] = ()
    memory_mib: int | None = None
    cuda: bool = False


CardWant = EmulatedCard | PciCard


@dataclass(frozen=True)
class Device:
    """A PCI function in the guest; `bars` maps an index to (start, size in bytes), memory only."""

    id: str
    bars: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def sizes_mib(self) -> list[int]:
        """Sizes of the BARs that have an address, rounded up as the host's survey does."""
        return [-(-size // 2**20) for start, size in self.bars.values() if start]


class Trouble(Exception):
    """What was found is wrong and will not mend itself."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.sentence())
        self.reason = why


class Unfinished(Exception):
    """cloud-init has not ended."""


def parts_of(text: str) -> dict[str, str]:
    """The probe's answer by part; Unfinished when its end is missing."""
    _, *pieces = re.split(r"^=== vmgpu ", text, flags=re.MULTILINE)
    parts = {piece.partition("\n")[0]: piece.partition("\n")[2].strip("\n") for piece in pieces}
    if "end" not in parts:
        raise Unfinished
    return parts


def look_at_cloud_init(parts: Mapping[str, str]) -> tuple[CloudInit, tuple[str, ...]]:
    """How cloud-init ended and its warnings; Trouble when it failed or had no seed, Unfinished while it runs."""
    if "absent" in parts:
        return CloudInit.degraded, ("cloud-init is not installed: nothing of the seed was applied at this boot",)
    if "disabled" in parts:
        return CloudInit.degraded, ("cloud-init is disabled: nothing of the seed was applied at this boot",)
    if "failed" in parts:
        units = ", ".join(line.split()[0] for line in parts["failed"].splitlines() if line.split())
        raise Trouble(reason(ReasonCode.cloud_init_error, detail=f"{units} failed"))
    if "running" in parts:
        raise Unfinished
    if "result" in parts:
        return _by_files(_json(parts["result"]), _json(parts.get("status", "")))
    return _by_program(parts.get("program", ""), _number(parts.get("code", "")))


def look_at_card(parts: Mapping[str, str], want: CardWant | None) -> tuple[Card, str, tuple[str, ...]]:
    """What is proved of the card, in words too, with warnings; Trouble when it is not what was promised."""
    if want is None:
        return Card.none, "", ()
    devices = read_devices(parts.get("pci", ""))
    if isinstance(want, EmulatedCard):
        return Card.seen, _emulated(devices, parts.get("dmi", ""), want), ()
    where = _on_bus(devices, want)
    if "nvidia" not in parts:
        missing = ("the image is labelled cuda but has no nvidia-smi: CUDA was not tried",) if want.cuda else ()
        return Card.seen, where, missing
    memory = _driver_memory(parts, want)
    if want.cuda:
        _cuda(parts.get("cuda", ""))
    if memory is None:
        return Card.seen, where, ("nvidia-smi does not tell the card's memory",)
    return Card.works, f"{where}; nvidia-smi: {memory} MiB{'; CUDA works' if want.cuda else ''}", ()


def look_at_licence(text: str) -> str | None:
    """The licence status in what `nvidia-smi -q` prints, the worst of several vGPUs; None where it has no such line."""
    found = [" ".join(each.split())[:_MOST_WORDS] for each in _LICENCE.findall(text)]
    return min(found, key=lambda each: each.casefold().startswith("licensed"), default=None)


def says_no_seed(console: bytes) -> bool:
    """Whether the console shows that cloud-init found no seed: then nobody can log in to ask it."""
    return b"Datasource DataSourceNone" in console or b"Used fallback datasource" in console


def read_devices(text: str) -> tuple[Device, ...]:
    """The PCI functions in the probe's listing."""
    found: list[tuple[str, dict[int, tuple[int, int]]]] = []
    for line in text.splitlines():
        match line.split():
            case ["device", _, vendor, device, _]:
                found.append((f"{vendor.removeprefix('0x')}:{device.removeprefix('0x')}".lower(), {}))
            case ["bar", index, *range_] if found and len(range_) == 3:
                start, end, flags = (_number(value, 16) for value in range_)
                if flags & _MEMORY and end > 0:
                    found[-1][1][_number(index)] = (start, end - start + 1)
    return tuple(Device(id_, bars) for id_, bars in found)


def read_oem_strings(hexdump: str) -> tuple[str, ...]:
    """The OEM strings (type 11) of an SMBIOS table."""
    try:
        table = bytes.fromhex(hexdump)
    except ValueError:
        return ()
    at, strings = 0, list[bytes]()
    while at + 4 <= len(table) and table[at + 1] >= 4:
        kind, text_at = table[at], at + table[at + 1]
        end = table.find(b"\0\0", text_at)
        if end < 0:
            break
        if kind == _OEM_STRINGS:
            strings += table[text_at:end].split(b"\0")
        at = end + 2
    return tuple(string.decode(errors="replace") for string in strings)


def read_memory(csv: str) -> tuple[int | None, ...]:
    """Each card's memory in MiB from `nvidia-smi --query-gpu=memory.total,… --format=csv`; None where it tells none."""
    return tuple(_mib(line.split(",")[0].strip()) for line in csv.splitlines() if "," in line)


def _by_files(result: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[CloudInit, tuple[str, ...]]:
    if not result:
        raise Unfinished  # half written
    stages = [stage for stage in status.values() if isinstance(stage, dict)]
    errors = [*_list(result.get("errors")), *(error for stage in stages for error in _list(stage.get("errors")))]
    recoverable = [message for stage in stages for message in _messages(stage.get("recoverable_errors"))]
    source = _plain(str(result.get("datasource") or status.get("datasource") or ""))
    return _ended(source, errors, recoverable, code=0)


def _by_program(said: str, code: int) -> tuple[CloudInit, tuple[str, ...]]:
    told = _json(said) or _old_words(said)
    state, errors = str(told.get("status", "")), _list(told.get("errors"))
    if state.startswith("disabled"):
        return look_at_cloud_init({"disabled": ""})
    if state == "error" and not errors:
        errors = [_plain(str(told.get("detail") or "no details"))]
    if state not in ("done", "error") and not state.startswith("degraded"):
        raise Unfinished
    return _ended(
        str(told.get("datasource") or told.get("detail") or ""),
        errors,
        _messages(told.get("recoverable_errors")),
        code=code,
    )


def _old_words(said: str) -> dict[str, Any]:
    # `status: done` and, on lines of its own, `detail:` with what follows it.
    found = re.search(r"^status: *(.+)$", said, re.MULTILINE)
    detail = re.search(r"^detail:\s*(.+)", said, re.MULTILINE | re.DOTALL)
    return {"status": found[1].strip() if found else "", "detail": detail[1].strip() if detail else ""}


def _ended(source: str, errors: list[str], warnings: list[str], *, code: int) -> tuple[CloudInit, tuple[str, ...]]:
    if source.lower().removeprefix("datasource").startswith("none"):
        raise Trouble(reason(ReasonCode.seed_not_found))
    if errors:
        raise Trouble(reason(ReasonCode.cloud_init_error, detail="; ".join(dict.fromkeys(errors))[:_MOST_DETAIL]))
    if warnings or code == _DEGRADED:
        told = tuple(dict.fromkeys(warnings)) or ("cloud-init ended degraded",)
        more = len(told) - _MOST_WARNINGS
        return CloudInit.degraded, (*told[:_MOST_WARNINGS], *((f"and {more} more",) if more > 0 else ()))
    return CloudInit.done, ()


def _messages(levels: Any) -> list[str]:
    if not isinstance(levels, dict):
        return []
    return [
        f"{_plain(level).lower()}: {text}"[:_MOST_DETAIL] for level, texts in levels.items() for text in _list(texts)
    ]


def _emulated(devices: tuple[Device, ...], dmi: str, want: EmulatedCard) -> str:
    cards = [device for device in devices if device.id == _BOCHS]
    if not cards:
        raise Trouble(reason(ReasonCode.card_missing, wanted=f"emulated, PCI {_BOCHS}"))
    start, size = cards[0].bars.get(0, (0, 0))
    if not start:
        raise Trouble(reason(ReasonCode.card_unassigned, bar=0))
    if size != want.video_mib * 2**20:
        raise Trouble(reason(ReasonCode.card_wrong_memory, seen_mib=size // 2**20, wanted_mib=want.video_mib))
    if want.label not in read_oem_strings(dmi):
        raise Trouble(reason(ReasonCode.card_missing, wanted=f"SMBIOS string {want.label!r}"))
    return f"emulated: PCI {_BOCHS}, {want.video_mib} MiB of video memory, {want.label!r}"


def _on_bus(devices: tuple[Device, ...], want: PciCard) -> str:
    wanted = [id_.lower() for id_ in want.pci_ids]
    missing = Counter(wanted) - Counter(device.id for device in devices)
    if missing or not wanted:
        raise Trouble(reason(ReasonCode.card_missing, wanted=f"PCI {', '.join(missing.elements()) or 'id unknown'}"))
    for device in devices:
        if device.id in wanted:
            _assigned(device, want.bars_mib if device.id == wanted[0] else ())
    return f"PCI {', '.join(wanted)} with all BARs"


def _assigned(device: Device, sizes: tuple[int, ...]) -> None:
    for index, (start, _) in device.bars.items():
        if not start:
            raise Trouble(reason(ReasonCode.card_unassigned, bar=index))
    # A kernel that finds no room clears the whole line, size and all: only the host knows what is missing.
    for size in (Counter(size for size in sizes if size) - Counter(device.sizes_mib)).elements():
        raise Trouble(reason(ReasonCode.card_unassigned, bar=f"of {size} MiB"))
    if not device.bars:
        raise Trouble(reason(ReasonCode.card_unassigned, bar=0))


def _driver_memory(parts: Mapping[str, str], want: PciCard) -> int | None:
    cards = read_memory(parts["nvidia"])
    if _number(parts.get("nvidia-code", "")) or not cards:
        words = parts["nvidia"].strip().splitlines() or [f"exit {parts.get('nvidia-code', '?')}"]
        raise Trouble(reason(ReasonCode.driver_failed, detail=f"nvidia-smi: {words[0]}"[:_MOST_DETAIL]))
    told = [memory for memory in cards if memory is not None]
    if want.memory_mib and told and min(told) < want.memory_mib * _LEAST_SHARE:
        raise Trouble(reason(ReasonCode.card_wrong_memory, seen_mib=min(told), wanted_mib=want.memory_mib))
    return min(told) if len(told) == len(cards) else None


def _cuda(said: str) -> None:
    if not said.startswith("works on "):
        detail = "; ".join(said.splitlines()[-2:]) or "no answer"
        raise Trouble(reason(ReasonCode.cuda_failed, detail=detail[:_MOST_DETAIL]))


def _mib(text: str) -> int | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB)?", text)
    return int(float(found[1]) * _UNITS[found[2] or "MiB"]) if found else None


def _json(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    told = told if isinstance(told, dict) else {}
    return told["v1"] if isinstance(told.get("v1"), dict) else told


def _list(value: Any) -> list[str]:
    return [_plain(str(one)) for one in value] if isinstance(value, list) else []


def _plain(text: str) -> str:
    """JSON can name halves of characters, which no text may hold: root in a guest writes here what it likes."""
    return text.encode("utf-8", "replace").decode()


def _number(text: str, base: int = 10) -> int:
    try:
        return int(text, base)
    except ValueError:
        return 0


_BOCHS = "1234:1111"
_OEM_STRINGS = 11
_MEMORY = 0x200  # IORESOURCE_MEM
_LEAST_SHARE = 0.8  # of the nominal memory: ECC, page tables and the driver take some
_DEGRADED = 2
_MOST_DETAIL = 1000  # characters
_MOST_WARNINGS = 20
_MOST_WORDS = 100  # characters of what a driver says in one line
# the section above it has other names with older drivers
_LICENCE = re.compile(r"^[ \t]*License Status[ \t]*:[ \t]*(\S.*)$", re.M)
_UNITS = {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024, "TiB": 1024**2}
