"""Virtual functions on and off, by NVIDIA's program or by the kernel's count."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from vmgpu.hypervisor.hostctl import vfs
from vmgpu.hypervisor.hostctl.files import Files
from vmgpu.hypervisor.hostctl.patterns import Arguments
from vmgpu.hypervisor.hostctl.programs import SRIOV_MANAGE
from vmgpu.hypervisor.hostctl.refusal import Refusal

from .tree import DEVICES, Driver, Tree, hour

PF = "0000:41:00.0"
MANAGE = f"""
echo "$@" >> "$root/asked"
if [ -e "$root/locked" ]; then
  left=$(cat "$root/locked"); [ "$left" -gt 1 ] && echo $((left - 1)) > "$root/locked" || rm "$root/locked"
  echo "Cannot obtain unbindLock for $2"; exit 1
fi
folder="$root/{DEVICES}/$2"
case $1 in
  -e) ln -s ../0000:41:00.4 "$folder/virtfn0"; ln -s ../0000:41:01.0 "$folder/virtfn10"
      ln -s ../0000:41:00.5 "$folder/virtfn1";;
  -d) rm "$folder"/virtfn*;;
esac
"""


@pytest.fixture
def card(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    tree.card(PF, vfs_most=16)
    tree.program(SRIOV_MANAGE, MANAGE)
    monkeypatch.setattr(vfs, "_PAUSE", 0.0)
    return tree


def ask(files: Files, *, on: bool, address: str = PF, **more: Any) -> list[str]:
    found = vfs.run(files, Arguments({"address": address, "on": on, **more}), hour())["vfs"]
    assert isinstance(found, list)
    return found


def refused(files: Files, code: str, *, on: bool, address: str = PF, **more: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(files, on=on, address=address, **more)
    assert caught.value.code == code, caught.value.message
    return caught.value


def test_on_and_off(card: Tree) -> None:
    assert ask(card.files, on=True) == ["0000:41:00.4", "0000:41:00.5", "0000:41:01.0"]  # the card's own order
    assert ask(card.files, on=False) == []
    assert card.read("asked") == f"-e {PF}\n-d {PF}\n"


def test_what_is_on_is_left_alone(card: Tree) -> None:
    """Turning them on again would take the card's GPU instances away."""
    ask(card.files, on=True)
    ask(card.files, on=True)
    assert card.read("asked") == f"-e {PF}\n"


def test_a_lock_that_is_taken_for_a_moment(card: Tree) -> None:
    card.write("locked", "3")
    assert len(ask(card.files, on=True)) == 3
    assert card.read("asked").count("-e") == 4


def test_a_lock_that_stays_taken(card: Tree) -> None:
    card.write("locked", "9")
    no = refused(card.files, "in_use", on=True)
    assert "unbindLock" in no.message and card.read("asked").count("-e") == 5


def test_the_program_fails_or_lies(card: Tree) -> None:
    card.program(SRIOV_MANAGE, "echo 'no such\ndevice'; exit 3")
    assert "no such device" in refused(card.files, "refused", on=True).message
    card.program(SRIOV_MANAGE, "exit 0")
    refused(card.files, "failed", on=True)
    (card.root / SRIOV_MANAGE).chmod(0o644)
    refused(card.files, "failed", on=True)
    (card.root / SRIOV_MANAGE).unlink()
    assert "vGPU host driver" in refused(card.files, "not_supported", on=True).hint


def test_a_guest_or_a_type_keeps_them_on(card: Tree) -> None:
    card.vf(PF, 0, current="1150")
    assert "1150" in refused(card.files, "busy", on=False).message
    group = (card.root / DEVICES / "0000:41:00.4" / "iommu_group").readlink().name
    card.process(77, "qemu", f"/dev/vfio/{group}")
    refused(card.files, "in_use", on=False)
    assert not (card.root / "asked").exists()


def test_cards_that_have_none(card: Tree) -> None:
    card.card("0000:42:00.0", group=41)
    refused(card.files, "not_supported", on=True, address="0000:42:00.0")
    refused(card.files, "not_found", on=True, address="0000:43:00.0")
    refused(card.files, "bad_argument", on=True, count=4)  # NVIDIA's program knows no count
    refused(card.files, "bad_argument", on=True, address=f"{PF} -d ALL")


class Kernel(Driver):
    """A kernel whose count makes and removes virtual functions."""

    def __init__(self, tree: Tree, folder: str) -> None:
        super().__init__(tree.root, self.changed)
        self.tree, self.folder = tree, folder

    def changed(self, path: str, text: str) -> None:
        assert path == f"{self.folder}/sriov_numvfs"
        if text == "0":
            for each in (self.root / self.folder).glob("virtfn*"):
                each.unlink()
        for number in range(int(text)):
            self.tree.link(f"{self.folder}/virtfn{number}", f"../0000:43:02.{number}")


def test_a_count_for_other_makers(card: Tree) -> None:
    folder = card.function("0000:43:00.0", ids="1002:74a1", code="1200", sriov_totalvfs="8", sriov_numvfs="0")
    kernel = Kernel(card, folder)
    assert len(ask(kernel, on=True, address="0000:43:00.0", count=2)) == 2
    assert len(ask(kernel, on=True, address="0000:43:00.0", count=2)) == 2
    assert "off before" in refused(kernel, "busy", on=True, address="0000:43:00.0", count=4).hint
    assert ask(kernel, on=False, address="0000:43:00.0") == []
    assert len(ask(kernel, on=True, address="0000:43:00.0")) == 8
    refused(kernel, "bad_argument", on=True, address="0000:43:00.0", count=9)
    assert [text for _, text in kernel.written] == ["2", "0", "8"]


def test_a_kernel_that_refuses(card: Tree) -> None:
    card.function("0000:43:00.0", ids="8086:56c0", code="0380", sriov_totalvfs="8", sriov_numvfs="0")

    def no(path: str, text: str) -> None:
        raise OSError(errno.ENOMEM, "no")

    assert refused(Driver(card.root, no), "refused", on=True, address="0000:43:00.0").number == errno.ENOMEM
