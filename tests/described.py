"""A described GPU host under the whole service: its survey and its carvers are the real ones, its guests are played."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import libvirt
from defusedxml import ElementTree

from tests.gpuhost import Refused
from tests.gpuhost.machine import Machine
from tests.gpuhost.nodedev import NodeDevices
from vmgpu.errors import HostRefused
from vmgpu.hypervisor import Carver, DomainSeen, HostFacts, HostRef, VMSpec, domain, inventory
from vmgpu.hypervisor.carvers import carver_for
from vmgpu.hypervisor.doctor import Check, LibvirtSeen, examine
from vmgpu.hypervisor.fake import FakeHost, parse
from vmgpu.hypervisor.fake.line import Line
from vmgpu.hypervisor.fake.state import open_state


class Bench:
    """One machine as hands see it: what libvirt was told, who runs on its cards. Shared by all who open the host."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.model = machine, machine.model
        self.libvirt = NodeDevices(machine.fake)
        self.xml: dict[str, str] = {}  # VM's id → the domain as it was defined last
        self.running: dict[str, list[str]] = {}  # VM's id → functions that libvirt took for it
        self.refuses: dict[str, str] = {}  # a function's address → the words with which libvirt refuses to take it

    def open(self, ref: HostRef, *, on_change: Callable[[str], None]) -> DescribedHost:
        """As the service's open_host does."""
        return DescribedHost(ref, self, Line(open_state(ref), on_change=on_change))

    def functions(self, vm_id: str) -> list[tuple[str, str]]:
        """The host's functions in the VM's domain, each with its `managed`."""
        found = []
        for each in ElementTree.fromstring(self.xml[vm_id]).findall("devices/hostdev[@type='pci']"):
            at = each.find("source/address")
            parts = (int(at.get(name, "0"), 16) for name in ("domain", "bus", "slot", "function"))
            found.append(("{:04x}:{:02x}:{:02x}.{:x}".format(*parts), each.get("managed", "")))
        return found

    def mdevs(self, vm_id: str) -> list[str]:
        """The mediated devices in the VM's domain."""
        addresses = ElementTree.fromstring(self.xml[vm_id]).findall("devices/hostdev[@type='mdev']/source/address")
        return [each.get("uuid", "") for each in addresses]

    def vgpus(self) -> list[dict[str, Any]]:
        """Every vGPU that the driver has now."""
        return [vgpu for card in self.model.state()["cards"].values() for vgpu in card["vgpus"]]

    def begin(self, vm_id: str) -> None:
        """QEMU starts as the domain says."""
        taken: list[str] = []
        try:
            for address, managed in self.functions(vm_id):
                if address in self.refuses:
                    raise libvirt.libvirtError(self.refuses[address])
                if managed == "yes":
                    self.libvirt.detach(address)
                    taken.append(address)
            self.model.start_vm(vm_id, [*(each for each, _ in self.functions(vm_id)), *self.mdevs(vm_id)])
        except (libvirt.libvirtError, Refused) as no:
            self._give_back(taken)
            raise HostRefused(str(no)) from no
        self.running[vm_id] = taken

    def settle(self, living: Sequence[str]) -> None:
        """QEMUs that are gone let go of their devices; libvirt gives back what it took."""
        for vm_id in [each for each in self.running if each not in living]:
            self.model.end_vm(vm_id)
            self._give_back(self.running.pop(vm_id))

    def _give_back(self, addresses: list[str]) -> None:
        for address in addresses:
            with suppress(libvirt.libvirtError):  # of a dead card nothing is asked any more
                self.libvirt.reattach(address)


class DescribedHost(FakeHost):
    """FakeHost with real cards: what its guests hold is opened on the machine as QEMU opens it."""

    def __init__(self, ref: HostRef, bench: Bench, line: Line) -> None:
        super().__init__(ref, parse(ref.uri), line)
        self._bench = bench

    def survey(self) -> HostFacts:
        self._settle()
        told = self._bench.machine.ctl.call("facts")
        functions = inventory.functions_of(told)
        ours = {each.id for each in self.domains() if each.installation == self.ref.installation}
        held = {f.address: f.holder.vm for f in functions.values() if f.holder and f.holder.vm in ours}
        return replace(super().survey(), gpus=inventory.cards(functions, told, ours=held))

    def checkup(self) -> tuple[Check, ...]:
        return examine(self._bench.machine.ctl.call("facts"), LibvirtSeen(remote=False))

    def carver(self, mode: str, framework: str | None = None) -> Carver:  # type: ignore[override]
        self._settle()
        self._line.greet()
        return carver_for(mode, framework, ask=self._bench.machine.ctl.call, use=self._bench.libvirt.use)

    def ensure_defined(self, spec: VMSpec) -> None:
        super().ensure_defined(spec)
        if spec.id not in self._running():
            self._bench.xml[spec.id] = domain.domain_xml(spec, folder="/vms")

    def ensure_running(self, vm_id: str) -> None:
        if vm_id not in self._running():
            self._settle()
            self._bench.begin(vm_id)
        super().ensure_running(vm_id)

    def look(self, vm_id: str) -> DomainSeen:
        self._settle()
        return super().look(vm_id)

    def power_off(self, vm_id: str) -> None:
        super().power_off(vm_id)
        self._settle()

    def erase(self, vm_id: str) -> None:
        super().erase(vm_id)
        self._settle()

    def _must_be_cut(self, db: Any, domain: Any) -> None:
        """The machine itself has said so: QEMU has opened them."""

    def _running(self) -> list[str]:
        with self._line.state.read() as db:
            found = db.execute("SELECT id FROM domains WHERE power IN ('running', 'paused')").fetchall()
        return [row["id"] for row in found]

    def _settle(self) -> None:
        self._bench.settle(self._running())


def description(cards: dict[str, Any], *, others: Sequence[dict[str, Any]] = (), **machine: Any) -> dict[str, Any]:
    """A host of one's own: `cards` has a model's fields and where it sits (`at`, `below`, `groups`, `driver`)."""
    seats = {key: cards.pop(key) for key in ("at", "below", "groups", "numa", "driver") if key in cards}
    told = {"machine": {"hostname": "made", **machine}, "models": {"m": cards}, "cards": [{"model": "m", **seats}]}
    return json.loads(json.dumps({**told, "others": list(others)}))
