"""A VM's view as the host and the look inside the guest are told of it."""

from __future__ import annotations

from vmgpu import guest, render
from vmgpu.hypervisor import Emulated, Pci, Seed, VMSpec
from vmgpu.hypervisor.pci import window_mib
from vmgpu.steps import World
from vmgpu.units import say_mib
from vmgpu.views import VMView


def spec(vm: VMView, *, our_login: str, our_key: str) -> VMSpec:
    """All that the host is told: the machine, its devices, its seed."""
    return VMSpec(
        id=vm.id,
        name=f"{vm.name}-{vm.id[:8]}",
        title=vm.title,
        installation=vm.installation,
        build=vm.build,
        vcpus=vm.vcpus,
        memory_mib=vm.memory_mib,
        disk_gib=vm.disk_gib,
        image=vm.image,
        mac=vm.mac,
        network=vm.network,
        accel=vm.accel,
        devices=vm.devices,
        numa_node=vm.numa_node,
        window_mib=window_mib(vm.gpu.bars_mib) if vm.gpu and any(isinstance(d, Pci) for d in vm.devices) else 0,
        seed=Seed(
            render.seed(
                instance_id=f"{vm.id}-{vm.build}",
                hostname=vm.name,
                mac=vm.mac,
                host_key=vm.host_key,
                host_key_private=vm.host_key_private,
                logins=[(login.name, login.keys) for login in vm.logins],
                our_login=our_login,
                our_key=our_key,
                has_init=vm.image.has_init,
                licence=_licence(vm),
            )
        ),
    )


def numa(vm: VMView) -> tuple[int | None, str]:
    """The NUMA node that the VM is kept on, its card's; where there is no room for it: none, and why."""
    there = vm.numa
    if there is None:
        return None, ""
    if vm.memory_mib <= there.memory_free_mib and vm.vcpus <= there.threads_free:
        return there.node, ""
    free = f"{say_mib(max(0, there.memory_free_mib))} and {max(0, there.threads_free)} threads are free there"
    return None, f"memory and vCPUs are not kept on NUMA node {there.node}, where the card is: {free}"


def _licence(vm: VMView) -> render.Licence | None:
    """What the seed brings; nothing where the host has no settings: the image may have its own."""
    found = vm.licensing
    return render.Licence(found.feature, found.server, found.token) if found and (found.token or found.server) else None


def card_want(vm: VMView) -> guest.CardWant | None:
    """What the guest must show of the card; None where the VM has none."""
    if not vm.gpu or not vm.devices:
        return None
    first = vm.devices[0]
    if isinstance(first, Emulated):
        return guest.EmulatedCard(first.video_mib, first.label)
    promised = vm.slices[0].memory_mib if vm.slices else 0
    return guest.PciCard(vm.gpu.pci_ids, vm.gpu.bars_mib, promised or vm.gpu.memory_mib, vm.cuda)


def door(vm: VMView, world: World) -> guest.Door:
    """The way into the guest, with its pinned host key."""
    return guest.Door(
        address=vm.address or "",
        port=22,
        user=world.our_login,
        private_key=world.our_key,
        host_key=vm.host_key,
        dial=world.host.dial,
    )
