"""A host of files, and NVML as a test wants it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .standin import Card, StandIn
from .tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StandIn]:
    """Make an NVML of these cards the one that hostctl imports."""

    def make(*cards: Card, start: int = 0) -> StandIn:
        made = StandIn(*cards, start=start)
        monkeypatch.setitem(sys.modules, "pynvml", made)
        return made

    return make


@pytest.fixture(autouse=True)
def _no_nvml(nvml: Callable[..., StandIn]) -> None:
    nvml(start=12)  # the library is missing, unless a test says otherwise
