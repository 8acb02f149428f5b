"""What people do by REST, as stories over real rows."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlmodel import select

from tests import factories
from tests.api.conftest import House
from vmgpu.errors import ReasonCode, reason
from vmgpu.models import VM, Console, Host, HostState, VMState, now

ASKED = {"name": "s{n}", "count": 3, "flavor": "half", "image": "base"}


def _half(house: House) -> None:
    factories.make_host(house.db)
    factories.make_image(house.db)
    factories.make_flavor(house.db, "half", fgpu="0.5")


def test_three_are_asked_for_and_each_has_its_own_row(house: House) -> None:
    _half(house)
    answer = house.admin.post("/vms", ASKED)
    assert answer.status_code == 202
    items = answer.json()["items"]
    assert [vm["name"] for vm in items] == ["s1", "s2", "s3"]
    assert [vm["position"] for vm in items] == [1, 2, 3]
    assert {vm["state"] for vm in items} == {"pending"}
    needed = {"id", "name", "owner", "state", "position", "reason", "address", "slices", "lease_ends"}
    assert needed <= set(items[0])
    assert [vm["name"] for vm in house.admin.get("/queue").json()["items"]] == ["s1", "s2", "s3"]
    why = house.admin.get("/queue/s3/why").json()
    assert why["position"] == 3 and {"slice_free", "cpu"} <= {step["filter"] for step in why["steps"]}


def test_a_vm_is_found_by_id_name_and_owner_slash_name(house: House) -> None:
    factories.make_image(house.db)
    anna = house.person("anna")
    vm = factories.make_vm(house.db, anna.actor, "s1")
    for ref in (vm.id, "s1", "anna/s1"):
        assert house.admin.get(f"/vms/{ref}").json()["id"] == vm.id
        assert house.admin.post(f"/vms/{ref}/extend", {"by": "1h"}).status_code == 202
        assert house.admin.get(f"/vms/{ref}/events").json()["items"][0]["kind"] == "requested"


def test_a_vm_may_be_called_like_what_is_asked_of_one(house: House) -> None:
    factories.make_image(house.db)
    anna = house.person("anna")
    for name in ("events", "console", "ssh", "stop"):
        vm = factories.make_vm(house.db, anna.actor, name)
        assert house.admin.get(f"/vms/anna/{name}").json()["id"] == vm.id
        assert house.admin.post(f"/vms/anna/{name}/release").json()["wanted"] == "gone"


def test_each_wish_lands_on_the_row(house: House) -> None:
    host = factories.make_host(house.db)
    factories.make_image(house.db)
    vm = factories.make_vm(house.db, house.admin.actor, host=host, expires_at=now() + timedelta(hours=1))
    call = house.admin.post
    assert call("/vms/s1/stop", {"slices": "release"}).json()["wanted"] == "stopped"
    assert call("/vms/s1/start").json()["wanted"] == "running"
    assert call("/vms/s1/stop").status_code == 202
    assert call("/vms/s1/start").status_code == 202
    before = _row(house, vm)
    assert call("/vms/s1/reboot").status_code == 202
    assert call("/vms/s1/reset").status_code == 202
    after = _row(house, vm)
    assert (after.boots, after.build) == (before.boots + 1, before.build + 1)
    made = call("/vms/s1/snapshot", {"image": "team/mine:1"})
    assert made.status_code == 202 and made.json()["state"] == "copying" and made.json()["owner"] == "admin"
    assert call("/vms/s1/release").json()["wanted"] == "gone"
    refused = call("/vms/s1/start")
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "conflict"


def test_a_snapshot_without_room_is_refused_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of 512 MiB and a disk of which the survey saw 3 GiB written do not go into a store with 2 GiB free."""
    host = factories.make_host(house.db)
    factories.make_image(house.db)
    vm = factories.make_vm(house.db, house.admin.actor, host=host)
    with house.db.write() as session:
        row = session.get_one(Host, host.id)
        row.facts = {**(row.facts or {}), "disk_written_mib": {vm.id: 3072}}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Mock(free=2 * 2**30))
    refused = house.admin.post("/vms/s1/snapshot", {"image": "team/mine:1"})
    assert refused.status_code == 409
    assert "may need 3584 MiB, 2048 MiB are free in the image store" in refused.json()["error"]["message"]
    assert house.admin.get("/images/team/mine:1").status_code == 404
    assert _row(house, vm).capture_as is None


