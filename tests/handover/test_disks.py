"""Images that people upload: what they would read from our disks, and what is left of a refused one."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.factories import ADMIN_TOKEN
from tests.hypervisor.test_qcow2 import qcow2
from tests.site import Site

NAME_OF_BACKING = 512
HEADERS = {"authorization": f"Bearer {ADMIN_TOKEN}", "content-type": "application/octet-stream"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backing": NAME_OF_BACKING, "backing_length": 13}, "backing file"),
        ({"needed": 1 << 2, "extensions": ((0x44415441, b"/etc/hostname"),)}, "external data file"),
        ({"snapshots": 1}, "internal snapshot"),
        ({"encryption": 1}, "encrypted"),
        ({"needed": 1 << 9}, "features that are unknown"),
        ({"needed": 1 << 1}, "corrupt"),
    ],
)
def test_an_image_that_names_files_of_the_host_is_refused_unopened(
    site: Site, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    """F16: each kind has its own message; no program has opened the file, and nothing of it stays."""

    def run_nothing(*args: Any, **named: Any) -> None:
        raise AssertionError(f"a program is run on an upload: {args}")

    monkeypatch.setattr(subprocess, "Popen", run_nothing)
    image = bytearray(qcow2(**changes))
    image[NAME_OF_BACKING : NAME_OF_BACKING + 13] = b"/etc/hostname"
    for name in ("disk.qcow2", "disk.img"):
        where = {"name": "team/x:1", "filename": name, **({} if name.endswith("qcow2") else {"format": "qcow2"})}
        answer = site.http.post("/api/v1/images", params=where, content=bytes(image), headers=HEADERS)
        error = answer.json()["error"]
        assert answer.status_code == 422 and words in error["message"] and error["hint"], error
    raw = site.http.post(
        "/api/v1/images", params={"name": "team/x:1", "format": "raw"}, content=bytes(image), headers=HEADERS
    )
    assert raw.status_code == 422 and "header says qcow2" in raw.json()["error"]["message"]
    assert site.rest("GET", "/images")["items"] == []
    assert list(site.settings.images_dir.iterdir()) == []


def test_a_descriptor_that_names_flat_extents_is_refused(site: Site) -> None:
    """F16: VMDK's text descriptor names files as well."""
    text = b'# Disk DescriptorFile\nversion=1\nRW 20480 FLAT "/etc/hostname" 0\n'.ljust(1024, b"\0")
    answer = site.http.post("/api/v1/images", params={"name": "x", "format": "raw"}, content=text, headers=HEADERS)
    assert answer.status_code == 422 and "VMDK" in answer.json()["error"]["message"]
    assert list(site.settings.images_dir.iterdir()) == []
