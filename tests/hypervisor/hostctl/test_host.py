"""The host itself: firmware, modules, memory, and the lines of its kernel."""

from __future__ import annotations

from typing import Any

import pytest

from vmgpu.hypervisor.hostctl import host, kernel_log

from .tree import EIO, Tree

CPU = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Made-up Xeon 9000
physical id\t: 0
flags\t\t: fpu vmx sse
processor\t: 1
physical id\t: 1
flags\t\t: fpu vmx sse
"""
LOG = (
    "6,300,100,-;Command line: BOOT_IMAGE=/vmlinuz\n"
    "6,301,200,-;DMAR-IR: Enabled IRQ remapping in x2apic mode\n"
    " SUBSYSTEM=acpi\n"
    "4,302,300,-;NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n"
    "3,303,400,c;pci 0000:41:00.0: BAR 1: no space for [mem size 0x1000 64bit pref]\n"
    "6,304,500,-;usb 1-1: new device; with a semicolon\n"
)


def look(tree: Tree) -> dict[str, Any]:
    return host.look(tree.files)


def test_a_whole_host(tree: Tree) -> None:
    for path, text in {
        "proc/sys/kernel/hostname": "gpu1\n",
        "proc/sys/kernel/random/boot_id": "5f0c9a52-1111-4222-8333-944455556666\n",
        "proc/sys/kernel/osrelease": "6.8.0-40-generic\n",
        "proc/sys/kernel/arch": "x86_64\n",
        "proc/cmdline": "root=/dev/sda1 intel_iommu=on iommu=pt\n",
        "proc/cpuinfo": CPU,
        "proc/meminfo": "MemTotal:       131072000 kB\nMemFree: 1 kB\n",
        "proc/modules": "vfio_pci 16384 1 - Live 0x0\nnvidia 5 0 - Live 0x0\n",
        "lib/modules/6.8.0-40-generic/modules.builtin": "kernel/vfio/vfio.ko\nkernel/vfio/vfio-iommu_type1.ko.zst\n",
        "sys/module/kvm/parameters/x": "1",
        "sys/module/kvm_intel/parameters/nested": "Y\n",
        "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts": "N\n",
        "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\1",
        "sys/firmware/acpi/tables/DMAR": b"DMAR",
        "sys/class/iommu/dmar0": "",
        "sys/kernel/iommu_groups/0/type": "DMA",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       65536000 kB\n",
        "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages": "16\n",
        "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages": "4\n",
        "etc/os-release": '# a comment\n  ID=ubuntu\nVERSION_ID="24.04"\nID_LIKE="debian"\n\nNAME="never ends\n',
        "etc/default/grub": "",
        "dev/vfio/vfio": "",
        "dev/kvm": "",
        "dev/kmsg": LOG,
        "run/virtqemud.pid": "900\n",
        "proc/900/limits": "Limit  Soft  Hard  Units\nMax locked memory         8388608   8388608   bytes\n",
        "run/systemd/timesync/synchronized": "",
    }.items():
        tree.write(path, text)
    seen = look(tree)
    assert (seen["hostname"], seen["kernel"], seen["arch"]) == ("gpu1", "6.8.0-40-generic", "x86_64")
    assert seen["os"] == {"id": "ubuntu", "version_id": "24.04", "like": ["debian"]}
    assert seen["cpu"] == {
        "model": "Made-up Xeon 9000",
        "vendor": "GenuineIntel",
        "threads": 2,
        "flags_virt": True,
        "sockets": 2,
    }
    assert seen["memory_mib"] == 128000
    assert (seen["uefi"], seen["secure_boot"], seen["bootloader"]) == (True, True, "grub")
    assert seen["iommu"] == {"dmar": True, "ivrs": False, "groups": 1, "units": ["dmar0"], "remapping": True}
    modules = seen["modules"]
    assert modules["vfio"] == modules["vfio_iommu_type1"] == modules["kvm"] == {"loaded": True, "builtin": True}
    assert modules["vfio_pci"] == modules["nvidia"] == {"loaded": True, "builtin": False}
    assert modules["nouveau"] == {"loaded": False, "builtin": False}
    assert (seen["vfio"], seen["kvm"], seen["nested"], seen["unsafe_interrupts"]) == (True, True, True, False)
    assert seen["hugepages"] == [{"size_kib": 1048576, "total": 16, "free": 4, "node": 0}]
    assert (seen["memlock_kib"], seen["time_synced"]) == (8192, True)
    assert seen["numa"] == [{"node": 0, "cpus": "0-1", "memory_mib": 64000}]
    assert len(seen["kernel_log"]) == 3 and seen["kernel_log"][1].startswith("NVRM: Xid")


def test_what_is_unlimited_is_no_small_number(tree: Tree) -> None:
    tree.write("proc/1/limits", "Max locked memory         unlimited            unlimited            bytes\n")
    assert look(tree)["memlock_kib"] == host.UNLIMITED_KIB


def test_another_processor(tree: Tree) -> None:
    tree.write("proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n")
    assert look(tree)["cpu"] == {"model": None, "vendor": None, "threads": 1, "flags_virt": None, "sockets": None}


@pytest.mark.parametrize(
    ("files", "loader"),
    [
        ({}, None),
        ({"etc/zipl.conf": ""}, "zipl"),
        ({"boot/grub2/grub.cfg": ""}, "grub"),
        ({"boot/efi/loader/loader.conf": ""}, "systemd-boot"),
        (
            {
                "etc/default/grub": "",
                "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f": b"\6\0\0\0"
                + "systemd-boot 252.4".encode("utf-16-le"),
            },
            "systemd-boot",
        ),
    ],
)
def test_boot_loaders(tree: Tree, files: dict[str, str | bytes], loader: str | None) -> None:
    for path, text in files.items():
        tree.write(path, text)
    assert look(tree)["bootloader"] == loader


@pytest.mark.parametrize("content", [b"", b"\6\0\0\0", b"\6\0\0\0\0\0"])
def test_a_firmware_variable_cut_short(tree: Tree, content: bytes) -> None:
    tree.write("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", content)
    assert look(tree)["secure_boot"] is None


def test_files_of_the_host_may_fail(tree: Tree) -> None:
    for path in ("proc/cpuinfo", "proc/meminfo", "etc/os-release", "dev/kmsg", "proc/modules"):
        tree.link(path, EIO)
    files = tree.files
    seen = host.look(files)
    assert seen["memory_mib"] is None and seen["cpu"]["threads"] is None and seen["kernel_log"] == []
    assert len(files.troubles) == 5


def test_a_kernel_name_is_no_path(tree: Tree) -> None:
    tree.write("proc/sys/kernel/osrelease", "../../../secret\n")
    files = tree.files
    host.look(files)
    assert not any("secret" in each for each in files.opened)


def test_the_log_keeps_the_last_lines_and_only_telling_ones(tree: Tree) -> None:
    tree.write("dev/kmsg", "".join(f"[   1.{n:06d}] NVRM: line {n} {'x' * 1000}\n[ 2.0] usb {n}\n" for n in range(300)))
    lines = kernel_log.lines(tree.files)
    assert len(lines) == 200 and lines[-1].startswith("NVRM: line 299") and all(len(each) <= 400 for each in lines)


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("AMD-Vi: Interrupt remapping enabled", True),
        ("DMAR-IR: Enabled IRQ remapping in xapic mode", True),
        ("vfio_iommu_type1_attach_group: No interrupt remapping support.", False),
        ("DMAR: IOMMU enabled", None),
    ],
)
def test_interrupt_remapping(line: str, known: bool | None) -> None:
    assert kernel_log.remapping([line]) is known