def test_those_that_are_gone_are_listed_only_where_asked_for(house: House) -> None:
    factories.make_image(house.db)
    factories.make_vm(house.db, house.admin.actor, "here")
    factories.make_vm(house.db, house.admin.actor, "away", state=VMState.gone)

    def names(query: str) -> list[str]:
        return [vm["name"] for vm in house.admin.get(f"/vms{query}").json()["items"]]

    assert names("") == ["here"]
    assert sorted(names("?all=true")) == ["away", "here"]
    assert names("?state=gone") == ["away"]
    assert names("?state=pending&state=running&owner=admin") == ["here"]


def test_adding_a_host_waits_for_its_first_survey(house: House) -> None:
    with _surveyor(house, state=HostState.ready, threads=8):
        answer = house.admin.post("/hosts?wait=60", {"name": "h1", "uri": "qemu:///system"})
    assert answer.status_code == 201 and answer.json()["state"] == "ready" and answer.json()["threads"] == 8


def test_a_failed_survey_says_why(house: House) -> None:
    because = reason(ReasonCode.survey_failed, host="h1", detail="no route", hint="Look.").as_dict()
    with _surveyor(house, reason=because):
        answer = house.admin.post("/hosts?wait=60", {"name": "h1", "uri": "qemu:///system"})
    assert answer.status_code == 201 and "no route" in answer.json()["reason"]["sentence"]


def test_hosts_are_drained_changed_and_removed(house: House) -> None:
    host = factories.make_host(house.db)
    factories.make_image(house.db)
    factories.make_vm(house.db, house.admin.actor, host=host)
    assert house.admin("PATCH", "/hosts/h1", json={"draining": True}).json()["draining"] is True
    assert house.admin("PATCH", "/hosts/h1", json={"overcommit": 2}).json()["overcommit"] == 2
    held = house.admin("DELETE", "/hosts/h1")
    assert held.status_code == 409 and "s1" in held.json()["error"]["message"]
    house.admin.post("/vms/s1/release")
    with house.db.write() as session:
        session.get_one(VM, house.admin.get("/vms/s1").json()["id"]).state = VMState.gone
    assert house.admin("DELETE", "/hosts/h1").json()["state"] == "removing"


def test_one_fgpu_of_a_card_becomes_a_profile(house: House) -> None:
    factories.make_host(house.db)
    made = house.admin("PUT", "/gpu-units/A100-40GB", json={"share": "0.5"}).json()
    assert made["becomes"]["profile"] == "3g.20gb" and made["becomes"]["per_card"] == 2
    assert house.admin.get("/gpu-units").json()["items"] == [made]
    flavor = house.admin.post("/flavors", {"name": "one", "memory": "4g", "disk": "10g", "fgpu": "1"}).json()
    assert flavor["becomes"][0]["says"] == "3g.20gb on A100-40GB: 50 % of memory, 43 % of compute"
    assert house.admin("DELETE", "/flavors/one").status_code == 204
    assert house.admin.get("/flavors/one").status_code == 404


def test_real_cards_are_offered_whole_and_kept_back(house: House) -> None:
    host = factories.make_host(house.db, cards=())
    free = factories.make_real_gpu(house.db, host)
    taken = factories.make_real_gpu(
        house.db, host, key="0000:42:00.0", facts={"refusals": {"passthrough": "it is the console"}}
    )
    assert house.admin.get(f"/gpus/{free.id}").json()["mode"] is None
    assert house.admin.post(f"/gpus/{free.id}/offer", {"offered": True}).json()["mode"] == "passthrough"
    assert house.admin.post(f"/gpus/{free.id}/offer", {"offered": False}).json()["mode"] is None
    refused = house.admin.post(f"/gpus/{taken.id}/offer", {"offered": True})
    assert refused.status_code == 409 and "console" in refused.json()["error"]["message"]


