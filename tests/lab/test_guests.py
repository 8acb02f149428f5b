"""Both guests boot as the product's do: libvirt, UEFI, a virtio disk, a seed with the host key."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.conftest import Guest, KeyPair, wait_for
from vmgpu.lab.guestimage import ensure_guest_image
from vmgpu.lab.tiny import ensure_tiny_image

Start = Callable[..., Guest]


@pytest.mark.libvirt
def test_tiny_guest_shows_the_seeds_host_key_and_obeys_the_power_button(start_guest: Start) -> None:
    host, owner = KeyPair(), KeyPair()
    files = {"meta-data": "{}", "user-data": "", "ssh_host_ed25519_key": host.private, "authorized_keys": owner.public}
    guest = start_guest(ensure_tiny_image(), files, mib=256)
    assert guest.host_key(within=90) == host.public
    guest.domain.shutdown()
    wait_for(lambda: "" if guest.runs() else "off", 30, guest)


@pytest.mark.libvirt
def test_tiny_guest_without_a_seed_says_so_and_lets_nobody_in(start_guest: Start) -> None:
    guest = start_guest(ensure_tiny_image(), {"unrelated": "x"}, mib=256)
    wait_for(lambda: "said" if "no host key" in guest.console else "", 90, guest)


@pytest.mark.guest
@pytest.mark.libvirt
@pytest.mark.timeout(600)
def test_distribution_guest_takes_host_key_user_and_disk_size_from_seed_and_host(
    start_guest: Start, tmp_path: Path
) -> None:
    host, owner = KeyPair(), KeyPair()
    cloud = {
        "ssh_keys": {"ed25519_private": host.private, "ed25519_public": host.public},
        "users": [{"name": "ann", "ssh_authorized_keys": [owner.public], "sudo": "ALL=(ALL) NOPASSWD:ALL"}],
    }
    files = {
        "meta-data": json.dumps({"instance-id": "i-1", "local-hostname": "ann-1"}),
        "user-data": "#cloud-config\n" + json.dumps(cloud),
    }
    guest = start_guest(ensure_guest_image(), files, mib=1024)
    assert guest.host_key(within=400) == host.public
    key = tmp_path / "key"
    key.write_text(owner.private)
    key.chmod(0o600)
    known = tmp_path / "known"
    known.write_text(f"* {host.public}\n")
    ssh = ["ssh", "-i", str(key), "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes", "-o", "ConnectTimeout=60"]
    ask = "cloud-init status --wait --long; hostname; cat /etc/machine-id; df --output=size -BG / | tail -1; id -un"
    answer = subprocess.run([*ssh, f"ann@{guest.address(within=1)}", ask], capture_output=True, text=True, check=True)
    lines = answer.stdout.split("\n")
    assert "status: done" in answer.stdout
    hostname, machine_id, size, user = [line.strip() for line in lines if line.strip()][-4:]
    assert (hostname, user) == ("ann-1", "ann")
    assert len(machine_id) == 32
    assert size == "4G"
