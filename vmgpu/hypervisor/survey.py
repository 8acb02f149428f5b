"""What a host has: processor, memory, NUMA nodes and cards, from libvirt and from its hostctl."""

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

from vmgpu.errors import HostRefused
from vmgpu.hypervisor import HostFacts, HostRef, NumaNode, accel, boot, here, hostctl_zip, inventory, pci
from vmgpu.hypervisor.carvers import emulated, mdev
from vmgpu.hypervisor.hostctl.facts import PROTOCOL
from vmgpu.hypervisor.ssh_login import NotLetIn

if TYPE_CHECKING:
    from vmgpu.hypervisor.hostctl_client import HostCtl
    from vmgpu.hypervisor.networks import NetworkFacts
    from vmgpu.hypervisor.volumes import PoolFacts


def survey(
    connection: libvirt.virConnect,
    ref: HostRef,
    *,
    pool: PoolFacts,
    network: NetworkFacts,
    ctl: HostCtl | None,
    root: Path = Path("/"),
) -> HostFacts:
    """Say what the host has; no card is touched. `ctl`: its hostctl, None where it has none. libvirt's errors pass."""
    local = is_local(ref.uri)
    arch, memory_mib, threads = connection.getInfo()[:3]
    capabilities = fromstring(connection.getCapabilities())
    boot_id = boot.boot_id(connection, root if local else None)
    told, warnings = _told(ctl, ref.name, expected="" if local else hostctl_zip.VERSION)
    seen = _seen(connection)
    functions = inventory.joined(seen.functions, inventory.functions_of(told) if told else {})
    chosen = accel.choose(ref.accel, connection, pool=pool.name, boot_id=boot_id, state_dir=ref.state_dir, local=local)
    if told is None and any(each.is_card(ref.device_ids) for each in functions.values()):
        warnings += (
            "Seen through libvirt alone: BARs, console use and open files of this host's cards are unknown; "
            f"vmgpu host setup {ref.name} says how hostctl comes there",
        )
    return HostFacts(
        hostname=connection.getHostname(),
        # boards have been sold with one UUID for all of them: the name is part of it
        machine=f"{capabilities.findtext('host/uuid') or ''} {connection.getHostname()}".strip(),
        here=here.machine_id(root) if local else "",
        boot_id=boot_id,
        libvirt=accel.dotted(connection.getLibVersion()),
        qemu=accel.dotted(connection.getVersion()),
        cpu_model=_cpu_model(told) or capabilities.findtext("host/cpu/model") or arch,
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
        gpus=(
            *emulated.cards(ref.emulate),
            *inventory.cards(functions, told, ours=_ours(functions, connection, ref), more=ref.device_ids),
            *inventory.parents(told, ref.mdev_parents, known=mdev.parents(connection) if ref.mdev_parents else ()),
        ),
        warnings=(*warnings, *seen.warnings, *_doubtful(functions)),
    )


def is_local(uri: str) -> bool:
    """Whether a libvirt URI means this machine: only then is our own sysfs the host's."""
    return not urlsplit(uri).hostname


@dataclass(frozen=True)
class _Seen:
    functions: Mapping[str, pci.Function]
    warnings: tuple[str, ...]


def _told(ctl: HostCtl | None, name: str, *, expected: str) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """hostctl's facts; where it refuses, the survey goes on with what libvirt knows. `expected`: the build we want."""
    if ctl is None:
        return None, ()
    cure = f": vmgpu host setup {name} --run" if expected else ""
    try:
        there = ctl.call("version") if expected else {}
        if expected and there.get("hostctl") != PROTOCOL:
            return None, (f"hostctl on the host speaks version {there.get('hostctl')}, not {PROTOCOL}{cure}",)
        told = ctl.call("facts")
    except (HostRefused, NotLetIn) as bad:
        return None, (f"hostctl: {bad.message}{cure}",)
    errors = tuple(str(each) for each in told.get("errors") or ())
    if there.get("build", "") == expected:
        return told, errors
    return told, (f"hostctl on the host is build {there.get('build')}, ours is {expected}{cure}", *errors)


def _seen(connection: Any) -> _Seen:
    """All PCI functions that libvirt knows, by address."""
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
        if found is not None:
            functions[found.address] = found
    return _Seen(functions, tuple(warnings))


def _doubtful(functions: Mapping[str, pci.Function]) -> tuple[str, ...]:
    return tuple(doubt for each in functions.values() for doubt in _doubts(each))


def _cpu_model(told: Mapping[str, Any] | None) -> str:
    return str(((told or {}).get("host", {}).get("cpu") or {}).get("model") or "")


def _ours(functions: Mapping[str, pci.Function], connection: Any, ref: HostRef) -> dict[str, str]:
    """Cards that VMs of ours hold: they are in use, not refused."""
    held = {each.address: each.holder.vm for each in functions.values() if each.holder and each.holder.vm}
    return {address: vm for address, vm in held.items() if _is_ours(connection, vm, ref.installation)}


def _doubts(found: pci.Function) -> list[str]:
    doubts = []
    if found.is_card() and found.misnamed:
        doubts.append(found.misnamed)
    if found.vendor in pci.VENDORS[:2] and not (found.class_code or found.is_card() or found.virtual):
        doubts.append(
            f"Device {found.address} ({found.vendor}:{found.device} {found.product}) names no class "
            "and has no graphics driver: whether it is a card is unknown, it is left alone"
        )
    return doubts


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
