"""The script that makes a machine a host: its pieces by themselves, and the whole in a folder instead of a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

import libvirt
import pytest

from tests.hypervisor.live import INSTALLATION, NAT
from vmgpu import sshkeys
from vmgpu.errors import Invalid
from vmgpu.hypervisor import HostKeys, HostRef, host_setup, hostctl_zip
from vmgpu.hypervisor.remote import libvirt_uri

RANGE = IPv4Network("192.168.128.0/22")
KEYS = host_setup.PublicKeys(*(sshkeys.make_pair(f"vmgpu {name}").public for name in ("libvirt", "hostctl")))
HELPER = "sh -c 'virt-ssh-helper 'qemu:///system''"
NETCAT = """sh -c 'if 'nc' -q 2>&1 | grep "requires an argument" >/dev/null 2>&1; then ARG=-q0;else ARG=;fi;'nc' $ARG"""


def stub(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def a_script(added: str = "", network: IPv4Network | None = RANGE) -> str:
    return host_setup.script(name="gpu1", address="gpu1.example.org", keys=KEYS, network=network, added=added)


# what libvirt's key may start


@dataclass(frozen=True)
class Gate:
    """The forced command, with stubs for what it starts."""

    folder: Path

    def __call__(self, asked: str | None) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.folder / 'bin'}:{self.folder / 'tools'}"}
        if asked is not None:
            environment["SSH_ORIGINAL_COMMAND"] = asked
        return subprocess.run(
            ["/bin/sh", self.folder / "libvirt"],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    (tmp_path / "libvirt").write_text(host_setup.gate())
    stub(tmp_path, "bin/virt-ssh-helper", 'echo "helper $*"')
    stub(tmp_path, "bin/nc", '[ "$1" != -q ] || { echo "nc: option requires an argument"; exit 1; }; echo "nc $*"')
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/grep").symlink_to(str(shutil.which("grep")))
    return Gate(tmp_path)


@pytest.mark.parametrize("proxy", ["auto", "native", "netcat"])
def test_what_libvirt_asks_for_is_let_through(gate: Gate, proxy: str) -> None:
    """The libvirt of this machine says itself what it runs on the other side."""
    stub(gate.folder, "ssh", f'for last; do :; done; printf "%s" "$last" >{gate.folder}/asked; exit 1')
    with pytest.raises(libvirt.libvirtError):
        libvirt.open(f"qemu+ssh://vmgpu@gpu1/system?command={gate.folder}/ssh&no_tty=1&proxy={proxy}")
    said = gate((gate.folder / "asked").read_text())
    way = "nc -q0 -U /var/run/libvirt/libvirt-sock" if proxy == "netcat" else "helper qemu:///system"
    assert (said.returncode, said.stdout) == (0, f"{way}\n"), said.stderr


def test_a_host_without_the_helper_is_reached_by_netcat(gate: Gate) -> None:
    (gate.folder / "bin/virt-ssh-helper").unlink()
    stub(gate.folder, "bin/nc", 'echo "nc $*"')  # a netcat that ends by itself
    assert gate(HELPER).stdout == "nc -U /var/run/libvirt/libvirt-sock\n"


@pytest.mark.parametrize(
    "asked",
    [
        None,
        "",
        "sh",
        "touch made",
        f"{HELPER}; touch made",
        f"{HELPER}\ntouch made",
        f"touch made; {HELPER}",
        f"{HELPER} ",
        "sh -c 'virt-ssh-helper 'qemu:///system?socket=$(touch made)''",
        "sh -c 'virt-ssh-helper 'qemu:///session''",
        "sh -c 'virt-ssh-helper 'test:///default''",
        f"{NETCAT} -U /run/docker.sock'",
        f"{NETCAT} -U /var/run/libvirt/libvirt-sock; touch made'",
        f"{NETCAT} -e /bin/sh 127.0.0.1 22'",
        "*",
        "$(touch made)",
        "`touch made`",
        "sh -c '" + "x" * 100_000 + "'",
    ],
)
def test_nothing_else_is_let_through(gate: Gate, asked: str | None) -> None:
    (gate.folder / "tools/touch").symlink_to(str(shutil.which("touch")))
    said = gate(asked)
    assert (said.returncode, said.stdout) == (126, "")
    assert "nothing else" in said.stderr
    assert not (gate.folder / "made").exists()


# keys and rules


def test_each_key_has_its_command_and_every_guest_its_entry(tmp_path: Path) -> None:
    text = host_setup.authorized_keys(KEYS, RANGE)
    file = tmp_path / "authorized_keys"
    file.write_text(text)
    listed = subprocess.run(["ssh-keygen", "-lf", file], capture_output=True, text=True, check=True).stdout
    assert listed.count("(ED25519)") == 2 and "vmgpu libvirt" in listed and "vmgpu hostctl" in listed
    ours, hostctl = text.splitlines()
    assert ours.startswith('restrict,command="/usr/local/lib/vmgpu/libvirt",port-forwarding,permitlisten="localhost:1"')
    assert hostctl.startswith('restrict,command="sudo -n /usr/local/lib/vmgpu/hostctl.pyz" ssh-ed25519 ')
    opened = re.findall(r'permitopen="([^"]+)"', ours)
    assert opened[0] == "192.168.128.2:22" and len(opened) == len(set(opened)) == 1022
    assert {each.rpartition(":")[2] for each in opened} == {"22"}


def test_a_host_with_a_bridge_opens_no_channel() -> None:
    assert "port" not in host_setup.authorized_keys(KEYS, None).replace("restrict,command", "")


def test_a_range_that_no_key_can_name_is_refused() -> None:
    host_setup.authorized_keys(KEYS, IPv4Network("10.192.0.0/20"))
    with pytest.raises(Invalid, match=r"10\.192\.0\.0/19"):
        host_setup.authorized_keys(KEYS, IPv4Network("10.192.0.0/19"))


def test_sudo_takes_the_rule(tmp_path: Path) -> None:
    rule = host_setup.sudoers()
    assert rule.count("NOPASSWD") == 1 and rule.rstrip().endswith('hostctl.pyz ""')
    visudo = shutil.which("visudo", path="/usr/sbin:/usr/bin")
    if visudo is None:
        pytest.skip("needs visudo")
    file = tmp_path / "sudoers"
    file.write_text(rule)
    subprocess.run([visudo, "-cqf", file], check=True)


def test_our_own_key_opens_a_host_that_was_set_up(tmp_path: Path) -> None:
    private = HostKeys("ours\n", "other\n")
    assert "ours" not in repr(private)
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBp7U1w0bXh0bXh0bXh0bXh0bXh0bXh0bXh0bXh0bXh0"
    for user, ours in (("vmgpu", True), ("root", False)):
        uri = f"qemu+ssh://{user}@gpu1/system"
        ref = HostRef(user, "gpu1", uri, INSTALLATION, NAT, "tcg", tmp_path, host_key=key, keys=private)
        libvirt_uri(ref)
        said = subprocess.run(
            [tmp_path / user / "ssh", "-G", "gpu1"], capture_output=True, text=True, check=True
        ).stdout
        file = tmp_path / user / "libvirt_key"
        assert file.exists() is ours and (str(file) in said) is ours
        if ours:
            assert file.read_text() == "ours\n" and file.stat().st_mode & 0o777 == 0o600
            assert "identitiesonly yes" in said and "identityagent none" in said


# the whole


@dataclass
class Machine:
    """A folder that stands for a machine, and stubs for all that would change this one."""

    folder: Path

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        for path in ("/usr/local/lib/vmgpu", "/var/lib/vmgpu-host", "/etc/sudoers.d/vmgpu", "/etc/ssh/"):
            script = script.replace(path, f"{self.folder}{path}")
        environment = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.folder)}
        return subprocess.run(
            ["/bin/sh", "-s"], input=script, env=environment, capture_output=True, text=True, check=False
        )

    @property
    def done(self) -> list[str]:
        """What was asked of the stubs."""
        return (self.folder / "log").read_text().splitlines()

    def mode(self, path: str) -> str:
        return f"{(self.folder / path).stat().st_mode & 0o7777:o}"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if os.geteuid() != 0:
        pytest.skip("needs root: what is installed is root's")
    made, log = Machine(tmp_path), f'echo "$(basename "$0") $*" >>{tmp_path}/log'
    for name in ("apt-get", "useradd", "usermod", "systemctl", "virt-ssh-helper", "qemu-img", "visudo", "mdevctl"):
        stub(tmp_path, f"bin/{name}", log)
    stub(tmp_path, "bin/qemu-system-x86_64", "")
    stub(tmp_path, "bin/dpkg-query", 'for each; do :; done; [ "$each" = mdevctl ] || printf installed')
    stub(tmp_path, "bin/getent", f"case $1 in group) ;; *) [ -f {tmp_path}/passwd ] && cat {tmp_path}/passwd ;; esac")
    stub(tmp_path, "bin/runuser", 'shift 3; exec "$@"')
    (tmp_path / "tree").mkdir()
    stub(tmp_path, "bin/sudo", f'[ "$1" = -n ] && exec "$2" --sysroot {tmp_path}/tree')
    stub(tmp_path, "bin/sshd", "printf 'allowtcpforwarding yes\\nauthorizedkeysfile .ssh/authorized_keys\\n'")
    for folder in ("etc/sudoers.d", "etc/ssh", "usr/local/lib", "var/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/ssh/ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAAhost root@gpu1\n")
    return made


