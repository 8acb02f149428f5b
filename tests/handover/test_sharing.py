"""Several VMs on one card: what still fits, and what is said to those who wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from tests import factories
from tests.api.conftest import TestClient
from tests.gpuhost.machine import OpenMachine as Open
from tests.handover import hosts
from tests.site import Site, answering
from vmgpu.api import create_app
from vmgpu.models import VMState

RUNNING, PENDING = VMState.running, VMState.pending


def test_another_size_waits_and_is_told_which_size_is_in_the_way(site: Site, machine: Open) -> None:
    """F01: one 2Q runs on an A6000. 48Q waits for its end; 2Q and 2B start, and share the 23 places that are left."""
    bench = site.take_in(machine(hosts.a6000()), mode="vgpu")
    site.ask("RTXA6000-2Q", "first")
    site.reaches(RUNNING, "first")
    two_gib = {"RTXA6000-2Q": 23, "RTXA6000-2B": 23, "RTXA6000-2A": 23}
    assert site.cards()[0]["free"] == two_gib
    site.ask("RTXA6000-48Q", "large")
    site.ask("RTXA6000-2Q", "second")
    site.ask("RTXA6000-2B", "third")
    for name in ("second", "third"):
        site.reaches(RUNNING, name)
    assert site.cards()[0]["free"] == dict.fromkeys(two_gib, 21)
    assert len(bench.vgpus()) == 3
    reason = site.waits("large")
    assert (reason["code"], site.show("large")["position"]) == ("cut_otherwise", 1)
    assert "RTXA6000-48Q" in reason["sentence"]
    assert "in pieces of 2 GiB until the last of 3 VMs there ends" in reason["sentence"]
    for name in ("first", "second", "third"):
        site.rest("POST", f"/vms/{name}/release")
    site.reaches(RUNNING, "large")
    assert site.cards()[0]["free"] == {}


def test_room_is_counted_once_for_the_card_however_many_functions_offer_it(site: Site, machine: Open) -> None:
    """F02: an A2 of 16 GB with 16 functions, three of 4 GB taken by others. Of ten requests one starts, nine queue."""
    bench = site.take_in(machine("a2"), mode="vgpu")
    card = site.cards()[0]
    assert card["foreign"] == ["A2-4Q"] * 3
    assert card["free"] == {"A2-4Q": 1, "A2-4C": 1, "A2-4A": 1}
    site.ask("A2-4Q", *(f"s{n}" for n in range(10)))
    site.reaches(RUNNING, "s0")
    site.until(lambda: all(site.vm(f"s{n}").reason for n in range(1, 10)))
    assert [site.show(f"s{n}")["position"] for n in range(1, 10)] == list(range(1, 10))
    assert {site.show(f"s{n}")["reason"]["code"] for n in range(1, 10)} == {"no_slice_free"}
    assert site.cards()[0]["free"] == {}
    (mine,) = bench.mdevs(site.vm("s0").id)
    assert len(bench.vgpus()) == 4 and mine in [vgpu["seat"] for vgpu in bench.vgpus()]


def test_thirty_starts_in_one_second_get_eight_cards_and_twenty_two_places_in_the_queue(site: Site) -> None:
    """F06: two doors of the service, 30 students at once, 8 cards. Nobody fails because a card is in use.

    tests/postgres/test_processes.py plays the same with processes of their own and 40 requests for 2 slices.
    """
    hand = site.host("h1", "8xA100-80GB")
    owners = [factories.make_user(site.db, f"student{n:02}") for n in range(30)]
    site.rest("POST", "/flavors", {"name": "card", "vcpus": 1, "memory": "1g", "disk": "2g", "profile": "whole"}, 201)
    voices = [factories.make_token(site.db, owner) for owner in owners]
    together = Barrier(30)
    with TestClient(create_app(site.db, site.settings)) as other:
        doors = (site.http, other)

        def press(n: int) -> str:
            together.wait(30)
            asked = {"name": f"vm{n:02}", "flavor": "card", "image": "base"}
            (made,) = answering(doors[n % 2], voices[n])("POST", "/vms", asked, 202)["items"]
            return str(made["id"])

        with ThreadPoolExecutor(30) as pool:
            ids = list(pool.map(press, range(30)))
    site.until(lambda: sum(_state(site, one) is RUNNING for one in ids) == 8)
    shown: list[dict[str, Any]] = [site.rest("GET", f"/vms/{one}") for one in ids]
    running = [vm for vm in shown if vm["state"] == "running"]
    assert len({vm["slices"][0]["gpu"] for vm in running}) == 8
    site.until(lambda: all(site.rest("GET", f"/vms/{one}")["position"] for one in ids if _state(site, one) is PENDING))
    in_order = sorted(ids, key=lambda one: site.vm_of(one).ticket)
    waiting = [one for one in in_order if _state(site, one) is PENDING]
    assert in_order == [*[one for one in in_order if _state(site, one) is RUNNING], *waiting]
    assert [site.rest("GET", f"/vms/{one}")["position"] for one in waiting] == list(range(1, 23))
    counts = hand.counts()
    assert (counts["cut"], counts["started"], counts["double_carve"]) == (8, 8, 0)


def test_one_card_is_not_promised_to_two_wishes_of_one_vm(site: Site, machine: Open) -> None:
    """F24: `one T4 and one of any kind` on a host with a single T4 is refused; one function of many is exactly one."""
    site.take_in(machine(hosts.one_t4()), "t4", mode="passthrough")
    both = {"name": "both", "vcpus": 1, "memory": "1g", "disk": "2g", "profile": "whole", "fgpu": "1"}
    assert "not both" in site.rest("POST", "/flavors", both, 422)["error"]["message"]
    site.rest("POST", "/flavors", both | {"name": "two", "profile": None, "fgpu": "2"}, 201)
    refused = site.rest("POST", "/vms", {"name": "greedy", "flavor": "two", "image": "base"}, 409)["error"]
    assert refused["code"] == "impossible" and "1 fGPU" in refused["hint"]
    assert site.rest("GET", "/vms")["items"] == []

    bench = site.take_in(machine("l40s"), "l40s", mode="vgpu")
    site.ask("L40S-4Q", "one")
    site.reaches(RUNNING, "one")
    assert len(bench.functions(site.vm("one").id)) == len(bench.vgpus()) == len(site.show("one")["slices"]) == 1


def _state(site: Site, vm_id: str) -> VMState:
    return site.vm_of(vm_id).state


def test_mixed_sizes_lie_side_by_side_and_a_refused_one_leaves_the_other(site: Site, machine: Open) -> None:
    """F03: 3 GB and 6 GB on one RTX PRO 6000. The mode is set after the functions and before the first vGPU."""
    bench = site.take_in(machine("rtxpro6000"))
    card = site.cards()[0]
    assert "mixed" in card["offers"] and card["now"] != "mixed"
    site.offer(card["id"], "mixed")
    name = "RTX Pro 6000 Blackwell DC-"
    site.ask(f"{name}3Q", "small")
    site.reaches(RUNNING, "small")
    (small,) = bench.vgpus()
    assert bench.model.state()["cards"][card["address"]]["mixed"]
    bench.model.set_mood("refuse", path="current_vgpu_type", times=1)
    site.ask(f"{name}6Q", "refused")
    site.reaches(VMState.failed, "refused")
    assert site.show("refused")["reason"]["sentence"] and site.vm("small").state is RUNNING
    assert bench.vgpus() == [small]
    site.ask(f"{name}6Q", "large")
    site.reaches(RUNNING, "large")
    assert sorted(vgpu["type"][-2:] for vgpu in bench.vgpus()) == ["3Q", "6Q"]
    site.survey()
    assert site.cards()[0]["now"] == "mixed"
