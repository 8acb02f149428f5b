"""What the firmware must have switched on: virtualization, IOMMU, SR-IOV, UEFI, secure boot."""

from __future__ import annotations

from collections.abc import Iterator

from vmgpu.hypervisor.doctor.facts import NVIDIA, Facts
from vmgpu.hypervisor.doctor.findings import Check, LibvirtSeen, broken, ok, warning
from vmgpu.units import say_count

_LARGE_BAR_MIB = 1024
_AMPERE = 0x20B0  # the first device id of a generation whose vGPUs are virtual functions
_SRIOV_CURE = "Switch on SR-IOV, ARI and 'Above 4G decoding' in the firmware setup; save, then power off and on."


def look(facts: Facts, _seen: LibvirtSeen) -> Iterator[Check]:
    """The firmware's part."""
    host = facts.host
    yield from _virtualization(facts)
    if host.x86:
        yield from _iommu(facts)
    yield from _sriov(facts)
    yield from _uefi(facts)
    yield from _secure_boot(facts)


def _virtualization(facts: Facts) -> Iterator[Check]:
    host = facts.host
    if host.virtualization is None:
        return
    if host.virtualization:
        yield ok("firmware-virtualization", "the processor offers virtualization", "KVM can be used.")
        return
    name = "SVM Mode" if host.is_amd else "Intel Virtualization Technology (VT-x)"
    yield Check(
        "firmware-virtualization",
        facts.lacking,
        "the processor shows neither vmx nor svm",
        "Without it there is no KVM: guests would be emulated, many times slower.",
        f"Switch on {name} in the firmware setup. If this host is itself a virtual machine, allow nesting on its host.",
    )


def _iommu(facts: Facts) -> Iterator[Check]:
    host = facts.host
    table = "DMAR" if host.dmar else "IVRS" if host.ivrs else ""
    if table or host.groups:
        seen = f"ACPI table {table} is there" if table else f"{host.groups} IOMMU groups exist"
        yield ok("firmware-iommu", seen, f"{host.iommu_name} is on in the firmware.")
    elif host.dmar is False and host.ivrs is False:
        yield Check(
            "firmware-iommu",
            facts.lacking,
            "no ACPI table DMAR or IVRS",
            "The IOMMU is off in the firmware: no card can be handed to a guest.",
            f"Switch on {host.iommu_name} in the firmware setup (often under chipset, north bridge or virtualization).",
        )


def _sriov(facts: Facts) -> Iterator[Check]:
    able = [card for card in facts.cards if card.vfs_most]
    lacking = [
        card.address
        for card in facts.cards
        if card.vfs_most == 0
        and card.vendor == NVIDIA
        and card.driver == "nvidia"
        and (_says_sriov(facts, card.address) or (facts.vgpu_host and _newer(card.device)))
    ]
    if lacking:
        yield broken(
            "firmware-sriov",
            f"no virtual functions on {', '.join(lacking)}",
            "vGPUs of this generation live on virtual functions; the firmware did not leave room for any.",
            _SRIOV_CURE,
        )
    elif able:
        most = sum(card.vfs_most or 0 for card in able)
        seen = f"{most} virtual functions possible on {say_count(len(able), 'card')}"
        yield ok("firmware-sriov", seen, "SR-IOV is on in the firmware.")


def _says_sriov(facts: Facts, address: str) -> bool:
    device = facts.nvml.devices.get(address)
    return bool(device and device.sriov)


def _newer(device: str) -> bool:
    try:
        return int(device, 16) >= _AMPERE
    except ValueError:
        return False


def _uefi(facts: Facts) -> Iterator[Check]:
    large = [card.address for card in facts.cards if any(bar.size_mib >= _LARGE_BAR_MIB for bar in card.bars)]
    if facts.host.uefi:
        yield ok("firmware-uefi", "the host was booted by UEFI", "Large memory regions of cards can be placed.")
    elif facts.host.uefi is False and large:
        yield warning(
            "firmware-uefi",
            f"the host was booted in legacy mode, with large cards: {', '.join(large)}",
            "Legacy firmware often has no room above 4 GB for their memory regions.",
            "Boot the host by UEFI and switch on 'Above 4G decoding' in the firmware setup.",
        )


def _secure_boot(facts: Facts) -> Iterator[Check]:
    host = facts.host
    nvidia = any(card.vendor == NVIDIA for card in facts.cards)
    if not host.secure_boot or not nvidia:
        return
    if host.module("nvidia").there:
        yield ok(
            "firmware-secure-boot", "secure boot is on, the NVIDIA module is loaded", "It is signed as it must be."
        )
    elif host.module("nvidia").there is False:
        yield warning(
            "firmware-secure-boot",
            "secure boot is on, the NVIDIA module is not loaded",
            "An unsigned module is kept out. For whole cards alone it is not needed.",
            "Sign it: mokutil --import /var/lib/dkms/mok.pub, reboot, enrol the key; or switch secure boot off.",
        )
