"""A real libvirt for the tests marked `libvirt`: the one whose address VMGPU_TEST_LIBVIRT holds, made for this run."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hypervisor.live import INSTALLATION, NAT, SpecMaker
from vmgpu.hypervisor import HostRef, ImageRef, Seed, VMSpec
from vmgpu.hypervisor.kvm import KvmHost


@pytest.fixture(scope="session")
def uri() -> str:
    found = os.environ.get("VMGPU_TEST_LIBVIRT", "")
    if not found:
        pytest.skip("VMGPU_TEST_LIBVIRT names no libvirt of the tests' own")
    return found


@pytest.fixture
def ref(uri: str, tmp_path: Path) -> HostRef:
    return HostRef("h1", "local", uri, INSTALLATION, NAT, "tcg", tmp_path / "state")


@pytest.fixture
def told() -> list[str]:
    """The ids that the host told of."""
    return []


@pytest.fixture
def host(ref: HostRef, told: list[str]) -> Iterator[KvmHost]:
    opened = KvmHost(ref, on_change=told.append)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def master(uri: str) -> Path:
    from vmgpu.lab.tiny import ensure_tiny_image

    return ensure_tiny_image()


@pytest.fixture
def image(host: KvmHost, master: Path) -> ImageRef:
    found = ImageRef("tiny", "tiny.qcow2", 64, has_init=False)
    host.ensure_image(found, master, progress=lambda _percent: None)
    return found


@pytest.fixture(scope="session")
def host_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = tmp_path_factory.mktemp("guest") / "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


@pytest.fixture
def make_spec(host: KvmHost, image: ImageRef, host_key: Path) -> Iterator[SpecMaker]:
    """Specs of tiny VMs; what they left is erased afterwards."""
    made: list[str] = []

    def make(**changes: object) -> VMSpec:
        vm_id = str(uuid.uuid4())
        made.append(vm_id)
        octets = uuid.UUID(vm_id).bytes[:3].hex(":")
        files = {
            "meta-data": b"instance-id: one\n",
            "user-data": b"#cloud-config\n",
            "ssh_host_ed25519_key": host_key.read_bytes(),
        }
        spec = VMSpec(
            id=vm_id,
            name=f"vm-{vm_id[:8]}",
            title="A <tiny> VM",
            installation=INSTALLATION,
            build=1,
            vcpus=1,
            memory_mib=256,
            disk_gib=1,
            image=image,
            mac=f"52:54:00:{octets}",
            network=NAT,
            seed=Seed(files),
            accel="tcg",
        )
        return replace(spec, **changes)  # type: ignore[arg-type]

    yield make
    for vm_id in made:
        host.erase(vm_id)
