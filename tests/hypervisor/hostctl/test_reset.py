"""A reset, and whether the card answers after it."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from vmgpu.hypervisor.hostctl import reset
from vmgpu.hypervisor.hostctl.files import Files
from vmgpu.hypervisor.hostctl.patterns import Arguments
from vmgpu.hypervisor.hostctl.refusal import Refusal

from .tree import DEVICES, EIO, Driver, Tree, hour

PF = "0000:41:00.0"


@pytest.fixture
def card(tree: Tree) -> Tree:
    tree.card(PF, driver="vfio-pci")
    return tree


def ask(files: Files, address: str = PF) -> dict[str, Any]:
    return reset.run(files, Arguments({"address": address}), hour())


def refused(files: Files, code: str, address: str = PF) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(files, address)
    assert caught.value.code == code, caught.value.message
    return caught.value


def test_a_card_that_answers(card: Tree) -> None:
    files = Driver(card.root, lambda path, text: None)
    assert ask(files) == {"method": "flr", "ok": True}
    assert files.written == [(f"{DEVICES}/{PF}/reset", "1")]
    (card.root / DEVICES / PF / "reset_method").unlink()
    assert ask(files)["method"] is None


def test_a_card_that_does_not(card: Tree) -> None:
    def dies(path: str, text: str) -> None:
        card.write(f"{DEVICES}/{PF}/config", b"\xff" * 64)

    assert "Power-cycle" in refused(Driver(card.root, dies), "dead").hint
    card.link(f"{DEVICES}/{PF}/config", EIO)
    refused(card.files, "failed")


def test_the_ids_of_a_virtual_function_are_ones_by_design(card: Tree) -> None:
    address = card.vf(PF, 0)
    card.write(f"{DEVICES}/{address}/reset", "")
    card.write(f"{DEVICES}/{address}/config", b"\xff\xff\xff\xff\x06\x00\x10\x00" + bytes(56))
    assert ask(card.files, address)["ok"]
    card.write(f"{DEVICES}/{address}/config", b"\xff" * 64)
    refused(card.files, "dead", address)


def test_what_is_used_is_not_reset(card: Tree) -> None:
    card.process(77, "qemu", "/dev/vfio/40")
    assert "process 77" in refused(card.files, "in_use").message
    card.card("0000:42:00.0", group=41, driver="nouveau")
    assert "driven by nouveau" in refused(card.files, "in_use", "0000:42:00.0").message


def test_a_card_of_nvidias_driver_is_reset_by_it_alone(tree: Tree) -> None:
    tree.card(PF, driver="nvidia")
    assert "nvidia-smi is missing" in refused(tree.files, "not_supported").message


def test_the_kernels_no(card: Tree) -> None:
    def no(path: str, text: str) -> None:
        raise OSError(errno.ENOTTY, "no")

    assert refused(Driver(card.root, no), "refused").number == errno.ENOTTY
    (card.root / DEVICES / PF / "reset").unlink()
    refused(card.files, "not_supported")
    refused(card.files, "not_found", "0000:43:00.0")
    refused(card.files, "bad_argument", "0000:41:00.0\n")
