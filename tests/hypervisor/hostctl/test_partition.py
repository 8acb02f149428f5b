"""Fabric partitions, as fabric manager's client tells of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vmgpu.hypervisor.hostctl import partition
from vmgpu.hypervisor.hostctl.patterns import Arguments
from vmgpu.hypervisor.hostctl.refusal import Refusal

from .tree import Tree, hour

GPU = {"physicalId": 5, "uuid": "GPU-1", "pciBusId": "00000000:0F:00.0", "numNvLinksAvailable": 18}


def listed(active: int = 0) -> str:
    told = [{"partitionId": each, "isActive": active, "numGpus": 1, "gpuInfo": [GPU]} for each in (0, 7)]
    return json.dumps({"version": 1, "numPartitions": 2, "maxNumPartitions": 32, "partitionInfo": told})


@pytest.fixture
def manager(tree: Tree) -> Tree:
    tree.write("state", listed())
    tree.write("after", listed(1))
    tree.program(
        "usr/bin/fmpm",
        'echo "$@" >> "$root/asked"\ncase $1 in\n -l) cat "$root/state";;\n -a) cp "$root/after" "$root/state";;\n'
        ' -d) echo "{}" > /dev/null;;\nesac',
    )
    return tree


def ask(tree: Tree, action: str, **arguments: Any) -> list[dict[str, Any]]:
    found = partition.run(tree.files, Arguments({"action": action, **arguments}), hour())["partitions"]
    assert isinstance(found, list)
    return found


def refused(tree: Tree, code: str, action: str, **arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(tree, action, **arguments)
    assert caught.value.code == code, caught.value.message
    return caught.value


def test_the_list(manager: Tree) -> None:
    gpu = {"physical_id": 5, "uuid": "GPU-1", "address": "0000:0f:00.0"}
    assert ask(manager, "list") == [{"id": each, "active": False, "gpus": [gpu]} for each in (0, 7)]


def test_one_is_activated_once(manager: Tree) -> None:
    assert all(each["active"] for each in ask(manager, "activate", id=7))
    ask(manager, "activate", id=0)
    assert manager.read("asked").splitlines() == ["-l", "-a 7", "-l", "-l"]
    refused(manager, "failed", "deactivate", id=7)  # it says yes and does not


def test_refusals(manager: Tree, tree: Tree) -> None:
    refused(manager, "not_found", "activate", id=3)
    manager.program("usr/bin/fmpm", '[ "$1" = -l ] && cat "$root/state" && exit 0\necho "overlaps partition 2"; exit 1')
    assert "overlaps partition 2" in refused(manager, "refused", "activate", id=7).message
    manager.program("usr/bin/fmpm", "echo 'Failed to connect'; exit 1")
    assert "Failed to connect" in refused(manager, "failed", "list").message
    (manager.root / "usr/bin/fmpm").unlink()
    refused(manager, "not_supported", "list")
    for arguments in ({}, {"id": "7"}, {"id": -1}, {"id": True}, {"id": 7, "all": True}):
        refused(manager, "bad_argument", "activate", **arguments)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("", None),
        ("no JSON here", None),
        ("{", None),
        ('{"partitionInfo": 5}', None),
        ('{"partitionInfo": []}', []),
        ('{"partitionInfo": [5, {}, {"partitionId": "x"}]}', []),
        (
            'log: starting\n{"partitionInfo": [{"partitionId": "2", "isActive": true, "gpuInfo": null}]}\nbye',
            [{"id": 2, "active": True, "gpus": []}],
        ),
        (
            '{"partitionInfo": [{"partitionId": 2, "gpuInfo": [{"pciBusId": 7, "uuid": null}, "x"]}]}',
            [{"id": 2, "active": False, "gpus": [{"physical_id": None, "uuid": None, "address": None}]}],
        ),
        ("{" * 100_000, None),
    ],
)
def test_whatever_the_client_prints(said: str, read: Any) -> None:
    assert partition.partitions_of(said) == read
