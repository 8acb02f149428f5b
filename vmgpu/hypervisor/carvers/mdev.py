"""A mediated device made by libvirt: on the card itself (older boards), on a virtual function, or on a named parent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import libvirt
from defusedxml import ElementTree

from vmgpu import render
from vmgpu.errors import HostRefused
from vmgpu.hypervisor import Carved, Mdev, SliceRef
from vmgpu.hypervisor.carvers import functions
from vmgpu.hypervisor.carvers.functions import Ask
from vmgpu.hypervisor.connection import maybe

# both named: who asks for those that do not run is shown no other
_RUNS_OR_NOT = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_ACTIVE | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_INACTIVE
_MDEVS = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV | _RUNS_OR_NOT
Use = Callable[[], AbstractContextManager[Any]]


class MdevCarver:
    """`use` gives a libvirt connection. The device's UUID is the slice's id: so it is found again after a crash."""

    def __init__(self, use: Use, ask: Ask | None) -> None:
        self._use, self._ask = use, ask

    def carve(self, ref: SliceRef) -> Carved:
        """Make the device, or find it made; one on the card itself is started by its host at every boot."""
        parent = self._parent(ref)
        with self._use() as connection:
            device = find(connection, ref.id)
            if device is None:
                parent = parent or _named(connection, ref.gpu.parent or "")
                xml = render.xml("libvirt/mdev.xml.j2", parent=parent, type=_type(ref), uuid=ref.id)
                if ref.gpu.on_functions:
                    # not autostarted: after a reboot the functions, and instances below it, must be back first
                    device = connection.nodeDeviceCreateXML(xml, 0)
                else:
                    device = connection.nodeDeviceDefineXML(xml, 0)
            if not device.isActive():
                device.create(0)
            if not ref.gpu.on_functions:
                device.setAutostart(1)
        return Carved((Mdev(ref.id),))

    def release(self, ref: SliceRef) -> None:
        """Remove the device; nothing there is fine."""
        with self._use() as connection:
            device = find(connection, ref.id)
            if device is None:
                return
            persistent = maybe(device.isPersistent)
            if maybe(device.isActive):
                maybe(device.destroy)
            if persistent:
                with suppress(libvirt.libvirtError):
                    device.undefine(0)
                if find(connection, ref.id) is not None:
                    device.undefine(0)  # says why not

    def _parent(self, ref: SliceRef) -> str:
        """The parent's name in libvirt where it follows from an address, else empty."""
        if ref.gpu.on_functions and self._ask:
            return node_name(functions.of(self._ask, ref))
        return node_name(ref.gpu.address) if ref.gpu.address else ""


def parents(connection: Any) -> dict[str, str]:
    """The parents that libvirt knows: the kernel's name of each, and what libvirt makes of it."""
    found = {}
    for device in connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV_TYPES):
        description = maybe(device.XMLDesc, 0)
        path = ElementTree.fromstring(description).findtext("path") if description else None
        if path:
            found[path.rstrip("/").rpartition("/")[2]] = str(device.name())
    return found


def _named(connection: Any, parent: str) -> str:
    if parent in (known := parents(connection)):
        return known[parent]
    raise HostRefused(f"libvirt knows no parent {parent} of mediated devices", hint="Load its driver, survey again.")


def find(connection: Any, uuid: str) -> Any | None:
    """The mediated device of this UUID; its name has the parent's in it with some versions of libvirt, not with all."""
    for device in connection.listAllDevices(_MDEVS):
        description = maybe(device.XMLDesc, 0)
        if description and ElementTree.fromstring(description).findtext("capability[@type='mdev']/uuid") == uuid:
            return device
    return None


def node_name(address: str) -> str:
    """What libvirt calls the PCI device at an address."""
    return "pci_" + address.replace(":", "_").replace(".", "_")


def _type(ref: SliceRef) -> str:
    return f"nvidia-{ref.type}" if ref.type is not None else ref.profile
