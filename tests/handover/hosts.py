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


def gtx860m() -> dict[str, Any]:
    """A laptop's card that modprobe gave to vfio-pci, its sound left with the host."""
    told = description(
        {
            "name": "GeForce GTX 860M",
            "ids": "10de:1392",
            "class": "030000",
            "architecture": "Maxwell",
            "memory_mib": 2048,
            "bars_mib": [16, 256, 32],
            "companions": ["10de:0fbc 040300 snd_hda_intel"],
            "at": ["0000:01:00.0"],
            "below": [["0000:00:01.0"]],
            "groups": [1],
        }
    )
    return told | {"boot_binding": {"0000:01:00.0": "vfio-pci"}}


def gtx1660s() -> dict[str, Any]:
    """A card with sound, USB and USB-C at its slot, its root port in the same group."""
    told = description(
        {
            "name": "GeForce GTX 1660 SUPER",
            "ids": "10de:21c4",
            "class": "030000",
            "architecture": "Turing",
            "memory_mib": 6144,
            "bars_mib": [16, 256, 32],
            "companions": [
                "10de:1aeb 040300 snd_hda_intel",
                "10de:1aec 0c0330 xhci_hcd",
                "10de:1aed 0c8000 nvidia-gpu",
            ],
            "at": ["0000:01:00.0"],
            "below": [["0000:00:01.0"]],
            "groups": [1],
        }
    )
    port = {"at": "0000:00:01.0", "ids": "8086:1901", "class": "060400", "driver": "pcieport", "group": 1}
    return told | {"others": [port]}


def card_beside_the_root_disk(*, sata: str = "0000:01:00.1") -> dict[str, Any]:
    """A card whose IOMMU group holds the controller of the host's root disk and the chipset's USB."""
    return description(
        {
            "name": "Tesla P4",
            "ids": "10de:1bb3",
            "architecture": "Pascal",
            "memory_mib": 7680,
            "bars_mib": [16, 256, 32],
            "at": ["0000:01:00.0"],
            "below": [["0000:00:1c.4"]],
            "groups": [12],
        },
        others=[
            {"at": sata, "ids": "1b21:0612", "class": "010601", "driver": "ahci", "group": 12},
            {"at": "0000:03:00.0", "ids": "1b21:1242", "class": "0c0330", "driver": "xhci_hcd", "group": 12},
        ],
    )


def six_v100() -> dict[str, Any]:
    """Six V100, of which two pairs share a group each: four groups in all."""
    at = [f"0000:{bus}:00.0" for bus in ("15", "16", "27", "28", "88", "b1")]
    return description(
        {
            "name": "Tesla V100-PCIE-32GB",
            "ids": "10de:1db6",
            "architecture": "Volta",
            "memory_mib": 32510,
            "bars_mib": [16, 32768, 32],
            "at": at,
            "below": [[f"0000:{bus}:01.0"] for bus in ("14", "14", "26", "26", "87", "b0")],
            "groups": [31, 31, 48, 48, 77, 91],
        }
    )


def two_p4() -> dict[str, Any]:
    """Two alike cards, each with a group of its own."""
    return description(
        {
            "name": "Tesla P4",
            "ids": "10de:1bb3",
            "architecture": "Pascal",
            "memory_mib": 7680,
            "bars_mib": [16, 256, 32],
            "at": ["0000:41:00.0", "0000:42:00.0"],
            "below": [["0000:40:01.1"], ["0000:40:01.2"]],
        }
    )
