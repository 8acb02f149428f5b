"""What libvirt does with node devices on a fake GPU host: mediated devices, and functions taken from their drivers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import libvirt
from defusedxml import ElementTree

from tests.gpuhost import FakeHost
from vmgpu.errors import HostRefused

_ACTIVE = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_ACTIVE
_INACTIVE = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_INACTIVE
_MDEVS = "sys/bus/mdev/devices"
_PARENTS = "sys/class/mdev_bus"
_PCI = "sys/bus/pci"


class NodeDevices:
    """The part of a connection that carvers use. What is defined outlives a reboot, as libvirt's files do."""

    def __init__(self, fake: FakeHost) -> None:
        self._fake, self._root = fake, fake.root
        self._defined: dict[str, tuple[str, str]] = {}  # uuid → parent's address, type

    @contextmanager
    def use(self) -> Iterator[NodeDevices]:
        """As a Link's: libvirt's errors leave as refusals."""
        try:
            yield self
        except libvirt.libvirtError as error:
            raise HostRefused(str(error)) from error

    def listAllDevices(self, flags: int) -> list[Any]:
        if flags & libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV_TYPES:
            return [Named(self, name) for name in self.names(_PARENTS)]
        known = [MdevDevice(self, uuid) for uuid in sorted({*self.names(_MDEVS), *self._defined})]
        if not flags & (_ACTIVE | _INACTIVE):
            return known
        # as libvirt filters: who asks for those that do not run gets no other
        return [each for each in known if flags & (_ACTIVE if each.isActive() else _INACTIVE)]

    def nodeDeviceLookupByName(self, name: str) -> Named:
        domain, bus, slot, function = name.removeprefix("pci_").split("_")
        return Named(self, f"{domain}:{bus}:{slot}.{function}")

    def nodeDeviceCreateXML(self, xml: str, flags: int) -> MdevDevice:
        uuid, parent, kind = _described(xml)
        self.start(uuid, parent, kind)
        return MdevDevice(self, uuid)

    def nodeDeviceDefineXML(self, xml: str, flags: int) -> MdevDevice:
        uuid, parent, kind = _described(xml)
        self._defined[uuid] = (parent, kind)
        return MdevDevice(self, uuid)

    def start(self, uuid: str, parent: str, kind: str) -> None:
        self.write(f"{_PARENTS}/{parent}/mdev_supported_types/{kind}/create", uuid)

    def defined(self, uuid: str) -> tuple[str, str] | None:
        return self._defined.get(uuid)

    def forget(self, uuid: str) -> None:
        del self._defined[uuid]

    def keep(self, uuid: str) -> None:
        self._fake.model.keep_mdev(uuid)

    def exists(self, uuid: str) -> bool:
        return uuid in self.names(_MDEVS)

    def names(self, folder: str) -> list[str]:
        with suppress(OSError):
            return sorted(each.name for each in (self._root / folder).iterdir())
        return []

    def write(self, path: str, text: str) -> None:
        """A file of the kernel's; what it answers becomes libvirt's error."""
        try:
            Path(self._root / path).write_text(text)
        except OSError as error:
            raise libvirt.libvirtError(f"unable to write '{text}' to '/{path}': {error.strerror}") from error

    def driver(self, address: str) -> str | None:
        """Who has a function now."""
        with suppress(OSError):
            return (self._root / _PCI / "devices" / address / "driver").readlink().name
        return None

    def detach(self, address: str) -> None:
        """Give a function to vfio-pci; a dead one is refused in libvirt's words."""
        folder = f"{_PCI}/devices/{address}"
        if (self._root / folder / "config").read_bytes()[:1] == b"\xff":
            raise libvirt.libvirtError(f"internal error: Unknown PCI header type '127' for device '{address}'")
        self._rebind(address, "vfio-pci")

    def reattach(self, address: str) -> None:
        """Give a function back to the driver that claims it by itself."""
        self._rebind(address, "")

    def _rebind(self, address: str, driver: str) -> None:
        self.write(f"{_PCI}/devices/{address}/driver_override", driver or "\n")
        if now := self.driver(address):
            self.write(f"{_PCI}/drivers/{now}/unbind", address)
        self.write(f"{_PCI}/drivers_probe", address)


class Named:
    """A node device of which only name and place matter."""

    def __init__(self, at: NodeDevices, address: str) -> None:
        self._at, self._address = at, address

    def name(self) -> str:
        return "pci_" + self._address.replace(":", "_").replace(".", "_")

    def XMLDesc(self, flags: int = 0) -> str:
        driver = self._at.driver(self._address)
        bound = f"<driver><name>{driver}</name></driver>" if driver else ""
        return f"<device><name>{self.name()}</name><path>/sys/devices/{self._address}</path>{bound}</device>"

    def detachFlags(self, driver: str | None, flags: int = 0) -> None:
        self._at.detach(self._address)

    def reAttach(self) -> None:
        self._at.reattach(self._address)


class MdevDevice:
    """A mediated device, defined or only started."""

    def __init__(self, at: NodeDevices, uuid: str) -> None:
        self._at, self._uuid = at, uuid

    def XMLDesc(self, flags: int = 0) -> str:
        return f"<device><capability type='mdev'><uuid>{self._uuid}</uuid></capability></device>"

    def isActive(self) -> bool:
        return self._at.exists(self._uuid)

    def isPersistent(self) -> bool:
        return self._at.defined(self._uuid) is not None

    def create(self, flags: int) -> None:
        described = self._at.defined(self._uuid)
        assert described, "libvirt starts what is defined"
        self._at.start(self._uuid, *described)

    def setAutostart(self, on: int) -> None:
        assert self.isPersistent(), "libvirt starts at boot what is defined"
        self._at.keep(self._uuid)

    def destroy(self) -> None:
        self._at.write(f"{_MDEVS}/{self._uuid}/remove", "1")

    def undefine(self, flags: int) -> None:
        self._at.forget(self._uuid)


def _described(xml: str) -> tuple[str, str, str]:
    """UUID, parent's address and type."""
    root = ElementTree.fromstring(xml)
    domain, bus, slot, function = (root.findtext("parent") or "").removeprefix("pci_").split("_")
    kind = root.find("capability/type")
    return root.findtext("capability/uuid") or "", f"{domain}:{bus}:{slot}.{function}", kind.get("id", "")
