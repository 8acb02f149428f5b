"""The PCI bus: who is bound to which driver, virtual functions that come and go, resets."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

from tests.gpuhost.card import Card
from tests.gpuhost.pci import Function, neighbour
from tests.gpuhost.refusal import Refused

# Drivers whose sriov_numvfs the kernel accepts. NVIDIA's own is not among them: its VFs come through pci-pf-stub,
# which is what sriov-manage does.
_SRIOV = {"pci-pf-stub", "amdgpu", "gim", "i915", "xe", "mlx5_core", "igb", "ixgbe"}
_BY_ID_ONLY = {"vfio-pci", "pci-pf-stub"}  # take a function only when told to
_FIRST_VF = 4  # on NVIDIA boards the VFs begin at function 4 (A2: 08:00.4 to 08:02.3)


class Bus:
    """All functions by address. `in_use` says who keeps a card's driver from leaving."""

    def __init__(self, in_use: Callable[[Card], bool], log: Callable[[str], None]) -> None:
        self.functions: dict[str, Function] = {}
        self.drivers: dict[str, set[str]] = {}
        self.at_boot: dict[str, str] = {}  # driver by address that the boot configuration wants
        self._in_use = in_use
        self._log = log
        self._ids: dict[str, set[str]] = {}
        self._below: dict[str | None, list[Function]] | None = None  # made anew when functions come or go

    def add(self, function: Function) -> None:
        if function.address in self.functions:
            raise ValueError(f"two functions at {function.address}")
        self.functions[function.address] = function
        self._below = None

    def get(self, address: str) -> Function:
        if address not in self.functions:
            raise Refused(f"no device {address}", number=errno.ENODEV)
        return self.functions[address]

    def group(self, number: int) -> list[Function]:
        return [each for each in self.functions.values() if each.group == number]

    def groups(self) -> list[int]:
        return sorted({each.group for each in self.functions.values() if each.group is not None})

    def below(self, port: str | None) -> list[Function]:
        """Functions right below a port; without one, those of the root buses."""
        if self._below is None:
            self._below = {}
            for each in self.functions.values():
                self._below.setdefault(each.above[-1] if each.above else None, []).append(each)
        return self._below.get(port, [])

    def path(self, function: Function) -> str:
        """Its folder below /sys/devices."""
        chain = (*function.above, function.address)
        return "/".join((f"pci{chain[0].rpartition(':')[0]}", *chain))

    # drivers

    def load(self, driver: str) -> None:
        self.drivers.setdefault(driver, set())

    def bind(self, driver: str, address: str) -> None:
        """`drivers/<driver>/bind`: ENODEV where the driver does not want the function or another has it."""
        function = self.get(address)
        if function.driver or not self._matches(driver, function):
            raise Refused(f"{driver} does not take {address}", number=errno.ENODEV)
        self._attach(driver, function)

    def unbind(self, driver: str, address: str) -> None:
        function = self.functions.get(address)
        if function is None or function.driver != driver:
            raise Refused(f"{address} is not bound to {driver}", number=errno.ENODEV)
        self._detach(function)

    def probe(self, address: str) -> None:
        """`drivers_probe`: the overriding driver, else the one that claims it by id."""
        function = self.get(address)
        driver = function.override or function.natural
        if function.driver is None and driver in self.drivers and self._matches(driver, function):
            self._attach(driver, function)

    def new_id(self, driver: str, ids: str, *, known: bool) -> None:
        """`new_id` and `remove_id`: "10de 2330"; a new id is offered to unbound functions at once."""
        wanted = ":".join(ids.split()[:2]).lower()
        if not known:
            self._ids.get(driver, set()).discard(wanted)
            return
        self._ids.setdefault(driver, set()).add(wanted)
        for each in list(self.functions.values()):
            if each.driver is None and self._matches(driver, each):
                self._attach(driver, each)

    def take_lock(self, address: str) -> None:
        """`unbindLock`: stays 0 while anybody has the card open."""
        function = self.get(address)
        function.locked = function.card is not None and not self._in_use(function.card)

    # virtual functions

    def set_vfs(self, address: str, count: int) -> None:
        """`sriov_numvfs`, with the kernel's answers."""
        function = self.get(address)
        if function.driver not in _SRIOV:
            raise Refused("driver does not support SRIOV configuration via sysfs", number=errno.ENOENT)
        if count > function.total_vfs:
            raise Refused("more than sriov_totalvfs", number=errno.ERANGE)
        if count == len(function.vfs):
            return
        if count and function.vfs:
            raise Refused("disable the VFs first", number=errno.EBUSY)
        if count:
            self._make_vfs(function, count)
            return
        if function.card and any(each.vm for each in function.card.vgpus):
            raise Refused("a VM holds a VF", number=errno.EBUSY)
        self.drop_vfs(function)

    def drop_vfs(self, function: Function) -> None:
        for address in function.vfs:
            gone = self.functions.pop(address)
            if gone.driver:
                self.drivers[gone.driver].discard(address)
        if function.card:
            function.card.vgpus = [each for each in function.card.vgpus if each.parent not in function.vfs]
        function.vfs.clear()
        self._below = None

    # reset

    def reset(self, address: str) -> None:
        """`reset`: write 1; a card that reads ff does not come back."""
        function = self.get(address)
        if not function.reset_methods:
            raise Refused("no reset method", number=errno.ENOTTY)
        if function.dead:
            self._log(f"vfio-pci {address}: not ready 65535ms after FLR; giving up")
            raise Refused("not ready after FLR", number=errno.ENOTTY)
        if function.card and function.physfn is None:
            function.card.reset()

    def boot(self) -> None:
        """Forget what only lived in memory, then bind as the boot configuration says."""
        for function in [each for each in self.functions.values() if each.vfs]:
            self.drop_vfs(function)
        self._ids.clear()
        for function in self.functions.values():
            function.driver, function.locked = None, False
            function.override = self.at_boot.get(function.address, "")
        for bound in self.drivers.values():
            bound.clear()
        for function in self.functions.values():
            self.probe(function.address)

    def endpoints(self) -> list[Function]:
        """The cards' own functions, by address."""
        found = [each for each in self.functions.values() if each.card and each.physfn is None]
        return sorted(found, key=lambda each: each.address)

    def _matches(self, driver: str, function: Function) -> bool:
        if function.override:
            return function.override == driver
        if f"{function.vendor}:{function.device}" in self._ids.get(driver, set()):
            return True
        return driver not in _BY_ID_ONLY and function.natural == driver

    def _attach(self, driver: str, function: Function) -> None:
        if driver not in self.drivers:
            raise Refused(f"no driver {driver}", number=errno.ENODEV)
        function.driver = driver
        self.drivers[driver].add(function.address)

    def _detach(self, function: Function) -> None:
        card, driver = function.card, function.driver
        if driver is None:
            return
        if card and function.physfn is None and driver == "nvidia":
            card.lose_driver()
        if card and function.physfn and driver == "nvidia":
            for held in [each for each in card.vgpus if each.parent == function.address]:
                card.remove_vgpu(held.seat)
        function.driver, function.locked = None, False
        self.drivers[driver].discard(function.address)

    def _make_vfs(self, parent: Function, count: int) -> None:
        group = max((0, *self.groups())) + 1
        for number in range(count):
            vf = replace(
                parent,
                address=neighbour(parent.address, _FIRST_VF + number),
                group=None if parent.group is None else group + number,
                natural="nvidia" if parent.natural == "nvidia" else None,
                total_vfs=0,
                physfn=parent.address,
                reset_methods=("flr",),
                boot_vga=None,
                bars_mib=(1, max(1, max(parent.bars_mib) // parent.total_vfs), 32),
                driver=None,
                override="",
                locked=False,
                vfs=[],
                subdevice="0000",
            )
            self.add(vf)
            parent.vfs.append(vf.address)
            self.probe(vf.address)