@pytest.mark.parametrize("added", ["", "ours", "other"])
def test_shells_can_read_it(added: str) -> None:
    for shell in filter(None, (shutil.which(name) for name in ("dash", "bash", "busybox"))):
        words = [shell, "sh", "-n"] if shell.endswith("busybox") else [shell, "-n"]
        subprocess.run(words, input=a_script(added), text=True, check=True)


def test_a_machine_becomes_a_host(machine: Machine) -> None:
    ran = machine.run(a_script())
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == (
        "vmgpu host add gpu1 qemu+ssh://vmgpu@gpu1.example.org/system --host-key 'ssh-ed25519 AAAAhost'"
    )
    assert "apt-get -qy install mdevctl" in machine.done  # the only one that is missing
    made = next(line for line in machine.done if line.startswith("useradd"))
    assert "--system" in made and "--no-create-home" in made and made.endswith(" vmgpu")
    assert "usermod --append --groups libvirt --shell /bin/sh --password * vmgpu" in machine.done
    app = machine.folder / "usr/local/lib/vmgpu/hostctl.pyz"
    assert app.read_bytes() == hostctl_zip.build()
    modes = {
        "usr/local/lib/vmgpu": "755",
        "usr/local/lib/vmgpu/hostctl.pyz": "755",
        "usr/local/lib/vmgpu/libvirt": "755",
        "var/lib/vmgpu-host/.ssh": "755",
        "var/lib/vmgpu-host/.ssh/authorized_keys": "644",
        "etc/sudoers.d/vmgpu": "440",
    }
    assert {path: machine.mode(path) for path in modes} == modes
    assert all((machine.folder / path).stat().st_uid == 0 for path in modes)
    assert len(list(app.parent.iterdir())) == 2 and len(list((machine.folder / "etc/sudoers.d").iterdir())) == 1
    keys = (machine.folder / "var/lib/vmgpu-host/.ssh/authorized_keys").read_text()
    assert keys.replace(str(machine.folder), "") == host_setup.authorized_keys(KEYS, RANGE)
    assert f"hostctl {hostctl_zip.VERSION} answers" in ran.stderr


