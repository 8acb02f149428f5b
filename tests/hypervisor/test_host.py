"""Making a real host ready, and leaving it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import libvirt
import pytest

from tests.hypervisor.live import SpecMaker, build, pool_names
from vmgpu.errors import HostRefused
from vmgpu.hypervisor import HostRef, ImageRef, Network, NetworkRef, volumes
from vmgpu.hypervisor.kvm import KvmHost

pytestmark = [pytest.mark.libvirt, pytest.mark.timeout(180)]


def test_a_survey_makes_pool_and_network_ready_without_autostart(host: KvmHost) -> None:
    facts = host.survey()
    assert (facts.pool, facts.network) == ("vmgpu", "vmgpu")
    assert facts.network_range.endswith("/22")
    assert facts.disk_total_gib >= facts.disk_free_gib > 0
    assert facts.boot_id == host.boot_id()
    with closing(libvirt.open("qemu:///system")) as connection:
        assert not connection.networkLookupByName("vmgpu").autostart()
        connection.networkLookupByName("vmgpu").destroy()
        connection.storagePoolLookupByName("vmgpu").destroy()
    assert host.survey().network_range == facts.network_range
    with closing(libvirt.open("qemu:///system")) as connection:
        assert connection.networkLookupByName("vmgpu").isActive()
        assert connection.storagePoolLookupByName("vmgpu").isActive()


def test_leaving_a_host_takes_what_is_nobodys_use(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    host.withdraw()
    assert host.has_disk(spec.id) and host.has_image(spec.image)
    with closing(libvirt.open("qemu:///system")) as connection:
        connection.lookupByUUIDString(spec.id).undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)
    host.withdraw()
    assert host.has_disk(spec.id) and host.has_image(spec.image)
    host.erase(spec.id)
    host.withdraw()
    assert host.has_image(spec.image)  # it may be another installation's: whoever leaves drops its own
    for name in pool_names():  # with this one all those that other tests left here
        if name.endswith(".qcow2"):
            host.drop_image(ImageRef(name, name, 1))
    host.withdraw()
    host.withdraw()
    with closing(libvirt.open("qemu:///system")) as connection:
        assert "vmgpu" not in [each.name() for each in connection.listAllNetworks() + connection.listAllStoragePools()]
    assert not Path(volumes.FOLDER).exists()


def test_leaving_a_host_keeps_what_others_made(host: KvmHost) -> None:
    host.survey()
    stranger = Path(volumes.FOLDER, "somebodys.iso")
    stranger.touch()
    with closing(libvirt.open("qemu:///system")) as connection:
        connection.networkLookupByName("vmgpu").destroy()
        connection.networkLookupByName("vmgpu").undefine()
        connection.networkDefineXML("<network><name>vmgpu</name></network>")
        host.withdraw()
        assert connection.storagePoolLookupByName("vmgpu").isActive()
        connection.networkLookupByName("vmgpu").undefine()
    stranger.unlink()


@pytest.fixture
def link_name() -> Iterator[str]:
    name = "vmt0"
    subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
    yield name
    subprocess.run(["ip", "link", "del", name], check=True)


def test_a_new_network_keeps_clear_of_addresses_and_routes(ref: HostRef, host: KvmHost, link_name: str) -> None:
    assert host.survey().network_range == "192.168.128.0/22"
    subprocess.run(["ip", "addr", "add", "192.168.132.7/24", "dev", link_name], check=True)
    subprocess.run(["ip", "link", "set", link_name, "up"], check=True)
    subprocess.run(["ip", "route", "add", "192.168.136.0/21", "dev", link_name], check=True)
    opened = KvmHost(replace(ref, network=NetworkRef(Network.nat, "vmgpu-second")), on_change=lambda _vm: None)
    try:
        found = opened.survey().network_range
    finally:
        opened.close()
        with closing(libvirt.open("qemu:///system")) as connection:
            network = connection.networkLookupByName("vmgpu-second")
            network.destroy()
            network.undefine()
    assert found == "192.168.144.0/22"


def test_a_bridge_must_exist(ref: HostRef, host: KvmHost, make_spec: SpecMaker, link_name: str) -> None:
    subprocess.run(["ip", "link", "set", link_name, "up"], check=True)
    bridged = KvmHost(replace(ref, network=NetworkRef(Network.bridge, link_name)), on_change=lambda _vm: None)
    assert (bridged.survey().network, bridged.survey().network_range) == (link_name, "")
    spec = make_spec(network=NetworkRef(Network.bridge, link_name))
    build(bridged, spec)
    bridged.ensure_running(spec.id)
    bridged.erase(spec.id)
    bridged.close()
    for name in ("nobridge0", "lo", "a/b", "a" * 16):
        with pytest.raises(HostRefused):
            host.ensure_defined(replace(spec, network=NetworkRef(Network.bridge, name)))
