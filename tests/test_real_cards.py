"""Real cards in the rows and in the plan: what a survey showed decides what is placed, and what others cut is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from tests import factories
from tests.gpuhost.machine import Machine
from tests.gpuhost.machine import OpenMachine as Open
from vmgpu import host_outcomes, ledger, placement
from vmgpu.db import Database
from vmgpu.errors import Conflict, HostRefused, ReasonCode
from vmgpu.hypervisor import DomainSeen, GpuFacts, Held, HostFacts, Power, inventory
from vmgpu.machines import HostNews
from vmgpu.models import Event, Gpu, GpuState, Host, Slice
from vmgpu.service import gpus, plans, show
from vmgpu.service.access import Actor


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = factories.make_database(factories.make_settings(tmp_path / "data"))
    yield made
    made.close()


@pytest.fixture
def me(db: Database) -> Actor:
    return factories.admin(db)


def surveyed(db: Database, host: Host, cards: tuple[GpuFacts, ...]) -> list[Gpu]:
    """Take in a survey that shows these cards; the rows, in the order of their addresses."""
    size = {"threads": host.threads, "memory_mib": host.memory_mib}
    new = {"machine": "", "here": "", "boot_id": "boot-1", "disk_written_mib": {}, "gpus": cards}
    facts = HostFacts(**dict(host.facts or {}) | size | new)
    with db.write() as session:
        row = session.get_one(Host, host.id)
        host_outcomes.apply_host(session, row, HostNews("boot-1", (), facts), "here", timedelta(seconds=30))
    with db.read() as session:
        return list(session.exec(select(Gpu).order_by(Gpu.address)).all())  # type: ignore[arg-type]


def plan(db: Database, *profiles: str) -> tuple[list[str], list[ReasonCode]]:
    """What becomes of wishes for these profiles: what is placed, and why the others wait."""
    wishes = [
        placement.Wish(f"vm{n:03}", (0, float(n), ""), 1, 512, gpu=placement.ByProfile(name))
        for n, name in enumerate(profiles)
    ]
    with db.read() as session:
        placed, waiting = placement.plan(wishes, ledger.fleet(session))
    return [one.slice.profile for one in placed if one.slice], [one.reason.code for one in waiting]


def given_out(db: Database, me: Actor, machine: Machine, mode: str) -> Host:
    """A host with the machine's cards, all given out in a mode that allow it."""
    host = factories.make_host(db, cards=())
    for gpu in surveyed(db, host, machine.cards()):
        if mode in gpu.facts["modes"]:
            gpus.offer(db, me, gpu.id, mode=mode)
    return host


def test_room_is_counted_per_card_not_per_function(db: Database, me: Actor, machine: Open) -> None:
    """An A2 with 16 functions on which somebody runs three of 4 GB: of ten requests one starts."""
    given_out(db, me, machine("a2"), "vgpu")
    placed, waiting = plan(db, *["A2-4Q"] * 10)
    assert placed == ["A2-4Q"] and waiting == [ReasonCode.no_slice_free] * 9
    assert plan(db, "A2-8Q") == ([], [ReasonCode.cut_otherwise])


def test_a_card_shows_its_slot_and_its_way_out(db: Database, machine: Open) -> None:
    (told,) = machine("a2").cards()
    surveyed(db, factories.make_host(db, cards=()), (replace(told, companions=("0000:08:00.1",)),))
    with db.read() as session:
        (shown,) = show.gpus(session)
    assert shown.companions == ["0000:08:00.1"] and shown.bars_mib == [16, 16384, 32]
    assert shown.link == "x16 at 16.0 GT/s PCIe" and shown.reset_methods


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (
            {"width": 4, "max_width": 16, "speed": "8.0 GT/s PCIe", "max_speed": "16.0 GT/s PCIe"},
            "x4 of x16 at 8.0 GT/s PCIe",
        ),
        ({"width": 16, "max_width": None, "speed": None, "max_speed": None}, "x16"),
        ({"width": None, "max_width": 16, "speed": None, "max_speed": None}, ""),
        (None, ""),
    ],
)
def test_a_link_says_when_it_is_narrower_than_the_card(link: dict[str, Any] | None, words: str) -> None:
    told = {"address": "0000:41:00.0", "vendor": "10de", "device": "20b5", "class": "0302", "link": link}
    (card,) = inventory.cards(inventory.functions_of({"pci": [told]}), {"pci": [told]}, ours={})
    assert card.link == words


def test_one_size_at_a_time(db: Database, me: Actor, machine: Open) -> None:
    host = machine("l40s")
    given_out(db, me, host, "vgpu")
    assert plan(db, "L40S-48Q", "L40S-2Q")[0] == ["L40S-48Q"]
    assert plan(db, "L40S-2Q", "L40S-2B", "L40S-48Q") == (["L40S-2Q", "L40S-2B"], [ReasonCode.cut_otherwise])


