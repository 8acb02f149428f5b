"""From a description (hosts/*.json, or one made here) to a host that has booted.

A description has `machine` (fields of host.Machine), `models` by key (catalogue.model reads them), `cards` (a model
at addresses, each below a list of upstream ports, root first), `others` (functions that are no cards), `switches`
(NVSwitches), `boot_binding` (driver by address that modprobe's configuration wants) and `after`: steps since boot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.gpuhost import catalogue
from tests.gpuhost.card import Card
from tests.gpuhost.catalogue import Model
from tests.gpuhost.fabric import Fabric
from tests.gpuhost.host import Host, Machine
from tests.gpuhost.pci import Function

HOSTS = Path(__file__).parent / "hosts"
Description = Mapping[str, Any]


def named(name: str) -> Description:
    """The description of that name."""
    told: Description = json.loads((HOSTS / f"{name}.json").read_text())
    return told


def many(name: str, cards: int) -> Description:
    """The named host with that many cards of its first kind, each below its own root port: for benches."""
    told = dict(named(name))
    first = dict(told["cards"][0])
    first["at"] = [f"0000:{0x10 + n * 0x10:02x}:00.0" for n in range(cards)]
    first["below"] = [[f"0000:{0x0F + n * 0x10:02x}:01.0"] for n in range(cards)]
    first["numa"] = [n * 2 // cards for n in range(cards)]
    told["cards"], told["after"] = [first], []
    return told


def build(told: Description) -> Host:
    """A host that has just booted, then taken the steps that its description asks for."""
    models = {key: catalogue.model(value) for key, value in told["models"].items()}
    machine = dict(told.get("machine", {}))
    machine["modules"] = tuple(machine.get("modules", ()))
    host = Host(Machine(**machine))
    assembly = _Assembly(host)
    for other in told.get("others", ()):
        assembly.other(other)
    for cards in told["cards"]:
        for position, address in enumerate(cards["at"]):
            assembly.card(models[cards["model"]], address, position, cards)
    switches = [assembly.switch(address) for address in told.get("switches", ())]
    for driver in ("vfio-pci", "pci-pf-stub", "pcieport"):
        host.bus.load(driver)
    for function in host.bus.functions.values():
        if function.natural and (function.natural != "nvidia" or host.machine.driver):
            host.bus.load(function.natural)
    host.bus.at_boot.update(told.get("boot_binding", {}))
    if switches:
        host.fabric = Fabric([each.card for each in host.bus.endpoints() if each.card])
    host.boot()
    for step in told.get("after", ()):
        take(host, step)
    return host


def take(host: Host, step: Mapping[str, Any]) -> None:
    """One step of a history: vfs, mig, instance, type, mdev, vm."""
    match step:
        case {"vfs": address}:
            enable_vfs(host, address)
        case {"mig": address}:
            host.set_mig(host.card(address), True)
        case {"instance": name, "on": address, "at": start}:
            card = host.card(address)
            card.create_instance(next(each for each in card.model.profiles if each.name == name), start)
        case {"mdev": uuid, "type": name, "on": address}:
            host.create_mdev(address, _type(host, address, name), uuid)
        case {"type": name, "on": address}:
            host.set_type(address, str(_type(host, address, name)))
        case {"vm": uuid, "uses": devices}:
            host.start_vm(uuid, devices)
        case _:
            raise ValueError(f"no such step: {step}")


def enable_vfs(host: Host, address: str) -> None:
    """What sriov-manage -e does, without its shell: all VFs on, by way of pci-pf-stub."""
    function = host.bus.get(address)
    host.unbind("nvidia", address)
    host.bus.new_id("pci-pf-stub", f"{function.vendor} {function.device}", known=True)
    host.bus.set_vfs(address, function.total_vfs)
    host.bus.unbind("pci-pf-stub", address)
    host.bus.new_id("pci-pf-stub", f"{function.vendor} {function.device}", known=False)
    host.bus.bind("nvidia", address)


def _type(host: Host, address: str, name: str) -> int:
    return next(each.id for each in host.card(address).model.types if each.name == name)


class _Assembly:
    """Puts functions on a host's bus; groups are numbered as they come, as kernels do."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._groups = 0
        self._cards = 0

    def other(self, told: Mapping[str, Any]) -> Function:
        """A function that is no card: a disk controller, a console VGA, a NIC."""
        vendor, device = told["ids"].split(":")
        return self._add(
            Function(
                told["at"],
                vendor,
                device,
                told["class"],
                natural=told.get("driver"),
                group=told.get("group"),
                numa=told.get("numa", 0),
                above=self._ports(told.get("below", ())),
                boot_vga=told.get("boot_vga"),
                bars_mib=(16,),
            )
        )

    def card(self, model: Model, address: str, position: int, told: Mapping[str, Any]) -> None:
        module = told.get("modules", [0] * len(told["at"]))[position]
        card = Card(model, address, self._cards, module, self._host.machine.hostname)
        self._cards += 1
        numa = told.get("numa", 0)
        function = self._add(
            Function(
                address,
                model.vendor,
                model.device,
                model.class_code,
                model.subvendor,
                model.subdevice,
                natural=told.get("driver", "nvidia" if model.vendor == "10de" else None),
                group=told.get("groups", [None] * len(told["at"]))[position],
                numa=numa[position] if isinstance(numa, list) else numa,
                above=self._ports(told["below"][position]),
                bars_mib=model.bars_mib,
                reset_methods=model.reset_methods,
                boot_vga=False if model.class_code.startswith("0300") else None,
                total_vfs=model.total_vfs,
                card=card,
                unassigned_bar=told.get("unassigned_bar", False),
            )
        )
        for number, companion in enumerate(model.companions, 1):
            ids, kind, driver = companion.split()
            vendor, device = ids.split(":")
            self._add(
                Function(
                    f"{address[:-1]}{number}",
                    vendor,
                    device,
                    kind,
                    natural=driver,
                    group=function.group,
                    numa=function.numa,
                    above=function.above,
                    bars_mib=(1,),
                )
            )

    def switch(self, address: str) -> Function:
        """An NVSwitch."""
        return self._add(Function(address, "10de", "22a3", "068000", natural="nvidia-nvswitch", bars_mib=(32,)))

    def _ports(self, addresses: tuple[str, ...] | list[str]) -> tuple[str, ...]:
        for position, address in enumerate(addresses):
            if address not in self._host.bus.functions:
                above = tuple(addresses[:position])
                self._add(Function(address, "8086", "352a", "060400", natural="pcieport", above=above))
        return tuple(addresses)

    def _add(self, function: Function) -> Function:
        if function.group is None and self._host.machine.iommu:
            function.group = self._groups
        self._groups = max(self._groups, function.group if function.group is not None else -1) + 1
        self._host.bus.add(function)
        return function
