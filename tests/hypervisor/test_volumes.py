"""Images, disks, seeds and consoles in a real pool, whole and half made."""

from __future__ import annotations

import os
import subprocess
import threading
import uuid
from contextlib import closing
from pathlib import Path

import libvirt
import pytest

from tests.hypervisor.live import SpecMaker, build, pool_names, silent
from vmgpu.errors import HostRefused
from vmgpu.hypervisor import HostRef, ImageRef, transfer, volumes
from vmgpu.hypervisor.kvm import KvmHost

pytestmark = [pytest.mark.libvirt, pytest.mark.timeout(180)]


def test_a_disk_removed_behind_libvirts_back_is_gone(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    host.ensure_disk(spec)
    Path(volumes.FOLDER, f"{spec.id}.qcow2").unlink()
    assert not host.has_disk(spec.id)
    host.ensure_disk(spec)
    assert host.has_disk(spec.id)


def test_the_seed_is_nobody_elses_to_read(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    seed = Path(volumes.FOLDER, f"{spec.id}.seed.iso")
    assert seed.stat().st_mode & 0o777 == 0o600
    host.ensure_running(spec.id)
    assert seed.stat().st_mode & 0o777 == 0o600


def test_a_disk_is_as_large_as_asked_and_never_smaller_than_its_image(host: KvmHost, make_spec: SpecMaker) -> None:
    large, small = make_spec(disk_gib=3), make_spec(disk_gib=0)
    for spec, gib in ((large, "3 GiB"), (small, "64 MiB")):
        host.ensure_disk(spec)
        told = subprocess.run(
            ["qemu-img", "info", f"{volumes.FOLDER}/{spec.id}.qcow2"], capture_output=True, text=True, check=True
        ).stdout
        assert f"virtual size: {gib}" in told
        assert "backing file format: qcow2" in told


@pytest.mark.parametrize("left", ["", "qemu-img create -f qcow2 {} 1G"])
def test_a_disk_that_was_never_finished_is_made_anew(host: KvmHost, make_spec: SpecMaker, left: str) -> None:
    spec = make_spec()
    path = Path(volumes.FOLDER, f"{spec.id}.qcow2")
    if left:
        subprocess.run(left.format(path).split(), check=True, stdout=subprocess.DEVNULL)
    else:
        path.touch()
    with closing(libvirt.open("qemu:///system")) as connection:
        connection.storagePoolLookupByName("vmgpu").refresh()
    assert not host.has_disk(spec.id)
    host.ensure_disk(spec)
    assert host.has_disk(spec.id)


def test_a_half_copied_image_is_not_there_and_is_copied_again(
    host: KvmHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = tmp_path / "master.raw"
    master.write_bytes(os.urandom(3 * 1024 * 1024))
    image = ImageRef("i", f"half-{uuid.uuid4()}.raw", 3)

    class Killed(BaseException):
        pass

    def die(percent: int) -> None:
        if percent > 30:
            raise Killed

    with pytest.raises(Killed):
        host.ensure_image(image, master, progress=die)
    assert image.volume in pool_names()
    assert not host.has_image(image)

    # the copy arrived, but not as it was sent
    with monkeypatch.context() as broken:
        broken.setattr(transfer, "checksum", lambda *_args, **_more: "other")
        with pytest.raises(HostRefused, match="differs"):
            host.ensure_image(image, master, progress=silent)
    assert not host.has_image(image)

    said: list[int] = []
    host.ensure_image(image, master, progress=said.append)
    assert host.has_image(image)
    assert said == sorted(said) and said[-1] == 100 and len(said) > 5
    assert Path(volumes.FOLDER, image.volume).read_bytes() == master.read_bytes()
    host.drop_image(image)
    host.drop_image(image)
    assert not [name for name in pool_names() if name.startswith(image.volume)]


def test_two_who_copy_one_image_at_once_copy_it_once(ref: HostRef, tmp_path: Path) -> None:
    master = tmp_path / "master.raw"
    master.write_bytes(os.urandom(4 * 1024 * 1024))
    image = ImageRef("i", f"both-{uuid.uuid4()}.raw", 4)
    said: list[list[int]] = [[], []]
    hosts = [KvmHost(ref, on_change=lambda _vm: None) for _ in said]
    threads = [
        threading.Thread(target=host.ensure_image, args=(image, master), kwargs={"progress": heard.append})
        for host, heard in zip(hosts, said, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(bool, said)) == [False, True]
    assert hosts[0].has_image(image)
    hosts[0].drop_image(image)
    for host in hosts:
        host.close()


def test_an_image_under_a_disk_stays(host: KvmHost, make_spec: SpecMaker, image: ImageRef) -> None:
    spec = make_spec()
    host.ensure_disk(spec)
    with pytest.raises(HostRefused, match="stands on image"):
        host.drop_image(image)
    assert host.has_image(image)


def test_a_disk_without_its_image_is_refused(host: KvmHost, make_spec: SpecMaker) -> None:
    with pytest.raises(HostRefused, match="no longer on host"):
        host.ensure_disk(make_spec(image=ImageRef("x", "nowhere.qcow2", 1)))
    with pytest.raises(HostRefused, match="not a file name"):
        host.has_image(ImageRef("x", "../nowhere", 1))


def test_rotated_console_logs_go_too(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    Path(volumes.FOLDER, f"{spec.id}.console.log.0").write_text("older")
    assert f"{spec.id}.console.log.0" in host.leftovers(spec.id)
    host.erase(spec.id)
    assert host.leftovers(spec.id) == ()


def test_the_console_is_its_end(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    assert host.console(spec.id) == b""
    build(host, spec)
    Path(volumes.FOLDER, f"{spec.id}.console.log").write_bytes(b"0123456789" * 100_000)
    assert host.console(spec.id, limit=5) == b"56789"
    assert len(host.console(spec.id)) == 256 * 1024


def test_a_disk_is_copied_into_one_file(host: KvmHost, make_spec: SpecMaker, tmp_path: Path, master: Path) -> None:
    spec = make_spec()
    build(host, spec)
    said: list[int] = []
    target = tmp_path / "flat.qcow2"
    (tmp_path / "flat.qcow2.part").write_text("of an earlier try")
    host.ensure_running(spec.id)
    with pytest.raises(HostRefused, match="running"):
        host.copy_flat(spec.id, target, progress=silent)
    host.see_room(spec.id, target)
    host.power_off(spec.id)
    host.copy_flat(spec.id, target, progress=said.append)
    assert said[-1] == 100 and said == sorted(said)
    assert [path.name for path in tmp_path.glob("flat*")] == ["flat.qcow2"]
    info = subprocess.run(["qemu-img", "info", target], capture_output=True, text=True, check=True).stdout
    assert "backing file" not in info and "virtual size: 1 GiB" in info
    host.drop_disk(spec.id)
    with pytest.raises(HostRefused, match="no disk"):
        host.copy_flat(spec.id, target, progress=silent)


def test_a_copy_that_fails_says_why_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"not a disk")
    with pytest.raises(HostRefused, match="not in qcow2 format"):
        transfer.convert(tmp_path / "broken", tmp_path / "flat", progress=silent)
    assert not (tmp_path / "flat").exists()
