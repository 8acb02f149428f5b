"""A generalised copy tells nothing of the machine it comes from, and keeps its users' work; on real disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.hypervisor.live import wait_for
from vmgpu.errors import HostRefused, Invalid, SetupError
from vmgpu.hypervisor import guestfish
from vmgpu.hypervisor.generalise import generalise, what_remains

# No libvirtd is asked, but an appliance boots: the same runs have the time and the tools.
REAL = pytest.mark.skipif("VMGPU_TEST_LIBVIRT" not in os.environ, reason="VMGPU_TEST_LIBVIRT is not set")

SECRETS = tuple(b"-- a secret that must not lie on in free blocks: %d --" % number for number in range(5))
LARGE_COPIES = 100_000
KEYS, PASSWORDS, SEED, LARGE, TOKEN = (each.decode() for each in SECRETS)
ODD_HOME = "/home/o'd\"d \\ *[x]\u00fc"

PASSWD = f"""\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
ann:x:1000:1000::/home/ann:/bin/bash
bob:x:1001:1001::/srv/people/bob:/bin/zsh
odd:x:1002:1002::{ODD_HOME}:/bin/bash
"""
SHADOW = "root:*:19000:0:99999:7:::\nann:$6$abc$def:19000:0:99999:7:::\nbob:!$6$x:19000::::::\nodd:$6$y$z:19000::::::\n"

GOES = {
    "etc/ssh/ssh_host_ed25519_key": KEYS,
    "etc/ssh/ssh_host_ed25519_key.pub": "public",
    "var/lib/cloud/data/instance-id": "i-1",
    "var/lib/cloud/instances/i-1/user-data.txt": SEED * 1000,
    "etc/netplan/50-cloud-init.yaml": "network: {}",
    "etc/sudoers.d/90-cloud-init-users": "ann ALL=(ALL) NOPASSWD:ALL",
    "etc/udev/rules.d/70-persistent-net.rules": "SUBSYSTEM",
    "var/lib/dhcp/dhclient.ens3.leases": "lease {}",
    "var/lib/systemd/random-seed": "seed",
    "var/log/syslog": "booted",
    "var/log/huge.log": LARGE.ljust(64) * LARGE_COPIES,
    "var/log/apt/history.log": "installed",
    "var/log/journal/0123456789abcdef0123456789abcdef/system.journal": "journal",
    "var/mail/ann": "From root",
    "tmp/.hidden": "x",
    "tmp/folder/file": "x",
    "var/tmp/file": "x",
    "etc/shadow-": SHADOW,
    "etc/nvidia/gridd.conf": "FeatureType=1\nServerAddress=licences\nClientConfigTokenPath=/opt/our tokens\n",
    "etc/nvidia/ClientConfigToken/client_configuration_token_vmgpu.tok": TOKEN,
    "opt/our tokens/client_configuration_token_01-02-2030.tok": TOKEN,
    "root/.ssh/authorized_keys": "ssh-ed25519 AAAA root",
    "root/.bash_history": PASSWORDS,
    "home/ann/.ssh/authorized_keys": "ssh-ed25519 AAAA ann",
    "home/ann/.ssh/authorized_keys2": "ssh-ed25519 AAAA ann",
    "home/ann/.ssh/id_ed25519": KEYS,
    "home/ann/.bash_history": "ls",
    "home/ann/.python_history": "print()",
    "srv/people/bob/.ssh/authorized_keys": "ssh-ed25519 AAAA bob",
    "srv/people/bob/.zsh_history": "ls",
    f"{ODD_HOME[1:]}/.ssh/authorized_keys": "ssh-ed25519 AAAA odd",
    f"{ODD_HOME[1:]}/.bash_history": "ls",
}
STAYS = {
    "etc/os-release": 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian 12"\n',
    "etc/debian_version": "12.1\n",
    "etc/fstab": "/dev/sda / ext4 defaults 0 1\n",
    "etc/passwd": PASSWD,
    "etc/ssh/sshd_config": "Port 22\n",
    "etc/nvidia/gridd.conf.template": "FeatureType=0\n",
    "opt/our tokens/readme.txt": "whose they are\n",
    "home/ann/work.txt": "weeks of work\n",
    "home/ann/.ssh/config": "Host x\n",
    "home/x/.bash_history": "nobody's: o'd\"d's pattern must not reach it\n",
    "srv/people/bob/notes.txt": "notes\n",
}


def disk_of(tree: Path, disk: Path) -> Path:
    """A qcow2 whose one ext4 holds this tree."""
    raw = disk.with_suffix(".raw")
    with raw.open("wb") as file:
        file.truncate(96 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-d", tree, raw], check=True)
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, disk], check=True)
    return disk


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """The disk of a machine that was used for a while; its path has signs that a shell would read."""
    tree = tmp_path / "tree"
    for path, text in (GOES | STAYS | {"etc/machine-id": "0123456789abcdef0123456789abcdef\n"}).items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    for folder in ("bin", "dev", "lib", "proc", "sbin", "sys", "usr"):
        (tree / folder).mkdir(exist_ok=True)
    (tree / "etc/shadow").write_text(SHADOW)
    (tree / "etc/shadow").chmod(0o640)
    return disk_of(tree, tmp_path / "a disk, with 'signs'.qcow2")


@REAL
@pytest.mark.libvirt
@pytest.mark.timeout(600)
def test_what_belongs_to_one_machine_goes_and_the_work_stays(used: Path) -> None:
    for secret in SECRETS:
        assert secret in used.read_bytes()
    assert len(what_remains(used)) > 8
    for _ in range(2):
        generalise(used, accel="tcg", users=("ann", "bob", "nobody-here"))
    with guestfish.session(used, access="read", accel="tcg", seconds=120) as disk:
        disk.mount()
        there = set(disk.ask("find /").splitlines())
        assert {path for path in (*GOES, *STAYS) if path in there} == set(STAYS)
        for path, text in STAYS.items():
            assert disk.ask(f"cat {guestfish.quoted('/' + path)}").strip() == text.strip()
        assert disk.ask("stat /etc/machine-id").count("size: 0") == 1
        shadow = disk.ask("cat /etc/shadow")
        assert "ann:!$6$abc$def:" in shadow and "bob:!$6$x:" in shadow and "root:*:" in shadow
        assert "odd:$6$y$z:" in shadow  # not one of the users that were named
        assert f"mode: {0o100640}" in disk.ask("stat /etc/shadow")
        assert disk.ask("is-dir /var/log/apt").strip() == "true"
    left = used.read_bytes()
    assert [left.count(secret) for secret in (*SECRETS[:3], SECRETS[4])] == [0, 0, 0, 0]
    assert left.count(SECRETS[3]) < LARGE_COPIES / 5  # trimmed; only whole clusters can be


@REAL
@pytest.mark.libvirt
def test_a_disk_without_a_system_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    disk = disk_of(tmp_path / "tree", tmp_path / "empty.qcow2")
    with pytest.raises(HostRefused, match="No operating system"):
        generalise(disk, accel="tcg", users=())


@REAL
@pytest.mark.libvirt
def test_time_that_is_over_ends_the_tool_and_its_appliance(
    used: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(HostRefused, match="took too long"):
        generalise(used, accel="tcg", users=(), seconds=3)
    assert not list(tmp_path.glob("vmgpu-guestfish-*"))
    wait_for(lambda: not _running_for(tmp_path), within=10)  # killed, the appliance takes a moment to go


def _running_for(folder: Path) -> list[Path]:
    wanted, running = f"LIBGUESTFS_TMPDIR={folder}".encode(), []
    for each in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            running += [each] if wanted in each.read_bytes() else []
    return running


@REAL
@pytest.mark.guest
@pytest.mark.timeout(600)
def test_the_distributions_own_guest_is_generalised(tmp_path: Path) -> None:
    from vmgpu.lab.guestimage import ensure_guest_image

    disk = tmp_path / "guest.qcow2"
    shutil.copy(ensure_guest_image(), disk)
    with guestfish.session(disk, access="write", accel="tcg", seconds=120) as guest:
        guest.mount()
        guest.tell('write /etc/machine-id "0123456789abcdef0123456789abcdef"', 'write /etc/ssh/ssh_host_rsa_key "x"')
    generalise(disk, accel="tcg", users=())
    assert what_remains(disk) == ()


def test_no_backing_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk.qcow2").write_bytes(
        b"QFI\xfb\0\0\0\3" + b"\0" * 7 + b"\x70" + b"\0\0\0\5" + b"\0\0\0\x10" + bytes(96)
    )
    with pytest.raises(Invalid, match="backing file"):
        generalise(tmp_path / "disk.qcow2", accel="tcg", users=())


def test_a_missing_tool_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError) as missing, guestfish.session(tmp_path, access="read", accel="tcg", seconds=1):
        pass
    assert missing.value.hint == "apt install libguestfs-tools"


def test_what_a_guest_wrote_is_one_word_never_a_command() -> None:
    assert guestfish.quoted('/a"\n!reboot ü') == r'"/a\x22\x0a\x21reboot\x20\xc3\xbc"'
    assert guestfish.literal("/h*[a]") == r"/h\x5c\x2a\x5c\x5ba\x5c\x5d"
