"""The seed disk, read back by somebody else's reader."""

from __future__ import annotations

import shutil
import subprocess
from io import BytesIO
from pathlib import Path

import pycdlib
import pytest

from vmgpu.hypervisor.seed_iso import seed_iso

FILES = {
    "user-data": b"#cloud-config\n",
    "meta-data": b"",
    "network-config": b"version: 2\n" * 500,
    "ssh_host_ed25519_key": bytes(range(256)),
    "Änd.so_weiter": b"odd names stay",
}


@pytest.mark.parametrize("tree", ["rr_path", "joliet_path"])
def test_names_and_contents_come_back_exactly(tree: str) -> None:
    iso = pycdlib.PyCdlib()
    iso.open_fp(BytesIO(seed_iso(FILES)))
    assert iso.pvd.volume_identifier.decode().strip() == "cidata"
    for name, content in FILES.items():
        read = BytesIO()
        iso.get_file_from_iso_fp(read, **{tree: f"/{name}"})
        assert read.getvalue() == content
    iso.close()


def test_isoinfo_reads_it(tmp_path: Path) -> None:
    if shutil.which("isoinfo") is None:
        pytest.skip("isoinfo is not installed")
    image = tmp_path / "seed.iso"
    image.write_bytes(seed_iso(FILES))
    listed = subprocess.run(["isoinfo", "-R", "-f", "-i", image], capture_output=True, text=True, check=True).stdout
    assert {"/user-data", "/meta-data", "/network-config", "/ssh_host_ed25519_key"} <= set(listed.split())
    said = subprocess.run(["isoinfo", "-d", "-i", image], capture_output=True, text=True, check=True).stdout
    assert "Volume id: cidata" in said


def test_it_is_small() -> None:
    """A seed is written at every start of a VM."""
    assert len(seed_iso(FILES)) < 128 * 1024
