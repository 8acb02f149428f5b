"""NVML's calls, answered from the model. nvml.c carries each over a socket as one line: name, arguments."""

from __future__ import annotations

from collections.abc import Callable

from tests.gpuhost.host import Host
from tests.gpuhost.nvml_handles import Values, device_handle, not_supported
from tests.gpuhost.nvml_mig import MigCalls
from tests.gpuhost.nvml_vgpu import VgpuCalls
from tests.gpuhost.refusal import Nvml, Refused

_CHANGES = ("set_", "create_", "destroy_")


def answer(host: Host, line: str) -> str:
    """The return code and the values, tab-separated."""
    name, *arguments = line.split("\t")
    with host.lock:
        try:
            if name != "init":
                _suffer(host, name)
            calls = Calls(host)
            call: Callable[..., Values] = getattr(calls, name)
            values = call(*(each if name == "by_bus_id" else int(each) for each in arguments))
        except Refused as refused:
            return str(int(refused.code))
        finally:
            host.version += name.startswith(_CHANGES)
        return "\t".join(str(each) for each in (0, *values))


def _suffer(host: Host, name: str) -> None:
    hang = host.moods.strikes("nvml_hang", name)
    while hang and host.moods.holds(hang):
        host.changed.wait()
    failing = host.moods.strikes("nvml_error", name)
    if failing:
        raise Refused("a bad day", code=Nvml(failing.code))


class Calls(MigCalls, VgpuCalls):
    """All of them; here those of nvml.c, about the system and its devices."""

    def init(self) -> Values:
        if "nvidia" not in self._host.bus.drivers:
            raise Refused("no driver", code=Nvml.DRIVER_NOT_LOADED)
        return ()

    def driver_version(self) -> Values:
        return (self._host.machine.driver,)

    def count(self) -> Values:
        return (len(self._host.visible),)

    def by_index(self, index: int) -> Values:
        visible = self._host.visible
        if index >= len(visible):
            raise Refused("no such index", code=Nvml.INVALID_ARGUMENT)
        return (device_handle(visible[index]),)

    def by_bus_id(self, text: str) -> Values:
        """NVML writes the domain in eight digits, sysfs in four; both are understood."""
        for card in self._host.visible:
            if text.lower() in (card.address, f"0000{card.address}"):
                return (device_handle(card),)
        raise Refused("no such GPU", code=Nvml.NOT_FOUND)

    def index(self, device: int) -> Values:
        return (self._host.visible.index(self._card(device)),)

    def minor(self, device: int) -> Values:
        return (self._card(device).number,)

    def name(self, device: int) -> Values:
        return (self._card(device).model.name,)

    def uuid(self, device: int) -> Values:
        return (self._card(device).uuid,)

    def serial(self, device: int) -> Values:
        return (self._card(device).serial,)

    def pci(self, device: int) -> Values:
        card = self._card(device)
        domain, bus, rest = card.address.split(":")
        model = card.model
        slot = int(rest.split(".")[0], 16)
        ids = int(model.device + model.vendor, 16), int(model.subdevice + model.subvendor, 16)
        return (int(domain, 16), int(bus, 16), slot, *ids)

    def memory(self, device: int) -> Values:
        card = self._card(device)
        total = card.model.memory_mib << 20
        used = min(total, sum(each.type.framebuffer_mib << 20 for each in card.vgpus if each.vm))
        return (total, total - used, used)

    def virtualization(self, device: int) -> Values:
        return (3 if self._card(device).model.vgpu else 0,)

    def host_vgpu_mode(self, device: int) -> Values:
        return (int(self._vgpu_card(device).model.total_vfs > 0),)

    def module(self, device: int) -> Values:
        return (self._card(device).module,)

    def ecc(self, device: int) -> Values:
        if self._card(device).model.architecture == "Maxwell":
            raise not_supported()
        return (1, 1)

    def display_active(self, device: int) -> Values:
        self._card(device)
        return (0,)

    def processes(self, device: int) -> Values:
        card = self._card(device)
        mine = [each.pid for each in self._host.processes.values() if each.card == card.address]
        return (len(mine), *mine)

    def fabric(self, device: int) -> Values:
        """State and status: not supported without NVSwitches, completed with them."""
        self._card(device)
        return (3 if self._host.fabric else 0, 0)