def test_the_way_into_a_vm(house: House) -> None:
    near = factories.make_host(house.db, "near")
    far = factories.make_host(house.db, "far", uri="qemu+ssh://root@gpu1.example.org:2222/system")
    factories.make_image(house.db)
    anna = house.person("anna")
    vm = factories.make_vm(house.db, anna.actor, "a", host=near, members=[house.admin.actor])
    factories.make_vm(house.db, anna.actor, "b", host=far)
    factories.make_vm(house.db, anna.actor, "c")
    way = anna.get("/vms/a/ssh").json()
    assert (way["login"], way["address"], way["port"], way["jump"]) == ("anna", "192.168.171.10", 22, None)
    assert way["known_hosts"] == f"{way['alias']} {vm.host_key}"
    assert house.admin.get("/vms/a/ssh").json()["login"] == "admin"
    far_way = house.admin.get("/vms/anna/b/ssh").json()
    assert far_way["jump"] == "root@gpu1.example.org:2222" and far_way["jump_known_hosts"].endswith(" None")
    # how a host is opened is not told to those who have no account there
    refused = anna.get("/vms/b/ssh")
    assert refused.status_code == 409 and "example.org" not in refused.text
    assert anna.get("/vms/c/ssh").status_code == 409


def test_the_console_is_asked_of_the_host_and_waited_for(house: House) -> None:
    host = factories.make_host(house.db)
    factories.make_image(house.db)
    vm = factories.make_vm(house.db, house.admin.actor, host=host)

    def answer_it() -> None:
        for _ in range(100):
            if (asked := _row(house, vm).console_asked) is not None:
                with house.db.write() as session:
                    session.merge(Console(vm_id=vm.id, text=b"login: \xff", at=asked))
                return
            time.sleep(0.02)

    worker = threading.Thread(target=answer_it)
    worker.start()
    answer = house.admin.get("/vms/s1/console?wait=10")
    worker.join()
    assert answer.text == "login: \ufffd" and answer.headers["content-type"].startswith("text/plain")
    assert _row(house, vm).wakes == vm.wakes + 1
    began = time.monotonic()
    assert house.admin.get("/vms/s1/console?wait=0").text == "login: \ufffd"  # nobody answers: what is kept
    assert time.monotonic() - began < 2


def test_people_their_keys_tokens_and_links(house: House) -> None:
    admin = house.admin
    assert admin.post("/users", {"name": "anna"}).status_code == 201
    assert admin.post("/users", {"name": "anna"}).status_code == 409
    key = admin.post("/keys?user=anna", {"keys": factories.A_KEY}).json()["items"][0]
    assert key["user"] == "anna" and key["fingerprint"].startswith("SHA256:")
    assert admin("DELETE", f"/keys/{key['fingerprint']}?user=anna").status_code == 204
    assert admin.get("/keys?user=anna").json() == {"items": []}
    made = admin.post("/tokens?user=anna", {"name": "ci", "valid": "1h"}).json()
    as_anna = {"authorization": f"Bearer {made['secret']}"}
    assert admin.get("/whoami", headers=as_anna).json()["name"] == "anna"
    assert [t["secret"] for t in admin.get("/tokens?user=anna").json()["items"]] == [None]
    assert admin("DELETE", f"/tokens/{made['id']}").status_code == 204
    assert admin.get("/whoami", headers=as_anna).status_code == 401
    link = admin.post("/users/anna/link").json()["url"]
    assert link.startswith(f"{house.settings.base_url}/signin?link=")
    assert admin("DELETE", "/users/anna").status_code == 204
    assert admin("DELETE", "/users/admin").status_code == 409


def test_events_go_on_after_a_number(house: House) -> None:
    factories.make_image(house.db)
    for number in range(5):
        factories.make_vm(house.db, house.admin.actor, f"s{number}")
    first = house.admin.get("/events?limit=3").json()["items"]
    assert [event["vm"] for event in first] == ["s2", "s3", "s4"]
    after = house.admin.get(f"/events?after={first[0]['id']}&limit=1").json()["items"]
    assert [event["vm"] for event in after] == ["s3"]
    assert [event["vm"] for event in house.admin.get("/events?vm=s1").json()["items"]] == ["s1"]


def test_every_body_has_an_example_and_every_address_is_described(house: House) -> None:
    api = house.http.get("/api/v1/openapi.json").json()
    bodies = 0
    for path, verbs in api["paths"].items():
        for verb, operation in verbs.items():
            assert operation.get("description"), (verb, path)
            if path.startswith("/api/"):
                assert operation["security"] == [{"token": []}], (verb, path)
                assert "401" in operation["responses"], (verb, path)
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                if kind == "application/json":
                    bodies += 1
                    assert _has_example(api, content["schema"]), (verb, path)
    assert bodies >= 12


