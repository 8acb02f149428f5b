"""/sys as the host's kernel shows it: devices by place, and the buses, drivers and groups that point at them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from functools import partial

from tests.gpuhost.card import Card, Vgpu
from tests.gpuhost.catalogue import VgpuType
from tests.gpuhost.host import Host
from tests.gpuhost.nodes import File, Folder, Link, Node, folder, told
from tests.gpuhost.pci import Function, config_space, resource
from tests.gpuhost.refusal import Refused


class Sysfs:
    """The PCI part of /sys of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._bus = host.bus

    def devices(self) -> Mapping[str, Node]:
        """/sys/devices/pciDDDD:BB."""
        roots = {self._bus.path(each).partition("/")[0] for each in self._bus.below(None)}
        return {root: Folder(partial(self._root, root)) for root in roots}

    def pci_devices(self) -> Folder:
        """/sys/bus/pci/devices."""

        def one(address: str) -> Node | None:
            function = self._bus.functions.get(address)
            return self._to(function, "../../..") if function else None

        return Folder(lambda: {each: self._to(it, "../../..") for each, it in self._bus.functions.items()}, one)

    def drivers(self) -> Mapping[str, Node]:
        """/sys/bus/pci/drivers."""
        return {name: Folder(partial(self._driver, name)) for name in self._bus.drivers}

    def groups(self) -> Mapping[str, Node]:
        """/sys/kernel/iommu_groups, those of mdevs with them."""
        return {str(number): folder(self._group(number)) for number in self._all_groups()}

    def mdevs(self) -> Mapping[str, Node]:
        """/sys/bus/mdev/devices."""
        return {uuid: Link(f"../../../devices/{self._mdev_path(each)}") for uuid, each in self._host.mdevs().items()}

    def mdev_parents(self) -> Mapping[str, Node]:
        """/sys/class/mdev_bus."""
        return {
            each.address: self._to(each, "../..")
            for each in list(self._bus.functions.values())
            if self._has_types(each)
        }

    def _root(self, root: str) -> Mapping[str, Node]:
        return {
            each.address: Folder(partial(self.function, each))
            for each in self._bus.below(None)
            if self._bus.path(each).startswith(f"{root}/")
        }

    def function(self, function: Function) -> Mapping[str, Node]:
        """The folder of one function, with those below it when it is a port."""
        up = "../" * (2 + len(function.above))
        entries: dict[str, Node] = {
            "vendor": told(f"0x{function.vendor}"),
            "device": told(f"0x{function.device}"),
            "subsystem_vendor": told(f"0x{function.subvendor}"),
            "subsystem_device": told(f"0x{function.subdevice}"),
            "class": told(f"0x{function.class_code}"),
            "modalias": told(_modalias(function)),
            "revision": told("0xa1"),
            "numa_node": told(function.numa),
            "local_cpulist": told(cpus(self._host, function.numa)),
            "config": File(lambda: config_space(function)),
            "resource": File(lambda: resource(function)),
            "power_state": told("unknown" if function.dead else "D3hot" if function.driver == "vfio-pci" else "D0"),
            # a dead device's link register reads ones: 63 lanes of a speed nobody knows
            "current_link_width": told(63 if function.dead else function.width),
            "current_link_speed": told("Unknown" if function.dead else function.speed),
            "max_link_width": told(function.width),
            "max_link_speed": told(function.speed),
            "enable": told(int(function.driver is not None)),
            "driver_override": File(lambda: f"{function.override or '(null)'}\n", partial(self._override, function)),
            "subsystem": Link(f"{up}../bus/pci"),
            "power": folder({"runtime_status": told("active"), "control": told("on")}),
        }
        for below in self._bus.below(function.address):
            entries[below.address] = Folder(partial(self.function, below))
        if function.driver:
            entries["driver"] = Link(f"{up}../bus/pci/drivers/{function.driver}")
        if function.group is not None:
            entries["iommu_group"] = Link(f"{up}../kernel/iommu_groups/{function.group}")
        if function.boot_vga is not None:
            entries["boot_vga"] = told(int(function.boot_vga))
        if function.reset_methods:
            entries["reset"] = File(None, partial(self._reset, function))
            entries["reset_method"] = told(" ".join(function.reset_methods))
        if function.driver == "amdgpu" and function.card:
            entries["mem_info_vram_total"] = told(function.card.model.memory_mib << 20)
        entries |= self._virtual(function)
        entries |= self._vgpu_files(function)
        return entries

    def _virtual(self, function: Function) -> Mapping[str, Node]:
        entries: dict[str, Node] = {f"virtfn{n}": Link(f"../{vf}") for n, vf in enumerate(function.vfs)}
        if function.total_vfs:
            entries["sriov_totalvfs"] = told(function.total_vfs)
            entries["sriov_numvfs"] = File(lambda: f"{len(function.vfs)}\n", partial(self._set_vfs, function))
        if function.physfn:
            entries["physfn"] = Link(f"../{function.physfn}")
        return entries

    def _vgpu_files(self, function: Function) -> Mapping[str, Node]:
        """What vGPU drivers and vfio add."""
        entries: dict[str, Node] = {}
        card = function.card
        vendor = card is not None and card.model.vgpu == "vendor" and self._host.sits(function)
        if function.driver == "vfio-pci" or vendor:
            # libvirt tells a VFIO variant driver by this folder
            entries["vfio-dev"] = folder({f"vfio{function.group}": folder({"dev": told(f"511:{function.group}")})})
        if card and vendor:
            entries["nvidia"] = folder(self._vendor(function, card))
        if self._has_types(function):
            entries["mdev_supported_types"] = Folder(partial(self._types, function))
            entries |= {
                uuid: Folder(partial(self._mdev, each))
                for uuid, each in self._host.mdevs().items()
                if each.parent == function.address
            }
        return entries

    def _vendor(self, function: Function, card: Card) -> Mapping[str, Node]:
        """<VF>/nvidia of vendor-specific VFIO."""
        address = function.address

        def listed() -> str:
            now = self._host.creatable(function)
            types = [each for each in card.model.types if each.id in now]
            return "ID    : vGPU Name\n" + "".join(f"{each.id:<6}: {each.name}\n" for each in types)

        def current() -> str:
            held = card.at(address)
            return f"{held.type.id if held else 0}\n"

        def of_vgpu(value: Callable[[Vgpu], int | None]) -> str:
            held = card.at(address)
            number = value(held) if held else None
            if number is None:
                raise Refused("no vGPU here", number=errno.ENXIO)
            return f"{number}\n"

        return {
            "creatable_vgpu_types": File(listed),
            "current_vgpu_type": File(current, lambda text: self._host.set_type(address, text.strip())),
            "vgpu_params": File(partial(self._params, address), partial(self._host.set_params, address)),
            "gpu_instance_id": File(lambda: of_vgpu(lambda held: held.instance)),
            "placement_id": File(lambda: of_vgpu(lambda held: held.placement)),
        }

    def _has_types(self, function: Function) -> bool:
        return function.card is not None and function.card.model.vgpu == "mdev" and self._host.sits(function)

    def _types(self, function: Function) -> Mapping[str, Node]:
        if function.card is None:
            return {}
        return {f"nvidia-{each.id}": Folder(partial(self._type, function, each)) for each in function.card.model.types}

    def _type(self, function: Function, each: VgpuType) -> Mapping[str, Node]:
        def available() -> str:
            if each.id not in self._host.creatable(function) or function.card is None:
                return "0\n"
            return f"{1 if function.physfn else function.card.room(each)}\n"  # a VF carries one vGPU

        mine = [made for made in self._host.mdevs().values() if made.parent == function.address and made.type == each]
        return {
            "name": told(each.name),
            "description": told(each.description),
            "device_api": told("vfio-pci"),
            "available_instances": File(available),
            "create": File(None, lambda text: self._host.create_mdev(function.address, each.id, text.strip())),
            "devices": folder({made.seat: Link(f"../../../{made.seat}") for made in mine}),
        }

    def _mdev(self, vgpu: Vgpu) -> Mapping[str, Node]:
        up = "../" * (3 + len(self._bus.get(vgpu.parent).above))
        return {
            "mdev_type": Link(f"../mdev_supported_types/nvidia-{vgpu.type.id}"),
            "iommu_group": Link(f"{up}../kernel/iommu_groups/{vgpu.group}"),
            "subsystem": Link(f"{up}../bus/mdev"),
            "remove": File(None, partial(self._remove_mdev, vgpu)),
            "nvidia": folder(
                {"vgpu_params": File(partial(self._params, vgpu.seat), partial(self._host.set_params, vgpu.seat))}
            ),
        }

    def _driver(self, name: str) -> Mapping[str, Node]:
        bound = [self._bus.functions[each] for each in self._bus.drivers[name] if each in self._bus.functions]
        return {
            **{each.address: self._to(each, "../../../..") for each in bound},
            "bind": File(None, lambda text: self._bus.bind(name, text.strip())),
            "unbind": File(None, lambda text: self._host.unbind(name, text.strip())),
            "new_id": File(None, lambda text: self._bus.new_id(name, text.strip(), known=True)),
            "remove_id": File(None, lambda text: self._bus.new_id(name, text.strip(), known=False)),
            "module": Link(f"../../../../module/{name.replace('-', '_')}"),
        }

    def _group(self, number: int) -> Mapping[str, Node]:
        members: dict[str, Node] = {each.address: self._to(each, "../../../..") for each in self._bus.group(number)}
        for uuid, each in self._host.mdevs().items():
            if each.group == number:
                members[uuid] = Link(f"../../../../devices/{self._mdev_path(each)}")
        return {"devices": folder(members), "type": told("DMA-FQ")}

    def _all_groups(self) -> list[int]:
        return [*self._bus.groups(), *(each.group for each in self._host.mdevs().values() if each.group is not None)]

    def _to(self, function: Function, up: str) -> Link:
        return Link(f"{up}/devices/{self._bus.path(function)}")

    def _mdev_path(self, vgpu: Vgpu) -> str:
        return f"{self._bus.path(self._bus.get(vgpu.parent))}/{vgpu.seat}"

    def _params(self, seat: str) -> str:
        vgpu = self._host.vgpu(seat)
        return f"{vgpu.params if vgpu else ''}\n"

    def _override(self, function: Function, text: str) -> None:
        function.override = text.strip()

    def _reset(self, function: Function, text: str) -> None:
        if text.strip() != "1":
            raise Refused("write 1", number=errno.EINVAL)
        self._bus.reset(function.address)

    def _set_vfs(self, function: Function, text: str) -> None:
        if not text.strip().isdecimal():
            raise Refused("not a number", number=errno.EINVAL)
        self._bus.set_vfs(function.address, int(text))

    def _remove_mdev(self, vgpu: Vgpu, text: str) -> None:
        if text.strip() != "1":
            raise Refused("write 1", number=errno.EINVAL)
        self._host.card(vgpu.parent).remove_vgpu(vgpu.seat)


def _modalias(function: Function) -> str:
    """All ids in one line, as the kernel writes them for module loading."""
    code = function.class_code.removeprefix("0x").zfill(6).upper()
    ids = (function.vendor, function.device, function.subvendor, function.subdevice)
    vendor, device, subvendor, subdevice = (each.upper().zfill(4) for each in ids)
    names = f"v0000{vendor}d0000{device}sv0000{subvendor}sd0000{subdevice}"
    return f"pci:{names}bc{code[:2]}sc{code[2:4]}i{code[4:]}"


def cpus(host: Host, node: int) -> str:
    """The processors of a NUMA node; one node per socket."""
    each = host.machine.threads // host.machine.sockets
    if node < 0:
        return f"0-{host.machine.threads - 1}"
    return f"{node * each}-{node * each + each - 1}"
