"""Networks of guests: libvirt's, bridges, addresses."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.patterns import CULPRIT, Known

KNOWN = (
    Known(
        "network-off",
        "The network of the guest is not running",
        "libvirt's network was not started, or does not exist under this name.",
        "virsh net-list --all; virsh net-start NAME. vmgpu makes and starts its own network (vmgpu).",
        (r"network '?\S+ is not active", r"no network with matching", r"network not found"),
        CULPRIT,
    ),
    Known(
        "bridge-missing",
        "The bridge of the guest is not there",
        "The named bridge was never made, or its network is stopped.",
        "ip link show BRIDGE; make it in the host's network settings, or start its libvirt network.",
        (
            r"cannot get interface mtu on '?\S+ no such device",
            r"unable to add bridge \S+ port",
            r"no such bridge",
            r"(add|attach)[^\n]{0,60}bridge[^\n]{0,60}no such device",
        ),
        CULPRIT,
    ),
    Known(
        "network-range-taken",
        "The network's address range is already used on this host",
        "Another interface or route has it (often the host is a guest of a libvirt itself).",
        "Choose another range for the network: virsh net-edit NAME, <ip address='192.168.150.1' …>.",
        (r"network is already in use by interface", r"route[^\n]{0,40}conflicts? with"),
        CULPRIT,
    ),
    Known(
        "dnsmasq-port",
        "The DHCP server of the network cannot start",
        "Another dnsmasq or DNS server listens on the same address.",
        lambda p: (
            "ss -lunp | grep -E ':(53|67) '. Bind the other one to its own interface (bind-interfaces), or stop it. "
            "If dnsmasq itself is missing: " + p.install("dnsmasq")
        ),
        (
            r"dnsmasq[^\n]{0,80}(address already in use|failed to bind|failed to create listening)",
            r"failed to create listening socket[^\n]{0,60}address already in use",
            r"cannot find 'dnsmasq",
            r"dnsmasq'?:? (command )?not found",
        ),
        CULPRIT,
    ),
    Known(
        "firewall",
        "libvirt could not write the rules of its network",
        "iptables or nftables is missing, or its modules are not in this kernel (containers).",
        "Install iptables or nftables, restart libvirtd; on newer libvirt choose by firewall_backend in "
        "/etc/libvirt/network.conf.",
        (
            r"failed to (apply|run|add)[^\n]{0,40}firewall",
            r"initiali[sz]e a? ?valid firewall backend",
            r"(iptables|ip6tables|ebtables|nft)[^\n]{0,80}(no chain|table does not exist|can't initialize|not found)",
        ),
    ),
    Known(
        "passt",
        "User-mode networking by passt does not work with this libvirt",
        "libvirt before 9.2 does not take it in a system connection, and passt must be installed.",
        lambda p: "Use a libvirt network or a bridge instead (vmgpu does). Else: " + p.install("passt"),
        (
            r"\bpasst\b[^\n]{0,100}(not supported|unsupported|unexpected|failed|not found|no "
            r"such|invalid|denied|exited)",
            r"(unsupported|unexpected|unable|failed|cannot|invalid|refuse[sd]?)[^\n]{0,80}\bpasst\b",
        ),
        CULPRIT,
    ),
    Known(
        "address-twice",
        "Two guests have the same address",
        "Clones that kept /etc/machine-id ask DHCP for the same lease, whatever their MAC says.",
        "Capture by vmgpu empties machine-id. By hand, before cloning: truncate -s0 /etc/machine-id; rm -f "
        "/var/lib/dbus/machine-id; remove leases and cloud-init's instance (cloud-init clean --machine-id).",
        (
            r"not using configured address \S+ because it is (leased|in use)",
            r"duplicate address",
            r"address conflict",
            r"dhcpdecline",
            r"different macs?,? same ip",
            r"address \S+ is? ?already in use by (another )?host",
        ),
        CULPRIT,
    ),
    Known(
        "no-free-address",
        "The network has no free address left",
        "Its DHCP range is used up by leases of guests that are gone or alive.",
        "virsh net-dhcp-leases NAME; widen <range> by virsh net-edit NAME and restart the network when no guest uses "
        "it.",
        (r"no address range available for dhcp", r"no address available"),
        CULPRIT,
    ),
    Known(
        "no-lease",
        "The guest asked for an address and got none",
        "No DHCP server answers on its network, or a firewall drops the question.",
        "virsh net-dumpxml NAME must show <dhcp>; on a bridge your own DHCP server must serve it; look at the firewall "
        "of the bridge.",
        (
            r"no dhcpoffers received",
            r"no working leases",
            r"no lease, failing",
            r"wait-online[^\n]{0,60}time(d )?out",
            r"timeout occurred while waiting for network connectivity",
        ),
    ),
)
