"""vGPUs: NVIDIA's manager, the framework that a card's driver offers, its virtual functions, types and licences."""

from __future__ import annotations

from collections.abc import Iterator

from vmgpu.hypervisor.doctor.causes import explain
from vmgpu.hypervisor.doctor.facts import NVIDIA, Device, Facts, Function, Vgpu
from vmgpu.hypervisor.doctor.findings import Check, LibvirtSeen, broken, ok, warning

_MAXWELL = ("13bd", "13f2", "13f3")  # M10, M60, M6


def look(facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    """Parents that the settings name; then NVML, then each card that a driver cuts."""
    for name, known in seen.mdev_parents.items():
        yield from _parent(name, facts, known=known)
    nvidia = [card for card in facts.cards if card.vendor == NVIDIA]
    for card in facts.cards:
        if card.vendor != NVIDIA and card.vfs_most:
            yield _plain_functions(card)
    if not nvidia:
        return
    yield from _manager(facts)
    for card in nvidia:
        if facts.vgpu_host and card.driver == "nvidia" and not card.dead:
            device = facts.nvml.devices.get(card.address, Device(card.address))
            yield from _framework(card, device, facts)
            yield from _card(card, device)
            for number, vgpu in enumerate(device.vgpus):
                yield from _running(vgpu, f"{card.address}-{number}", facts)
        yield from _stolen(card, facts)


def _parent(name: str, facts: Facts, *, known: bool | None) -> Iterator[Check]:
    """A parent of mediated devices that is no PCI device."""
    check, there = f"mdev-parent:{name}", name in facts.mdev_parents
    if facts.told and not there:
        yield broken(
            check,
            "the kernel has no such parent",
            "No mediated device can be made on it.",
            f"Load its driver; look: ls /sys/class/mdev_bus. Else take {name} out of the host's settings.",
        )
    elif known is False:
        yield broken(
            check,
            "the kernel has it, libvirt does not know it",
            "libvirt makes mediated devices on PCI devices, and on few other parents.",
            f"Take {name} out of the host's settings: vmgpu host set HOST --mdev-parent with those to keep.",
        )
    elif known:
        yield ok(check, "libvirt knows it", "Mediated devices can be made on it.")


def _plain_functions(card: Function) -> Check:
    """AMD's and Intel's virtual functions are whole devices of their own."""
    name, seen = f"card-vfs:{card.address}", f"{card.vfs_on or 0} of {card.vfs_most} virtual functions are on"
    if card.vfs_on:
        return ok(name, seen, "Each can go to a guest; the card as a whole cannot meanwhile.")
    return ok(name, seen, "The card can be given as a whole; its driver can cut it (AMD: gim, Intel: xe or i915).")


def _manager(facts: Facts) -> Iterator[Check]:
    nvml = facts.nvml
    if facts.vgpu_host:
        version = nvml.driver or "of unknown version"
        yield ok("vgpu-manager", f"NVIDIA's vGPU host driver {version}", "Cards can be cut into vGPUs.")
    elif nvml.state == "ok":
        yield ok(
            "vgpu-manager",
            f"NVIDIA's ordinary driver {nvml.driver}".strip(),
            "Whole cards only: vGPUs and MIG slices for guests need NVIDIA's vGPU host driver.",
        )
    elif nvml.state in ("no_library", "no_driver"):
        yield ok(
            "vgpu-manager", "no NVIDIA driver on the host", "Whole cards only; nothing of NVIDIA is needed for it."
        )
    elif nvml.state == "no_module":
        yield warning(
            "vgpu-manager",
            "the helper on the host has no pynvml",
            "MIG, vGPU types and card health cannot be read.",
            "Install the host's helper (hostctl) again: its zipapp brings pynvml.",
        )
    elif nvml.state:
        causes = explain(nvml.error, on=facts.host.platform)
        yield warning(
            "vgpu-manager",
            nvml.error or "NVML answers with an error",
            causes[0].means if causes else "MIG, vGPU types and card health cannot be read.",
            causes[0].cure if causes else "Look at: dmesg | grep NVRM; then reload the driver or reboot.",
        )


def _framework(card: Function, device: Device, facts: Facts) -> Iterator[Check]:
    name, vfs = f"card-vgpu:{card.address}", facts.vfs_of(card)
    if any(each.vendor_vfio for each in vfs):
        used = sum(1 for each in vfs if each.vgpu_type)
        yield ok(
            name, f"{len(vfs)} virtual functions, {used} with a vGPU", "vGPUs without mdev (vendor-specific VFIO)."
        )
    elif card.mdev_types or card.address in facts.mdev_parents:
        yield ok(name, f"{len(card.mdev_types)} mdev types on the card", "vGPUs as mediated devices of the card.")
    elif any(each.mdev_types or each.address in facts.mdev_parents for each in vfs):
        yield ok(name, f"mdev types on {len(vfs)} virtual functions", "vGPUs as mediated devices, one per function.")
    elif vfs or card.vfs_on:
        yield broken(
            name,
            f"{len(vfs) or card.vfs_on} virtual functions, without any vGPU type",
            "NVIDIA's vGPU manager is not running, or the driver is not the vGPU one.",
            "Run: systemctl restart nvidia-vgpud nvidia-vgpu-mgr; journalctl -u nvidia-vgpu-mgr -n 50.",
        )
    elif card.vfs_most:
        yield warning(
            name,
            f"0 of {card.vfs_most} virtual functions are on",
            "vGPUs of this card live on virtual functions; how they are made shows only then.",
            "vmgpu switches them on when it cuts the card. By hand, after each reboot: "
            f"/usr/lib/nvidia/sriov-manage -e {card.address}.",
        )
    elif device.sriov is not True:
        yield warning(
            name,
            "no vGPU type and no virtual function",
            "The card has no vGPUs, or is in the wrong mode (M60, M6: graphics mode; some RTX cards: displays off).",
            "gpumodeswitch --gpumode graphics (M60, M6) or DisplayModeSelector --gpumode compute; then reboot.",
        )


def _card(card: Function, device: Device) -> Iterator[Check]:
    supported, on = device.mixed
    if supported and on is not None and not (device.mig and device.mig[0]):
        means = "Sizes may differ side by side." if on else "The first vGPU fixes the size for the whole card."
        yield ok(f"card-vgpu-sizes:{card.address}", f"mixed sizes are {'on' if on else 'off'}", means)
    if device.display_active:
        yield warning(
            f"card-display:{card.address}",
            "a display is active on it",
            "A card that shows the host's screen cannot serve vGPUs.",
            "Unplug the monitor, use the server's own VGA; DisplayModeSelector switches a card's displays off.",
        )
    if card.device in _MAXWELL:
        if device.ecc:
            yield broken(
                f"card-ecc:{card.address}",
                "ECC is on",
                "vGPUs of Maxwell cards need it off.",
                f"Run: nvidia-smi -i {card.address} -e 0; then reboot.",
            )
        if device.vgpu_types or card.mdev_types:
            yield warning(
                f"card-cuda:{card.address}",
                "a Maxwell card",
                "Only its 8Q type (the whole card) runs CUDA; all smaller types draw pictures alone.",
                "Give out 8Q, or the whole card by passthrough, where students compute.",
            )


def _running(vgpu: Vgpu, place: str, facts: Facts) -> Iterator[Check]:
    if vgpu.licensed is False:
        yield warning(
            f"vgpu-licence:{place}",
            f"the vGPU of guest {vgpu.vm or 'unknown'} has no licence",
            "It is throttled about 20 minutes after its driver has loaded.",
            "In the guest: token in /etc/nvidia/ClientConfigToken, FeatureType=1 in /etc/nvidia/gridd.conf, systemctl "
            "restart nvidia-gridd; ports 443 and 80 to the licence server.",
        )
    guest, host = _branch(vgpu.driver), _branch(facts.nvml.driver)
    if guest and host and guest > host:
        yield broken(
            f"vgpu-driver:{place}",
            f"guest {vgpu.vm or 'unknown'} has driver {vgpu.driver}, host {facts.nvml.driver}",
            "A guest's driver of a later branch than the host's vGPU manager does not load.",
            "Install the guest driver of the host's vGPU package, or update the host's vGPU manager.",
        )


def _branch(driver: str) -> int:
    """550 of 550.90.05; 0 where unknown (Windows counts otherwise: 538.33)."""
    first, _, rest = driver.partition(".")
    return int(first) if first.isascii() and first.isdigit() and len(first) == 3 and rest.count(".") else 0


def _stolen(card: Function, facts: Facts) -> Iterator[Check]:
    """A virtual function of an NVIDIA card belongs to its own driver: bound to vfio-pci its vGPU is lost."""
    lost = [each.address for each in facts.vfs_of(card) if each.driver == "vfio-pci"]
    if lost and facts.vgpu_host:
        yield broken(
            f"card-vfs:{card.address}",
            f"with plain vfio-pci: {', '.join(lost)}",
            "A guest took them with managed='yes': NVIDIA's driver no longer offers vGPUs there.",
            f"Stop those guests, then: /usr/lib/nvidia/sriov-manage -d {card.address}; sriov-manage -e {card.address}. "
            "Give virtual functions with managed='no'.",
        )
