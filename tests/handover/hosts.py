"""Hosts of the stories that no description in tests/gpuhost/hosts has, re-created small."""

from __future__ import annotations

from typing import Any

from tests.described import description


def a6000() -> dict[str, Any]:
    """An RTX A6000 whose vGPUs lie on the card itself: one size at a time, no virtual functions."""
    return description(
        {
            "name": "NVIDIA RTX A6000",
            "ids": "10de:2230",
            "architecture": "Ampere",
            "memory_mib": 49140,
            "bars_mib": [16, 65536, 32],
            "vgpu": "mdev",
            "types": {
                "prefix": "NVIDIA RTXA6000-",
                "board_gb": 48,
                "runs": ["900 1B 2B 1Q 2Q 3Q 4Q 6Q 8Q 12Q 16Q 24Q 48Q 1A 2A 4A 8A 48A"],
            },
            "at": ["0000:41:00.0"],
            "below": [["0000:40:01.1"]],
        }
    )


def one_t4() -> dict[str, Any]:
    """A single T4, for guests whole."""
    return description(
        {
            "name": "Tesla T4",
            "ids": "10de:1eb8",
            "architecture": "Turing",
            "memory_mib": 15360,
            "bars_mib": [16, 256, 32],
            "at": ["0000:41:00.0"],
            "below": [["0000:40:01.1"]],
        }
    )
