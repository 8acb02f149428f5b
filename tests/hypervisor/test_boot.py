"""A remote host's boot is told by a mark in a folder that its boot wipes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import libvirt
import pytest

from vmgpu.hypervisor import boot

from .host_tree import ACTUAL_BOOT, Connection, Tree


class _NoPools(Connection):
    def __init__(self, *, alive: bool) -> None:
        super().__init__()
        self.alive = alive

    def storagePoolLookupByName(self, name: str) -> object:
        raise libvirt.libvirtError("no")

    def storagePoolCreateXML(self, xml: str, flags: int) -> object:
        raise libvirt.libvirtError("no")

    def isAlive(self) -> int:
        return int(self.alive)


def test_this_machines_kernel_says_it(tmp_path: Path) -> None:
    assert boot.boot_id(_NoPools(alive=True), Tree(tmp_path).root) == ACTUAL_BOOT


def test_a_host_that_takes_no_mark_is_unknown_and_a_lost_one_is_an_error() -> None:
    assert boot.boot_id(_NoPools(alive=True), None) == ""
    with pytest.raises(libvirt.libvirtError):
        boot.boot_id(_NoPools(alive=False), None)


@pytest.mark.libvirt
@pytest.mark.skipif("VMGPU_TEST_LIBVIRT" not in os.environ, reason="VMGPU_TEST_LIBVIRT names no libvirtd")
def test_the_mark_stays_until_its_folder_is_wiped() -> None:
    connection = libvirt.open(os.environ["VMGPU_TEST_LIBVIRT"])
    folder = Path("/var/lib/libvirt/images") / f"boot-{os.getpid()}"
    try:
        first = boot.boot_id(connection, None, folder=str(folder))
        assert first and boot.boot_id(connection, None, folder=str(folder)) == first
        connection.storagePoolLookupByName("vmgpu-boot").destroy()  # as a restart of libvirtd forgets it
        assert boot.boot_id(connection, None, folder=str(folder)) == first
        for mark in folder.iterdir():
            mark.unlink()
        assert boot.boot_id(connection, None, folder=str(folder)) not in ("", first)
    finally:
        connection.storagePoolLookupByName("vmgpu-boot").destroy()
        shutil.rmtree(folder)
        connection.close()
