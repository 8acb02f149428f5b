"""A fake GPU host as the service has it: the cards of its survey, and the carvers that cut them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.gpuhost import FakeHost, gpu_host, why_not
from vmgpu.hypervisor import Carver, Cut, GpuFacts, GpuRef, SliceRef, inventory
from vmgpu.hypervisor.carvers import carver_for
from vmgpu.hypervisor.hostctl_client import LocalHostCtl


class Machine:
    """`fake` is the host, `ctl` hostctl on it; its environment must be in force."""

    def __init__(self, fake: FakeHost) -> None:
        self.fake, self.model = fake, fake.model
        self.ctl = LocalHostCtl(fake.root)

    def cards(self) -> tuple[GpuFacts, ...]:
        """What a survey shows now."""
        told = self.ctl.call("facts")
        return inventory.cards(inventory.functions_of(told), told, ours={})

    def card(self, number: int = 0) -> GpuFacts:
        """One of its cards."""
        return self.cards()[number]

    def carver(self, mode: str, framework: str | None = "vfio") -> Carver:
        """The carver of a mode; libvirt is not there."""

        def no_libvirt() -> Any:
            raise AssertionError("nothing is asked of libvirt")

        return carver_for(mode, framework, ask=self.ctl.call, use=no_libvirt)

    def piece(self, mode: str, name: str, *, start: int | None = None, slot: int = 0) -> SliceRef:
        """A slice of the first card, as a plan would place it."""
        card = self.card()
        cut: Cut = next(each for each in card.cuts[mode].pieces if each.name == name)
        gpu = GpuRef("g1", mode, card.model, card.address, (), card.framework, card.on_functions)
        at = cut.starts[0] if start is None else start
        return SliceRef(
            str(uuid4()), str(uuid4()), gpu, name, at, cut.cells, cut.compute, cut.memory_mib, slot, cut.type
        )


OpenMachine = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenMachine]:
    """Open a fake GPU host by the name of its description; hostctl finds its NVML by the environment."""
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as running:

        def opened(name: str, **how: Any) -> Machine:
            fake = running.enter_context(gpu_host(name, tmp_path, **how))
            for variable, value in fake.environment().items():
                monkeypatch.setenv(variable, value)
            return Machine(fake)

        yield opened
