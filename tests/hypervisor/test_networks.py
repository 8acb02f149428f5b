"""Which range our network takes, and what the kernel's table says is taken."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import islice
from typing import Any

import pytest

from vmgpu.hypervisor import networks

TABLE = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
eth0	000200C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
tun0	0000000A	00000000	0001	0	0	0	000000FF	0	0	0
"""


def test_the_routing_table_is_read_without_its_default() -> None:
    assert networks.routed(TABLE) == {IPv4Network("192.0.2.0/24"), IPv4Network("10.0.0.0/8")}


def test_a_range_collides_with_nothing() -> None:
    taken = {IPv4Network("192.168.128.0/22"), IPv4Network("192.168.133.0/24"), IPv4Network("192.168.136.1/32")}
    first, second = islice(networks.free_ranges(taken), 2)
    assert (str(first), str(second)) == ("192.168.140.0/22", "192.168.144.0/22")
    assert str(next(networks.free_ranges({IPv4Network("192.168.0.0/16")}))) == "10.192.0.0/22"
    assert not list(networks.free_ranges({IPv4Network("192.168.0.0/16"), IPv4Network("10.0.0.0/8")}))


class Guest:
    """A domain whose agent answers."""

    def __init__(self, interfaces: dict[str, Any]) -> None:
        self.interfaces = interfaces

    def agentSetResponseTimeout(self, seconds: int, flags: int) -> None:
        assert 0 < seconds < 10

    def interfaceAddresses(self, source: int) -> dict[str, Any]:
        return self.interfaces


@pytest.mark.parametrize(
    ("addresses", "answer"),
    [
        ([], None),
        ([{"addr": "fe80::1", "type": 1, "prefix": 64}], None),
        ([{"addr": "169.254.7.7", "type": 0, "prefix": 16}], None),
        ([{"addr": "169.254.7.7", "type": 0, "prefix": 16}, {"addr": "10.1.1.9", "type": 0, "prefix": 8}], "10.1.1.9"),
    ],
)
def test_the_agent_is_believed_for_our_mac_alone(addresses: list[dict[str, Any]], answer: str | None) -> None:
    guest = Guest(
        {
            "lo": {"hwaddr": "00:00:00:00:00:00", "addrs": [{"addr": "127.0.0.1", "type": 0, "prefix": 8}]},
            "docker0": {"hwaddr": "02:42:00:00:00:01", "addrs": [{"addr": "172.17.0.1", "type": 0, "prefix": 16}]},
            "tun0": {"hwaddr": None, "addrs": None},
            "eth0": {"hwaddr": "52:54:00:AA:00:01", "addrs": addresses},
        }
    )
    assert networks.told(guest, "52:54:00:aa:00:01") == answer