def test_sizes_side_by_side_where_the_admin_chose_that_mode(db: Database, me: Actor, machine: Open) -> None:
    """3 GB and 6 GB on one board: planned at once in mixed-size mode, else told before anything is cut."""
    host, small, large = machine("rtxpro6000"), *(f"RTX Pro 6000 Blackwell DC-{size}" for size in ("3Q", "6Q"))
    row = factories.make_host(db, cards=())
    one = surveyed(db, row, host.cards()[:1])[0]
    gpus.offer(db, me, one.id, mode="vgpu")
    assert plan(db, small, large) == ([small], [ReasonCode.cut_otherwise])
    gpus.offer(db, me, one.id, mode="mixed")
    assert plan(db, small, large) == ([small, large], [])
    with db.read() as session:
        shape = ledger.fleet(session).cards[one.id].shape
    assert set(placement.profile(shape, large).starts) == {*range(0, 96, 6)}


def test_mixed_sizes_where_they_cannot_be_say_why(db: Database, me: Actor, machine: Open) -> None:
    host = factories.make_host(db, cards=())
    (card,) = surveyed(db, host, machine("a2").cards())
    with pytest.raises(Conflict, match="without mdev"):
        gpus.offer(db, me, card.id, mode="mixed")


def test_a_mig_slice_is_the_type_that_fills_its_instance(machine: Open) -> None:
    """Up to twelve smaller vGPUs may share an instance: none of them is what was asked for."""
    cut = next(each for each in machine("rtxpro6000").card().cuts["mig"].pieces if each.name == "1g.24gb+gfx")
    assert cut.type == 1526  # DC-1-24Q


def test_cuda_is_marked(machine: Open) -> None:
    runs = {cut.name for cut in machine("m60").card().cuts["vgpu"].pieces if cut.cuda}
    assert runs == {"M60-8Q"}


@pytest.mark.parametrize(
    ("name", "mode", "profile"),
    [
        ("m60", "vgpu", "M60-4Q"),
        ("t4", "vgpu", "T4-8C"),
        ("a100", "mig", "3g.20gb"),
        ("a2", "vgpu", "A2-4Q"),
        ("l40s", "vgpu", "L40S-12Q"),
        ("h100", "mig", "2g.20gb"),
        ("h200", "mig", "1g.18gb"),
        ("rtxpro6000", "mig", "1g.24gb+gfx"),
        ("rtxpro6000", "mixed", "RTX Pro 6000 Blackwell DC-16Q"),
    ],
)
def test_each_of_the_hosts_can_be_cut_its_way(
    db: Database, me: Actor, machine: Open, name: str, mode: str, profile: str
) -> None:
    given_out(db, me, machine(name), mode)
    assert plan(db, profile)[0] == [profile]


def test_a_plan_says_which_carving_serves_how_many(db: Database, machine: Open) -> None:
    """16 students who need CUDA, on a board of two M60: only whole cards run it, and two are there."""
    host = factories.make_host(db, cards=())
    surveyed(db, host, machine("m60").cards())
    with db.read() as session:
        with_cuda = plans.plan(session, "h1", cuda=True)
        without = plans.plan(session, "h1", cuda=False)
    assert {(one.profile, one.mode.value, one.seats) for one in with_cuda} == {
        ("whole", "passthrough", 2),
        ("M60-8Q", "vgpu", 2),
    }
    assert next(one.profile for one in without if one.seats >= 16) == "M60-1Q"


def test_a_way_that_is_not_possible_says_why(db: Database, me: Actor, machine: Open) -> None:
    host = factories.make_host(db, cards=())
    (card,) = surveyed(db, host, machine("a2").cards())
    with pytest.raises(Conflict, match="virtual functions"):
        gpus.offer(db, me, card.id, mode="passthrough")
    with pytest.raises(Conflict, match="cannot be given out as mig"):
        gpus.offer(db, me, card.id, mode="mig")


