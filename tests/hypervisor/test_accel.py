"""KVM is chosen only where a guest kernel was seen to boot; everything else is emulation, with the reason told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest

from vmgpu.hypervisor import accel
from vmgpu.hypervisor.accel import Choice, choose

from .host_tree import Connection

REAL = pytest.mark.skipif("VMGPU_TEST_LIBVIRT" not in os.environ, reason="VMGPU_TEST_LIBVIRT names no libvirtd")


class _Refusing(Connection):
    """A host that has no pool for the probe; counts how often it was asked."""

    asked = 0

    def storagePoolLookupByName(self, name: str) -> Any:
        self.asked += 1
        raise libvirt.libvirtError(f"no storage pool {name}")


def chosen(connection: Connection, tmp_path: Path, *, wish: str = "auto", boot_id: str = "b1", **more: Any) -> Choice:
    kernel = tmp_path / "vmlinuz-6.1"
    kernel.write_bytes(b"kernel")
    more = {"device": tmp_path, "kernels": (f"{tmp_path}/vmlinuz*",), "local": True, **more}
    return choose(wish, connection, pool="vmgpu", boot_id=boot_id, state_dir=tmp_path / "state", **more)


def test_what_was_set_is_not_doubted(tmp_path: Path) -> None:
    assert chosen(Connection(), tmp_path, wish="kvm").accel == "kvm"
    assert chosen(Connection(kvm=True), tmp_path, wish="tcg").accel == "tcg"


def test_without_kvm_nothing_is_probed(tmp_path: Path) -> None:
    assert chosen(Connection(), tmp_path) == Choice("tcg", "libvirt offers no KVM on this host")
    missing = chosen(Connection(kvm=True), tmp_path, device=tmp_path / "kvm")
    assert missing.accel == "tcg" and missing.why.endswith("kvm is missing")
    none = chosen(Connection(kvm=True), tmp_path, kernels=(f"{tmp_path}/none*",))
    assert none.accel == "tcg" and "no readable guest kernel was found" in none.why
    assert not (tmp_path / "state").exists()


def test_an_answer_is_kept_until_the_host_boots_or_changes(tmp_path: Path) -> None:
    host = _Refusing(kvm=True)
    first = chosen(host, tmp_path)
    assert first.accel == "tcg" and "no storage pool vmgpu" in first.why
    assert chosen(host, tmp_path) == first and host.asked == 1
    chosen(host, tmp_path, boot_id="b2")
    assert host.asked == 2
    newer = _Refusing(kvm=True)
    newer.getVersion = lambda: 10_000_000  # type: ignore[method-assign]
    chosen(newer, tmp_path)
    assert newer.asked == 1
    for kept in (tmp_path / "state").iterdir():
        kept.write_text("{half")
    assert chosen(host, tmp_path) == first and host.asked == 3


def test_an_unknown_boot_is_probed_each_time(tmp_path: Path) -> None:
    host = _Refusing(kvm=True)
    chosen(host, tmp_path, boot_id="")
    chosen(host, tmp_path, boot_id="")
    assert host.asked == 2


def test_the_newest_kernel_of_the_first_place_is_taken(tmp_path: Path) -> None:
    for age, name in enumerate(("one/vmlinuz-b", "one/vmlinuz-a", "two/x/vmlinuz")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"k")
        os.utime(tmp_path / name, (age, age))
    places = (f"{tmp_path}/none/vmlinuz*", f"{tmp_path}/one/vmlinuz*", f"{tmp_path}/two/**/vmlinuz*")
    assert accel.newest_kernel(places) == tmp_path / "one/vmlinuz-a"
    assert accel.newest_kernel(places[2:]) == tmp_path / "two/x/vmlinuz"
    assert accel.newest_kernel(places[:1]) is None


def test_versions_are_written_with_dots() -> None:
    assert accel.dotted(9_000_000) == "9.0.0" and accel.dotted(7_002_022) == "7.2.22"


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """A connection to the real libvirtd, and a pool for the probe."""
    connection = libvirt.open(os.environ["VMGPU_TEST_LIBVIRT"])
    folder = Path("/var/lib/libvirt/images") / f"probe-{os.getpid()}"
    made = connection.storagePoolCreateXML(
        f"<pool type='dir'><name>{folder.name}</name><target><path>{folder}</path></target></pool>",
        libvirt.VIR_STORAGE_POOL_CREATE_WITH_BUILD,
    )
    yield connection, made
    left = made.listVolumes()
    made.destroy()
    folder.rmdir()
    domains = [each.name() for each in connection.listAllDomains()]
    connection.close()
    assert left == [] and not any(name.startswith("vmgpu-probe") for name in domains)


def real_kernel() -> Path:
    kernel = accel.newest_kernel(accel.KERNELS)
    if kernel is None:
        pytest.skip("no kernel lies under " + " or ".join(accel.KERNELS))
    return kernel


@REAL
@pytest.mark.libvirt
def test_a_kernel_that_boots_is_seen(pool: tuple[Any, Any]) -> None:
    """The same probe under emulation: here KVM itself may not run a guest."""
    connection, made = pool
    seen = accel.probe(connection, real_kernel(), pool=made.name(), seconds=90, kind="qemu")
    assert seen.accel == "kvm" and "booted" in seen.why


@REAL
@pytest.mark.libvirt
def test_a_kernel_that_stands_still_is_not_taken_for_kvm(pool: tuple[Any, Any]) -> None:
    connection, made = pool
    seen = accel.probe(connection, real_kernel(), pool=made.name(), seconds=0.2, kind="qemu")
    assert seen.accel == "tcg" and "made no progress" in seen.why


@REAL
@pytest.mark.libvirt
def test_what_libvirt_refuses_is_told(pool: tuple[Any, Any], tmp_path: Path) -> None:
    connection, made = pool
    (tmp_path / "vmlinuz").write_bytes(b"this is no kernel")
    seen = accel.probe(connection, tmp_path / "vmlinuz", pool=made.name(), seconds=5, kind="qemu")
    assert seen.accel == "tcg" and seen.why
