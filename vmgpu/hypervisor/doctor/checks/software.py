"""What runs on the host: the helper, KVM, libvirt, QEMU, UEFI firmware, pool, network, images, time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vmgpu.hypervisor.doctor.causes import explain
from vmgpu.hypervisor.doctor.facts import Facts
from vmgpu.hypervisor.doctor.findings import Check, LibvirtSeen, broken, ok, warning

_LEAST_LIBVIRT = (7, 2)  # <firmware><feature> in the domain XML that vmgpu writes
_MDEV_LIBVIRT = (7, 3)  # mediated devices that are defined and started again after a reboot
_VARIANT_LIBVIRT = (10, 0)  # knows for sure a driver that is a VFIO driver under another name
_LEAST_QEMU = (5, 0)
_LEAST_POOL_GIB = 10
_SMALL_POOL = 20  # one part in so many


def look(facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    """The software's part."""
    yield from _helper(facts, seen)
    yield from _kvm(facts, seen)
    yield from _libvirt(facts, seen)
    yield from _qemu(facts, seen)
    yield from _uefi(facts, seen)
    yield from _devices(facts, seen)
    yield from _pool(seen)
    yield from _network(seen)
    yield from _images(seen)
    yield from _time(facts)


def _helper(facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    if not facts.told:
        key = " and give vmgpu an SSH key for it" if seen.remote else ""
        yield warning(
            "helper",
            "no facts from the host itself",
            "Firmware, groups, drivers, MIG and vGPUs are unknown: only what libvirt says was looked at.",
            f"Install vmgpu's helper (hostctl) on the host{key}, then look again.",
        )
    elif facts.errors:
        yield warning(
            "helper",
            "; ".join(facts.errors[:5]),
            "These facts are unknown.",
            "Run the helper as root (its line in sudoers), then look again.",
        )
    else:
        yield ok("helper", "the host's helper answers", "Facts are the host's own.")


def _kvm(facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    if seen.accel == "kvm":
        yield ok("kvm", seen.accel_why or "chosen", "Guests run at full speed.")
    elif seen.accel == "tcg":
        causes = explain(seen.accel_why)
        yield Check(
            "kvm",
            facts.lacking,
            seen.accel_why or "guests are emulated",
            causes[0].means if causes else "Guests run by emulation, many times slower; a card is of little use so.",
            causes[0].cure
            if causes
            else "Use bare metal, or allow nesting on the host of this machine; set accel to auto, then survey again: "
            "vmgpu host survey.",
        )
    elif facts.host.kvm is False:
        yield Check(
            "kvm",
            facts.lacking,
            "/dev/kvm is missing",
            "Guests would be emulated, many times slower.",
            f"Run: modprobe {'kvm_amd' if facts.host.is_amd else 'kvm_intel'}. If it is refused, switch virtualization "
            "on in the firmware.",
        )
    elif facts.told or seen.libvirt:
        yield warning(
            "kvm",
            "not probed",
            "That /dev/kvm is there proves nothing: whether a guest's kernel runs was not seen yet.",
            "The service's survey of this host probes it once for each boot: vmgpu host survey NAME. It boots the "
            "newest readable /boot/vmlinuz*, and says so where it finds none.",
        )


def _libvirt(facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    version = _version(seen.libvirt)
    if version is None:
        return
    functions = facts.functions.values()
    mdev = bool(facts.mdev_parents or facts.mdevs or any(each.mdev_types for each in functions))
    variant = any(each.vendor_vfio for each in functions)
    update = "Use a newer release of the distribution (or its backports), then restart libvirt; guests go on meanwhile."
    if version < _LEAST_LIBVIRT:
        yield broken("libvirt", f"libvirt {seen.libvirt}", "vmgpu's guests need 7.2 or later.", update)
    elif mdev and version < _MDEV_LIBVIRT:
        means = "Mediated devices cannot be defined: vGPUs would be gone after a reboot (7.3 or later can)."
        yield warning("libvirt", f"libvirt {seen.libvirt}", means, update)
    elif variant and version < _VARIANT_LIBVIRT:
        means = "It may refuse vGPUs on virtual functions as 'unmanaged' (10.0 or later surely takes them)."
        yield warning("libvirt", f"libvirt {seen.libvirt}", means, update)
    else:
        taken = ["whole cards"]
        taken += ["mediated devices"] if version >= _MDEV_LIBVIRT else []
        taken += ["vGPUs on virtual functions"] if version >= _VARIANT_LIBVIRT else []
        yield ok("libvirt", f"libvirt {seen.libvirt}", f"New enough for this host; it takes {', '.join(taken)}.")


def _qemu(facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    version = _version(seen.qemu)
    if version is None:
        return
    if version < _LEAST_QEMU:
        means, cure = "It is older than what vmgpu was tried with (5.0).", facts.host.platform.install("qemu")
        yield warning("qemu", f"QEMU {seen.qemu}", means, cure)
    else:
        yield ok("qemu", f"QEMU {seen.qemu}", "New enough.")


def _uefi(facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    if seen.efi:
        yield ok("guest-firmware", "libvirt finds a UEFI firmware", "Guests boot by UEFI.")
    elif seen.efi is False:
        yield broken(
            "guest-firmware",
            "libvirt finds no UEFI firmware",
            "vmgpu's guests boot by UEFI, and large cards need it.",
            facts.host.platform.install("ovmf"),
        )


def _devices(facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    if seen.iommu is False and not facts.told and not facts.host.groups:
        yield warning(
            "libvirt-iommu",
            "libvirt says that the host has no IOMMU",
            "No card can be handed out while that is so.",
            "Switch on VT-d or AMD-Vi in the firmware. On Intel also: "
            + facts.host.platform.boot_with("intel_iommu=on iommu=pt"),
        )
    if seen.hostdevs is None or not facts.cards:
        return
    missing = [kind for kind in ("pci", "mdev") if kind not in seen.hostdevs]
    if "pci" in missing:
        yield broken(
            "libvirt-hostdev",
            f"domains may take: {', '.join(seen.hostdevs) or 'nothing'}",
            "This libvirt or emulator hands out no PCI devices.",
            "First what kernel-iommu says: libvirt hands out nothing where the kernel has no IOMMU groups."
            if facts.host.groups == 0
            else "Load VFIO (modprobe vfio-pci), restart libvirt. " + facts.host.platform.install("qemu"),
        )
    elif "mdev" in missing and facts.mdev_parents:
        yield broken(
            "libvirt-hostdev",
            f"domains may take: {', '.join(seen.hostdevs)}",
            "The cards' vGPUs are mediated devices, which this libvirt does not hand out.",
            facts.host.platform.install("mdevctl") + " Then update libvirt and restart it.",
        )
    else:
        yield ok("libvirt-hostdev", f"domains may take: {', '.join(seen.hostdevs)}", "Cards can be handed out.")


def _pool(seen: LibvirtSeen) -> Iterator[Check]:
    free, total = seen.pool_free_gib, seen.pool_total_gib
    if free is None:
        return
    name = seen.pool or "unknown"
    said = f"pool {name}: {free} GiB free" + (f" of {total} GiB" if total is not None else "")
    cure = "Release VMs, remove images that nobody uses (vmgpu image list), or grow the pool's file system."
    if free <= 0:
        yield broken("pool", said, "No guest can be made; running ones are paused when they write.", cure)
    elif free < _LEAST_POOL_GIB or (total and free * _SMALL_POOL < total):
        yield warning("pool", said, "A few disks more and guests are paused when they write.", cure)
    else:
        yield ok("pool", said, "There is room for disks.")


def _network(seen: LibvirtSeen) -> Iterator[Check]:
    if seen.network_active is None:
        return
    name = seen.network or "unknown"
    if seen.network_active:
        yield ok("network", f"{name} {seen.network_range}".strip(), "Guests get addresses.")
    else:
        yield broken(
            "network",
            f"{name} is not running",
            "Guests have no network: nobody can log in.",
            f"Run: virsh net-start {name}. If it refuses: vmgpu doctor --explain with its message.",
        )


def _images(seen: LibvirtSeen) -> Iterator[Check]:
    if seen.images is None:
        return
    if seen.images:
        names = ", ".join(seen.images[:5]) + (" …" if len(seen.images) > 5 else "")
        yield ok("images", names, "Guests can be made from them.")
    else:
        yield ok("images", "no copy of an image yet", "An image is copied here when the first VM needs it.")


def _time(facts: Facts) -> Iterator[Check]:
    synced = facts.host.time_synced
    cure = f"{facts.host.platform.install('chrony')} Then: systemctl enable --now chrony (RHEL: chronyd)."
    if synced is False:
        yield warning(
            "time", "the clock is not synchronised", "It drifts; licences and certificates fail one day.", cure
        )
    elif synced:
        yield ok("time", "synchronised", "Licences and certificates are not refused for their dates.")


def _version(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text or "", re.ASCII)
    return (int(found[1]), int(found[2])) if found else None