def test_it_runs_again_and_brings_everything_up_to_date(machine: Machine) -> None:
    assert machine.run(a_script()).returncode == 0
    (machine.folder / "passwd").write_text(f"vmgpu:x:990:990::{machine.folder}/var/lib/vmgpu-host:/bin/sh\n")
    (machine.folder / "usr/local/lib/vmgpu/hostctl.pyz").write_text("an old one")
    (machine.folder / "log").unlink()
    ran = machine.run(a_script("ours"))
    assert ran.returncode == 0 and ran.stdout.endswith("vmgpu host survey gpu1\n"), ran.stderr
    assert not [line for line in machine.done if line.startswith("useradd")]
    assert (machine.folder / "usr/local/lib/vmgpu/hostctl.pyz").read_bytes() == hostctl_zip.build()
    said = machine.run(a_script("other")).stdout.splitlines()
    assert said[-2].startswith("vmgpu host remove gpu1 ") and said[-1].startswith("vmgpu host add gpu1 ")


def test_a_strangers_account_is_left_alone(machine: Machine) -> None:
    (machine.folder / "passwd").write_text("vmgpu:x:1000:1000::/home/vmgpu:/bin/bash\n")
    ran = machine.run(a_script())
    assert ran.returncode == 1 and "not made by this script" in ran.stderr
    assert not (machine.folder / "usr/local/lib/vmgpu").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("bin/id", "echo 1000"), "as root"),
        (("bin/getent", "exit 2"), "lacks: group-libvirt"),
        (("bin/apt-get", "exit 100"), ""),
        (("bin/visudo", "exit 1"), "sudo does not take the line"),
        (("bin/sudo", "echo 'sudo: a password is required' >&2; exit 1"), "hostctl does not answer by sudo"),
        (("bin/base64", "head -c 100"), "did not arrive whole"),
    ],
)
def test_what_is_wrong_is_said(machine: Machine, change: tuple[str, str], words: str) -> None:
    stub(machine.folder, *change)
    ran = machine.run(a_script())
    assert ran.returncode != 0 and words in ran.stderr and not ran.stdout
    if change[0] not in ("bin/sudo",):
        assert not (machine.folder / "etc/sudoers.d/vmgpu").exists()


