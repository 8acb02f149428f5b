"""How guests reach the world: our NAT network in a free range, or a bridge that the host has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_interface
from itertools import islice
from pathlib import Path
from typing import Any

import libvirt
from defusedxml import ElementTree

from vmgpu import render
from vmgpu.errors import HostRefused
from vmgpu.hypervisor import Network, NetworkRef
from vmgpu.hypervisor.connection import maybe

TRIES = 4
_BRIDGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
# Room for 1,021 guests each. Not 172.16/12 (containers) nor 100.64/10 (overlay networks).
_BLOCKS = (IPv4Network("192.168.128.0/17"), IPv4Network("10.192.0.0/12"))
_ROUTES = Path("/proc/net/route")


@dataclass(frozen=True)
class NetworkFacts:
    """The network as it is; `range` is empty where the host does not know it (a bridge)."""

    name: str
    range: str


def ready(connection: Any, ref: NetworkRef, *, local: bool) -> NetworkFacts:
    """Find the bridge, or find, define and start our network; never set to autostart."""
    if ref.kind is Network.bridge:
        return _bridge(connection, ref.name, local=local)
    network = maybe(connection.networkLookupByName, ref.name)
    if network is None:
        network = _make(connection, ref.name, local=local)
    if not network.isActive():
        _start(network)
    return NetworkFacts(ref.name, _range(network))


def look(connection: Any, name: str) -> tuple[bool, str] | None:
    """Whether our network runs, and its range; None where it was never made. Nothing is made."""
    network = maybe(connection.networkLookupByName, name)
    return (bool(network.isActive()), _range(network)) if network is not None else None


def withdraw(connection: Any, name: str) -> None:
    """Remove our network, unless a domain uses it, running or not, or somebody else made it."""
    network = maybe(connection.networkLookupByName, name)
    if network is None or not _made_by_us(network):
        return
    for each in connection.listAllDomains():
        described = maybe(each.XMLDesc)
        if (
            described
            and ElementTree.fromstring(described).find(f"devices/interface/source[@network='{name}']") is not None
        ):
            return
    if network.isActive():
        network.destroy()
    network.undefine()


def leased(connection: Any, name: str, mac: str) -> str | None:
    """The IPv4 address that our network gave this MAC last."""
    network = maybe(connection.networkLookupByName, name)
    if network is None:
        return None
    leases = [each for each in network.DHCPLeases(mac) if each["type"] == libvirt.VIR_IP_ADDR_TYPE_IPV4]
    # A guest that comes back with a new client id has two leases for a while: the one that ends last is in use.
    last = max(leases, key=lambda each: int(each["expirytime"]), default=None)
    return str(last["ipaddr"]) if last else None


def told(domain: Any, mac: str) -> str | None:
    """The IPv4 address that the guest's agent reports for this MAC."""
    with suppress(libvirt.libvirtError):  # a guest whose agent is busy or gone has no address yet
        domain.agentSetResponseTimeout(5, 0)
        found = domain.interfaceAddresses(libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT)
        for interface in found.values():
            if (interface.get("hwaddr") or "").lower() != mac.lower():
                continue
            for each in interface.get("addrs") or ():
                if each["type"] == libvirt.VIR_IP_ADDR_TYPE_IPV4 and _reachable(each["addr"]):
                    return str(each["addr"])
    return None


def free_ranges(taken: set[IPv4Network]) -> Iterator[IPv4Network]:
    """Ranges that overlap none of these."""
    for block in _BLOCKS:
        for candidate in block.subnets(new_prefix=22):
            if not any(candidate.overlaps(each) for each in taken):
                yield candidate


def routed(table: str) -> set[IPv4Network]:
    """The networks of the kernel's IPv4 routing table; the default route collides with nothing."""
    taken = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[7] != "00000000":
            address, mask = (IPv4Address(int.from_bytes(bytes.fromhex(fields[at]), "little")) for at in (1, 7))
            taken.add(IPv4Network(f"{address}/{mask}", strict=False))
    return taken


def _bridge(connection: Any, name: str, *, local: bool) -> NetworkFacts:
    if not _BRIDGE.fullmatch(name):
        raise HostRefused(f"{name!r} is not the name of a bridge", hint="Linux names have 1 to 15 plain characters.")
    there = Path("/sys/class/net", name, "bridge").is_dir() if local else True
    if not local:
        try:
            there = maybe(connection.interfaceLookupByName, name) is not None
        except libvirt.libvirtError as error:
            # A host without libvirt's interface driver cannot tell; the domain's start will.
            there = error.get_error_code() != libvirt.VIR_ERR_NO_INTERFACE
    if not there:
        raise HostRefused(f"The host has no bridge {name}", hint=f"Make it on the host first: ip link show {name}.")
    return NetworkFacts(name, "")


def _make(connection: Any, name: str, *, local: bool) -> Any:
    """Define and start the network in the first free range that libvirt, too, finds free."""
    taken = {each for network in connection.listAllNetworks() for each in _ranges(network)}
    if local and _ROUTES.exists():
        taken |= routed(_ROUTES.read_text())
    refused: libvirt.libvirtError | None = None
    for chosen in islice(free_ranges(taken), TRIES):
        try:
            network = connection.networkDefineXML(_xml(name, chosen))
        except libvirt.libvirtError:
            network = maybe(connection.networkLookupByName, name)  # another worker was faster
            if network is None:
                raise
            return network
        try:
            network.create()
        except libvirt.libvirtError as error:
            # libvirt compares with the host's routes when it starts a network; a remote host's we do not see.
            network.undefine()
            refused = error
            continue
        return network
    if refused is not None:
        raise refused
    raise HostRefused(
        "No free range for guests", hint=f"Define a libvirt network named {name} by hand, or use a bridge."
    )


def _made_by_us(network: Any) -> bool:
    """libvirt 9.0 keeps no metadata of networks: ours is known by the option that hardly anybody else sets."""
    option = "{http://libvirt.org/schemas/network/dnsmasq/1.0}option"
    return any(each.get("value") == "no-ping" for each in ElementTree.fromstring(network.XMLDesc()).iter(option))


def _start(network: Any) -> None:
    try:
        network.create()
    except libvirt.libvirtError:
        if not network.isActive():  # else another worker was faster
            raise


def _xml(name: str, chosen: IPv4Network) -> str:
    return render.xml(
        "libvirt/network.xml.j2",
        name=name,
        gateway=chosen[1],
        netmask=chosen.netmask,
        first=chosen[2],
        last=chosen[-2],
    )


def _ranges(network: Any) -> list[IPv4Network]:
    ranges = []
    for ip in ElementTree.fromstring(network.XMLDesc()).findall("ip"):
        if ip.get("family", "ipv4") == "ipv4" and ip.get("address"):
            interface = ip_interface(f"{ip.get('address')}/{ip.get('prefix') or ip.get('netmask') or 32}")
            ranges.append(IPv4Network(interface.network))
    return ranges


def _range(network: Any) -> str:
    return next((str(taken) for taken in _ranges(network)), "")


def _reachable(address: str) -> bool:
    parsed = IPv4Address(address)
    return not (parsed.is_loopback or parsed.is_link_local)
