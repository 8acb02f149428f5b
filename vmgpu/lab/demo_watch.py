"""Looks at VMs and images until what is waited for is there; each one's phases and seconds go to the screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from vmgpu.lab.demo_api import Api, Problem
from vmgpu.lab.demo_screen import Row, Screen
from vmgpu.service.shapes import ImageOut, Said, VMOut

_PHASES_SHOWN = 5
_CONSOLE_LINES = 25


@dataclass(frozen=True)
class Seen:
    """One look: VMs that are not gone, and images, by name."""

    vms: dict[str, VMOut]
    images: dict[str, ImageOut] = field(default_factory=dict)

    def running(self, *names: str) -> bool:
        """Whether all of these run."""
        return all(name in self.vms and self.vms[name].state == "running" for name in names)

    def ready(self, image: str) -> bool:
        """Whether this image may be used."""
        return image in self.images and self.images[image].state == "ready"


class Watch:
    """One person's VMs and images, as this person sees them."""

    def __init__(self, api: Api, screen: Screen, *, every: float) -> None:
        self._api, self._screen, self._every = api, screen, every
        self._states: dict[str, str] = {}
        self._phases: dict[str, str] = {}

    def look(self) -> Seen:
        """How things are now."""
        return Seen({vm.name: vm for vm in self._api.vms()}, {image.name: image for image in self._api.images()})

    def until(self, goal: Callable[[Seen], bool], *, what: str, within: float) -> Seen:
        """Wait for it and show what happens meanwhile. Raises Problem where a VM or image failed, or time is over."""
        end = time.monotonic() + within
        while True:
            seen = self.look()
            self._screen.show([self._row(vm) for vm in seen.vms.values()] + _images_on_their_way(seen))
            if goal(seen):
                self._screen.settle()
                return seen
            for image in seen.images.values():
                if image.state == "failed":
                    raise _failed(f"image {image.name}", image.reason)
            for vm in seen.vms.values():
                # a VM that is tried once more elsewhere is still wanted running
                if vm.state in ("failed", "lost") and vm.wanted != "running":
                    self.tell_of(vm)
                    raise _failed(vm.name, vm.reason)
            if time.monotonic() > end:
                for vm in seen.vms.values():
                    if vm.state not in ("running", "stopped"):
                        self.tell_of(vm)
                raise Problem(f"{what} was not seen within {within:.0f} s", hint="A slow machine? Look at the phases.")
            time.sleep(self._every)

    def tell_of(self, vm: VMOut) -> None:
        """All that helps to understand why a VM does not come: its reason, its cure, the end of its console."""
        self._screen.say(f"{vm.name} is {vm.state}" + (f": {vm.reason.sentence}" if vm.reason else ""))
        if vm.reason and vm.reason.cure:
            self._screen.say(f"What to do: {vm.reason.cure}")
        console = self._api.console(vm.id, lines=_CONSOLE_LINES)
        self._screen.say(f"The end of its console ({len(console)} lines):")
        for line in console:
            self._screen.say(f"  | {line}")

    def _row(self, vm: VMOut) -> Row:
        if self._states.get(vm.id) != vm.state:
            self._states[vm.id] = vm.state
            self._phases[vm.id] = self._past(vm)
        seconds = max(0.0, (datetime.now(UTC) - vm.since).total_seconds())
        place = f" (position {vm.position})" if vm.position else ""
        state = vm.state + ("" if vm.wanted in (vm.state, "running") else f", wanted {vm.wanted}")
        why = f"  {vm.reason.sentence}" if vm.reason else ""
        text = f"{vm.name:<6} {state}{place} {seconds:.0f} s{why}{self._phases[vm.id]}"
        return Row(vm.id, (vm.state, vm.wanted, vm.position, vm.reason.code if vm.reason else ""), text)

    def _past(self, vm: VMOut) -> str:
        events = self._api.get("vms", vm.id, "events")["items"]
        past = [(one["was"], one["seconds"]) for one in events if one["kind"] == "state" and one["seconds"] is not None]
        told = [f"{was} {seconds:.1f} s" for was, seconds in past[-_PHASES_SHOWN:]]
        return f"  [{', '.join(told)}]" if told else ""


def _images_on_their_way(seen: Seen) -> list[Row]:
    rows = []
    for image in seen.images.values():
        if image.state != "ready":
            seconds = max(0.0, (datetime.now(UTC) - image.created_at).total_seconds())
            text = f"image {image.name} {image.state} {seconds:.0f} s"
            rows.append(Row(image.id, image.state, text + (f"  {image.reason.sentence}" if image.reason else "")))
    return rows


def _failed(what: str, why: Said | None) -> Problem:
    return Problem(f"{what} failed: {why.sentence if why else 'no reason was given'}", hint=why.cure if why else "")
