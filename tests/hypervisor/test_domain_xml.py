"""The XML that libvirt is given, against libvirt's own schemas and its test driver; no daemon is needed."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import libvirt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from vmgpu import render
from vmgpu.errors import HostRefused
from vmgpu.hypervisor import (
    Emulated,
    Held,
    ImageRef,
    Mdev,
    Network,
    NetworkRef,
    Pci,
    Power,
    Seed,
    VMSpec,
    domain,
    networks,
)

SCHEMAS = Path("/usr/share/libvirt/schemas")
MDEV = Mdev("5a0e6e0c-6a0c-4d0f-8f0c-0f0c5a0e6e0c")

SPEC = VMSpec(
    id="0b9d5a38-6f6f-4b5e-9d58-5f0f5f3a7d11",
    name="alice-v1",
    title="alice/v1",
    installation="here",
    build=4,
    vcpus=2,
    memory_mib=2048,
    disk_gib=10,
    image=ImageRef("i", "base.qcow2", 2048),
    mac="52:54:00:aa:bb:cc",
    network=NetworkRef(Network.nat, "vmgpu"),
    seed=Seed({}),
    accel="tcg",
)


@lru_cache
def schema(name: str) -> etree.RelaxNG:
    path = SCHEMAS / f"{name}.rng"
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    return etree.RelaxNG(etree.parse(path))


def valid(name: str, text: str) -> Any:
    tree = etree.fromstring(text.encode())
    checker = schema(name)
    assert checker.validate(tree), checker.error_log
    return tree


def made(spec: VMSpec, cpus: str | None = None) -> Any:
    return valid("domain", domain.domain_xml(spec, folder="/pool", cpus=cpus))


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        replace(SPEC, accel="kvm"),
        replace(SPEC, network=NetworkRef(Network.bridge, "br0")),
        replace(SPEC, devices=(Emulated(64, "vmgpu 3g.20gb"),)),
        replace(SPEC, devices=(Pci("0000:65:00.0"), Pci("0000:65:00.1"), Pci("10000:01:00.0", managed=False))),
        replace(SPEC, devices=(MDEV,)),
        replace(SPEC, window_mib=262144, devices=(Pci("0000:65:00.0"),)),
        replace(SPEC, title=""),
    ],
    ids=["tcg", "kvm", "bridge", "emulated", "pci", "mdev", "window", "untitled"],
)
def test_every_kind_of_vm_fits_the_schema(spec: VMSpec) -> None:
    made(spec)


@given(st.text(), st.text(), st.text())
def test_no_text_breaks_the_document(title: str, label: str, installation: str) -> None:
    spec = replace(SPEC, title=title, installation=installation, devices=(Emulated(16, label),))
    tree = etree.fromstring(domain.domain_xml(spec, folder="/pool").encode())
    assert tree.findtext("uuid") == SPEC.id
    assert len(tree.findall("devices/disk")) == 2
    assert "\n" not in (tree.findtext("title") or "")


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn"), exclude_characters="/"), min_size=1))
def test_a_name_comes_back_as_it_was(name: str) -> None:
    tree = etree.fromstring(domain.domain_xml(replace(SPEC, name=name), folder="/pool").encode())
    assert tree.findtext("name") == name.replace("\ufffe", "").replace("\uffff", "")


def test_functions_go_in_as_they_are() -> None:
    tree = made(replace(SPEC, devices=(Pci("0000:65:00.0"), Pci("0000:65:00.1", managed=False))))
    found = [(each.get("managed"), each.find("source/address").get("function")) for each in tree.iter("hostdev")]
    assert found == [("yes", "0x0"), ("no", "0x1")]


def test_an_emulated_slice_is_a_display_of_its_size() -> None:
    tree = made(replace(SPEC, devices=(Emulated(256, "A100-40GB 3g.20gb"),)))
    assert tree.find("devices/video/model").get("vram") == str(256 * 1024)
    assert tree.findtext("sysinfo/oemStrings/entry") == "A100-40GB 3g.20gb"


def test_without_one_there_is_no_display() -> None:
    assert made(SPEC).find("devices/video/model").get("type") == "none"


def test_cpus_are_pinned_only_where_the_host_has_nodes() -> None:
    assert made(replace(SPEC, numa_node=1)).find("numatune") is None
    pinned = made(replace(SPEC, numa_node=1), cpus="8,9,10")
    assert pinned.find("vcpu").get("cpuset") == "8,9,10"
    assert pinned.find("numatune/memory").get("nodeset") == "1"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(HostRefused, match="one emulated slice"):
        made(replace(SPEC, devices=(Emulated(16, "a"), Emulated(16, "b"))))
    with pytest.raises(HostRefused, match="not a PCI address"):
        made(replace(SPEC, devices=(Pci("65:00.0"),)))


def test_pool_volumes_and_network_fit_their_schemas() -> None:
    valid("storagepool", render.xml("libvirt/pool.xml.j2", name="vmgpu", path="/pool"))
    shared = {"name": "a", "capacity": 1, "mode": "0600"}
    valid("storagevol", render.xml("libvirt/volume.xml.j2", **shared, format="raw", backing="", backing_format=""))
    valid(
        "storagevol", render.xml("libvirt/volume.xml.j2", **shared, format="qcow2", backing="/b", backing_format="raw")
    )
    network = valid("network", networks._xml("vmgpu", IPv4Network("192.168.128.0/22")))
    assert network.find("ip/dhcp/range").get("end") == "192.168.131.254"


@pytest.fixture
def driver() -> Any:
    connection = libvirt.open("test:///default")
    yield connection
    connection.close()


LABEL = "vmgpu emulated A100-40GB 3g.20gb 19968 MiB"


@pytest.mark.parametrize("devices", [(), (Pci("0000:65:00.0", managed=False),), (MDEV,), (Emulated(64, LABEL),)])
def test_libvirt_itself_parses_it_and_keeps_our_mark(driver: Any, devices: tuple[Any, ...]) -> None:
    tree = etree.fromstring(domain.domain_xml(replace(SPEC, id=str(uuid.uuid4()), devices=devices), folder="/pool"))
    # The test driver knows neither QEMU's machines nor firmware.
    tree.set("type", "test")
    tree.replace(tree.find("os"), etree.fromstring("<os><type>hvm</type></os>"))
    defined = driver.defineXML(etree.tostring(tree, encoding="unicode"))
    assert domain.mark(defined) == ("here", 4)
    assert not domain.agent_connected(defined)
    told = {Pci: (Held("whole", address="0000:65:00.0"),), Emulated: (Held("3g.20gb", model="A100-40GB"),)}
    assert domain.holds(defined) == next((told[type(each)] for each in devices if type(each) in told), ())
    defined.create()
    assert domain.seen(defined, *defined.state(), ("here", 4)).power is Power.running
    defined.destroy()
    off = domain.seen(defined, *defined.state(), ("here", 4))
    assert (off.power, off.why, off.build) == (Power.off, "destroyed", 4)
    defined.undefine()


def test_a_foreign_domain_has_no_mark(driver: Any) -> None:
    assert domain.mark(driver.lookupByName("test")) == domain.NOBODYS
