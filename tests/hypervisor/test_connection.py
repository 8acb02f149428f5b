"""Errors, reconnection and events, on libvirt's test driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import libvirt
import pytest

from vmgpu.errors import HostRefused, HostUnreachable
from vmgpu.hypervisor import HostRef, Network, NetworkRef, Power
from vmgpu.hypervisor.connection import Link, maybe
from vmgpu.hypervisor.kvm import KvmHost

URI = "test:///default"
TEST = "6695eb01-f6a4-8304-79aa-97f2502e193f"  # the test driver's one domain


@pytest.fixture
def told() -> list[str | None]:
    return []


@pytest.fixture
def link(told: list[str | None]) -> Iterator[Link]:
    opened = Link(URI, told.append)
    yield opened
    opened.close()


def test_a_host_that_is_not_there_is_unreachable() -> None:
    link = Link("qemu+unix:///system?socket=/nowhere", lambda _vm: None)
    with pytest.raises(HostUnreachable, match="nowhere") as caught, link.use():
        pass
    assert "libvirtd" in caught.value.hint


def test_a_no_is_refused_in_the_hosts_own_words(link: Link) -> None:
    with pytest.raises(HostRefused, match="already running"), link.use() as connection:
        connection.lookupByName("test").create()


def test_a_lost_connection_is_opened_again_and_said(link: Link, told: list[str | None]) -> None:
    with link.use() as first:
        pass
    link.close()
    with link.use() as second:
        assert second.listAllDomains()
    assert first is not second
    assert told == [None, None]


def test_an_error_on_a_dead_connection_is_unreachable(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostUnreachable), link.use() as connection:
        monkeypatch.setattr(type(connection), "isAlive", lambda _self: 0)
        connection.lookupByName("nobody")


def test_what_is_not_there_is_none(link: Link) -> None:
    with link.use() as connection:
        assert maybe(connection.lookupByName, "nobody") is None
        assert maybe(connection.networkLookupByName, "nobody") is None
        assert maybe(connection.storagePoolLookupByName, "nobody") is None
        with pytest.raises(libvirt.libvirtError):
            maybe(connection.defineXML, "<domain/>")


def test_an_event_wakes_who_listens_and_names_the_vm(link: Link, told: list[str | None]) -> None:
    with link.use() as connection, link.hearing(TEST) as heard:
        connection.lookupByName("test").destroy()
        assert heard.wait(5)
        connection.lookupByName("test").create()  # all connections to the test driver share one host
    assert TEST in told


def test_a_lost_connection_wakes_who_listens(link: Link) -> None:
    with link.hearing(TEST) as heard:
        link._on_close(None, 0, None)
        assert heard.is_set()
    assert not link._waiting


def test_the_event_thread_does_not_wait_for_a_host_that_hangs(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, go_on = threading.Event(), threading.Event()

    def hang(_uri: str) -> object:
        hanging.set()
        go_on.wait(10)
        raise libvirt.libvirtError("hung")

    monkeypatch.setattr(libvirt, "open", hang)

    def use() -> None:
        with pytest.raises(HostUnreachable), link.use():
            pass

    caller = threading.Thread(target=use)
    caller.start()
    assert hanging.wait(5)
    started = monotonic()
    link._on_close(None, 0, None)
    link.close()
    assert monotonic() - started < 1
    go_on.set()
    caller.join()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[KvmHost]:
    ref = HostRef("h", "h", URI, "here", NetworkRef(Network.nat, "default"), "tcg", tmp_path)
    opened = KvmHost(ref, on_change=lambda _vm: None)
    yield opened
    opened.close()


def test_every_domain_is_seen_foreign_ones_too(host: KvmHost) -> None:
    (seen,) = host.domains()
    assert (seen.id, seen.name, seen.power, seen.installation) == (TEST, "test", Power.running, None)
    assert host.look("00000000-0000-0000-0000-000000000001").power is Power.absent


@pytest.mark.parametrize("verb", ["power_off", "shutdown", "erase", "ensure_running", "drop_disk"])
def test_a_foreign_domain_is_never_touched(host: KvmHost, verb: str) -> None:
    with pytest.raises(HostRefused, match="not ours"):
        getattr(host, verb)(TEST)
    assert host.look(TEST).power is Power.running


def test_two_hundred_domains_are_seen_in_a_second(host: KvmHost) -> None:
    with host._link.use() as connection:
        for number in range(200):
            connection.defineXML(
                f"<domain type='test'><name>d{number}</name><memory>1024</memory><os><type>hvm</type></os>"
                f"<metadata><v:vm xmlns:v='urn:vmgpu:1' installation='here' build='{number}'/></metadata></domain>"
            )
    started = monotonic()
    seen = host.domains()
    assert monotonic() - started < 1
    assert sorted(each.build for each in seen if each.build is not None) == list(range(200))
    with host._link.use() as connection:
        for each in connection.listAllDomains():
            if each.name() != "test":
                each.undefine()


def test_a_changed_mark_is_seen(host: KvmHost) -> None:
    text = (
        "<domain type='test'><name>x</name><uuid>{}</uuid><memory>1024</memory><os><type>hvm</type></os><metadata>"
        "<v:vm xmlns:v='urn:vmgpu:1' installation='here' build='{}'/></metadata></domain>"
    )
    vm_id = "00000000-0000-0000-0000-00000000000a"
    with host._link.use() as connection:
        for build in (1, 2):
            with host._link.hearing(vm_id) as heard:
                connection.defineXML(text.format(vm_id, build))
                assert heard.wait(5)
            assert [each.build for each in host.domains() if each.id == vm_id] == [build]
        connection.lookupByUUIDString(vm_id).undefine()
