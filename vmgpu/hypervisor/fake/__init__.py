"""A whole simulated host: its state in a file of its own, so that it outlives us, and moods in which it misbehaves."""

from __future__ import annotations

from vmgpu.hypervisor.fake.admin import FakeAdmin, Snapshot, fake_admin
from vmgpu.hypervisor.fake.carver import FakeCarver
from vmgpu.hypervisor.fake.host import FakeHost, open_fake
from vmgpu.hypervisor.fake.moods import Mood, Temper
from vmgpu.hypervisor.fake.shape import BASE_VOLUME, SCHEME, FakeShape, parse

__all__ = [
    "BASE_VOLUME",
    "SCHEME",
    "FakeAdmin",
    "FakeCarver",
    "FakeHost",
    "FakeShape",
    "Mood",
    "Snapshot",
    "Temper",
    "fake_admin",
    "open_fake",
    "parse",
]
