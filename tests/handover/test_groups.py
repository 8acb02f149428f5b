"""Whole cards and what sits beside them: what goes along, what stands in the way, and a card that is dead."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.gpuhost.machine import OpenMachine as Open
from tests.handover import hosts
from tests.site import Site
from vmgpu.models import VMState

RUNNING, PENDING, STOPPED = VMState.running, VMState.pending, VMState.stopped
CARD = "0000:01:00.0"


def test_a_cards_sound_goes_along_though_only_the_card_was_prepared(site: Site, machine: Open) -> None:
    """F07: the card is with vfio-pci, its sound with the host's driver: both go, and the doctor sees it."""
    bench = site.take_in(machine(hosts.gtx860m()), mode="passthrough")
    sound = CARD.replace(".0", ".1")
    findings = {each["id"]: each for each in site.rest("POST", "/hosts/gpu1/doctor?wait=30")["items"]}
    assert findings[f"card-driver:{CARD}"]["seen"] == "with vfio-pci"
    assert f"sound {sound} (snd_hda_intel)" in findings[f"card-group:{CARD}"]["seen"]
    site.ask("whole", "s1")
    vm = site.reaches(RUNNING)
    assert bench.functions(vm.id) == [(CARD, "yes"), (sound, "yes")]
    assert (bench.libvirt.driver(CARD), bench.libvirt.driver(sound)) == ("vfio-pci", "vfio-pci")
    site.rest("POST", "/vms/s1/release")
    site.reaches(VMState.gone)
    assert bench.libvirt.driver(sound) == "snd_hda_intel"


def test_all_functions_of_a_board_go_along_and_the_port_above_does_not(site: Site, machine: Open) -> None:
    """F07: a 1660 Super has four functions in a group with its root port."""
    bench = site.take_in(machine(hosts.gtx1660s()), mode="passthrough")
    site.ask("whole", "s1")
    vm = site.reaches(RUNNING)
    assert bench.functions(vm.id) == [(f"0000:01:00.{number}", "yes") for number in range(4)]
    assert bench.libvirt.driver("0000:00:01.0") == "pcieport"


@pytest.mark.parametrize("sata", ["0000:01:00.1", "0000:02:00.0"])
def test_a_card_in_one_group_with_the_root_disk_is_not_given_out(site: Site, machine: Open, sata: str) -> None:
    """F08: refused with the culprit named, at whichever slot it sits; nothing that an admin says overrides it."""
    bench = site.take_in(machine(hosts.card_beside_the_root_disk(sata=sata)))
    (card,) = site.cards()
    said = card["refusals"]["passthrough"]
    assert "passthrough" not in card["offers"]
    assert f"IOMMU group 12 of card {CARD} also holds SATA controller {sata}" in said
    assert "USB controller 0000:03:00.0" in said
    error = site.offer(card["id"], "passthrough", 409)["error"]
    assert error["message"] == said and error["hint"]
    assert site.cards()[0]["mode"] is None
    assert bench.libvirt.driver(sata) == "ahci"


def test_of_two_cards_in_one_group_one_goes_at_a_time_and_lone_ones_go_first(site: Site, machine: Open) -> None:
    """F09: six V100 in four groups. Four of five students start, the fifth is told why it waits.

    A VM has one card at most, so a wish for two is refused with what is nearest.
    """
    bench = site.take_in(machine(hosts.six_v100()), mode="passthrough")
    assert [each["seats"] for each in site.rest("GET", "/plan?host=gpu1")["items"]] == [4]
    for n in range(2):
        site.ask("whole", f"s{n}")
        site.reaches(RUNNING, f"s{n}")
    assert {bench.functions(site.vm(f"s{n}").id)[0][0] for n in range(2)} == {"0000:88:00.0", "0000:b1:00.0"}
    for n in range(2, 5):
        site.ask("whole", f"s{n}")
    for n in range(2, 4):
        vm = site.reaches(RUNNING, f"s{n}")
        assert len(bench.functions(vm.id)) == 1
    reason = site.waits("s4")
    assert reason["code"] == "group_held" and site.show("s4")["position"] == 1
    assert "2 cards are free" in reason["sentence"] and "IOMMU group" in reason["sentence"]
    assert [card["free"] for card in site.cards()] == [{}] * 6
    mate = next(card for card in site.cards() if not card["slices"])
    assert bench.libvirt.driver(mate["address"]) == "vfio-pci"
    site.rest("POST", "/vms/s2/release")
    site.reaches(RUNNING, "s4")

    flavor = {"name": "pair", "vcpus": 1, "memory": "1g", "disk": "2g", "fgpu": "2"}
    site.rest("POST", "/flavors", flavor, 201)
    refused = site.rest("POST", "/vms", {"name": "two", "flavor": "pair", "image": "base"}, 409)["error"]
    assert refused["code"] == "impossible" and "1 fGPU" in refused["hint"]


