"""The IOMMU, its groups and VFIO's containers."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.cures import Platform
from vmgpu.hypervisor.doctor.patterns import CULPRIT, SYMPTOM, Known

_GROUP_FILE = r"/dev/vfio/(\d+|vfio|devices/vfio\d+|noiommu-\d+)'"


def _switch_on(platform: Platform) -> str:
    return (
        "Switch on VT-d (Intel) or AMD-Vi/IOMMU (AMD) in the firmware. On Intel also: "
        f"{platform.boot_with('intel_iommu=on iommu=pt')} Load VFIO: modprobe vfio-pci. "
        "Afterwards /sys/kernel/iommu_groups must not be empty and /dev/vfio/vfio must exist."
    )


KNOWN = (
    Known(
        "iommu-off",
        "The host cannot hand out PCI devices: its IOMMU is off or VFIO is not loaded",
        "No IOMMU group exists for the device, or the kernel has no VFIO: firmware setting, kernel command line "
        "or module is missing.",
        _switch_on,
        (
            r"host doesn't support passthrough of host pci devices",
            r"host doesn't support vfio pci passthrough",
            r"vfio device assi\w+ment is currently not supported",
            r"no iommu_?group found",
            r"failed to get iommu.?group",
            r"iommu.?groups?.{0,60}no such file or directory",
            r"no iommu (found|detected|present)",
        ),
    ),
    Known(
        "no-interrupt-remapping",
        "The platform does not isolate interrupts of devices",
        "Without interrupt remapping a guest could send interrupts to the host, so the kernel refuses the device.",
        lambda p: (
            "Switch on x2APIC and interrupt remapping (part of VT-d or AMD-Vi) in the firmware, and remove "
            "intremap=off "
            "or nox2apic from the kernel command line. Last resort, for guests you trust: "
            + p.module_option("options vfio_iommu_type1 allow_unsafe_interrupts=1")
        ),
        (
            r"no interrupt remapping",
            r"allow_unsafe_interrupts' to enable",
            r"(irq|interrupt) remapping.{0,40}(failed|disabled|not (available|supported|enabled)|is broken)",
            r"(disabling|disabled|failed to enable) (irq|interrupt) remapping",
        ),
        CULPRIT,
    ),
    Known(
        "group-not-viable",
        "Other functions of the card's IOMMU group are still with drivers of the host",
        "The group is the unit: every endpoint in it (sound, USB, another card) must be with a VFIO driver or with "
        "none; bridges are exempt.",
        "List the group: ls /sys/kernel/iommu_groups/N/devices. Give all endpoints of the card to the guest, or bind "
        "them to vfio-pci: virsh nodedev-detach pci_0000_41_00_1. Leave bridges alone. If the group holds something "
        "that the host needs, move the card to another slot.",
        (
            r"group \d+ is not viable",
            r"ensure all devices within the iommu_group are bound",
        ),
        CULPRIT,
    ),
    Known(
        "group-busy",
        "Another process holds this IOMMU group open",
        "Another guest, or a program such as DPDK, has a device of the same group.",
        "Find it: fuser -v /dev/vfio/N. Stop that guest, or give both devices to one guest: one group cannot be "
        "shared.",
        (rf"{_GROUP_FILE}: device or resource busy",),
        CULPRIT,
    ),
    Known(
        "group-unbound",
        "No device of the IOMMU group is with a VFIO driver",
        "The group's file appears only when a device of it is bound to vfio-pci or a variant of it.",
        "Bind the card: virsh nodedev-detach pci_0000_41_00_0, or use managed='yes'. Look at who has it: "
        "readlink /sys/bus/pci/devices/0000:41:00.0/driver.",
        (rf"{_GROUP_FILE}: no such file or directory",),
        CULPRIT,
    ),
    Known(
        "group-denied",
        "QEMU may not open the VFIO device file",
        "The cgroup's device list, AppArmor or SELinux forbids it: libvirt opens the way only for devices that the "
        "domain's XML names.",
        "Give the device as <hostdev>, not by a QEMU argument. Look for the refusal: journalctl -k | grep -Ei "
        "'apparmor|avc'. For devices outside the XML add them to cgroup_device_acl in /etc/libvirt/qemu.conf, then "
        "restart libvirtd.",
        (rf"{_GROUP_FILE}: (permission denied|operation not permitted)",),
        CULPRIT,
    ),
    Known(
        "group-spaces",
        "Devices of one group were given different address spaces",
        "A virtual IOMMU in the guest puts each device in a space of its own; devices of one host group cannot be "
        "parted.",
        "Put them below one pcie-to-pci-bridge in the guest, give only one of them, or remove the guest's <iommu>.",
        (r"group \d+ used in multiple address spaces",),
        CULPRIT,
    ),
    Known(
        "group-device-refused",
        "The kernel did not give this device out of its group",
        "It is not bound to a VFIO driver, left the bus, or another guest has it.",
        "Compare: readlink /sys/bus/pci/devices/ADDRESS/driver must say vfio-pci (or, for a vGPU, nvidia). Detach it "
        "again: virsh nodedev-detach. An mdev that answers nothing any more is removed and made anew.",
        (
            r"error getting device from group \d+",
            r"verify all devices in group \d+ are bound to",
        ),
    ),
    Known(
        "device-gone",
        "The host has no device at this address",
        "The card moved to another slot, fell off the bus, or its virtual functions were switched off (by a reboot, "
        "a driver reload or sriov-manage -d).",
        "Look: lspci -D. After a reboot switch the virtual functions on again: /usr/lib/nvidia/sriov-manage -e ALL. "
        "Survey the host again so that addresses are fresh.",
        (
            r"no such host device",
            r"device \S+ not found: could not access",
            r"no node device with matching name",
        ),
    ),
    Known(
        "device-twice",
        "The same device is named twice in this guest",
        "Two <hostdev> elements, or one and a QEMU argument, carry one address.",
        "Remove one of them from the domain: virsh edit NAME.",
        (r"device is already attached",),
    ),
    Known(
        "device-of-other-guest",
        "Another guest on this host already has this device or one of its group",
        "Two guests were given the same card, or two cards of one IOMMU group.",
        "Stop the guest that the message names, or give this one another card; devices of one group go to one guest.",
        (
            r"pci device \S+ is in use by driver",
            r"(?<!mediated\s)device \S+ is (already )?in use by driver",
        ),
        CULPRIT,
    ),
    Known(
        "rmrr",
        "The firmware keeps memory of this device for itself",
        "A reserved region (RMRR, IVMD) pins the device for a management controller; the kernel will not isolate it.",
        lambda p: (
            "Look in the firmware for shared memory or USB redirection of the management controller (HPE: conrep, "
            "'HP Shared Memory features') and switch it off for this slot; else update the firmware or use another "
            f"slot. If iommu=pt is set, try without it: {p.boot_without('iommu=pt')}"
        ),
        (
            r"platform rmrr requirement",
            r"requested this device have a 1:1 iommu mapping",
            r"rejecting configuring the device without a 1:1 mapping",
        ),
        CULPRIT,
    ),
    Known(
        "acs-missing",
        "A bridge above the card cannot keep its devices apart",
        "Without ACS on the switch or root port the kernel puts all devices below into one group, and libvirt refuses "
        "to hand out one alone.",
        "Use a slot on a root port of its own (often one wired to the processor), or give the whole group to one "
        "guest. "
        "Do not use pcie_acs_override: it only hides that devices can reach one another.",
        (
            r"behind a switch lacking acs",
            r"pci device \S+ is not assignable",
            r"pcie acs overrides enabled",
        ),
    ),
    Known(
        "bridge-given",
        "A bridge was named where a card was meant",
        "Only endpoints go into guests; bridges and root ports stay with the host and do not spoil a group.",
        "Take the bridge (class 0604) out of the domain and off vfio-pci; give only the card's own functions.",
        (r"non-endpoint pci devices cannot be assigned",),
        CULPRIT,
    ),
    Known(
        "iommu-fault",
        "A device reached for memory that it was not given",
        "The IOMMU stopped it. Usual after a card was taken from a running guest, by a broken driver, or by a firmware "
        "that leaves the card running at boot.",
        "Look whose address it is. Reset the card with no guest on it; if it comes back, update the card's and the "
        "host's firmware, and look for a device on a wrong driver in the same group.",
        (
            r"dmar: \[?dma (read|write).{0,40}request device",
            r"dmar: drhd: handling fault status",
            r"amd-vi: event logged \[?'?\w*io_page_fault",
            r"event logged \[io_page_fault",
        ),
    ),
    Known(
        "group-not-opened",
        "QEMU could not get at the card's IOMMU group",
        "The end of the line says why: missing (nothing of it is with vfio), busy (another process) or denied.",
        "ls -l /dev/vfio; fuser -v /dev/vfio/N; readlink /sys/bus/pci/devices/ADDRESS/driver.",
        (rf"(failed to open|error opening|could not open) '{_GROUP_FILE}",),
        SYMPTOM,
    ),
    Known(
        "group-status",
        "The state of the IOMMU group could not be read",
        "The kernel's VFIO and this QEMU do not understand one another, or the group vanished meanwhile.",
        "Look at journalctl -k | grep -i vfio; unbind and bind the card again; reboot after a kernel update.",
        (r"failed to get group \d+ status",),
        SYMPTOM,
    ),
    Known(
        "vfio-container",
        "VFIO could not set up isolation for this guest",
        "Usual causes: no interrupt remapping, a reserved region of the firmware, or the vfio_iommu_type1 module "
        "missing.",
        "Look in the kernel's log for the reason (journalctl -k | grep -Ei 'vfio|remapping|rmrr'); load the module: "
        "modprobe vfio_iommu_type1.",
        (
            r"failed to set ?up container",
            r"failed to set iommu for container",
            r"no available iommu models",
        ),
        SYMPTOM,
    ),
)