def test_a_host_with_no_known_package_tool_is_told_what_it_lacks(machine: Machine) -> None:
    for name in ("apt-get", "virt-ssh-helper", "mdevctl"):
        (machine.folder / "bin" / name).unlink()
    script = a_script().replace("command -v apt-get", "false").replace("PATH=$PATH:/usr/sbin:/sbin", "PATH=$PATH")
    script = script.replace("PATH=$PATH\n", f"PATH={machine.folder}/bin:{machine.folder}/tools\n")
    for name in ("id", "basename", "grep"):
        (machine.folder / "tools").mkdir(exist_ok=True)
        (machine.folder / "tools" / name).symlink_to(str(shutil.which(name)))
    ran = machine.run(script)
    assert ran.returncode == 1 and "neither apt nor dnf" in ran.stderr
    assert "lacks: virt-ssh-helper mdevctl" in ran.stderr.replace(" visudo", "")


def test_a_machine_with_dnf_gets_what_it_lacks(machine: Machine) -> None:
    stub(machine.folder, "bin/rpm", '[ "$3" != edk2-ovmf ]')
    stub(machine.folder, "bin/dnf", f'echo "dnf $*" >>{machine.folder}/log')
    ran = machine.run(a_script().replace("command -v apt-get", "false"))
    assert ran.returncode == 0, ran.stderr
    assert machine.done[0] == "dnf -qy install edk2-ovmf"


@pytest.mark.parametrize(
    ("units", "started"),
    [
        ("libvirtd.service virtqemud.socket", ["start libvirtd.service"]),
        (
            "virtqemud.socket virtnetworkd.socket",
            ["enable --now --quiet virtqemud.socket", "enable --now --quiet virtnetworkd.socket"],
        ),
    ],
)
def test_libvirt_is_started_whole_or_in_parts(machine: Machine, units: str, started: list[str]) -> None:
    """Debian's one daemon and Fedora's many: whichever the machine has."""
    there = f"case ' {units} ' in *\" $unit \"*) exit 0 ;; esac; exit 1"
    notes = f'echo "$*" >>{machine.folder}/started'
    asks = f"for unit; do :; done; case $1 in is-enabled | cat) {there} ;; *) {notes} ;; esac"
    stub(machine.folder, "bin/systemctl", asks)
    ran = machine.run(a_script().replace("/run/systemd/system", str(machine.folder)))
    assert ran.returncode == 0, ran.stderr
    assert (machine.folder / "started").read_text().splitlines() == started


def test_half_a_script_does_nothing(machine: Machine) -> None:
    script = a_script()
    for part in (0.3, 0.9, 0.999):
        machine.run(script[: int(len(script) * part)])
    assert not (machine.folder / "log").exists()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("allowtcpforwarding no", "forwards nothing"),
        ("allowusers admin", "is vmgpu among them"),
        ("authorizedkeysfile /etc/ssh/keys/%u", "AuthorizedKeysFile"),
    ],
)
def test_settings_of_the_ssh_server_that_stand_in_the_way_are_said(machine: Machine, rules: str, words: str) -> None:
    stub(machine.folder, "bin/sshd", f"echo '{rules}'")
    ran = machine.run(a_script())
    assert ran.returncode == 0 and words in ran.stderr
