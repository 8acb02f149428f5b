"""The start of a domain: libvirt answers when QEMU runs, which takes long where much memory is pinned first."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

import libvirt
from defusedxml import ElementTree

from vmgpu.errors import HostRefused, ReasonCode, reason
from vmgpu.hypervisor import HostRef

log = logging.getLogger(__name__)

_KIB_PER_GIB = 1024 * 1024
_ENDING_SECONDS = 20.0  # for a start that was broken off to say so


def seconds_for(found: Any, ref: HostRef) -> float:
    """How long this domain's start may take: memory counts where a device of the host has it pinned."""
    pinned = ElementTree.fromstring(found.XMLDesc(0)).find("devices/hostdev") is not None
    return ref.start_seconds + (ref.start_seconds_per_gib * found.maxMemory() / _KIB_PER_GIB if pinned else 0)


def within(found: Any, ref: HostRef) -> None:
    """Start the domain. One that takes too long is broken off, so that no half-started QEMU holds card and memory.

    HostRefused where it was; libvirt's own errors pass.
    """
    seconds = seconds_for(found, ref)
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    threading.Thread(target=_create, args=(found, ended), name="start", daemon=True).start()
    try:
        error = ended.get(timeout=seconds)
    except queue.Empty:
        _break_off(found, ended)
        why = reason(
            ReasonCode.start_too_long, seconds=round(seconds), memory_gib=round(found.maxMemory() / _KIB_PER_GIB)
        )
        raise HostRefused(why.sentence(), hint=why.cure(), reason=why) from None
    if error is not None and not found.isActive():  # else an earlier try, whose answer was lost, is what runs
        raise error


def _create(found: Any, ended: queue.SimpleQueue[Exception | None]) -> None:
    try:
        found.create()
        ended.put(None)
    except Exception as error:
        ended.put(error)


def _break_off(found: Any, ended: queue.SimpleQueue[Exception | None]) -> None:
    """libvirt kills the QEMU of a start that is under way; had it ended well that very moment, it goes as well."""
    for _ in range(2):
        try:
            found.destroy()
        except libvirt.libvirtError as error:
            log.info("breaking off the start of %s: %s", found.name(), error)
        try:
            ended.get(timeout=_ENDING_SECONDS / 2)
        except queue.Empty:
            continue
        if not found.isActive():
            return
