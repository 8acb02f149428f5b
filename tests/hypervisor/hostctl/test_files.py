"""Reading what may be missing, half written or broken; writing what must be there already."""

from __future__ import annotations

import errno
import os

import pytest

from vmgpu.hypervisor.hostctl.files import Files, number_of
from vmgpu.hypervisor.hostctl.refusal import Refusal, of_kernel

from .tree import EIO, Tree


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("0x10de\n", 0x10DE),
        (" 0X1F ", 0x1F),
        ("-1", None),
        ("", None),
        (None, None),
        ("0x", None),
        ("5 6", None),
        ("1_000", None),
        ("٣", None),
        ("9" * 400, None),
        ("007", 7),
    ],
)
def test_numbers(text: str | None, number: int | None) -> None:
    assert number_of(text) == number


def test_what_is_missing_is_no_trouble(tree: Tree) -> None:
    files = tree.files
    assert files.text("sys/x") is None and files.names("sys/x") == () and files.link("sys/x") is None
    assert files.number("sys/x/y") is None and files.records("dev/kmsg") == ""
    assert files.troubles == []


def test_what_cannot_be_read_is_told(tree: Tree) -> None:
    tree.link("sys/broken", EIO)
    files = tree.files
    assert files.text("sys/broken") is None
    assert files.troubles == ["sys/broken cannot be read: Input/output error"]
    assert files.text("sys/broken", quiet=True) is None and len(files.troubles) == 1


def test_any_bytes_can_be_read(tree: Tree) -> None:
    tree.write("x", b"\xff\xfe A\0B\n")
    assert (tree.files.text("x") or "").endswith("AB")
    tree.write("y", b"z" * (2**20 + 5))
    assert len(tree.files.text("y") or "") == 2**20


def test_every_opening_is_counted(tree: Tree) -> None:
    tree.write("a", "1")
    tree.link("b", "a")
    files = tree.files
    files.text("a"), files.names("."), files.number("gone")
    files.link("b"), files.exists("a")
    assert files.opened == ["a", ".", "gone"]


def test_a_write_never_makes_a_file(tree: Tree) -> None:
    with pytest.raises(FileNotFoundError):
        tree.files.write("sys/new", "1")
    assert not (tree.root / "sys").exists()
    tree.write("old", "1150\n")
    tree.files.write("old", "0")
    assert tree.read("old") == "0"


def test_kernel_records_and_plain_lines(tree: Tree) -> None:
    tree.write("dev/kmsg", "6,1,2,-;one\n KEY=value\n")
    assert tree.files.records("dev/kmsg") == "6,1,2,-;one\n KEY=value\n"


def test_only_root_changes_the_machine(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    tree.files.may_write()
    with pytest.raises(Refusal) as caught:
        Files().may_write()
    assert caught.value.code == "not_root"


def test_the_kernels_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    busy = of_kernel(OSError(errno.EBUSY, ""), "Doing")
    assert (busy.code, busy.number, busy.message) == ("busy", errno.EBUSY, "Doing: Device or resource busy (EBUSY)")
    assert of_kernel(OSError(errno.EPERM, ""), "Doing").code == "refused"
    assert of_kernel(OSError(9999, ""), "Doing").code == "refused"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert of_kernel(OSError(errno.EACCES, ""), "Doing").code == "not_root"
