"""What the doctor says, on a terminal and as data."""

from __future__ import annotations

import json

from tests.hypervisor.doctor.hosts import CARD, facts, function, look
from vmgpu.hypervisor.doctor import explain, render


def test_checks_are_aligned_and_counted() -> None:
    found = list(look(facts(function(dead=True))).values())
    lines = render.checks(found).splitlines()
    starts = {line.index(each.seen[:10]) for each in found for line in lines if line[9:].startswith(f"{each.id} ")}
    assert len(starts) == 1
    assert f"broken   card-alive:{CARD}" in "\n".join(lines)
    assert any(line.startswith("         cure   Keep it from guests.") for line in lines)
    assert lines[-1] == render.summary(found)
    assert lines[-1].endswith("0 warnings, 2 broken")  # the card, and that there is no other
    assert max(map(len, lines)) <= 100


def test_only_what_is_wrong_gets_more_than_a_line() -> None:
    found = list(look(facts()).values())
    assert len(render.checks(found, width=200).splitlines()) == len(found) + 1


def test_a_narrow_terminal_does_not_break_it() -> None:
    assert render.checks(list(look(facts()).values()), width=1)
    assert render.checks([]) == "0 ok, 0 warnings, 0 broken"


def test_causes_in_words() -> None:
    said = render.causes(explain("vfio 0000:41:00.0: group 27 is not viable"))
    title, seen, *rest = said.splitlines()
    assert title.startswith("Other functions of the card's IOMMU group")
    assert seen == "  seen   vfio 0000:41:00.0: group 27 is not viable"
    assert [line[:7] for line in rest if line[2] != " "] == ["  means", "  cure "]


def test_as_data() -> None:
    found = list(look(facts(function(dead=True))).values())
    data = json.loads(json.dumps(render.checks_as_dict(found)))
    assert {"id", "level", "seen", "means", "cure"} == set(data["items"][0])
    assert render.causes_as_dict(()) == {"causes": []}
