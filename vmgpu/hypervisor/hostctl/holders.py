"""Who has a card open: a process, by the device files that it holds."""

from __future__ import annotations

import re
from typing import Any

from .files import Files
from .patterns import ADDRESS, UUID

_DEVICE_FILE = re.compile(
    r"/dev/(?:nvidia([0-9]+)|dri/((?:card|renderD)[0-9]+)|vfio/([0-9]+)|vfio/devices/(vfio[0-9]+))"
)
_INFORMATION = "proc/driver/nvidia/gpus"


def named(held: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each process once, whatever it has open."""
    commands = {each["pid"]: each["command"] for each in held}
    return [{"pid": pid, "command": command} for pid, command in commands.items()]


class Holders:
    """One look at all processes; without root only the caller's own can be seen."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._of_group: dict[int, list[dict[str, Any]]] = {}
        self._of_address: dict[str, list[dict[str, Any]]] = {}
        self._minors: dict[str, str] | None = None
        for pid in sorted((each for each in files.names("proc") if each.isascii() and each.isdigit()), key=int):
            self._process(pid)

    def of(self, address: str, group: int | None) -> list[dict[str, Any]]:
        """The processes that hold this function, or a member of its group for a guest."""
        found = self._of_address.get(address, []) + (self._of_group.get(group, []) if group is not None else [])
        return sorted(found, key=lambda each: (each["pid"], each["file"]))

    def _process(self, pid: str) -> None:
        folder = f"proc/{pid}/fd"
        held = {self._files.target(f"{folder}/{each}") for each in self._files.names(folder, quiet=True)}
        for file in sorted(held):
            found = _DEVICE_FILE.fullmatch(file)
            if not found:
                continue
            holder = {"pid": int(pid), "command": self._command(pid), "vm": self._vm(pid), "file": file}
            minor, render, group, device = found.groups()
            if group is not None:
                self._of_group.setdefault(int(group), []).append(holder)
                continue
            address = self._address(minor, render, device)
            if address is not None:
                self._of_address.setdefault(address, []).append(holder)

    def _address(self, minor: str | None, render: str | None, device: str | None) -> str | None:
        if minor is not None:
            return self._nvidia(minor)
        place = f"sys/class/drm/{render}" if render else f"sys/class/vfio-dev/{device}"
        named = self._files.link(f"{place}/device") or ""
        if ADDRESS.fullmatch(named):
            return named
        above = [each for each in self._files.target(place).split("/") if ADDRESS.fullmatch(each)]
        return above[-1] if above else None

    def _nvidia(self, minor: str) -> str | None:
        """The NVIDIA driver numbers its cards itself, in no order that sysfs shows."""
        if self._minors is None:
            self._minors = {}
            for name in self._files.names(_INFORMATION):
                told = self._files.text(f"{_INFORMATION}/{name}/information") or ""
                found = re.search(r"Device Minor:\s*([0-9]+)", told)
                if found and ADDRESS.fullmatch(name.lower()):
                    self._minors[found.group(1)] = name.lower()
        return self._minors.get(minor)

    def _command(self, pid: str) -> str:
        return self._files.text(f"proc/{pid}/comm", quiet=True) or ""

    def _vm(self, pid: str) -> str | None:
        """The domain's UUID, which libvirt gives to QEMU and NVIDIA's manager to NVML."""
        raw = self._files.bytes(f"proc/{pid}/cmdline", quiet=True) or b""
        words = raw.decode("utf-8", "replace").split("\0")
        given = next((words[at + 1] for at, word in enumerate(words[:-1]) if word == "-uuid"), "").lower()
        return given if UUID.fullmatch(given) else None
