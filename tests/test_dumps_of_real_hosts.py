"""Dumps of real hosts, where a folder of them is given: each is read, and read right.

VMGPU_TEST_FIXTURES names the folder; without it nothing is tried.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from vmgpu import sshkeys
from vmgpu.errors import Invalid
from vmgpu.guest import facts
from vmgpu.hypervisor import modes, pci
from vmgpu.hypervisor.hostctl.vgpu_files import types_of
from vmgpu.hypervisor.qcow2 import inspect

FOLDER = Path(os.environ.get("VMGPU_TEST_FIXTURES", ""))
pytestmark = pytest.mark.skipif(
    "VMGPU_TEST_FIXTURES" not in os.environ, reason="VMGPU_TEST_FIXTURES names no folder of dumps"
)


def _found(pattern: str) -> list[Path]:
    return sorted(FOLDER.glob(pattern)) if "VMGPU_TEST_FIXTURES" in os.environ else []


@pytest.mark.parametrize("file", _found("nodedev/*.xml"), ids=lambda path: path.stem)
def test_a_node_device_is_read_or_is_none_of_ours(file: Path) -> None:
    for number, text in enumerate(re.split(r"(?=<device>)", file.read_text())):
        if "<device>" in text:
            found = pci.function_of(text)
            assert found is None or re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", found.address), number


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lv_vf_mdev_types", {"address": "0000:02:10.7", "group": 31}),
        ("lv_pf_two_functions_one_group", {"group": 12, "members": ("0000:02:00.0", "0000:02:00.1")}),
        ("lv_amd_gpu_no_class_no_group", {"address": "0000:01:00.0", "group": None, "numa_node": 1}),
        ("nova_m60_mdev_types", {"vendor": "10de", "driver": "nvidia", "numa_node": 8}),
        ("nova_vf_domain1", {"address": "0001:82:00.3", "group": 99, "virtual": True}),
        ("nova_pf_with_vpd", {"virtual_functions": 8}),
        ("vm_pf_63_vfs", {"virtual_functions": 4}),
    ],
)
def test_a_function_is_what_it_is(name: str, expected: dict[str, object]) -> None:
    found = pci.function_of((FOLDER / "nodedev" / f"{name}.xml").read_text())
    assert found is not None
    assert {each: getattr(found, each) for each in expected} == expected


def test_the_drivers_lists_of_types_are_read_without_their_heads() -> None:
    l40s = types_of((FOLDER / "mdev/creatable_vgpu_types_l40s_idle").read_text())
    assert len(l40s) == 23 and (l40s[-1]["id"], l40s[-1]["name"]) == (2164, "NVIDIA L40S-3B")
    assert len(types_of((FOLDER / "mdev/creatable_vgpu_types_rtx6000ada").read_text())) == 10


def test_names_of_types_are_short_and_sizes_are_their_end() -> None:
    for each in types_of((FOLDER / "mdev/creatable_vgpu_types_rtx6000ada").read_text()):
        assert re.search(r"-\d+[QABC]$", modes.short_name(str(each["name"])))


@pytest.mark.parametrize("file", _found("qemu-img/images/*.qcow2"), ids=lambda path: path.stem)
def test_of_the_images_the_plain_one_alone_is_let_in(file: Path) -> None:
    if file.stem == "plain":
        assert inspect(file, "qcow2").virtual_bytes == 10 * 2**30
    else:
        with pytest.raises(Invalid):
            inspect(file, "qcow2")


def test_cloud_inits_words() -> None:
    def read(name: str, code: int) -> tuple[str, tuple[str, ...]]:
        text = (FOLDER / "cloud-init" / name).read_text()
        return facts.look_at_cloud_init({"program": text, "code": str(code)})

    state, warnings = read("status_degraded_done.json", 2)
    assert state == "degraded" and warnings
    with pytest.raises(facts.Unfinished):
        read("status_running.json", 0)
    with pytest.raises(facts.Trouble):
        read("status_error_running.json", 1)
    assert read("status_old_no_json.txt", 0)[0] == "done"


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("ed25519.pub", 1),
        ("rsa3072.pub", 1),
        ("sk_ed25519.pub", 1),
        ("crlf.pub", 1),
        ("github_user.keys", 3),
        ("no_final_newline.pub", 1),
        ("comment_unicode_spaces.pub", 1),
        ("leading_blank_and_bom.pub", 1),
        ("comments_and_blank_lines.pub", 2),
        ("options_prefix.pub", 0),
        ("private_key_pasted.txt", 0),
        ("truncated_base64.pub", 0),
        ("dss.pub", 0),
        ("certificate.pub", 0),
    ],
)
def test_keys_are_taken_or_refused(name: str, keys: int) -> None:
    text = (FOLDER / "ssh-keys" / name).read_bytes().decode()
    if keys:
        assert len(sshkeys.parse(text)) == keys
    else:
        with pytest.raises(Invalid):
            sshkeys.parse(text)
