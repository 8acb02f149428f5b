"""What an image file says of itself, read from its header alone, before any program of QEMU's opens it.

A file that somebody hands us may name other files of the host as its content: what passes here names none. QEMU must
still be told the format each time, or it would look for one in what a guest wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vmgpu.errors import Invalid

Format = Literal["raw", "qcow2"]

HEAD_BYTES = 65536  # as much of a file's beginning as `inspect` wants to see
MOST_BYTES = 64 * 2**40

_MAGIC = b"QFI\xfb"
_V2 = struct.Struct(">4sIQIIQIIQQIIQ")  # 72 bytes
_V3 = struct.Struct(">QQQII")  # 32 more
_DIRTY, _CORRUPT, _DATA_FILE, _COMPRESSION, _EXTENDED_L2 = (1 << bit for bit in range(5))
_KNOWN = _DIRTY | _CORRUPT | _DATA_FILE | _COMPRESSION | _EXTENDED_L2
_EXTENSION_END, _EXTENSION_DATA_FILE, _EXTENSION_LUKS = 0, 0x44415441, 0x0537BE77
_ZSTD = 1

# offset, bytes, name: what people hand over for a raw disk, or what QEMU would take it for
_OTHERS = (
    (0, _MAGIC, "qcow2"),
    (0, b"QED\0", "QED"),
    (0, b"KDMV", "VMDK"),
    (0, b"COWD", "VMDK"),
    (0, b"# Disk DescriptorFile", "VMDK"),
    (64, b"\x7f\x10\xda\xbe", "VDI"),
    (0, b"vhdxfile", "VHDX"),
    (0, b"conectix", "VHD"),
    (0, b"WithoutFreeSpace", "Parallels"),
    (0, b"WithouFreSpacExt", "Parallels"),
    (0, b"Bochs Virtual HD Image", "Bochs"),
    (0, b"LUKS\xba\xbe", "LUKS (encrypted)"),
    (0, b"\x1f\x8b", "gzip"),
    (0, b"\xfd7zXZ\0", "xz"),
    (0, b"BZh", "bzip2"),
    (0, b"\x28\xb5\x2f\xfd", "zstd"),
    (0, b"PK\x03\x04", "zip"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z"),
    (257, b"ustar", "tar"),
    (32769, b"CD001", "ISO 9660"),
    (0, b"#!", "script"),
    (0, b"<!DOCTYPE", "HTML"),
    (0, b"<!doctype", "HTML"),
    (0, b"<html", "HTML"),
)


@dataclass(frozen=True)
class ImageHeader:
    """A file's format, and the size of the disk that a guest sees."""

    format: Format
    virtual_bytes: int


