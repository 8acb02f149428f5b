"""The doctor at a host is a wish: a visit answers it, whatever the host does; a VM's failure carries his cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.factories import admin, make_database, make_settings
from tests.worlds import House
from vmgpu.errors import Conflict, HostRefused, Reason, ReasonCode
from vmgpu.hypervisor.fake.host import FakeHost
from vmgpu.machines import doctor_due
from vmgpu.models import Host, HostState, VMState, now
from vmgpu.service import hosts

pytestmark = pytest.mark.slow

S = VMState


@pytest.fixture
def open_house(tmp_path: Path) -> Iterator[Callable[..., House]]:
    made: list[House] = []

    def opened(**given: Any) -> House:
        settings = make_settings(tmp_path / f"data-{len(made)}", **{"sync_every": timedelta(minutes=5)} | given)
        db = make_database(settings)
        made.append(House(settings, db, admin(db)))
        return made[-1]

    yield opened
    for house in made:
        house.close()


@pytest.fixture
def house(open_house: Callable[..., House]) -> House:
    return open_house()


def examined(house: House, seconds: float = 20) -> list[dict[str, str]]:
    """Ask, and wait for the answer."""
    asked = hosts.examine(house.db, house.me, "h1").doctor_asked

    def answered() -> bool:
        at = house.row(Host, "h1").doctor_at
        return bool(at and asked and at >= asked)

    house.until(answered, seconds)
    return [dict(each) for each in house.row(Host, "h1").doctor]


def test_a_visit_answers(house: House) -> None:
    house.host()
    assert house.row(Host, "h1").doctor == []
    (only,) = examined(house)
    assert (only["id"], only["level"]) == ("simulated", "ok") and "simulated" in only["seen"]
    first = house.row(Host, "h1").doctor_at
    examined(house)
    second = house.row(Host, "h1").doctor_at
    assert first and second and second > first


def test_a_host_that_does_not_answer_is_one_broken_check(house: House) -> None:
    hand = house.host()
    hand.set_mood("unreachable")
    (only,) = examined(house)
    assert (only["id"], only["level"]) == ("host", "broken")
    assert only["seen"] == "simulated: no route to host" and only["cure"]
    house.until(lambda: house.row(Host, "h1").state is HostState.unreachable)
    assert examined(house) == [only]
    hand.set_mood("cheerful")
    assert examined(house)[0]["level"] == "ok"


def test_a_survey_that_fails_keeps_the_doctor_from_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.host()

    def refused(_: FakeHost) -> Any:
        raise HostRefused("Failed to add driver 'vfio-pci' to driver_override  interface")

    monkeypatch.setattr(FakeHost, "survey", refused)
    hosts.survey(house.db, house.me, "h1")
    house.until(lambda: house.row(Host, "h1").reason is not None)
    said = Reason.of(house.row(Host, "h1").reason)
    assert said and said.code is ReasonCode.survey_failed and "driver_override" in said.cure()
    assert examined(house)[0]["id"] == "simulated"


def test_a_doctor_that_breaks_keeps_the_host_from_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.host()

    def broken(_: FakeHost) -> Any:
        raise KeyError("of odd facts")

    monkeypatch.setattr(FakeHost, "checkup", broken)
    assert "KeyError" in examined(house)[0]["seen"]
    assert house.row(Host, "h1").state is HostState.ready


def test_a_doctor_that_hangs_is_given_up_and_said_so(
    open_house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house(host_call_timeout=timedelta(seconds=0.5))
    house.host()
    monkeypatch.setattr(FakeHost, "checkup", lambda host: host._line._closed.wait(30))
    (only,) = examined(house)
    assert only["level"] == "broken" and "has not returned" in only["seen"] and "libvirtd" in only["cure"]


def test_who_asks_during_a_visit_does_not_wait_for_the_next(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.host()
    plain, asked = FakeHost.domains, []

    def meanwhile(host: FakeHost) -> Any:
        if not asked:
            asked.append(hosts.examine(house.db, house.me, "h1"))
        return plain(host)

    monkeypatch.setattr(FakeHost, "domains", meanwhile)
    hosts.survey(house.db, house.me, "h1")
    house.until(lambda: bool(house.row(Host, "h1").doctor), 20)


def test_a_host_that_leaves_is_not_examined(house: House) -> None:
    hand = house.host()
    hand.set_mood("slow", pause=1.0)
    hosts.remove(house.db, house.me, "h1")
    with pytest.raises(Conflict, match="being removed"):
        hosts.examine(house.db, house.me, "h1")


def test_due_is_what_was_asked_since() -> None:
    at = now()
    assert not doctor_due(None, None) and not doctor_due(at, at)
    assert doctor_due(at, None) and doctor_due(at, at - timedelta(seconds=1))


def test_a_start_that_the_host_refuses_carries_the_cure(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.host()
    words = "internal error: vfio: group 12 is not viable"

    def refused(_: FakeHost, vm_id: str) -> None:
        raise HostRefused(words, hint="The host's logs say more.")

    monkeypatch.setattr(FakeHost, "ensure_running", refused)
    house.request()
    said = Reason.of(house.reaches(S.failed).reason)
    assert said and said.code is ReasonCode.host_error and said.args["detail"] == words
    assert said.cure().startswith("Other functions of the card's IOMMU group are still with drivers of the host. ")
    assert "/sys/kernel/iommu_groups/N/devices" in said.cure() and "logs" not in said.cure()


@pytest.mark.parametrize(
    ("words", "code", "cure"),
    [
        ("cannot write data to file: No space left on device", ReasonCode.host_error, "pool"),
        ("The copy of base differs from its master", ReasonCode.image_broken, "Import or capture it again."),
    ],
)
def test_a_copy_that_the_host_refuses(
    house: House, monkeypatch: pytest.MonkeyPatch, words: str, code: ReasonCode, cure: str
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise HostRefused(words)

    house.host()
    monkeypatch.setattr(FakeHost, "has_image", lambda *_: False)
    monkeypatch.setattr(FakeHost, "ensure_image", refused)
    house.request()
    said = Reason.of(house.reaches(S.failed).reason)
    assert said and said.code is code and words in said.sentence() and cure in said.cure()
