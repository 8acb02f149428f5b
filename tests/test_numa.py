"""Guests are kept on their card's NUMA node where there is room; where there is none, the VM says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import factories
from tests.worlds import PlayedWorld, a_view
from vmgpu import specs, views
from vmgpu.db import Database
from vmgpu.lifecycle import STEPS
from vmgpu.models import VM, Gpu, Host, Slice, VMState
from vmgpu.steps import Hop
from vmgpu.views import NumaView, VMView

TWO = [{"id": 0, "cpus": "0-7", "memory_mib": 65536}, {"id": 1, "cpus": "8-11,16-19", "memory_mib": 65536}]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = factories.make_database(factories.make_settings(tmp_path))
    yield made
    made.close()


def with_card(db: Database, host: Host, name: str, slot: int, **given: Any) -> VM:
    """A VM that holds a whole card of NUMA node 1."""
    vm = factories.make_vm(db, factories.admin(db), name, host=host, holds=True, **given)
    with db.write() as session:
        gpu = Gpu(host_id=host.id, key=name, model="10de:20b5", mode="passthrough", facts={"numa_node": 1})
        session.add(gpu)
        session.flush()
        sizes = {"start": 0, "cells": 1, "compute": 1, "memory_mib": 1024}
        session.add(Slice(gpu_id=gpu.id, vm_id=vm.id, profile="whole", **sizes))
    return vm


def seen(db: Database, vm: VM) -> VMView:
    with db.read() as session:
        return views.view(session, session.get_one(VM, vm.id), installation="here")


def host_of(db: Database, nodes: list[dict[str, Any]]) -> Host:
    host = factories.make_host(db, cards=())
    factories.make_image(db)
    with db.write() as session:
        row = session.get_one(Host, host.id)
        row.facts = {**(row.facts or {}), "numa": nodes}
    return host


def test_what_others_have_on_the_node_is_not_free(db: Database) -> None:
    """64 GiB less the host's part; eight threads."""
    host = host_of(db, TWO)
    first = with_card(db, host, "a", 0, memory_mib=32768, vcpus=4)
    assert seen(db, first).numa == NumaView(1, 62259, 8)
    with db.write() as session:
        session.get_one(VM, first.id).numa_node = 1
    second = with_card(db, host, "b", 0, memory_mib=32768, vcpus=4)
    there = seen(db, second).numa
    assert there == NumaView(1, 29491, 4)
    node, why = specs.numa(seen(db, second))
    assert node is None and "NUMA node 1" in why and "4 threads are free" in why


def test_a_host_of_one_node_has_nothing_to_choose(db: Database) -> None:
    assert seen(db, with_card(db, host_of(db, TWO[:1]), "a", 0)).numa is None


@pytest.mark.parametrize(
    ("there", "node"),
    [
        (None, None),
        (NumaView(1, 2048, 2), 1),
        (NumaView(1, 2047, 2), None),
        (NumaView(1, 2048, 1), None),
        (NumaView(0, -5, -1), None),
    ],
)
def test_room_is_memory_and_threads(there: NumaView | None, node: int | None) -> None:
    found, why = specs.numa(a_view(vcpus=2, memory_mib=2048, numa=there))
    assert found == node
    assert bool(why) is (there is not None and node is None)


def test_the_domain_is_defined_on_the_node_and_the_row_remembers(tmp_path: Path) -> None:
    world = PlayedWorld(tmp_path)
    done = STEPS[VMState.building].run(a_view(state=VMState.building, numa=NumaView(1, 9999, 9)), world)
    assert isinstance(done, Hop) and (done.changes["numa_node"], done.changes["numa_why"]) == (1, "")
    assert world.host.spec.numa_node == 1


def test_why_it_is_not_there_is_a_warning_of_the_vm(tmp_path: Path) -> None:
    world = PlayedWorld(tmp_path)
    vm = a_view(state=VMState.building, numa=NumaView(1, 0, 0))
    built = STEPS[VMState.building].run(vm, world)
    assert isinstance(built, Hop) and world.host.spec.numa_node is None
    vm = replace(vm, state=VMState.checking, numa_why=built.changes["numa_why"])
    done = STEPS[VMState.checking].run(vm, world)
    assert isinstance(done, Hop) and done.changes["warnings"] == [built.changes["numa_why"]]
