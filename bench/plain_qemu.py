"""What the product is measured against: the same guest, started by a script that knows QEMU."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4
from xml.etree.ElementTree import Element

import libvirt
from defusedxml import ElementTree

from bench.guests import FLAVOR, URI, Addresses, Arrival, Lab, arrive, make_key
from vmgpu import render
from vmgpu.hypervisor.seed_iso import seed_iso

_CLOCK_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Likeness:
    """What both sides have alike, read from a domain that the product has running."""

    machine: str
    cpu: str
    accel: str
    firmware: str
    variables: str
    base: Path
    bridge: str
    network: str


@dataclass(frozen=True)
class Boot:
    """One start, in seconds from its beginning: QEMU's process, the address, the first login.

    `processor`: the seconds that QEMU had of the processors until then, which other work on the machine hardly changes.
    """

    qemu: float
    address: float
    login: float
    processor: float


def likeness(vm_id: str) -> Likeness:
    """How the product runs this VM; its disk's base, firmware, machine and bridge serve the plain QEMU, too."""
    with closing(libvirt.open(URI)) as connection:
        tree = ElementTree.fromstring(connection.lookupByUUIDString(vm_id).XMLDesc())
    firmware, kvm = str(tree.findtext("os/loader")), tree.get("type") == "kvm"
    return Likeness(
        machine=_said(tree, "os/type", "machine"),
        cpu="host,migratable=off" if kvm else "max",
        accel="kvm" if kvm else "tcg",
        firmware=firmware,
        variables=_said(tree, "os/nvram", "template") or firmware.replace("CODE", "VARS"),
        base=_base(_said(tree, "devices/disk/source", "file")),
        bridge=_said(tree, "devices/interface/source", "bridge"),
        network=_said(tree, "devices/interface/source", "network"),
    )


class Plain:
    """Guests started by hand. Their keys are made before any clock starts."""

    def __init__(self, lab: Lab, alike: Likeness, login: str) -> None:
        self._lab, self._alike, self._login = lab, alike, login
        self._connection = libvirt.open(URI)
        self._addresses = Addresses(self._leases)
        self._folder = alike.base.parent.with_name("plain")
        self._folder.mkdir(exist_ok=True)

    def close(self) -> None:
        self._connection.close()
        self._folder.rmdir()

    @contextmanager
    def guest(self) -> Iterator[Guest]:
        """A guest that is ready to be started, and gone afterwards."""
        made = Guest(self._lab, self._alike, self._login, self._folder, self._addresses)
        try:
            yield made
        finally:
            made.erase()

    def _leases(self) -> dict[str, str]:
        leases = self._connection.networkLookupByName(self._alike.network).DHCPLeases()
        return {lease["mac"]: lease["ipaddr"] for lease in leases}


