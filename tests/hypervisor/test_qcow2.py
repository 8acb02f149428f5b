"""Image headers, built byte by byte: what is let in, what is refused, and that nothing else ever comes out."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmgpu.errors import Invalid
from vmgpu.hypervisor.qcow2 import HEAD_BYTES, ImageHeader, inspect

GIB = 2**30


def qcow2(
    *,
    version: int = 3,
    backing: int = 0,
    backing_length: int = 0,
    cluster_bits: int = 16,
    virtual: int = 10 * GIB,
    encryption: int = 0,
    l1: tuple[int, int] = (20, 3 << 16),
    refcounts: tuple[int, int] = (1 << 16, 1),
    snapshots: int = 0,
    needed: int = 0,
    refcount_order: int = 4,
    length: int = 112,
    compression: int = 0,
    extensions: tuple[tuple[int, bytes], ...] = (),
    end: bool = True,
    total: int = 5 << 16,
) -> bytes:
    """A qcow2 file of zeros behind the header that these values make."""
    head = struct.pack(
        ">4sIQIIQIIQQIIQ",
        b"QFI\xfb", version, backing, backing_length, cluster_bits, virtual, encryption,
        l1[0], l1[1], refcounts[0], refcounts[1], snapshots, 0,
    )  # fmt: skip
    if version == 3:
        head += struct.pack(">QQQII", needed, 0, 0, refcount_order, length)
        head += bytes([compression]).ljust(max(0, length - 104), b"\0") if length > 104 else b""
    for kind, payload in extensions:
        head += struct.pack(">II", kind, len(payload)) + payload.ljust(-(-len(payload) // 8) * 8, b"\0")
    head += struct.pack(">II", 0, 0) if end else b""
    return head.ljust(total, b"\0")


NAMES = (0x6803F857, b"\0\0dirty bit".ljust(48, b"\0"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"version": 2},
        {"length": 104},
        {"extensions": (NAMES, (0x23852875, b"\0" * 24))},
        {"needed": 1},
        {"needed": 1 << 3, "compression": 1},
        {"needed": 1 << 4},
        {"cluster_bits": 9, "length": 104},
        {"cluster_bits": 21, "refcounts": (1 << 16, 0)},
    ],
)
def test_ordinary_images_are_let_in(changes: dict[str, Any]) -> None:
    assert inspect(qcow2(**changes), "qcow2") == ImageHeader("qcow2", 10 * GIB)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backing": 512, "backing_length": 11}, "backing file"),
        ({"backing": 512}, "backing file"),
        ({"backing_length": 11}, "backing file"),
        ({"version": 2, "backing": 512, "backing_length": 11}, "backing file"),
        ({"needed": 1 << 2}, "external data file"),
        ({"needed": 1 << 2, "extensions": ((0x44415441, b"/somewhere"),)}, "external data file"),
        ({"extensions": (NAMES, (0x44415441, b"/somewhere"))}, "external data file"),
        ({"version": 2, "extensions": ((0x44415441, b"/somewhere"),)}, "external data file"),
        ({"needed": 1 << 1}, "corrupt"),
        ({"needed": 1 << 5}, "unknown here (bit 5)"),
        ({"needed": 1 << 63 | 1 << 40}, "bit 40, 63"),
        ({"snapshots": 1}, "1 internal snapshot"),
        ({"encryption": 1}, "encrypted"),
        ({"encryption": 2}, "encrypted"),
        ({"extensions": ((0x0537BE77, b"\0" * 16),)}, "encrypted"),
        ({"version": 1}, "version 1"),
        ({"version": 4}, "version 4"),
        ({"cluster_bits": 8}, "2^8"),
        ({"cluster_bits": 22}, "2^22"),
        ({"virtual": 0}, "A disk of 0 bytes"),
        ({"virtual": 513}, "sectors"),
        ({"virtual": 65 * 2**40}, "65 TiB"),
        ({"refcount_order": 7}, "header is wrong"),
        ({"length": 96}, "header is wrong"),
        ({"length": 108}, "header is wrong"),
        ({"compression": 1}, "compression"),
        ({"needed": 1 << 3}, "compression"),
        ({"needed": 1 << 3, "compression": 2}, "compression"),
        ({"l1": (20, 1 << 40)}, "ends too early"),
        ({"refcounts": (1 << 40, 1)}, "ends too early"),
    ],
)
def test_dangerous_and_broken_images_are_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid) as refused:
        inspect(qcow2(**changes), "qcow2")
    assert words in refused.value.message
    assert refused.value.hint and refused.value.where == "file"


@pytest.mark.parametrize("kept", [4, 60, 71, 72, 103, 111, 115])
def test_a_cut_off_image_is_refused(kept: int) -> None:
    with pytest.raises(Invalid, match="ends too early"):
        inspect(qcow2()[:kept], "qcow2")


def test_extensions_without_end_are_refused() -> None:
    endless = qcow2(extensions=((0x23852875, b"\0" * 24),), end=False, total=0)
    with pytest.raises(Invalid, match="ends too early"):
        inspect(endless, "qcow2", size=5 << 16)


def test_a_header_is_judged_with_the_size_of_its_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "disk.img"
    file.write_bytes(qcow2(l1=(20, 30 << 16), total=31 << 16))
    assert inspect(file, "qcow2").virtual_bytes == 10 * GIB
    head = file.read_bytes()[:HEAD_BYTES]
    assert inspect(head, "qcow2", size=31 << 16).virtual_bytes == 10 * GIB
    with pytest.raises(Invalid, match="ends too early"):
        inspect(head, "qcow2")


@pytest.mark.parametrize(
    ("offset", "magic", "name"),
    [
        (0, b"QFI\xfb\0\0\0\3", "qcow2"),
        (0, b"KDMV", "VMDK"),
        (0, b"# Disk DescriptorFile\n", "VMDK"),
        (64, b"\x7f\x10\xda\xbe", "VDI"),
        (0, b"vhdxfile", "VHDX"),
        (0, b"conectix", "VHD"),
        (0, b"LUKS\xba\xbe\0\1", "LUKS"),
        (0, b"\x1f\x8b\x08", "gzip"),
        (0, b"\xfd7zXZ\0", "xz"),
        (257, b"ustar", "tar"),
        (32769, b"CD001", "ISO"),
        (0, b"<!DOCTYPE html>", "HTML"),
    ],
)
def test_a_file_declared_raw_that_is_something_else_is_refused(offset: int, magic: bytes, name: str) -> None:
    content = bytearray(65536)
    content[offset : offset + len(magic)] = magic
    with pytest.raises(Invalid, match=f"declared raw, but its header says {name}"):
        inspect(bytes(content), "raw")
    with pytest.raises(Invalid):
        inspect(bytes(content), "qcow2")


def test_a_plain_disk_is_raw_and_not_qcow2() -> None:
    disk = bytes(510) + b"\x55\xaa" + bytes(512)
    assert inspect(disk, "raw") == ImageHeader("raw", 1024)
    assert inspect(disk, "raw", size=20 * GIB).virtual_bytes == 20 * GIB
    with pytest.raises(Invalid, match="declared qcow2"):
        inspect(disk, "qcow2")
    with pytest.raises(Invalid, match="1023 bytes"):
        inspect(disk[:-1], "raw")


@pytest.mark.parametrize("declared", ["raw", "qcow2"])
def test_an_empty_file_is_refused(tmp_path: Path, declared: Any) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(Invalid, match="empty"):
        inspect(tmp_path / "empty", declared)


def _judged(content: bytes, declared: Any, size: int | None = None) -> None:
    try:
        header = inspect(content, declared, size=size)
    except Invalid:
        return
    assert header.format == declared
    assert 0 < header.virtual_bytes <= 64 * 2**40 and header.virtual_bytes % 512 == 0


@given(st.binary(max_size=4096), st.sampled_from(["raw", "qcow2"]), st.none() | st.integers(0, 2**70))
def test_random_bytes_raise_nothing_but_invalid(content: bytes, declared: str, size: int | None) -> None:
    _judged(content, declared, size)
    _judged(b"QFI\xfb\0\0\0\3" + content, declared, size)


@given(st.lists(st.tuples(st.integers(4, 200), st.integers(0, 255)), max_size=12), st.integers(0, 400))
def test_changed_headers_raise_nothing_but_invalid(changes: list[tuple[int, int]], kept: int) -> None:
    content = bytearray(qcow2(extensions=(NAMES,)))
    for offset, value in changes:
        content[offset] = value
    _judged(bytes(content), "qcow2")
    _judged(bytes(content[:kept]), "qcow2", len(content))


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="qemu-img is not installed")
def test_what_qemu_img_makes_is_judged_rightly(tmp_path: Path) -> None:
    def make(name: str, *options: str) -> Path:
        path = tmp_path / name
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *options, path, "1G"], check=True, cwd=tmp_path)
        return path

    (tmp_path / "secret").write_bytes(bytes(512))
    for options in ((), ("-o", "compat=0.10"), ("-o", "compression_type=zstd"), ("-o", "extended_l2=on")):
        assert inspect(make("good.qcow2", *options), "qcow2") == ImageHeader("qcow2", GIB)
    for words, options in {
        "backing file": ("-b", "secret", "-F", "raw"),
        "external data file": ("-o", "data_file=data.bin"),
        "encrypted": ("--object", "secret,id=s,data=x", "-o", "encrypt.format=aes,encrypt.key-secret=s"),
    }.items():
        with pytest.raises(Invalid, match=words):
            inspect(make("bad.qcow2", *options), "qcow2")
    held = make("held.qcow2")
    subprocess.run(["qemu-img", "snapshot", "-c", "old", held], check=True)
    with pytest.raises(Invalid, match="internal snapshot"):
        inspect(held, "qcow2")
