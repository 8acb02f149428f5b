"""Each filter of the placement is explained, in the answer and in the concepts."""

from __future__ import annotations

from pathlib import Path

from vmgpu.cli.queue import _MEANS
from vmgpu.placement import Filter


def test_each_filter_has_its_words() -> None:
    concepts = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
    assert set(_MEANS) == {each.value for each in Filter}
    assert [each for each in Filter if f"`{each}`" not in concepts] == []
