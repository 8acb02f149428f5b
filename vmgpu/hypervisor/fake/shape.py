"""What a simulated host is made of, as its URI says: `fake://8xA100-80GB,2xA30?cpus=64&memory=512g&mood=slow`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from vmgpu.errors import Invalid
from vmgpu.hypervisor.fake.moods import Mood, temper
from vmgpu.units import parse_mib

SCHEME = "fake://"
BASE_VOLUME = "base.qcow2"  # the image that every simulated host has from its first moment on
_CARDS = re.compile(r"(?:(\d{1,4})x)?([A-Za-z0-9.+_-]+)", re.ASCII)
_MOST_CARDS = 256
_MOST_CPUS = 65536
_MOST_MIB = 1 << 30  # 1 PiB
_EXAMPLE = (
    "Write it like fake://8xA100-80GB, fake://A30,2xH100-80GB?cpus=64&memory=512g&disk=4t&mood=slow, or fake://cpu."
)


@dataclass(frozen=True)
class FakeModel:
    """A kind of card, as far as a host's own hardware would refuse nonsense on it."""

    name: str
    device: str
    memory_mib: int
    cells: int
    compute: int


MODELS: tuple[FakeModel, ...] = (
    FakeModel("A100-40GB", "20b0", 40 * 1024, cells=8, compute=7),
    FakeModel("A100-80GB", "20b2", 80 * 1024, cells=8, compute=7),
    FakeModel("H100-80GB", "2330", 80 * 1024, cells=8, compute=7),
    FakeModel("A30-24GB", "20b7", 24 * 1024, cells=4, compute=4),
)
_BY_NAME = {m.name.lower(): m for m in MODELS} | {"a30": MODELS[3]}


@dataclass(frozen=True)
class FakeCard:
    """One card of the host; the address is made up, and stays the same as long as the URI does."""

    address: str
    model: FakeModel
    numa_node: int


@dataclass(frozen=True)
class FakeShape:
    """The host that a URI describes. `mood` is the one it is born with."""

    cards: tuple[FakeCard, ...] = ()
    threads: int = 128
    memory_mib: int = 1024 * 1024
    disk_mib: int = 10 * 1024 * 1024
    mood: Mood = Mood.cheerful

    @property
    def numa_nodes(self) -> int:
        """Two, as in most hosts of this kind; one where there is a single thread."""
        return min(2, self.threads)

    def card(self, address: str | None) -> FakeCard | None:
        """The card at this address."""
        return next((card for card in self.cards if card.address == address), None)


def parse(uri: str) -> FakeShape:
    """Read the URI of a simulated host. Raises Invalid, naming what is wrong and what is known."""
    if not uri.startswith(SCHEME):
        raise _wrong(f"{uri!r} does not begin with {SCHEME}")
    cards, _, query = uri.removeprefix(SCHEME).partition("?")
    settings = _settings(query)
    threads = _cpus(settings.get("cpus", "128"))
    return FakeShape(
        cards=_cards(cards.removesuffix("/"), nodes=min(2, threads)),
        threads=threads,
        memory_mib=_size("memory", settings.get("memory", "1t")),
        disk_mib=_size("disk", settings.get("disk", "10t")),
        mood=temper(settings.get("mood", "cheerful")).mood,
    )


def _settings(query: str) -> dict[str, str]:
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=16)
    except ValueError:
        raise _wrong(f"{query!r} is not a list of name=value") from None
    known = ("cpus", "memory", "disk", "mood")
    for name, _ in pairs:
        if name not in known:
            raise _wrong(f"{name!r} cannot be set on a simulated host (known: {', '.join(known)})")
    if len(dict(pairs)) < len(pairs):
        raise _wrong(f"{query!r} says something twice")
    return dict(pairs)


def _cards(text: str, *, nodes: int) -> tuple[FakeCard, ...]:
    models: list[FakeModel] = []
    for part in [] if text in ("", "cpu") else text.split(","):
        match = _CARDS.fullmatch(part)
        if not match:
            raise _wrong(f"{part!r} is not a number of cards, an x and a model")
        count, model = int(match[1] or 1), _BY_NAME.get(match[2].lower())
        if model is None:
            raise _wrong(f"no card model is called {match[2]!r}")
        if not count or len(models) + count > _MOST_CARDS:
            raise _wrong(f"a simulated host has 1 to {_MOST_CARDS} cards of the models it names")
        models += [model] * count
    half = (len(models) + nodes - 1) // nodes
    return tuple(FakeCard(_address(i), model, numa_node=i // half) for i, model in enumerate(models))


def _address(number: int) -> str:
    return f"{number // 128:04x}:{0x10 + number % 128:02x}:00.0"


def _cpus(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or not 1 <= int(text) <= _MOST_CPUS:
        raise _wrong(f"cpus={text!r} is not a whole number from 1 to {_MOST_CPUS}")
    return int(text)


def _size(name: str, text: str) -> int:
    try:
        mib = parse_mib(text, bare="g")
    except Invalid as bad:
        raise _wrong(f"{name}: {bad.message}") from None
    if not 1024 <= mib <= _MOST_MIB:
        raise _wrong(f"{name}={text!r} is not between 1 GiB and 1 PiB")
    return mib


def _wrong(what: str) -> Invalid:
    models = ", ".join(m.name for m in MODELS)
    hint = f"{_EXAMPLE} Known models: {models}. Known moods: {', '.join(Mood)}."
    return Invalid(f"Not a simulated host: {what}", hint=hint, where="uri")
