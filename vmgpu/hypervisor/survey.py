"""What a host has: processor, memory, NUMA nodes and cards, from libvirt; on this machine from sysfs as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element, ParseError

import libvirt
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from vmgpu.hypervisor import GpuFacts, HostFacts, HostRef, NumaNode, accel, boot, pci
from vmgpu.hypervisor.carvers import emulated
from vmgpu.hypervisor.sysfs import Sysfs

if TYPE_CHECKING:
    from vmgpu.hypervisor.networks import NetworkFacts
    from vmgpu.hypervisor.volumes import PoolFacts


def survey(
    connection: libvirt.virConnect,
    ref: HostRef,
    *,
    pool: PoolFacts,
    network: NetworkFacts,
    sysroot: Path = Path("/"),
) -> HostFacts:
    """Say what the host has; no card is touched. libvirt's own errors pass through."""
    here = Sysfs(sysroot) if is_local(ref.uri) else None
    arch, memory_mib, threads = connection.getInfo()[:3]
    capabilities = fromstring(connection.getCapabilities())
    boot_id = boot.boot_id(connection, here)
    seen = _see(connection, here)
    chosen = accel.choose(
        ref.accel, connection, pool=pool.name, boot_id=boot_id, state_dir=ref.state_dir, local=here is not None
    )
    return HostFacts(
        hostname=connection.getHostname(),
        # boards have been sold with one UUID for all of them: the name is part of it
        machine=f"{capabilities.findtext('host/uuid') or ''} {connection.getHostname()}".strip(),
        here=here.machine_id() if here else "",
        boot_id=boot_id,
        libvirt=accel.dotted(connection.getLibVersion()),
        qemu=accel.dotted(connection.getVersion()),
        cpu_model=(here.cpu_model() if here else "") or capabilities.findtext("host/cpu/model") or arch,
        threads=threads,
        memory_mib=memory_mib,
        accel=chosen.accel,
        accel_why=chosen.why,
        disk_total_gib=pool.total_gib,
        disk_free_gib=pool.free_gib,
        disk_written_mib=pool.written_mib,
        pool=pool.name,
        network=network.name,
        network_range=network.range,
        numa=_numa_nodes(capabilities),
        gpus=(*emulated.cards(ref.emulate), *_cards(seen.functions, connection, ref)),
        warnings=seen.warnings,
    )


def is_local(uri: str) -> bool:
    """Whether a libvirt URI means this machine: only then is our own sysfs the host's."""
    return not urlsplit(uri).hostname


@dataclass(frozen=True)
class _Seen:
    functions: Mapping[str, pci.Function]
    warnings: tuple[str, ...]


def _see(connection: Any, here: Sysfs | None) -> _Seen:
    """All PCI functions by address; on this machine each as the kernel shows it now."""
    functions: dict[str, pci.Function] = {}
    warnings: list[str] = []
    for device in connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV):
        try:
            found = pci.function_of(device.XMLDesc(0))
        except libvirt.libvirtError:
            continue  # it left the bus since it was listed
        except (ParseError, DefusedXmlException) as bad:
            warnings.append(f"libvirt's description of a node device cannot be read: {bad}")
            continue
        if found is None:
            continue
        functions[found.address] = found = here.enriched(found) if here else found
        warnings += _doubts(found)
    if here is not None:
        # A neighbour that libvirt did not list still spoils a group.
        neighbours = {each for card in functions.values() if card.is_card for each in card.members}
        functions |= {each: here.function(each) for each in neighbours - functions.keys()}
    if here is None and any(each.is_card for each in functions.values()):
        warnings.append(
            "Another machine, seen through libvirt alone: BARs, console use and open files of its cards are unknown"
        )
    return _Seen(functions, tuple(warnings))


def _doubts(found: pci.Function) -> list[str]:
    doubts = []
    if found.is_card and found.misnamed:
        doubts.append(found.misnamed)
    if found.vendor in pci.VENDORS[:2] and not (found.class_code or found.is_card or found.virtual):
        doubts.append(
            f"Device {found.address} ({found.vendor}:{found.device} {found.product}) names no class "
            "and has no graphics driver: whether it is a card is unknown, it is left alone"
        )
    return doubts


def _cards(functions: Mapping[str, pci.Function], connection: Any, ref: HostRef) -> tuple[GpuFacts, ...]:
    found = sorted((each for each in functions.values() if each.is_card), key=lambda each: each.address)
    return tuple(_facts(each, functions, connection, ref) for each in found)


def _facts(card: pci.Function, functions: Mapping[str, pci.Function], connection: Any, ref: HostRef) -> GpuFacts:
    holder = card.holder
    ours = holder.vm if holder and holder.vm and _is_ours(connection, holder.vm, ref.installation) else None
    in_the_way = pci.obstacles(card, functions, allow_vm=ours)
    return GpuFacts(
        # With the ids: another model in the same slot is another card.
        key=f"pci:{card.address}:{card.vendor}:{card.device}",
        address=card.address,
        vendor=card.vendor,
        device=card.device,
        name=card.product or f"{card.vendor}:{card.device}",
        model=f"{card.vendor}:{card.device}",
        class_code=card.class_code,
        driver=card.driver,
        numa_node=card.numa_node,
        iommu_group=card.group,
        companions=pci.companions(card, functions),
        boot_vga=card.boot_vga,
        bars_mib=card.bars_mib,
        memory_mib=card.memory_mib,
        modes=() if in_the_way else ("passthrough",),
        refusals={"passthrough": "; ".join(each.sentence for each in in_the_way)} if in_the_way else {},
        held_by=f"process {holder.pid} ({holder.command})" if holder and not ours else "",
    )


def _is_ours(connection: Any, vm_id: str, installation: str) -> bool:
    """Whether the guest that holds a card is a VM of this installation: then the card is in use, not refused."""
    try:
        metadata = fromstring(connection.lookupByUUIDString(vm_id).XMLDesc(0)).find("metadata")
    except (libvirt.libvirtError, ParseError, DefusedXmlException):
        return False
    if metadata is None:
        return False
    return any(installation in (each.text or "", *each.attrib.values()) for each in metadata.iter())


def _numa_nodes(capabilities: Element) -> tuple[NumaNode, ...]:
    cells = capabilities.findall("host/topology/cells/cell")
    return tuple(
        NumaNode(
            id=int(cell.get("id", "0")),
            cpus=_ranges(sorted(int(cpu.get("id", "0")) for cpu in cell.findall("cpus/cpu"))),
            memory_mib=int(cell.findtext("memory") or 0) // 1024,
        )
        for cell in cells
    )


def _ranges(numbers: list[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2,5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
