"""The kernel's part: IOMMU groups, interrupt remapping, VFIO, its command line and its log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vmgpu.hypervisor.doctor.causes import explain
from vmgpu.hypervisor.doctor.facts import Facts
from vmgpu.hypervisor.doctor.findings import Check, LibvirtSeen, ok, warning

_OFF = re.compile(r"(?<!\S)((intel_iommu|amd_iommu|iommu)=(\w+,)*off\b\S*)")
_REMAPPING_OFF = re.compile(r"(?<!\S)(intremap=(off|nosid)|nox2apic|nointremap)(?!\S)")
_LOAD = "Run: modprobe vfio-pci; from boot on: echo vfio-pci > /etc/modules-load.d/vfio-pci.conf."
_ABOUT = re.compile(r"(intel_iommu|amd_iommu|iommu|intremap|vfio[\w-]*|hugepages|default_hugepagesz|pci)[.=]")
_ACS = re.compile(r"(?<!\S)pcie_acs_override=\S*")


def look(facts: Facts, _seen: LibvirtSeen) -> Iterator[Check]:
    """The kernel's part."""
    yield from _iommu(facts)
    yield from _remapping(facts)
    yield from _vfio(facts)
    yield from _command_line(facts)
    yield from _log(facts)


def _iommu(facts: Facts) -> Iterator[Check]:
    host = facts.host
    if host.groups:
        yield ok("kernel-iommu", f"{host.groups} IOMMU groups", "The kernel keeps devices apart: cards can be given.")
    if host.groups != 0:
        return
    seen, cure = "no IOMMU group", _switch_on(facts)
    if switched_off := _OFF.search(host.cmdline or ""):
        seen, cure = f"{seen}; {switched_off[1]} on the command line", host.platform.boot_without(switched_off[1])
    elif host.x86 and host.dmar is False and host.ivrs is False:
        cure = f"First switch on {host.iommu_name} in the firmware. {cure}"
    yield Check("kernel-iommu", facts.lacking, seen, "The kernel does not use the IOMMU: no card can be given.", cure)


def _switch_on(facts: Facts) -> str:
    host = facts.host
    if not host.x86:
        return "Switch on the SMMU (IOMMU) in the firmware; look at: journalctl -k | grep -i smmu."
    if host.is_amd and not host.dmar:
        # amd_iommu=on is no argument of the kernel: what is off was switched off, or is broken.
        return f"Look why AMD-Vi failed: journalctl -k | grep AMD-Vi. {host.platform.boot_with('iommu=pt')}"
    return host.platform.boot_with("intel_iommu=on iommu=pt")


def _remapping(facts: Facts) -> Iterator[Check]:
    host = facts.host
    if host.remapping:
        yield ok("interrupt-remapping", "interrupt remapping is on", "A guest's card cannot send interrupts elsewhere.")
    if host.remapping is not False or host.groups == 0:
        return
    if host.unsafe_interrupts:
        yield warning(
            "interrupt-remapping",
            "off, and allow_unsafe_interrupts is set",
            "Guests with a card work, and a hostile one can send interrupts to the host.",
            "Switch on x2APIC and interrupt remapping in the firmware, then remove the option from /etc/modprobe.d.",
        )
        return
    argument = _REMAPPING_OFF.search(host.cmdline or "")
    cure = (
        host.platform.boot_without(argument[1])
        if argument
        else "Switch on x2APIC and interrupt remapping in the firmware. Last resort, for guests you trust: "
        + host.platform.module_option("options vfio_iommu_type1 allow_unsafe_interrupts=1")
    )
    yield Check("interrupt-remapping", facts.lacking, "off", "VFIO refuses devices without it: no card starts.", cure)


def _vfio(facts: Facts) -> Iterator[Check]:
    host = facts.host
    loaded = host.module("vfio_pci").there
    if host.vfio and loaded is not False:
        yield ok("vfio", "/dev/vfio/vfio is there", "The kernel can hand out devices.")
    elif host.vfio is False and "-cloud-" in host.kernel:
        yield Check(
            "vfio",
            facts.lacking,
            f"no /dev/vfio/vfio; kernel {host.kernel}",
            "Cloud kernels are built without VFIO and graphics drivers.",
            "Run: apt install linux-image-amd64; boot that kernel and remove the cloud one.",
        )
    elif host.vfio is False:
        yield Check(
            "vfio", facts.lacking, "no /dev/vfio/vfio", "libvirt refuses host devices while it is missing.", _LOAD
        )
    elif loaded is False:
        seen = "module vfio_pci is not loaded"
        yield warning("vfio", seen, "libvirt loads it at the first guest; better from boot on.", _LOAD)


def _command_line(facts: Facts) -> Iterator[Check]:
    host = facts.host
    override = _ACS.search(host.cmdline or "")
    if override:
        yield warning(
            "kernel-command-line",
            override[0],
            "Groups look smaller than the hardware is: guests' devices can reach one another's memory.",
            f"Use slots with groups of their own instead. {host.platform.boot_without(override[0])}",
        )
    elif host.cmdline is not None and host.groups:
        about = " ".join(word for word in host.cmdline.split() if _ABOUT.match(word))
        yield ok("kernel-command-line", about or "nothing about IOMMU or VFIO", "The kernel's IOMMU is on.")


def _log(facts: Facts) -> Iterator[Check]:
    for cause in explain(facts.host.kernel_log, on=facts.host.platform):
        yield warning(f"kernel-log-{cause.id}", cause.matched, f"{cause.title}. {cause.means}", cause.cure)
