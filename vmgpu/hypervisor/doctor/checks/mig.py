"""MIG on each card: current and wanted mode, instances, and whether its slices can enter guests."""

from __future__ import annotations

from collections.abc import Iterator

from vmgpu.hypervisor.doctor.facts import FABRIC_VGPU, Device, Facts
from vmgpu.hypervisor.doctor.findings import Check, LibvirtSeen, broken, ok, warning


def look(facts: Facts, _seen: LibvirtSeen) -> Iterator[Check]:
    """Each card that has a MIG mode at all."""
    for address, device in sorted(facts.nvml.devices.items()):
        if device.mig is not None:
            yield _mode(address, device, device.mig, facts)


def _mode(address: str, device: Device, mode: tuple[bool, bool], facts: Facts) -> Check:
    name, (current, pending) = f"card-mig:{address}", mode
    card = facts.functions.get(address)
    if current != pending:
        users = f" Stop what uses it: {', '.join(device.processes)}." if device.processes else ""
        return broken(
            name,
            f"MIG is {_word(current)}, and will be {_word(pending)} after a reset",
            "The card takes neither slices of the old nor of the new mode until it is reset.",
            f"Stop its guests.{users} Run: nvidia-smi --gpu-reset -i {address}; if that is refused, reboot.",
        )
    if not current:
        return ok(name, "MIG is off", "The card can be given as a whole or cut into time-sliced vGPUs.")
    if not facts.vgpu_host:
        return warning(
            name,
            f"MIG is on ({device.instances} instances), without NVIDIA's vGPU manager",
            "A MIG instance is no PCI device: it enters a guest only as a MIG-backed vGPU. A whole card would start in "
            "MIG mode.",
            f"Run: nvidia-smi -i {address} -mig 0. For slices install NVIDIA's vGPU host driver.",
        )
    if facts.switches and facts.fabric.mode == FABRIC_VGPU:
        return warning(
            name,
            f"MIG is on ({device.instances} instances), on a machine with NVSwitches in vGPU mode",
            "NVIDIA supports no MIG-backed vGPUs there, only time-sliced ones of a whole card's memory.",
            f"Run: nvidia-smi -i {address} -mig 0.",
        )
    if card is not None and card.vfs_most and not card.vfs_on:
        return warning(
            name,
            f"MIG is on ({device.instances} instances), virtual functions are off",
            "Switching them on wipes the instances, so it comes first.",
            f"Run: /usr/lib/nvidia/sriov-manage -e {address}; then make the instances again.",
        )
    if not device.instances:
        return warning(
            name,
            "MIG is on, without any instance",
            "Instances do not survive a reboot or reset: the layout has to be cut again.",
            "vmgpu restores its own layout when the host is surveyed. By hand: nvidia-smi mig "
            f"-i {address} -cgi PROFILE -C.",
        )
    return ok(name, f"MIG is on, {device.instances} instances", "MIG-backed vGPUs can be made on them.")


def _word(on: bool) -> str:
    return "on" if on else "off"
