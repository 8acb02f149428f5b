"""Mediated devices: what each parent offers, and which of them live."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .files import Files
from .patterns import ADDRESS, PARENT, UUID

_PARENTS = "sys/class/mdev_bus"
_LIVE = "sys/bus/mdev/devices"
_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Mdevs:
    """One look; what a type is called is read once per host, how many are left once per parent."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._words: dict[str, tuple[str | None, str | None, str | None]] = {}
        self._read: dict[str, list[dict[str, Any]]] = {}
        self.live = [self._device(name) for name in files.names(_LIVE) if UUID.fullmatch(name)]

    def types(self, folder: str) -> list[dict[str, Any]]:
        """The types below a `mdev_supported_types`."""
        if folder not in self._read:
            self._read[folder] = [
                self._type(folder, name) for name in self._files.names(folder) if _TYPE.fullmatch(name)
            ]
        return self._read[folder]

    def first_free(self, vfs: Sequence[str]) -> str | None:
        """The VF to ask: each takes one mdev, and all free ones offer the same."""
        taken = {each["parent"] for each in self.live}
        return next((each for each in vfs if each not in taken), None)

    def parents(self, of_vfs: Sequence[str]) -> list[dict[str, Any]]:
        """All parents; a VF's types are given where they were read already, since its siblings say the same."""
        found = []
        for name in self._files.names(_PARENTS):
            if not PARENT.fullmatch(name):
                continue
            address = name if ADDRESS.fullmatch(name) else None
            folder = f"sys/bus/pci/devices/{name}" if address else f"{_PARENTS}/{name}"
            folder += "/mdev_supported_types"
            known = folder in self._read or name not in of_vfs
            found.append({"name": name, "address": address, "types": self.types(folder) if known else None})
        return found

    def _type(self, folder: str, name: str) -> dict[str, Any]:
        if name not in self._words:
            words = (self._files.text(f"{folder}/{name}/{each}") for each in ("name", "description", "device_api"))
            title, description, api = words
            # the guide prints vfio_pci, drivers and libvirt vfio-pci
            self._words[name] = (title, description, api and api.replace("vfio_pci", "vfio-pci"))
        title, description, api = self._words[name]
        left = self._files.number(f"{folder}/{name}/available_instances")
        return {"id": name, "name": title, "description": description, "device_api": api, "available": left}

    def _device(self, uuid: str) -> dict[str, Any]:
        folder = f"{_LIVE}/{uuid}"
        above = [each for each in self._files.target(folder).split("/") if each]
        group = self._files.link(f"{folder}/iommu_group")
        return {
            "uuid": uuid,
            "parent": above[-2] if len(above) > 1 and above[-1] == uuid else None,
            "type": self._files.link(f"{folder}/mdev_type"),
            "group": int(group) if group and re.fullmatch(r"[0-9]{1,9}", group) else None,
        }