class Guest:
    """One guest: `start` is the script that is measured, from the overlay to the first login."""

    def __init__(self, lab: Lab, alike: Likeness, login: str, folder: Path, addresses: Addresses) -> None:
        self._lab, self._alike, self._login, self._addresses = lab, alike, login, addresses
        self._name = f"plain{uuid4().hex[:8]}"
        self._mac = "52:54:00:" + os.urandom(3).hex(":")
        self._at = folder / self._name
        self._host_key = make_key(lab.folder / f"{self._name}-host")
        self._our_key = make_key(lab.folder / f"{self._name}-ours")
        self._qemu: subprocess.Popen[bytes] | None = None

    def start(self) -> Boot:
        """Make the disks, run QEMU, wait for the first login."""
        began = time.monotonic()
        alike, disk, variables, seed = self._alike, self._file("qcow2"), self._file("vars"), self._file("iso")
        size = str(FLAVOR["disk"]).upper()
        _run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", alike.base, disk, size)
        variables.write_bytes(Path(alike.variables).read_bytes())
        seed.write_bytes(seed_iso(self._seed()))
        _run("ip", "tuntap", "add", "dev", self._name, "mode", "tap")
        _run("ip", "link", "set", self._name, "master", alike.bridge, "up")
        # A session of its own, like libvirt's: Linux shares the processors out between sessions.
        command = self._command(disk, variables, seed)
        self._qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        arrival = arrive(
            lambda: self._addresses.of(self._mac),
            login=self._login,
            key=self._lab.key,
            host_key=self._host_key.with_suffix(".pub").read_text().strip(),
            began=began,
        )
        return booted(self._qemu.pid, arrival, began)

    def erase(self) -> None:
        """Kill it and remove what it had."""
        if self._qemu:
            self._qemu.kill()
            self._qemu.wait()
            _run("ip", "link", "delete", self._name)
        for file in self._at.parent.glob(f"{self._name}.*"):
            file.unlink()

    def _file(self, ending: str) -> Path:
        return self._at.with_name(f"{self._name}.{ending}")

    def _seed(self) -> dict[str, bytes]:
        return render.seed(
            instance_id=self._name,
            hostname=self._name,
            mac=self._mac,
            host_key=self._host_key.with_suffix(".pub").read_text().strip(),
            host_key_private=self._host_key.read_text(),
            logins=[(self._login if not self._lab.tiny else "bench", [self._lab.public_key])],
            our_login="vmgpu",
            our_key=self._our_key.with_suffix(".pub").read_text().strip(),
            has_init=not self._lab.tiny,
        )

    def _command(self, disk: Path, variables: Path, seed: Path) -> list[str]:
        alike = self._alike
        memory = str(FLAVOR["memory"]).upper()
        cores = FLAVOR["vcpus"]
        vhost = ",vhost=on" if alike.accel == "kvm" and Path("/dev/vhost-net").exists() else ""
        flags = (
            f"-machine {alike.machine},accel={alike.accel},usb=off,dump-guest-core=off,hpet=off -cpu {alike.cpu}",
            f"-smp {cores},sockets=1,dies=1,cores={cores},threads=1 -m {memory} -rtc base=utc -boot strict=on",
            "-nodefaults -no-user-config -display none -vga none",
            "-global ICH9-LPC.disable_s3=1 -global ICH9-LPC.disable_s4=1",
            f"-drive if=pflash,format=raw,readonly=on,file={alike.firmware}",
            f"-drive if=pflash,format=raw,file={variables}",
            f"-drive if=none,id=disk,format=qcow2,cache=writeback,discard=unmap,file={disk}",
            "-device virtio-blk-pci,drive=disk,bootindex=1,addr=2",
            f"-drive if=none,id=seed,format=raw,readonly=on,cache=writeback,file={seed}",
            "-device virtio-blk-pci,drive=seed,addr=3",
            f"-netdev tap,id=net,ifname={self._name},script=no,downscript=no{vhost}",
            f"-device virtio-net-pci,netdev=net,mac={self._mac},romfile=,addr=4",
            "-device virtio-serial-pci,addr=5",
            f"-chardev socket,id=agent,server=on,wait=off,path={self._file('agent')}",
            "-device virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
            "-object rng-random,id=rng,filename=/dev/urandom -device virtio-rng-pci,rng=rng,addr=6",
            f"-serial file:{self._file('console')}",
        )
        return ["qemu-system-x86_64", *(word for line in flags for word in line.split())]


def booted(pid: int, arrival: Arrival, began: float) -> Boot:
    """A start whose guest somebody has just logged in to; `pid` is its QEMU."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, started = (int(fields[at]) / _CLOCK_TICK for at in (11, 12, 19))
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return Boot(started - since_boot - began, arrival.address, arrival.login, user + system)


def _said(tree: Element, path: str, name: str) -> str:
    """An attribute of the first such element; empty where libvirt does not say it."""
    found = tree.find(path)
    return "" if found is None else found.get(name, "")


def _base(disk: str) -> Path:
    told = subprocess.run(["qemu-img", "info", "-U", "--output=json", disk], capture_output=True, check=True)
    return Path(json.loads(told.stdout)["full-backing-filename"])


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True)
