"""NVSwitch boards: a card alone is given out with its partition on, and nothing that is no partition is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gpuhost.machine import Machine
from tests.gpuhost.machine import OpenMachine as Open
from vmgpu.errors import HostRefused
from vmgpu.hypervisor import GpuFacts, GpuRef, Pci, SliceRef
from vmgpu.hypervisor.carvers import carver_for
from vmgpu.hypervisor.fabric import Seat, partition_of

A, B, C, D = (f"0000:{bus}:00.0" for bus in ("0f", "10", "41", "44"))


def board(*sets: tuple[str, ...], **more: Any) -> dict[str, Any]:
    """A fabric with these partitions, numbered from 0; its module numbers are the places in A, B, C, D."""
    cards = (A, B, C, D)
    told = [
        {
            "id": number,
            "active": False,
            "gpus": [{"physical_id": cards.index(each) + 1, "uuid": f"GPU-{each}", "address": each} for each in one],
        }
        for number, one in enumerate(sets)
    ]
    return {"switches": ["0000:07:00.0"], "manager": "running", "mode": 1, "partitions": told} | more


FOUR = board((A, B, C, D), (A, B), (C, D), (A,), (B,), (C,))


def seats(*addresses: str) -> tuple[Seat, ...]:
    return tuple(Seat(each) for each in addresses)


@pytest.mark.parametrize(("cards", "number"), [((A,), 3), ((C,), 5), ((B, A), 1), ((A, B, C, D), 0)])
def test_a_set_that_is_a_partition_is_that_partition(cards: tuple[str, ...], number: int) -> None:
    assert partition_of(FOUR, seats(*cards)) == number


@pytest.mark.parametrize("cards", [(B, C), (A, B, C), (D,)])
def test_a_set_that_is_none_is_refused_with_those_that_are(cards: tuple[str, ...]) -> None:
    said = partition_of(FOUR, seats(*cards))
    assert isinstance(said, str) and "no partition of exactly" in said
    assert f"1: {A}, {B}" in said and f"5: {C}" in said


def test_a_card_that_lost_its_names_is_known_by_its_module() -> None:
    """Bound to vfio-pci the host cannot ask it any more, and the manager may forget where it is."""
    fabric = board((A, B), (A,), (B,))
    for partition in fabric["partitions"]:
        for gpu in partition["gpus"]:
            gpu["address"] = gpu["uuid"] = None
    assert partition_of(fabric, (Seat(B, module_id=2),)) == 2


def test_without_a_fabric_there_is_no_step() -> None:
    assert partition_of(None, seats(A)) is None
    assert partition_of({"switches": [], "partitions": None}, seats(A)) is None
    assert partition_of(FOUR, seats("0000:99:00.0")) is None  # a board in a slot beside them


def test_a_fabric_whose_manager_gives_no_partitions_is_said() -> None:
    said = partition_of(board(manager="stopped", mode=0, partitions=None), seats(A))
    assert isinstance(said, str) and "FABRIC_MODE=1" in said and "stopped" in said


class Libvirt:
    """Node devices of a fake host: what libvirt does to their drivers, in the host's own files."""

    def __init__(self, host: Machine) -> None:
        self.root, self.did = host.fake.root, list[str]()

    @contextmanager
    def use(self) -> Iterator[Libvirt]:
        yield self

    def nodeDeviceLookupByName(self, name: str) -> NodeDevice:
        domain, bus, slot, function = name.removeprefix("pci_").split("_")
        return NodeDevice(self, f"{domain}:{bus}:{slot}.{function}")


class NodeDevice:
    def __init__(self, libvirt: Libvirt, address: str) -> None:
        self._libvirt, self._folder = libvirt, libvirt.root / "sys/bus/pci/devices" / address
        self._address = address

    def XMLDesc(self, flags: int) -> str:
        driver = self._folder / "driver"
        name = Path(driver.readlink()).name if driver.is_symlink() else ""
        return f"<device><driver><name>{name}</name></driver></device>"

    def detachFlags(self, driver: str | None) -> None:
        self._libvirt.did.append("detach")
        self._bind("vfio-pci")

    def reAttach(self) -> None:
        self._libvirt.did.append("reattach")
        self._bind("")

    def reset(self) -> None:
        self._libvirt.did.append("reset")

    def _bind(self, driver: str) -> None:
        (self._folder / "driver_override").write_text(driver or "\n")
        if (self._folder / "driver").is_symlink():
            (self._folder / "driver/unbind").write_text(self._address)
        (self._libvirt.root / "sys/bus/pci/drivers_probe").write_text(self._address)


def whole(card: GpuFacts) -> SliceRef:
    gpu = GpuRef("g", "passthrough", card.model, card.address, card.companions, partition=card.partition)
    return SliceRef("s", "v", gpu, "whole", 0, 1, 1, 0)


@pytest.fixture
def hgx(machine: Open) -> Machine:
    return machine("h200")


def test_a_card_alone_is_given_with_its_partition_on_and_taken_back_with_it_off(hgx: Machine) -> None:
    card = next(each for each in hgx.cards() if "passthrough" in each.modes)
    libvirt = Libvirt(hgx)
    carver = carver_for("passthrough", None, ask=hgx.ctl.call, use=libvirt.use)
    assert isinstance(card.partition, int)
    for _ in range(2):
        devices = carver.carve(whole(card)).devices
        assert devices[0] == Pci(card.address or "", managed=True)
        assert hgx.model.state()["partitions"] == [card.partition]
    (found,) = [each for each in hgx.cards() if each.address == card.address]
    assert (found.driver, found.partition) == ("vfio-pci", card.partition)
    carver.release(whole(card))
    assert hgx.model.state()["partitions"] == []
    carver.release(whole(card))
    assert [each.driver for each in hgx.cards() if each.address == card.address] == ["nvidia"]
    assert libvirt.did == ["detach", "detach", "reset", "reattach"]


def test_a_card_in_anothers_active_partition_is_refused(hgx: Machine) -> None:
    hgx.ctl.call("partition", {"action": "activate", "id": 0})  # all eight
    card = next(each for each in hgx.cards() if "passthrough" in each.modes)
    carver = carver_for("passthrough", None, ask=hgx.ctl.call, use=Libvirt(hgx).use)
    with pytest.raises(HostRefused, match="was not activated") as refused:
        carver.carve(whole(card))
    assert "share a GPU" in refused.value.hint
    assert hgx.model.state()["partitions"] == [0]