def inspect(source: bytes | Path, declared: Format, *, size: int | None = None) -> ImageHeader:
    """Read a file, or its first HEAD_BYTES with its whole `size`; Invalid says why it cannot be an image."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            head, size = file.read(HEAD_BYTES), source.stat().st_size
    else:
        head, size = source, len(source) if size is None else size
    if not head:
        raise _invalid("The file is empty", "Upload it again.")
    return _raw(head, size) if declared == "raw" else _qcow2(head, size)


def _raw(head: bytes, size: int) -> ImageHeader:
    for offset, magic, name in _OTHERS:
        if head[offset : offset + len(magic)] == magic:
            hint = "Give --format qcow2." if name == "qcow2" else "Convert or unpack it to raw or qcow2 first."
            raise _invalid(f"The file is declared raw, but its header says {name}", hint)
    return ImageHeader("raw", _plausible(size))


def _qcow2(head: bytes, size: int) -> ImageHeader:
    if head[:4] != _MAGIC:
        named = next((name for offset, magic, name in _OTHERS if head[offset : offset + len(magic)] == magic), "")
        raise _invalid(
            f"The file is declared qcow2, but its header says {named or 'nothing of the kind'}",
            "Give --format raw if it is a plain disk, else convert it.",
        )
    if len(head) < _V2.size:
        raise _truncated()
    (
        _, version, backing, backing_length, cluster_bits, virtual, encryption,
        l1_entries, l1_offset, refcounts_offset, refcounts_clusters, snapshots, _,
    ) = _V2.unpack_from(head)  # fmt: skip
    if version not in (2, 3):
        raise _invalid(f"qcow2 version {version} is unknown", "Convert it with a current qemu-img.")
    if not 9 <= cluster_bits <= 21:
        raise _invalid(f"The qcow2 header is wrong: clusters of 2^{cluster_bits} bytes", "Convert it again.")
    if backing or backing_length:
        raise _invalid(
            "The image stands on a backing file, which would be read from this machine",
            "Flatten it where its backing file is: qemu-img convert -O qcow2 IN OUT.",
        )
    if encryption:
        raise _invalid("The image is encrypted", "Convert it to a plain qcow2.")
    if snapshots:
        raise _invalid(
            f"The image holds {snapshots} internal snapshot(s), old states that nobody sees",
            "Flatten it: qemu-img convert -O qcow2 IN OUT.",
        )
    begin = _V2.size if version == 2 else _features(head, cluster_bits)
    for extension in _extensions(head, begin, 1 << cluster_bits):
        if extension == _EXTENSION_DATA_FILE:
            raise _data_file()
        if extension == _EXTENSION_LUKS:
            raise _invalid("The image is encrypted", "Convert it to a plain qcow2.")
    if max(l1_offset + 8 * l1_entries, refcounts_offset + (refcounts_clusters << cluster_bits)) > size:
        raise _truncated()
    return ImageHeader("qcow2", _plausible(virtual))


def _features(head: bytes, cluster_bits: int) -> int:
    """Check what version 3 adds; the answer is where the extensions begin."""
    if len(head) < _V2.size + _V3.size:
        raise _truncated()
    needed, _, _, refcount_order, length = _V3.unpack_from(head, _V2.size)
    if needed & _DATA_FILE:
        raise _data_file()
    if needed & _CORRUPT:
        raise _invalid("The image is marked corrupt", "Repair it where it comes from: qemu-img check -r all.")
    if unknown := needed & ~_KNOWN:
        bits = ", ".join(str(bit) for bit in range(64) if unknown >> bit & 1)
        raise _invalid(f"The image needs features that are unknown here (bit {bits})", "Convert it to a plain qcow2.")
    if refcount_order > 6 or length < _V2.size + _V3.size or length % 8 or length > 1 << cluster_bits:
        raise _invalid("The qcow2 header is wrong", "Convert it again.")
    if len(head) < length:
        raise _truncated()
    # The byte after the fixed part, in headers long enough; the bit and the byte must say the same.
    compression = head[104] if length > 104 else 0
    if compression != (_ZSTD if needed & _COMPRESSION else 0):
        raise _invalid(f"The image's compression (type {compression}) is unknown", "Convert it to a plain qcow2.")
    return int(length)


def _extensions(head: bytes, begin: int, end: int) -> Iterator[int]:
    """The types of all header extensions, which fill the first cluster up to an end mark."""
    while begin + 8 <= end:
        if begin + 8 > len(head):
            raise _truncated()
        kind, length = struct.unpack_from(">II", head, begin)
        if kind == _EXTENSION_END:
            return
        yield kind
        begin += 8 + (length + 7) // 8 * 8


def _plausible(size: int) -> int:
    if size == 0 or size % 512:
        raise _invalid(f"A disk of {size} bytes is none: sectors have 512", "Was the file cut off?")
    if size > MOST_BYTES:
        raise _invalid(f"A disk of {size // 2**40} TiB is more than 64 TiB", "Shrink it first.")
    return size


def _truncated() -> Invalid:
    return _invalid("The file ends too early for a qcow2", "It was cut off on its way: upload it again.")


def _data_file() -> Invalid:
    return _invalid(
        "The image keeps its content in an external data file, which would be read from this machine",
        "Flatten it where that file is: qemu-img convert -O qcow2 IN OUT.",
    )


def _invalid(message: str, hint: str) -> Invalid:
    return Invalid(message, hint=hint, where="file")