def test_a_card_whose_mate_stays_with_the_host_is_not_given_away(site: Site, machine: Open) -> None:
    """F09: giving one away takes the other from the host: an admin gives out both, or none goes."""
    bench = site.take_in(machine(hosts.six_v100()))
    one, other = site.cards()[:2]
    site.offer(one["id"], "passthrough")
    site.ask("whole", "s1")
    reason = site.waits("s1")
    assert reason["code"] == "group_kept_back" and other["address"] in reason["sentence"]
    site.offer(other["id"], "passthrough")
    vm = site.reaches(RUNNING)
    pair = {one["address"], other["address"]}
    ((given, managed),) = bench.functions(vm.id)
    assert given in pair and managed == "yes"
    assert {bench.libvirt.driver(each) for each in pair} == {"vfio-pci"}
    site.rest("POST", "/vms/s1/release")
    site.reaches(VMState.gone)
    assert {bench.libvirt.driver(each) for each in pair} == {"nvidia"}


@pytest.mark.parametrize("seen", ["by its configuration space", "by libvirt at the start"])
def test_a_dead_card_is_quarantined_and_its_vm_goes_to_another(site: Site, machine: Open, seen: str) -> None:
    """F12: after a stop by force the card reads ff. It is not given out again before a survey has seen it well."""
    bench = site.take_in(machine(hosts.two_p4()), mode="passthrough")
    site.ask("whole", "s1")
    vm = site.reaches(RUNNING)
    ((dead, _),) = bench.functions(vm.id)
    site.hands["gpu1"].set_mood("cheerful", boot=0.05, off=1000)
    site.settings.shutdown_timeout = timedelta(seconds=0.2)
    site.rest("POST", "/vms/s1/stop", {"slices": "keep"})
    site.reaches(STOPPED)
    if seen == "by its configuration space":
        bench.model.kill_card(dead)
    else:
        bench.refuses[dead] = f"internal error: Unknown PCI header type '127' for device '{dead}'"
    site.rest("POST", "/vms/s1/start")
    site.reaches(RUNNING)
    ((instead, _),) = bench.functions(vm.id)
    assert instead != dead

    card = next(each for each in site.cards() if each["address"] == dead)
    assert card["state"] == "quarantined" and dead in card["reason"]["sentence"]
    assert ("all ones" if dead not in bench.refuses else "type '127'") in card["reason"]["sentence"]
    assert "card_quarantined" in [event["kind"] for event in site.rest("GET", "/events")["items"]]
    site.ask("whole", "next")
    site.waits("next")
    assert site.rest("POST", f"/gpus/{card['id']}/clear", None, 409)["error"]["hint"].endswith("host survey gpu1.")
    if dead not in bench.refuses:
        site.survey()
        assert "all ones" in site.rest("POST", f"/gpus/{card['id']}/clear", None, 409)["error"]["message"]
        site.reboot(power_cycle=True)
    bench.refuses.clear()
    assert site.vm("next").state is PENDING
    site.survey()
    site.rest("POST", f"/gpus/{card['id']}/clear")
    assert bench.functions(site.reaches(RUNNING, "next").id) == [(dead, "yes")]
