"""A session with NVML, NVIDIA's library: its absence is a state, its errors have our codes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .files import Files
from .refusal import Refusal

NO_LIBRARY, NO_DRIVER, RESET_REQUIRED, IN_USE = 12, 9, 16, 19
INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 2, 3, 6, 7, 13
_CODES = {
    INVALID_ARGUMENT: "refused",
    NOT_SUPPORTED: "not_supported",
    4: "not_root",
    NOT_FOUND: "not_found",
    NO_DRIVER: "no_nvml",
    10: "timeout",
    NO_LIBRARY: "no_nvml",
    FUNCTION_NOT_FOUND: "not_supported",
    15: "dead",
    RESET_REQUIRED: "needs_reset",
    IN_USE: "in_use",
    23: "refused",
    27: "busy",
    28: "not_found",
    29: "busy",
}
_HINTS = {
    INVALID_ARGUMENT: "Take profiles, starts and sizes from the list that this card gives.",
    4: "Run hostctl through sudo.",
    NO_DRIVER: "Load the NVIDIA driver: modprobe nvidia.",
    NO_LIBRARY: "Install NVIDIA's driver on the host.",
    FUNCTION_NOT_FOUND: "The host's NVIDIA driver is too old for this.",
    15: "The card fell off the bus: power-cycle the host.",
    RESET_REQUIRED: "Reboot the host, or reset the card with nvidia-smi --gpu-reset.",
    IN_USE: "End what uses the card: guests, nvidia-persistenced, DCGM, exporters.",
    23: "Another instance holds that place; list them.",
    29: "The card is not in a state for this; its vGPUs must be gone.",
}
_LIBRARY = "libnvidia-ml.so.1"  # as pynvml asks for it
QUIET = (NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND)


class Absent(Exception):
    """There is no NVML: `state` as the facts name it."""

    def __init__(self, state: str, words: str) -> None:
        super().__init__(words)
        self.state = state
        self.words = words


class Nvml:
    """An open session; `call` insists, `ask` takes None for an answer."""

    def __init__(self, files: Files, module: Any) -> None:
        self._files = files
        self.module = module
        # pynvml's word for a few functions that the library lacks; for all others it has an NVMLError
        self._too_old: type[Exception] = module.NVMLLibraryMismatchError

    def call(self, name: str, *arguments: Any) -> Any:
        """The function's answer; its error is a Refusal."""
        try:
            return self.raw(name, *arguments)
        except self.module.NVMLError as error:
            raise refusal(error, name) from error
        except (self._too_old, AttributeError, ValueError) as error:
            raise Refusal("not_supported", f"{name}: {error}", hint=_HINTS[FUNCTION_NOT_FOUND]) from error

    def ask(self, name: str, *arguments: Any, quiet: tuple[int, ...] = QUIET) -> Any:
        """The function's answer, or None; what is more than "not supported" is told among the errors."""
        try:
            return self.raw(name, *arguments)
        except self.module.NVMLError as error:
            if error.value not in quiet:
                self.trouble(f"NVML: {name}: {error}")
        except self._too_old:
            return None
        except (AttributeError, ValueError) as error:
            self.trouble(f"NVML: {name}: {error}")
        return None

    def raw(self, name: str, *arguments: Any) -> Any:
        """The function itself, its errors as they are."""
        self._files.doing = f"asking NVML: {name}"
        return getattr(self.module, name)(*arguments)

    def trouble(self, sentence: str) -> None:
        """One more sentence among the errors, once."""
        if sentence not in self._files.troubles and len(self._files.troubles) < 80:
            self._files.troubles.append(sentence)

    def devices(self) -> Iterator[tuple[str, Any]]:
        """The cards that NVIDIA's driver has, by address. Not by index: that shifts when a card goes to a guest."""
        for index in range(self.ask("nvmlDeviceGetCount") or 0):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            info = None if handle is None else self.ask("nvmlDeviceGetPciInfo", handle)
            if info is not None:
                yield sysfs_address(text(info.busId) or ""), handle

    def device(self, address: str) -> Any:
        """One card's handle."""
        for each, handle in self.devices():
            if each == address:
                return handle
        raise Refusal(
            "not_found",
            f"NVIDIA's driver has no card {address}",
            hint="A card on vfio-pci belongs to a guest; give it back to the driver nvidia first.",
        )


@contextmanager
def session(files: Files) -> Iterator[Nvml]:
    """NVML for the length of a block, or Absent."""
    files.doing = "opening NVML"
    _need_library()
    try:
        import pynvml
    except ImportError as error:
        raise Absent("no_module", f"pynvml is missing: {error}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        state = {NO_LIBRARY: "no_library", NO_DRIVER: "no_driver"}.get(error.value, "error")
        raise Absent(state, str(error)) from error
    nvml = Nvml(files, pynvml)
    try:
        yield nvml
    finally:
        nvml.ask("nvmlShutdown")


def _need_library() -> None:
    """Most hosts without NVIDIA's driver are known by this: reading all of pynvml takes a slow one half a minute."""
    if "pynvml" in sys.modules:
        return
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise Absent("no_library", f"NVML Shared Library Not Found: {error}") from error


@contextmanager
def needed(files: Files) -> Iterator[Nvml]:
    """The same for a verb that cannot do without."""
    try:
        with session(files) as nvml:
            yield nvml
    except Absent as absent:
        raise Refusal(
            "no_nvml", f"NVML cannot be used: {absent.words}", hint="Install and load NVIDIA's driver on the host."
        ) from absent


def refusal(error: Any, doing: str) -> Refusal:
    """An NVMLError in our codes."""
    return Refusal(_CODES.get(error.value, "failed"), f"{doing}: {error}", hint=_HINTS.get(error.value, ""))


def sysfs_address(written: str) -> str:
    """NVML writes 00000000:41:00.0 in upper case, sysfs 0000:41:00.0."""
    domain, colon, rest = written.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if colon else ""
    except ValueError:
        return ""


def text(value: Any) -> str | None:
    """NVML's strings: bytes or text, by the function."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return str(value).strip() or None if value is not None else None
