"""Long lists stay cheap, and two who take one name at once do not both get it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import event

from tests import factories
from tests.api.conftest import House
from vmgpu.errors import Conflict, ReasonCode, reason
from vmgpu.models import now
from vmgpu.service import images


def _statements(house: House, path: str) -> int:
    seen: list[str] = []

    def heard(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(house.db.engine, "before_cursor_execute", heard)
    try:
        assert house.admin.get(path).status_code == 200
    finally:
        event.remove(house.db.engine, "before_cursor_execute", heard)
    return len(seen)


def test_a_long_list_takes_no_more_queries_than_a_short_one(house: House) -> None:
    host = factories.make_host(house.db, cards=["A100-40GB"] * 4)
    factories.make_image(house.db)
    factories.make_vm(house.db, house.admin.actor, "first", host=host, profile="3g.20gb")
    paths = ("/vms", "/queue", "/events", "/gpus", "/hosts", "/images", "/users")
    few = {path: _statements(house, path) for path in paths}
    for number in range(25):
        person = factories.make_user(house.db, f"u{number}")
        if number < 7:
            factories.make_vm(house.db, person, f"s{number}", host=host, profile="3g.20gb")
        else:
            because = reason(ReasonCode.no_slice_free, places=8, profile="3g.20gb", cards=4)
            factories.make_vm(house.db, person, f"s{number}", reason=because.as_dict())
    many = {path: _statements(house, path) for path in paths}
    assert all(many[path] <= few[path] + 1 for path in paths), (few, many)  # one more: places in the queue
    assert len(house.admin.get("/vms").json()["items"]) == 26


def test_of_two_imports_of_one_name_one_is_refused_and_leaves_nothing(house: House) -> None:
    def begin() -> images.Incoming:
        return images.begin(
            house.db, house.settings, house.admin.actor, name="one", format="raw", filename="", labels={}
        )

    both = [begin(), begin()]
    for one in both:
        one.part.write_bytes(b"\x55" * 4096)
    kept = images.finish(house.db, house.settings, house.admin.actor, both[0], sha256="x")
    with pytest.raises(Conflict):
        images.finish(house.db, house.settings, house.admin.actor, both[1], sha256="x")
    assert [path.name for path in house.settings.images_dir.iterdir()] == [kept.volume]


def test_a_survey_is_not_answered_by_an_older_failure(house: House) -> None:
    old = reason(ReasonCode.survey_failed, host="h1", detail="long ago", hint="")
    host = factories.make_host(house.db, reason=old.as_dict())
    began = time.monotonic()
    answer = house.admin.post("/hosts/h1/survey?wait=0.5")
    assert time.monotonic() - began >= 0.5  # nobody surveys: it waited, and says what is known
    assert answer.status_code == 200 and "long ago" in answer.json()["reason"]["sentence"]
    with house.db.read() as session:
        row = session.get_one(type(host), host.id)
    assert row.due_at is not None and row.due_at <= now() and row.survey_asked is not None
