"""MIG by id and by place; what keeps an instance, and a mode that waits for a reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vmgpu.hypervisor.hostctl import mig
from vmgpu.hypervisor.hostctl.patterns import Arguments
from vmgpu.hypervisor.hostctl.refusal import Refusal

from .standin import A100, Card, StandIn
from .tree import Tree, hour

PF = "0000:41:00.0"


def ask(tree: Tree, action: str, **arguments: Any) -> dict[str, Any]:
    return mig.run(tree.files, Arguments({"action": action, "address": PF, **arguments}), hour())


def refused(tree: Tree, code: str, action: str, **arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(tree, action, **arguments)
    assert caught.value.code == code, caught.value.message
    return caught.value


def test_the_mode(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    made = nvml(Card(mig=[0, 0]))
    assert ask(tree, "mode", on=True) == {"current": True, "pending": True, "activation": None}
    made.calls.clear()
    ask(tree, "mode", on=True)
    assert "nvmlDeviceSetMigMode" not in made.calls  # setting it again would reset the card


@pytest.mark.parametrize(("status", "activation"), [(16, "needs_reset"), (19, "in_use"), (999, "needs_reset")])
def test_a_mode_that_waits(tree: Tree, nvml: Callable[..., StandIn], status: int, activation: str) -> None:
    nvml(Card(mig=[0, 0], activation=status))
    assert ask(tree, "mode", on=True) == {"current": False, "pending": True, "activation": activation, "holders": []}
    assert refused(tree, "needs_reset", "create", profile=19, start=0, size=1)


def test_a_mode_that_is_not_taken(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    nvml(Card(mig=[0, 0], stubborn=True, activation=19))
    refused(tree, "in_use", "mode", on=True)
    nvml(Card(mig=[1, 1], stubborn=True))
    refused(tree, "refused", "mode", on=False)


def test_cards_without_mig_and_hosts_without_nvml(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    refused(tree, "no_nvml", "list")
    nvml(Card())
    refused(tree, "not_supported", "list")
    refused(tree, "not_supported", "mode", on=True)
    refused(tree, "not_supported", "destroy", instance=1)
    nvml(Card("00000000:42:00.0", mig=[0, 0]))
    assert "vfio-pci" in refused(tree, "not_found", "list").hint
    nvml(Card(lost=True))
    refused(tree, "not_found", "list")


def test_the_list(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    nvml(Card(mig=[1, 1], profiles=A100, instances={7: (19, 3, 1), 2: (9, 4, 4)}, compute={2: [0, 1]}))
    seen = ask(tree, "list")
    assert seen["instances"] == [
        {"instance": 7, "profile": 19, "name": "1g.5gb", "start": 3, "size": 1, "compute": 0},
        {"instance": 2, "profile": 9, "name": "3g.20gb", "start": 4, "size": 4, "compute": 2},
    ]
    assert seen["profiles"][0] == {
        "id": 19,
        "name": "1g.5gb",
        "slices": 1,
        "memory_mib": 4864,
        "instances": 7,
        "starts": [0, 1, 2, 3, 4, 5, 6],
        "size": 1,
    }
    assert [each["id"] for each in seen["profiles"]] == [19, 14, 9, 0]  # 0 is a profile


def test_the_list_while_mig_is_off_and_on_an_old_library(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    nvml(Card(mig=[0, 0], profiles=A100)).old = True
    seen = ask(tree, "list")
    assert seen["instances"] == [] and len(seen["profiles"]) == 4
    assert seen["profiles"][0]["name"] is None and seen["profiles"][0]["starts"]


def test_instances_at_the_places_asked_for(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    made = nvml(Card(mig=[1, 1], profiles=A100))
    assert ask(tree, "create", profile=9, start=4, size=4) == {"instance": 1, "profile": 9, "start": 4, "size": 4}
    assert ask(tree, "create", profile=19, start=0, size=1)["instance"] == 2
    assert made.cards[0].instances == {1: (9, 4, 4), 2: (19, 0, 1)}
    no = refused(tree, "refused", "create", profile=14, start=4, size=2)
    assert "Another instance" in no.hint
    refused(tree, "refused", "create", profile=14, start=1, size=2)  # no legal start
    refused(tree, "refused", "create", profile=77, start=0, size=1)


def test_no_instance_while_mig_is_off(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    nvml(Card(mig=[0, 0], profiles=A100))
    assert "off" in refused(tree, "refused", "create", profile=19, start=0, size=1).message


def test_an_instance_elsewhere_is_taken_back(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    made = nvml(Card(mig=[1, 1], profiles=A100, misplaces=True))
    refused(tree, "failed", "create", profile=19, start=0, size=1)
    assert made.cards[0].instances == {}


def test_the_end_of_an_instance(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    card = Card(mig=[1, 1], profiles=A100, instances={0: (0, 0, 8)}, compute={0: [0, 1, 2]})
    made = nvml(card)
    assert ask(tree, "destroy", instance=0) == {"instance": 0}  # 0 is an id
    assert card.instances == {} and card.compute == {0: []}
    ended = [each for each in made.calls if each.endswith("Destroy")]
    assert ended == ["nvmlComputeInstanceDestroy"] * 3 + ["nvmlGpuInstanceDestroy"]
    refused(tree, "not_found", "destroy", instance=0)


@pytest.mark.parametrize("compute", [[], [0]])
def test_an_instance_in_use_stays(tree: Tree, nvml: Callable[..., StandIn], compute: list[int]) -> None:
    card = Card(mig=[1, 1], profiles=A100, instances={3: (14, 0, 2)}, compute={3: list(compute)}, held={3})
    nvml(card)
    no = refused(tree, "in_use", "destroy", instance=3)
    assert "instance 3" in no.message and "Stop" in no.hint
    assert card.instances == {3: (14, 0, 2)} and card.compute == {3: compute}


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "cut"},
        {"action": "mode"},
        {"action": "mode", "on": "yes"},
        {"action": "create", "profile": 19, "start": 0},
        {"action": "create", "profile": "19", "start": 0, "size": 1},
        {"action": "create", "profile": 19, "start": -1, "size": 1},
        {"action": "create", "profile": 2**32, "start": 0, "size": 1},
        {"action": "destroy"},
        {"action": "destroy", "instance": 1.0},
        {"action": "destroy", "instance": 1, "force": True},
        {"action": "list", "address": "41:00.0"},
    ],
)
def test_wrong_use(tree: Tree, arguments: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        mig.run(tree.files, Arguments({"address": PF, **arguments}), hour())
    assert caught.value.code == "bad_argument"
