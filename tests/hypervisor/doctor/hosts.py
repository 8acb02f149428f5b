"""Facts of hosts as their helper tells them: a healthy one, to be spoilt one thing at a time."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from vmgpu.hypervisor.doctor import Check, LibvirtSeen, examine

CARD = "0000:41:00.0"
SECOND = "0000:81:00.0"
GIB = 2**30

_MODULES = ("vfio", "vfio_pci", "vfio_iommu_type1", "kvm", "kvm_intel")
HEALTHY_SEEN = LibvirtSeen(
    remote=False,
    libvirt="10.0.0",
    qemu="8.2.2",
    efi=True,
    iommu=True,
    hostdevs=("usb", "pci", "mdev"),
    accel="kvm",
    accel_why="a guest kernel booted under KVM in 1.1 s",
    pool="vmgpu",
    pool_total_gib=900,
    pool_free_gib=600,
    network="vmgpu",
    network_active=True,
    network_range="192.168.150.0/24",
    images=("base",),
)


def function(address: str = CARD, **changes: Any) -> dict[str, Any]:
    """One PCI function: an A100 with nothing special about it, unless told otherwise."""
    return {
        "address": address,
        "vendor": "10de",
        "device": "20b5",
        "class": "0302",
        "driver": "vfio-pci",
        "numa": 0,
        "group": int(address[5:7], 16),
        "boot_vga": False,
        "bridge": False,
        "reset_methods": ["flr", "bus"],
        "dead": False,
        "bars": [
            {"index": 0, "size": GIB // 64, "start": 1, "assigned": True},
            {"index": 1, "size": 128 * GIB, "start": 1, "assigned": True},
            {"index": 3, "size": GIB // 32, "start": 1, "assigned": True},
        ],
        "link": {"width": 16, "max_width": 16, "speed": "16 GT/s", "max_speed": "16 GT/s"},
        "power": "D0",
        "path": [],
        "physfn": None,
        "vfs": [],
        "vfs_on": 0,
        "vfs_most": 16,
        "driver_override": None,
        "mdev_types": [],
        "nvidia": None,
        "holders": [],
        "vram_mib": None,
    } | changes


def facts(*functions: Mapping[str, Any], nvml: Any = None, fabric: Any = None, **host: Any) -> dict[str, Any]:
    """A healthy Debian host with these functions (else one card); keywords change the host's own facts."""
    return deepcopy(
        {
            "hostctl": "1",
            "host": {
                "hostname": "gpu1",
                "kernel": "6.1.0-28-amd64",
                "arch": "x86_64",
                "cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on iommu=pt",
                "os": {"id": "debian", "version_id": "12", "like": ""},
                "cpu": {"model": "Intel(R) Xeon(R)", "vendor": "GenuineIntel", "threads": 64, "flags_virt": True},
                "memory_mib": 512 * 1024,
                "uefi": True,
                "secure_boot": False,
                "bootloader": "grub",
                "iommu": {"dmar": True, "ivrs": False, "groups": 120, "units": ["dmar0"], "remapping": True},
                "modules": {name: {"loaded": True, "builtin": False} for name in _MODULES},
                "vfio": True,
                "unsafe_interrupts": False,
                "kvm": True,
                "hugepages": [{"size_kib": 2048, "total": 0, "free": 0, "node": 0}],
                "memlock_kib": 8192,
                "time_synced": True,
                "kernel_log": ["[    0.1] DMAR: IOMMU enabled"],
            }
            | host,
            "pci": list(functions or (function(),)),
            "mdev_parents": [],
            "mdevs": [],
            "nvml": nvml or {"state": "no_driver", "driver": None, "error": None, "devices": []},
            "fabric": fabric or {"switches": [], "manager": "absent", "mode": None, "partitions": None},
            "errors": [],
        }
    )


def iommu(**changes: Any) -> dict[str, Any]:
    """The host's IOMMU, with changes."""
    return {"dmar": True, "ivrs": False, "groups": 120, "units": ["dmar0"], "remapping": True} | changes


def virtual(address: str, card: str = CARD, **changes: Any) -> dict[str, Any]:
    """A virtual function of NVIDIA's framework without mdev, free."""
    return function(
        address,
        driver="nvidia",
        physfn=card,
        group=1000 + int(address[-1]),
        nvidia={"creatable": [{"id": 557, "name": "NVIDIA A40-1Q"}], "current": 0, "gpu_instance": None},
        **changes,
    )


def vgpu_nvml(**device: Any) -> dict[str, Any]:
    """NVML of a host with NVIDIA's vGPU manager and one card."""
    return {
        "state": "ok",
        "driver": "550.90.05",
        "error": None,
        "devices": [
            {
                "address": CARD,
                "uuid": "GPU-1",
                "name": "NVIDIA A100",
                "mig": {"current": 0, "pending": 0},
                "virtualization": "host_vgpu",
                "sriov": True,
                "mixed": {"supported": True, "on": False},
                "instances": [],
                "vgpu_types": [],
                "vgpus": [],
                "processes": [],
                "ecc": None,
                "display_active": False,
            }
            | device
        ],
    }


def look(told: Any, seen: LibvirtSeen = HEALTHY_SEEN) -> dict[str, Check]:
    """The checks by id; each id once."""
    found = examine(told, seen)
    assert len({each.id for each in found}) == len(found)
    return {each.id: each for each in found}
