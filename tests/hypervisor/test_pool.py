"""What the pool refuses and leaves alone, on libvirt's own simulated driver: no daemon, and no file is written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import libvirt
import pytest

from tests.hypervisor.live import NAT, silent
from vmgpu import render
from vmgpu.errors import HostRefused, ReasonCode
from vmgpu.hypervisor import ImageRef, Seed, VMSpec
from vmgpu.hypervisor.volumes import FOLDER, POOL, Pool

IMAGE = ImageRef("i", "mine.qcow2", 64)


@pytest.fixture
def connection() -> Iterator[libvirt.virConnect]:
    with closing(libvirt.open("test:///default")) as opened:
        made = opened.storagePoolDefineXML(render.xml("libvirt/pool.xml.j2", name=POOL, path=FOLDER), 0)
        made.create(0)  # this driver cannot build the folder at the start, as we ask for
        yield opened
        for pool in opened.listAllStoragePools():  # the driver keeps its state for the whole process
            if pool.name() == POOL:
                for volume in pool.listAllVolumes():
                    volume.delete(0)
                pool.destroy()
                pool.undefine()


@pytest.fixture
def pool(connection: libvirt.virConnect, tmp_path: Path) -> Pool:
    return Pool(connection, host="gpu1", local=False, locks=tmp_path / "locks")


def lay(connection: libvirt.virConnect, *names: str) -> None:
    for name in names:
        xml = f"<volume><name>{name}</name><capacity>1048576</capacity></volume>"
        connection.storagePoolLookupByName(POOL).createXML(xml, 0)


def names(connection: libvirt.virConnect) -> set[str]:
    return set(connection.storagePoolLookupByName(POOL).listVolumes())


def test_leaving_drops_nothing_it_is_not_told_of(connection: libvirt.virConnect, pool: Pool) -> None:
    theirs = {"theirs.qcow2", "theirs.qcow2.whole-qcow2"}
    lay(connection, *theirs, "mine.qcow2", "mine.qcow2.whole-qcow2")
    pool.drop_image(IMAGE)
    pool.withdraw()
    assert names(connection) == theirs
    pool.drop_image(ImageRef("t", "theirs.qcow2", 64))
    pool.withdraw()
    assert POOL not in connection.listStoragePools() + connection.listDefinedStoragePools()


def test_a_master_that_is_missing_is_said_so_and_leaves_the_copy(
    connection: libvirt.virConnect, pool: Pool, tmp_path: Path
) -> None:
    lay(connection, "mine.qcow2")
    with pytest.raises(HostRefused, match=r"none\.qcow2 cannot be read here: No such file") as no:
        pool.put_image(IMAGE, tmp_path / "none.qcow2", progress=silent)
    assert "VMGPU_DATA_DIR" in no.value.hint
    assert names(connection) == {"mine.qcow2"}


def test_a_disk_without_its_image_says_which_is_missing(connection: libvirt.virConnect, pool: Pool) -> None:
    seed = Seed({"meta-data": b"", "user-data": b""})
    spec = VMSpec(
        id="v1", name="v1", title="v1", installation="i", build=1, vcpus=1, memory_mib=256, disk_gib=1,
        image=IMAGE, mac="52:54:00:00:00:01", network=NAT, seed=seed, accel="tcg",
    )  # fmt: skip
    with pytest.raises(HostRefused, match=r"mine\.qcow2 is no longer on host gpu1") as no:
        pool.make_disk(spec)
    assert no.value.reason
    assert no.value.reason.code is ReasonCode.image_not_on_host
    assert not names(connection)


def test_what_is_written_is_told_of_disks_by_their_vm_and_of_images_by_their_file(
    connection: libvirt.virConnect, pool: Pool
) -> None:
    lay(connection, "v1.qcow2", "v1.seed.iso", "image-a.qcow2", "image-a.qcow2.whole-qcow2", "image-b.raw")
    assert set(pool.facts().written_mib) == {"v1", "image-a.qcow2", "image-b.raw"}


def test_a_copy_without_room_is_refused_before_it_is_made(
    connection: libvirt.virConnect, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk of 1 MiB: too much for a store that is full, and for a pool that is."""
    lay(connection, "v1.qcow2")
    target = tmp_path / "flat.qcow2"
    pool.see_room("v1", target)
    pool.see_room("no-such-vm", target)
    size = len(b"0" * 2**19)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(size, 0, size))  # type: ignore[attr-defined]
    with pytest.raises(HostRefused, match="may need 1 MiB, 0 MiB are free in the image store") as no:
        pool.see_room("v1", target)
    assert no.value.reason and no.value.reason.code is ReasonCode.no_room_for_copy
    monkeypatch.undo()
    everything = connection.storagePoolLookupByName(POOL).info()[3]
    xml = f"<volume><name>all.raw</name><capacity>{everything}</capacity></volume>"
    connection.storagePoolLookupByName(POOL).createXML(xml, 0)
    with pytest.raises(HostRefused, match="are free in the pool of host gpu1"):
        pool.see_room("v1", target)


def test_a_copy_that_fails_leaves_no_part_of_it(connection: libvirt.virConnect, pool: Pool, tmp_path: Path) -> None:
    lay(connection, "v1.qcow2")
    with pytest.raises(libvirt.libvirtError):  # this driver sends no content
        pool.copy_flat("v1", tmp_path / "flat.qcow2", progress=silent)
    assert not list(tmp_path.glob("flat*"))
