"""A VM as libvirt is told of it, and what libvirt tells of a domain; no policy here."""

from __future__ import annotations

import re
from typing import Any

import libvirt
from defusedxml import ElementTree

from vmgpu import render
from vmgpu.errors import HostRefused
from vmgpu.hypervisor import DomainSeen, Emulated, Held, Mdev, Network, Pci, Power, VMSpec
from vmgpu.hypervisor.carvers.emulated import label_read

WHOLE = "whole"
MARK = "urn:vmgpu:1"
AGENT = "org.qemu.guest_agent.0"
DISK, SEED, CONSOLE, NVRAM, FLAT = ".qcow2", ".seed.iso", ".console.log", ".nvram.fd", ".flat.qcow2"

_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_POWER = {
    libvirt.VIR_DOMAIN_NOSTATE: Power.running,
    libvirt.VIR_DOMAIN_RUNNING: Power.running,
    libvirt.VIR_DOMAIN_BLOCKED: Power.running,
    libvirt.VIR_DOMAIN_SHUTDOWN: Power.running,  # on its way down, QEMU still holds its devices
    libvirt.VIR_DOMAIN_PAUSED: Power.paused,
    libvirt.VIR_DOMAIN_PMSUSPENDED: Power.paused,
    libvirt.VIR_DOMAIN_SHUTOFF: Power.off,
    libvirt.VIR_DOMAIN_CRASHED: Power.crashed,
}
_OFF_BECAUSE = {
    libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN: "shutdown",
    libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED: "destroyed",
    libvirt.VIR_DOMAIN_SHUTOFF_CRASHED: "crashed",
    libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED: "migrated",
    libvirt.VIR_DOMAIN_SHUTOFF_SAVED: "saved",
    libvirt.VIR_DOMAIN_SHUTOFF_FAILED: "failed",
    libvirt.VIR_DOMAIN_SHUTOFF_FROM_SNAPSHOT: "snapshot",
    libvirt.VIR_DOMAIN_SHUTOFF_DAEMON: "daemon",
}
_PAUSED_BECAUSE = {
    libvirt.VIR_DOMAIN_PAUSED_USER: "by hand",
    libvirt.VIR_DOMAIN_PAUSED_IOERROR: "a disk did not take what was written: is the pool full?",
    libvirt.VIR_DOMAIN_PAUSED_WATCHDOG: "its watchdog",
    libvirt.VIR_DOMAIN_PAUSED_CRASHED: "its kernel crashed",
}

Mark = tuple[str | None, int | None]  # installation and build, as our metadata has them
NOBODYS: Mark = (None, None)


def domain_xml(spec: VMSpec, *, folder: str, cpus: str | None = None) -> str:
    """The domain of this VM, its files in `folder`; `cpus` are those of its NUMA node."""
    emulated = [device for device in spec.devices if isinstance(device, Emulated)]
    if len(emulated) > 1:
        raise HostRefused("A VM takes one emulated slice: QEMU has one bochs-display", hint="Ask for one slice per VM.")
    return render.xml(
        "libvirt/domain.xml.j2",
        id=spec.id,
        name=spec.name,
        title=" ".join(spec.title.split()),  # libvirt refuses a title with a line break
        mark=MARK,
        installation=spec.installation,
        build=spec.build,
        kvm=spec.accel == "kvm",
        vcpus=spec.vcpus,
        memory_mib=spec.memory_mib,
        cpus=cpus,
        numa_node=spec.numa_node if cpus else None,
        disk=f"{folder}/{spec.id}{DISK}",
        seed=f"{folder}/{spec.id}{SEED}",
        console=f"{folder}/{spec.id}{CONSOLE}",
        nvram=f"{folder}/{spec.id}{NVRAM}",
        bridge=spec.network.kind is Network.bridge,
        network=spec.network.name,
        mac=spec.mac,
        video_kib=sum(device.video_mib for device in emulated) * 1024,
        labels=[device.label for device in emulated],
        functions=[_function(device) for device in spec.devices if isinstance(device, Pci)],
        mdevs=[device.uuid for device in spec.devices if isinstance(device, Mdev)],
        window_mib=spec.window_mib,
    )


def seen(domain: Any, state: int, reason: int, mark: Mark) -> DomainSeen:
    """A domain in our words."""
    power, why = _POWER.get(state, Power.off), ""
    if state == libvirt.VIR_DOMAIN_SHUTOFF:
        why = _OFF_BECAUSE.get(reason, "unknown")
        power = Power.crashed if why == "crashed" else power
    elif power is Power.paused:
        why = _PAUSED_BECAUSE.get(reason, "unknown") if state == libvirt.VIR_DOMAIN_PAUSED else "suspended by itself"
    return DomainSeen(domain.UUIDString(), domain.name(), power, why, *mark)


def mark(domain: Any) -> Mark:
    """Whose domain this is: what `domain_xml` wrote into its metadata, or nobody's."""
    try:
        text = domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, MARK)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
            return NOBODYS
        raise
    element = ElementTree.fromstring(text)
    build = element.get("build", "")
    return element.get("installation"), int(build) if build.isdecimal() else None


def holds(domain: Any) -> tuple[Held, ...]:
    """Whole cards by their address, emulated pieces by their label; vGPUs are seen at their card itself."""
    tree = ElementTree.fromstring(domain.XMLDesc())
    passed = tree.findall("devices/hostdev[@type='pci']/source/address")
    labels = (label_read(entry.text or "") for entry in tree.findall("sysinfo/oemStrings/entry"))
    return (*(Held(WHOLE, address=_address(each)) for each in passed), *(held for held in labels if held))


def agent_connected(domain: Any) -> bool:
    """Whether the guest has opened its agent's channel: QEMU knows, the guest is not asked."""
    tree = ElementTree.fromstring(domain.XMLDesc())
    target = tree.find(f"devices/channel/target[@name='{AGENT}']")
    return target is not None and target.get("state") == "connected"


def _address(element: Any) -> str:
    domain, bus, slot, function = (int(element.get(name, "0"), 0) for name in ("domain", "bus", "slot", "function"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def _function(device: Pci) -> dict[str, object]:
    match = _PCI.fullmatch(device.address.lower())
    if match is None:
        raise HostRefused(f"{device.address} is not a PCI address", hint="It looks like 0000:65:00.0.")
    domain, bus, slot, function = match.groups()
    return {"domain": domain, "bus": bus, "slot": slot, "function": function, "managed": device.managed}