def test_every_shape_that_the_document_names_is_in_it(house: House) -> None:
    text = house.http.get("/api/v1/openapi.json").text
    named = set(re.findall(r'"\$ref":\s*"#/components/schemas/([^"]+)"', text))
    assert {"FaultOut", "VMOut", "SliceOut"} <= named <= json.loads(text)["components"]["schemas"].keys()


def test_a_long_list_leaves_whole_and_in_order(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    factories.make_image(house.db)
    for number in range(5):
        factories.make_vm(house.db, house.admin.actor, f"s{number}")
    monkeypatch.setattr("vmgpu.api.answers._AT_ONCE", 2)
    assert [vm["name"] for vm in house.admin.get("/vms").json()["items"]] == ["s0", "s1", "s2", "s3", "s4"]


def test_figures_count_rows_and_name_nobody(house: House) -> None:
    host = factories.make_host(house.db, "secret-host")
    factories.make_image(house.db)
    anna = house.person("anna")
    factories.make_vm(house.db, anna.actor, "secret-vm", host=host, profile="3g.20gb")
    factories.make_vm(house.db, anna.actor, "other")
    anna.get("/vms/secret-vm")
    text = house.http.get("/metrics").text
    for line in (
        'vmgpu_vms{state="running"} 1.0',
        "vmgpu_queue_length 1.0",
        'vmgpu_hosts{state="ready"} 1.0',
        'vmgpu_slices{model="A100-40GB",profile="3g.20gb"} 1.0',
        'vmgpu_gpus{emulated="true",model="A100-40GB",state="ready"} 1.0',
        'vmgpu_http_requests_total{method="GET",route="/api/v1/vms/{ref:path}",status="200"} 1.0',
    ):
        assert line in text
    assert "secret" not in text and "anna" not in text


def test_ready_only_while_the_worker_is_at_work(house: House) -> None:
    assert house.http.get("/healthz").status_code == 200
    assert house.http.get("/readyz").json() == {"status": "ready", "faults": []}
    house.http.app.state.alive = lambda: False  # type: ignore[attr-defined]
    away = house.http.get("/readyz")
    assert away.status_code == 503 and away.json()["faults"] == ["the worker is not at work"]


def test_not_ready_while_the_disk_of_the_database_is_full(house: House) -> None:
    """Reads go on; only a write finds out."""

    @event.listens_for(house.db.engine, "before_cursor_execute")
    def full(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith(("BEGIN", "SELECT")):
            raise OperationalError(statement, {}, sqlite3.OperationalError("database or disk is full"))

    assert house.admin.get("/vms").status_code == 200
    away = house.http.get("/readyz")
    assert away.status_code == 503 and away.json()["faults"] == [
        "The disk of the database is full: database or disk is full"
    ]
    event.remove(house.db.engine, "before_cursor_execute", full)
    assert house.http.get("/readyz").status_code == 200


@contextmanager
def _surveyor(house: House, **brought: Any) -> Iterator[None]:
    """A worker that notices the first host, and writes on its row what a survey brought."""

    def look() -> None:
        for _ in range(500):
            with house.db.read() as session:
                host = session.exec(select(Host)).first()
            if host:
                with house.db.write() as session:
                    row = session.get_one(Host, host.id)
                    for name, value in brought.items():
                        setattr(row, name, value)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=look)
    thread.start()
    yield
    thread.join()


def _row(house: House, vm: VM) -> VM:
    with house.db.read() as session:
        return session.get_one(VM, vm.id)


def _has_example(api: dict[str, object], schema: dict[str, object]) -> bool:
    text = json.dumps(schema)
    if "examples" in schema:
        return True
    names = [part.split('"')[0] for part in text.split("#/components/schemas/")[1:]]
    schemas = api["components"]["schemas"]  # type: ignore[index]
    return any("examples" in schemas[name] for name in names)


def test_a_lease_longer_than_time_is_refused(house: House) -> None:
    factories.make_host(house.db)
    factories.make_image(house.db)
    factories.make_flavor(house.db)
    asked = {"name": "s1", "flavor": "small", "image": "base", "lease": "999999999w"}
    refused = house.admin.post("/vms", asked)
    assert refused.status_code == 422 and "longer than we can count" in refused.text
    assert house.admin.get(f"/events?after={2**31}").status_code == 422
