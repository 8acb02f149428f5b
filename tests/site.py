"""A service at work, seen by those who use it: people with tokens by REST, hosts described or simulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlmodel import select

from tests import factories
from tests.described import Bench
from tests.gpuhost.machine import Machine
from tests.worlds import House
from vmgpu import connections
from vmgpu.connections import host_ref
from vmgpu.db import setting
from vmgpu.hypervisor import HostRef, Hypervisor
from vmgpu.hypervisor.fake import FakeAdmin, fake_admin
from vmgpu.models import VM, Gpu, Host, HostState, VMState

Call = Callable[..., Any]


class Site(House):
    """A House with described hosts, whose people speak REST: `rest(method, path, body)` is the admin's voice."""

    benches: dict[str, Bench]
    http: Any
    rest: Call

    def person(self, name: str) -> Call:
        """A new person of the installation: their voice."""
        return answering(self.http, factories.make_token(self.db, factories.make_user(self.db, name)))

    def take_in(self, machine: Machine, name: str = "gpu1", *, mode: str | None = None, memory: str = "1t") -> Bench:
        """Add a described host; all its cards are given out in a mode, or kept back."""
        bench = self.benches[name] = Bench(machine)
        self.rest("POST", "/hosts?wait=0", {"name": name, "uri": f"fake://cpu?memory={memory}"}, 201)
        self.until(lambda: self.row(Host, name).state is HostState.ready)
        hand = self.hands[name] = self.hand_at(name)
        self.foreign[name] = hand.define_foreign("somebody-elses", installation="another")
        hand.set_mood("cheerful", boot=0.05, off=0.02)
        for card in self.cards(name):
            self.offer(card["id"], mode)
        return bench

    def hand_at(self, name: str) -> FakeAdmin:
        """A hand at the simulated part of a host."""
        with self.db.read() as session:
            return fake_admin(host_ref(self.row(Host, name), setting(session, "installation") or "", self.settings))

    def offer(self, card: str, mode: str | None, status: int = 200) -> Any:
        """Give a card out in a mode, or keep it back."""
        body = {"offered": True, "mode": mode} if mode else {"offered": False}
        return self.rest("POST", f"/gpus/{card}/offer", body, status)

    def cards(self, host: str = "gpu1") -> list[dict[str, Any]]:
        """The host's cards as REST shows them, by address."""
        found = [card for card in self.rest("GET", "/gpus")["items"] if card["host"] == host]
        return sorted(found, key=lambda card: str(card["address"]))

    def ask(self, profile: str, *names: str, as_: Call | None = None, **given: Any) -> None:
        """Request VMs of a flavor with this profile, by these names."""
        flavor = {"name": re.sub(r"[^a-z0-9.]+", "-", profile.lower()), "vcpus": 1, "memory": "1g", "disk": "2g"}
        if flavor["name"] not in [each["name"] for each in self.rest("GET", "/flavors")["items"]]:
            self.rest("POST", "/flavors", flavor | {"profile": profile}, 201)
        for name in names:
            body = {"name": name, "flavor": flavor["name"], "image": "base"} | given
            (as_ or self.rest)("POST", "/vms", body, 202)

    def show(self, name: str) -> dict[str, Any]:
        """A VM as REST shows it."""
        found: dict[str, Any] = self.rest("GET", f"/vms/{name}")
        return found

    def reaches(self, state: VMState, name: str = "s1", *, seconds: float = 60) -> VM:
        """As a House's; one that fails instead is not waited for."""

        def there() -> bool:
            vm = self.vm(name)
            assert vm.state is not VMState.failed or state is VMState.failed or vm.retry, vm.reason
            return self._settled(vm, state)

        self.until(there, seconds)
        return self.vm(name)

    def waits(self, name: str) -> dict[str, Any]:
        """Wait until a VM is told why it waits; the reason."""
        self.until(lambda: self.vm(name).state is VMState.pending and bool(self.vm(name).reason))
        reason: dict[str, Any] = self.show(name)["reason"]
        return reason

    def survey(self, host: str = "gpu1") -> dict[str, Any]:
        """Have a host looked at again; the host."""
        found: dict[str, Any] = self.rest("POST", f"/hosts/{host}/survey?wait=30", None)
        return found

    def reboot(self, host: str = "gpu1", *, power_cycle: bool = False) -> None:
        """The machine reboots: what lives in memory alone is gone, its guests are off; a power cycle revives cards."""
        bench = self.benches[host]
        self.hands[host].reboot_host()
        bench.running.clear()
        bench.model.reboot(power_cycle=power_cycle)

    def gpu(self, card: str) -> Gpu:
        """A card's row."""
        with self.db.read() as session:
            return session.exec(select(Gpu).where(Gpu.id == card)).one()


def answering(http: Any, token: str) -> Call:
    """Somebody's voice: an answer's body, after its status was the one expected."""

    def rest(method: str, path: str, body: Any = None, status: int | None = None) -> Any:
        headers = {"authorization": f"Bearer {token}"}
        answer = http.request(method, f"/api/v1{path}", json=body, headers=headers)
        right = answer.status_code < 300 if status is None else answer.status_code == status
        assert right, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    return rest


def opened(benches: dict[str, Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the service finds these machines behind the hosts of their names."""
    simulated = connections.open_host

    def open_host(ref: HostRef, *, on_change: Callable[[str], None]) -> Hypervisor:
        bench = benches.get(ref.name)
        return bench.open(ref, on_change=on_change) if bench else simulated(ref, on_change=on_change)

    monkeypatch.setattr(connections, "open_host", open_host)
