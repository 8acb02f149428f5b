"""Cutting the cards of a simulated host: any mode, and as unforgiving of a double cut as hardware is."""

from __future__ import annotations

import json
import sqlite3
import uuid

from vmgpu.errors import HostRefused
from vmgpu.hypervisor import Carved, Carver, Emulated, GpuRef, HostDevice, Mdev, Pci, SliceRef
from vmgpu.hypervisor.fake.line import Line
from vmgpu.hypervisor.fake.shape import FakeShape
from vmgpu.hypervisor.fake.state import count
from vmgpu.units import a_or_an

EMULATED, MIG, PASSTHROUGH = MODES = ("emulated", "mig", "passthrough")


class FakeCarver(Carver):
    """A Carver that writes its cuts into the host's state."""

    def __init__(self, line: Line, shape: FakeShape, mode: str) -> None:
        if mode not in MODES:
            raise HostRefused(f"simulated: no card can be used as {mode!r} here", hint=f"Modes: {', '.join(MODES)}.")
        self._line = line
        self._shape = shape
        self._mode = mode

    def carve(self, ref: SliceRef) -> Carved:
        """Cut the slice, or find it already cut. HostRefused where anything else lies in its window."""
        with self._line.changing("carve", ref.vm_id) as db:
            if not self._find(db, ref):
                self._must_fit(db, ref)
                self._cut(db, ref)
        return Carved((self._device(ref),))

    def release(self, ref: SliceRef) -> None:
        """Give the slice back; another VM's cut in its place is none of this one's. HostRefused while it is in use."""
        with self._line.changing("release", ref.vm_id) as db:
            mine = (_card(ref.gpu), ref.start, ref.vm_id)
            if not db.execute("SELECT 1 FROM cuts WHERE card = ? AND start = ? AND vm_id = ?", mine).fetchone():
                return
            using = db.execute(
                "SELECT devices FROM domains WHERE id = ? AND power IN ('running', 'paused')", (ref.vm_id,)
            )
            user = using.fetchone()
            if user and repr(self._device(ref)) in json.loads(user["devices"]):
                count(db, "released_in_use", ref.vm_id)
                raise HostRefused(f"simulated: {ref.profile} of {_card(ref.gpu)} is in use by a running domain")
            db.execute("DELETE FROM cuts WHERE card = ? AND start = ? AND vm_id = ?", mine)
            count(db, "freed", ref.vm_id)

    def _find(self, db: sqlite3.Connection, ref: SliceRef) -> bool:
        found = db.execute(
            """UPDATE cuts SET calls = calls + 1, slice_id = ?, gpu_id = ?
               WHERE card = ? AND start = ? AND cells = ? AND vm_id = ? AND profile = ? AND mode = ?""",
            (ref.id, ref.gpu.id, _card(ref.gpu), ref.start, ref.cells, ref.vm_id, ref.profile, self._mode),
        )
        return found.rowcount == 1

    def _must_fit(self, db: sqlite3.Connection, ref: SliceRef) -> None:
        card = self._shape.card(ref.gpu.address)
        if ref.gpu.address and card is None:
            raise HostRefused(f"simulated: there is no card at {ref.gpu.address}")
        if card and (ref.start < 0 or ref.cells < 1 or ref.start + ref.cells > card.model.cells):
            raise HostRefused(f"simulated: {ref.profile} cannot start at {ref.start} of {a_or_an(card.model.name)}")
        others = db.execute("SELECT * FROM cuts WHERE card = ?", (_card(ref.gpu),)).fetchall()
        for other in others:
            apart = other["start"] >= ref.start + ref.cells or ref.start >= other["start"] + other["cells"]
            if not apart or other["mode"] != self._mode:
                count(db, "double_carve", ref.vm_id)
                raise HostRefused(
                    f"simulated: {_card(ref.gpu)} is already cut there: {other['profile']} at {other['start']}"
                    f" for VM {other['vm_id']}"
                )
        if card and sum(other["compute"] for other in others) + ref.compute > card.model.compute:
            count(db, "double_carve", ref.vm_id)
            raise HostRefused(f"simulated: {_card(ref.gpu)} has no {ref.compute} compute slices left")

    def _cut(self, db: sqlite3.Connection, ref: SliceRef) -> None:
        put = """INSERT INTO cuts (card, start, cells, compute, mode, profile, gpu_id, slice_id, vm_id, devices)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
        where = (_card(ref.gpu), ref.start, ref.cells, ref.compute, self._mode, ref.profile)
        db.execute(put, (*where, ref.gpu.id, ref.id, ref.vm_id, json.dumps([repr(self._device(ref))])))
        count(db, "cut", ref.vm_id)

    def _device(self, ref: SliceRef) -> HostDevice:
        if self._mode == PASSTHROUGH:
            return Pci(_card(ref.gpu))
        if self._mode == MIG:
            return Mdev(str(uuid.uuid5(uuid.NAMESPACE_OID, f"{_card(ref.gpu)} {ref.start} {ref.vm_id}")))
        fives = max(1, -(-ref.memory_mib // 5120))
        video_mib = min(256, 16 << (fives - 1).bit_length())
        return Emulated(video_mib, f"{ref.gpu.model} {ref.profile} {ref.memory_mib} MiB (simulated)")


def _card(gpu: GpuRef) -> str:
    # A card is the same card when the host was removed and added again, and its row in our database is not.
    return gpu.address or gpu.id
