"""A guest on the run's own libvirtd, from the least XML that boots as the product's guests do."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import libvirt
import paramiko
import pycdlib
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NETWORK = """
<network>
  <name>{name}</name>
  <forward mode='nat'/>
  <bridge name='{name}' stp='off' delay='0'/>
  <ip address='192.168.{third}.1' netmask='255.255.255.0'>
    <dhcp><range start='192.168.{third}.10' end='192.168.{third}.99'/></dhcp>
  </ip>
</network>
"""

DOMAIN = """
<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>{mib}</memory>
  <vcpu>1</vcpu>
  <os firmware='efi'>
    <type arch='x86_64' machine='q35'>hvm</type>
    <firmware><feature enabled='no' name='secure-boot'/><feature enabled='no' name='enrolled-keys'/></firmware>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='maximum'/>
  <on_poweroff>destroy</on_poweroff>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/><source file='{disk}'/><target dev='vda' bus='virtio'/><boot order='1'/>
    </disk>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{seed}'/><target dev='vdb' bus='virtio'/><readonly/>
    </disk>
    <interface type='network'><mac address='{mac}'/><source network='{network}'/><model type='virtio'/></interface>
    <serial type='file'><source path='{console}'/></serial>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
  </devices>
</domain>
"""


class KeyPair:
    """An ed25519 key as the seed wants it and as paramiko shows it."""

    def __init__(self) -> None:
        key = Ed25519PrivateKey.generate()
        openssh = serialization.PrivateFormat.OpenSSH
        self.private = key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption()).decode()
        plain = serialization.PublicFormat.OpenSSH
        self.public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, plain).decode()


class Guest:
    """One running guest and what a test asks of it."""

    def __init__(self, domain: libvirt.virDomain, network: libvirt.virNetwork, folder: Path, mac: str) -> None:
        self.domain, self.network, self.folder, self.mac = domain, network, folder, mac

    @property
    def console(self) -> str:
        return (self.folder / "console").read_text(errors="replace")

    def runs(self) -> bool:
        return any(domain.UUID() == self.domain.UUID() for domain in self.domain.connect().listAllDomains())

    def address(self, *, within: float) -> str:
        """The address that our network's DHCP server gave it."""
        return wait_for(
            lambda: next((lease["ipaddr"] for lease in self.network.DHCPLeases(self.mac)), ""), within, self
        )

    def host_key(self, *, within: float) -> str:
        """The host key it proves to have in a key exchange."""
        address = self.address(within=within)
        return wait_for(lambda: _exchange_keys(address), within, self)


def wait_for(ask: Callable[[], str], within: float, guest: Guest) -> str:
    """Ask until there is an answer; after `within` fail with the end of the console."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(0.25)
    pytest.fail("no answer; console:\n" + guest.console[-3000:])


def _exchange_keys(address: str) -> str:
    try:
        with socket.create_connection((address, 22), timeout=10) as wire, paramiko.Transport(wire) as transport:
            transport.start_client(timeout=30)
            key = transport.get_remote_server_key()
    except (OSError, paramiko.SSHException):
        return ""
    return f"{key.get_name()} {base64.b64encode(key.asbytes()).decode()}"


def write_seed(path: Path, files: dict[str, str]) -> None:
    """A NoCloud disk."""
    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident="cidata")
    for number, (name, text) in enumerate(files.items()):
        raw = text.encode()
        source = path.parent / f"{path.name}.{number}"
        source.write_bytes(raw)
        iso.add_file(str(source), f"/F{number}.;1", rr_name=name, joliet_path=f"/{name}")
    iso.write(str(path))
    iso.close()


@pytest.fixture(scope="session")
def hypervisor() -> Iterator[libvirt.virConnect]:
    uri = os.environ.get("VMGPU_TEST_LIBVIRT")
    if not uri:
        pytest.skip("no libvirtd of the run's own: use python -m vmgpu.lab.namespace -- pytest")
    connection = libvirt.open(uri)
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def nat(hypervisor: libvirt.virConnect) -> Iterator[libvirt.virNetwork]:
    network = hypervisor.networkCreateXML(NETWORK.format(name="vmlab0", third=177))
    yield network
    network.destroy()


@pytest.fixture
def start_guest(hypervisor: libvirt.virConnect, nat: libvirt.virNetwork) -> Iterator[Callable[..., Guest]]:
    started: list[Guest] = []

    def start(image: Path, seed_files: dict[str, str], *, mib: int) -> Guest:
        name = f"lab-{uuid.uuid4().hex[:8]}"
        mac = f"52:54:00:{name[4:6]}:{name[6:8]}:{name[8:10]}"
        folder = Path("/var/lib/libvirt/images") / name
        folder.mkdir(mode=0o755)
        disk = folder / "disk"
        # A copy, not a backing file: libvirt gives every file of a chain to QEMU's user, the cache's too.
        shutil.copy(image, disk)
        subprocess.run(["qemu-img", "resize", "-q", str(disk), "4G"], check=True)
        write_seed(folder / "seed", seed_files)
        xml = DOMAIN.format(
            name=name, mac=mac, mib=mib, disk=disk, seed=folder / "seed", network=nat.name(), console=folder / "console"
        )
        guest = Guest(hypervisor.createXML(xml), nat, folder, mac)
        started.append(guest)
        return guest

    yield start
    for guest in started:
        if guest.runs():
            guest.domain.destroy()