class TestAnotherMode:
    """A card that comes back as something else than it is given out as is nobody's until an admin has looked."""

    def test_is_quarantined_and_told_and_others_serve(self, db: Database, me: Actor, machine: Open) -> None:
        host = machine("rtxpro6000")
        row = given_out(db, me, host, "vgpu")
        first = host.card()
        host.ctl.call("mig", {"action": "mode", "address": first.address, "on": True})
        host.ctl.call("vfs", {"address": first.address, "on": True})
        before, other = surveyed(db, row, host.cards())
        assert (before.state, other.state) == (GpuState.quarantined, GpuState.ready)
        assert before.reason and "has come back as mig" in str(before.reason)
        assert "vgpu" not in before.facts["modes"] and "come back" in before.facts["refusals"]["vgpu"]
        with db.read() as session:
            events = session.exec(select(Event).where(Event.kind == "card_quarantined")).all()
            (placed,), _ = placement.plan(
                [placement.Wish("v", (0, 0.0, ""), 1, 512, gpu=placement.ByProfile(other_size(host)))],
                ledger.fleet(session),
            )
        assert len(events) == 1 and placed.gpu_id == other.id
        surveyed(db, row, host.cards())
        with db.read() as session:
            assert len(session.exec(select(Event).where(Event.kind == "card_quarantined")).all()) == 1
        with pytest.raises(Conflict, match="stays quarantined"):
            gpus.clear(db, me, before.id)

    def test_ends_where_it_is_given_out_as_it_is(self, db: Database, me: Actor, machine: Open) -> None:
        host = machine("h100")
        row = given_out(db, me, host, "vgpu")
        host.ctl.call("mig", {"action": "mode", "address": host.card().address, "on": True})
        card = next(each for each in surveyed(db, row, host.cards()) if each.state is GpuState.quarantined)
        gpus.offer(db, me, card.id, mode="mig")
        assert gpus.clear(db, me, card.id).state is GpuState.ready
        assert {each.state for each in surveyed(db, row, host.cards())} == {GpuState.ready}

    def test_mig_that_a_reboot_took_is_no_other_mode(self, db: Database, me: Actor, machine: Open) -> None:
        host = machine("h100")
        row = given_out(db, me, host, "mig")
        host.ctl.call("vfs", {"address": host.card().address, "on": True})
        assert {each.state for each in surveyed(db, row, host.cards())} == {GpuState.ready}

    def test_is_seen_at_the_cut_before_the_next_survey(self, machine: Open) -> None:
        host = machine("h100")
        name = host.card().cuts["vgpu"].pieces[0].name
        piece = host.piece("vgpu", name)
        host.ctl.call("mig", {"action": "mode", "address": piece.gpu.address, "on": True})
        with pytest.raises(HostRefused) as refused:
            host.carver("vgpu").carve(piece)
        assert refused.value.reason and refused.value.reason.code is ReasonCode.card_other_mode


def other_size(host: Machine) -> str:
    """A size that every card of the host takes."""
    return host.cards()[1].cuts["vgpu"].pieces[-1].name


def shared_parent(large: int, medium: int, small: int, *live: str) -> tuple[GpuFacts, ...]:
    """A display parent of the kernel's samples: what of 64 MiB is left for each type, and the types that live there."""
    left = {"mbochs-large": large, "mbochs-medium": medium, "mbochs-small": small}
    types = [
        {"id": name, "description": f"virtual display, {name}", "available": count} for name, count in left.items()
    ]
    mdevs = [{"uuid": f"live-{n}", "parent": "mbochs", "type": name} for n, name in enumerate(live)]
    told = {"mdev_parents": [{"name": "mbochs", "address": None, "types": types}], "mdevs": mdevs}
    return inventory.parents(told, ["mbochs"], known={"mbochs"})


def test_a_parent_that_counts_what_is_left_stays_as_large_as_it_was_seen_empty(db: Database, me: Actor) -> None:
    """A survey while a medium piece lives sees no large one left: it is taken, not gone."""
    host = factories.make_host(db, cards=())
    (gpu,) = surveyed(db, host, shared_parent(1, 4, 16))
    gpus.offer(db, me, gpu.id, mode="vgpu")
    whole = gpu.facts["cuts"]["vgpu"]
    (gpu,) = surveyed(db, host, shared_parent(0, 3, 12, "mbochs-medium"))
    assert gpu.facts["cuts"]["vgpu"] == whole and whole["cells"] == 16
    assert plan(db, "mbochs-large", *["mbochs-medium"] * 4) == (
        ["mbochs-medium"] * 3,
        [ReasonCode.no_slice_free, ReasonCode.no_slice_free],
    )
    (gpu,) = surveyed(db, host, shared_parent(0, 0, 0, "mbochs-large"))
    assert "vgpu" in gpu.facts["modes"] and gpu.facts["cuts"]["vgpu"] == whole
    (gpu,) = surveyed(db, host, shared_parent(2, 8, 32))  # its driver was loaded anew, with more
    assert gpu.facts["cuts"]["vgpu"]["cells"] == 32


