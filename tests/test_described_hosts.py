"""The eight described hosts from the command line: taken in, planned, cut each way that they allow, and given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import factories
from tests.cli.conftest import Run, run, serving  # noqa: F401 - run is a fixture
from tests.described import Bench
from tests.gpuhost.machine import Machine, OpenMachine
from tests.site import Site, opened

# host → the ways of cutting it, each with a size that is asked for; one that is not possible is said with its reason
WAYS = [
    ("m60", "passthrough", "whole", "pci yes"),
    ("m60", "vgpu", "M60-4Q", "mdev"),
    ("t4", "passthrough", "whole", "pci yes"),
    ("t4", "vgpu", "T4-8C", "mdev"),
    ("a100", "passthrough", "whole", "pci yes"),
    ("a100", "vgpu", "A100X-10C", "mdev"),
    ("a100", "mig", "3g.20gb", "mdev"),
    ("a2", "vgpu", "A2-4Q", "mdev"),
    ("l40s", "passthrough", "whole", "pci yes"),
    ("l40s", "vgpu", "L40S-12Q", "pci no"),
    ("h100", "passthrough", "whole", "pci yes"),
    ("h100", "vgpu", "H100XM-20C", "pci no"),
    ("h100", "mig", "2g.20gb", "pci no"),
    ("h200", "mig", "2g.35gb", "pci no"),
    ("rtxpro6000", "passthrough", "whole", "pci yes"),
    ("rtxpro6000", "vgpu", "RTX Pro 6000 Blackwell DC-24Q", "pci no"),
    ("rtxpro6000", "mig", "1g.24gb+gfx", "pci no"),
]


@pytest.fixture
def site(machine: OpenMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A service with its worker, that answers at a loopback port; `machine` ends after it."""
    settings = factories.make_settings(tmp_path / "data", sync_every=timedelta(seconds=0.3))
    benches: dict[str, Bench] = {}
    opened(benches, monkeypatch)
    with serving(settings) as service:
        monkeypatch.setenv("VMGPU_URL", service.url)
        monkeypatch.setenv("VMGPU_TOKEN", factories.ADMIN_TOKEN)
        site = Site(service.settings, service.db, factories.admin(service.db))
        site.benches = benches
        try:
            yield site
        finally:
            site.worker.stop(5)
            for hand in site.hands.values():
                hand.close()


def told(site: Site, run: Run) -> Callable[..., Any]:  # noqa: F811
    """What a command answers as JSON, after it was done."""

    def command(*words: str) -> Any:
        said = run(*words, "--json")
        assert said.code == 0, said.err
        return said.json

    return command


def in_the_guest(bench: Bench, vm_id: str) -> str:
    """How the VM's piece of the card reaches it."""
    kinds = {f"pci {managed}" for _, managed in bench.functions(vm_id)} | {"mdev" for _ in bench.mdevs(vm_id)}
    return ", ".join(sorted(kinds))


@pytest.mark.parametrize(("name", "mode", "size", "way"), WAYS)
def test_from_the_host_to_a_vm_and_back(
    site: Site,
    run: Run,  # noqa: F811
    machine: OpenMachine,
    name: str,
    mode: str,
    size: str,
    way: str,
) -> None:
    """host add, survey, plan, offer, flavor, request, running, release: nothing of it stays on the card."""
    fake: Machine = machine(name)
    bench = site.benches["gpu1"] = Bench(fake)
    vmgpu = told(site, run)
    host = vmgpu("host", "add", "gpu1", "fake://cpu")
    assert host["state"] == "ready" and len(host["gpus"]) == len(bench.model.state()["cards"])
    site.hands["gpu1"] = site.hand_at("gpu1")
    site.hands["gpu1"].set_mood("cheerful", boot=0.05, off=0.02)
    can_be = [each for each in host["gpus"] if mode in each["offers"]]
    card = min(can_be, key=lambda each: str(each["address"]))
    for each in host["gpus"]:
        vmgpu("gpu", "withhold", each["id"])
    before = bench.model.state()["cards"][card["address"]]

    ways = {(each["mode"], each["profile"]) for each in vmgpu("plan", "--host", "gpu1", "--students", "1")["items"]}
    assert (mode, size) in ways
    assert vmgpu("gpu", "offer", card["id"], "--mode", mode)["mode"] == mode
    assert vmgpu("flavor", "add", "f", "--vcpus", "1", "--memory", "1g", "--disk", "2g", "--profile", size)["becomes"]
    (asked,) = vmgpu("vm", "request", "--name", "s1", "--flavor", "f", "--image", "base", "--wait")["items"]
    assert (asked["state"], [cut["profile"] for cut in asked["slices"]]) == ("running", [size])
    assert in_the_guest(bench, asked["id"]) == way
    assert asked["id"] in bench.running
    held = vmgpu("host", "survey", "gpu1")["gpus"]
    assert [cut["vm"] for each in held for cut in each["slices"]] == ["s1"]

    vmgpu("vm", "release", "s1", "--wait")
    after = bench.model.state()["cards"][card["address"]]
    assert (after["driver"], after["vgpus"], after["instances"]) == ("nvidia", before["vgpus"], before["instances"])
    assert bench.running == {}
    assert vmgpu("gpu", "show", card["id"])["slices"] == []


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [
        ("m60", "mig", "cannot be given out as mig"),
        ("t4", "mig", "cannot be given out as mig"),
        ("a2", "passthrough", "virtual functions"),
        ("l40s", "mig", "cannot be given out as mig"),
        ("h200", "mig", "2 MIG instance(s) that are not ours"),
    ],
)
def test_a_way_that_a_host_does_not_allow_is_said_with_its_reason(
    site: Site,
    run: Run,  # noqa: F811
    machine: OpenMachine,
    name: str,
    mode: str,
    why: str,
) -> None:
    site.benches["gpu1"] = Bench(machine(name))
    cards = told(site, run)("host", "add", "gpu1", "fake://cpu")["gpus"]
    card = min(cards, key=lambda each: str(each["address"]))
    refused = run("gpu", "offer", card["id"], "--mode", mode)
    assert refused.code == 1 and why in refused.err
