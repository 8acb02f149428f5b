"""The doctor by REST: an admin asks and waits; the last answer stays readable."""

from __future__ import annotations

import threading

from tests import factories
from tests.api.conftest import House
from vmgpu.hypervisor.doctor import unseen
from vmgpu.models import Host, HostState, now
from vmgpu.service import hosts


def _answers(house: House, name: str = "h1") -> None:
    """What a worker's visit writes."""
    with house.db.write() as session:
        row = session.get_one(Host, hosts.find_host(session, name).id)
        row.doctor, row.doctor_at = [unseen("no route to host", "").as_dict()], now()


def test_an_admin_asks_and_waits(house: House) -> None:
    factories.make_host(house.db)
    assert house.admin.get("/hosts/h1/doctor").json() == {"host": "h1", "at": None, "items": []}
    assert house.admin.post("/hosts/h1/doctor?wait=0").json() == {"host": "h1", "at": None, "items": []}
    worker = threading.Timer(0.5, _answers, [house])
    worker.start()
    answer = house.admin.post("/hosts/h1/doctor?wait=30")
    worker.join()
    assert answer.status_code == 200 and answer.json()["at"]
    (item,) = answer.json()["items"]
    assert set(item) == {"id", "level", "seen", "means", "cure"} and item["level"] == "broken"
    assert house.admin.get("/hosts/h1/doctor").json() == answer.json()
    assert house.admin.post("/hosts/h1/doctor?wait=0").json()["items"] == []  # an older answer is none to this question


def test_refusals(house: House) -> None:
    leaving = factories.make_host(house.db)
    anna = house.person("anna")
    assert anna.post("/hosts/h1/doctor").status_code == anna.get("/hosts/h1/doctor").status_code == 403
    assert house.admin.post("/hosts/none/doctor").status_code == 404
    assert house.admin.get("/hosts/none/doctor").status_code == 404
    with house.db.write() as session:
        session.get_one(Host, leaving.id).state = HostState.removing
    refused = house.admin.post("/hosts/h1/doctor")
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "conflict"
    assert house.admin.post("/hosts/h1/doctor?wait=x").status_code == 422
