"""Ink on its ground: the contrast that people with weak eyes, or with sun on the screen, need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSS = (Path(__file__).parents[2] / "vmgpu/api/static/face.css").read_text()
_LIGHT, _DARK = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
_TEXT = [
    *[(ink, ground) for ink in ("ink", "soft", "lead") for ground in ("ground", "sheet", "dent")],
    ("bad", "sheet"), ("sheet", "bad"), ("lead-ink", "lead"), ("sheet", "ink"), ("ink", "line"),
    *[(f"{kind}-ink", f"{kind}-ground") for kind in ("bad", "good", "wait", "move", "odd")],
    *[(f"i{n}", f"t{n}") for n in range(6)],
]  # fmt: skip


@pytest.mark.parametrize(("ink", "ground"), _TEXT)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str, ink: str, ground: str) -> None:
    colours = _colours(_LIGHT) | (_colours(_DARK) if scheme == "dark" else {})
    assert _contrast(colours[ink], colours[ground]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_drawn_has_enough_contrast(scheme: str) -> None:
    colours = _colours(_LIGHT) | (_colours(_DARK) if scheme == "dark" else {})
    for mark in ("lead", "now", "focus"):
        assert _contrast(colours[mark], colours["sheet"]) >= 3


def _colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z0-9-]+): #([0-9a-f]{6})", block))


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