class TestIdentity:
    def test_a_card_that_moved_is_the_same(self, db: Database, machine: Open) -> None:
        host, card = factories.make_host(db, cards=()), machine("l40s").card()
        (before,) = surveyed(db, host, (card,))
        (after,) = surveyed(db, host, (replace(card, address="0000:99:00.0", place="0000:99:00.0:10de:26b9"),))
        assert (after.id, after.address) == (before.id, "0000:99:00.0")

    def test_a_card_on_vfio_pci_keeps_what_was_heard_of_it(self, db: Database, machine: Open) -> None:
        host, card = factories.make_host(db, cards=()), machine("l40s").card()
        (before,) = surveyed(db, host, (card,))
        unseen = replace(card, key=f"pci:{card.place}", uuid="", serial="", driver="vfio-pci", memory_mib=None)
        (after,) = surveyed(db, host, (unseen,))
        assert (after.id, after.facts["uuid"]) == (before.id, card.uuid)
        assert after.facts["memory_mib"] == card.memory_mib
        (again,) = surveyed(db, host, (card,))
        assert again.id == before.id and again.state is GpuState.ready

    def test_another_card_at_an_old_address_is_another(self, db: Database, machine: Open) -> None:
        host, card = factories.make_host(db, cards=()), machine("l40s").card()
        (before,) = surveyed(db, host, (card,))
        rows = surveyed(db, host, (replace(card, key="GPU-other", uuid="GPU-other"),))
        assert len(rows) == 2
        assert {row.id: row.state for row in rows}[before.id] is GpuState.absent


class TestAnOrphan:
    """A domain of ours without a row, on a host that was given up and came back."""

    def see(self, db: Database, host: Host, *held: Held) -> list[tuple[str, ...]]:
        """What each card of the host has taken once a visit told what the orphan holds."""
        orphan = DomainSeen("v9", "old-1", Power.running, installation="here")
        news = HostNews("boot-1", (orphan,), None, {"v9": held})
        with db.write() as session:
            row = session.get_one(Host, host.id)
            host_outcomes.apply_host(session, row, news, "here", timedelta(seconds=30))
        with db.read() as session:
            cards = sorted(ledger.fleet(session).cards.values(), key=lambda card: card.name)
        return [tuple(piece.profile for piece in card.taken) for card in cards]

    def test_a_whole_card_that_it_has_is_taken(self, db: Database) -> None:
        host = factories.make_host(db, cards=())
        factories.make_real_gpu(db, host, mode="passthrough")
        assert self.see(db, host, Held("whole", address="0000:41:00.0")) == [("whole",)]
        assert self.see(db, host, Held("whole", address="0000:99:00.0")) == [()]

    def test_its_piece_is_shown_where_it_lies(self, db: Database) -> None:
        host = factories.make_host(db, cards=("A100-40GB",))
        self.see(db, host, Held("3g.20gb", model="A100-40GB"))
        with db.read() as session:
            (shown,) = show.gpus(session)
        assert [(each.profile, each.start, each.cells) for each in shown.others] == [("3g.20gb", 4, 4)]

    def test_emulated_pieces_lie_where_there_is_room(self, db: Database, me: Actor) -> None:
        host = factories.make_host(db, cards=("A100-40GB", "A100-40GB"))
        factories.make_image(db)
        factories.make_vm(db, me, "mine", host=host, profile="7g.40gb")
        half = Held("3g.20gb", model="A100-40GB")
        assert self.see(db, host, half, half) == [("7g.40gb",), ("3g.20gb", "3g.20gb")]
        with db.read() as session:
            gpus = {gpu.name: gpu.orphans for gpu in show.gpus(session)}
            hidden = show.gpus(session, to=Actor("x", "x", admin=False))
        assert gpus == {"h1/0": [], "h1/1": ["3g.20gb by orphan domain old-1"] * 2}
        assert all(gpu.orphans == [] for gpu in hidden)
        assert self.see(db, host) == [("7g.40gb",), ()]


def test_our_own_pieces_are_not_taken_for_strangers(db: Database, me: Actor, machine: Open) -> None:
    host = machine("l40s")
    given_out(db, me, host, "vgpu")
    piece = host.piece("vgpu", "L40S-4Q", slot=3)
    host.carver("vgpu").carve(piece)
    with db.read() as session:
        row, gpu = session.exec(select(Host)).one(), session.exec(select(Gpu)).one()
    assert [one["name"] for one in surveyed(db, row, host.cards())[0].facts["foreign"]] == ["L40S-4Q"]
    factories.make_image(db)
    vm = factories.make_vm(db, me, "a", host=row)
    with db.write() as session:
        sizes: dict[str, Any] = {"start": 0, "slot": 3, "cells": 4, "compute": 4, "memory_mib": 4096}
        session.add(Slice(gpu_id=gpu.id, vm_id=vm.id, profile="L40S-4Q", **sizes))
    assert surveyed(db, row, host.cards())[0].facts["foreign"] == []
