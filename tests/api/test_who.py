"""Who may see and do what."""

from __future__ import annotations

import pytest
from sqlmodel import select

from tests import factories
from tests.api.conftest import Caller, House
from vmgpu.api.deps import SESSION_COOKIE
from vmgpu.errors import ReasonCode, reason
from vmgpu.models import VM, Event, Gpu, Host, Image, ImageState
from vmgpu.service import people

VERBS = ("stop", "start", "reboot", "reset", "extend", "snapshot", "release")
BODIES = {"extend": {"by": "1h"}, "snapshot": {"image": "x"}}


@pytest.fixture
def trio(house: House) -> tuple[Caller, Caller, Caller]:
    """anna has a VM, ben is a member of it, carl is nobody to it."""
    anna, ben, carl = (house.person(name) for name in ("anna", "ben", "carl"))
    host = factories.make_host(house.db)
    factories.make_image(house.db)
    factories.make_vm(house.db, anna.actor, "hers", host=host, members=[ben.actor], profile="3g.20gb")
    return anna, ben, carl


def test_nobody_without_a_token(house: House) -> None:
    for path in ("/vms", "/hosts", "/gpus", "/flavors", "/images", "/queue", "/events", "/users", "/keys", "/whoami"):
        answer = house.http.get(f"/api/v1{path}")
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "unauthenticated", path
    assert house.http.get("/api/v1/vms", headers={"authorization": "Bearer nonsense"}).status_code == 401


def test_another_persons_vm_does_not_exist(trio: tuple[Caller, Caller, Caller]) -> None:
    anna, _, carl = trio
    id_ = anna.get("/vms/hers").json()["id"]
    assert carl.get("/vms").json() == {"items": []}
    assert carl.get("/queue").json() == {"items": []}
    assert carl.get("/events").json() == {"items": []}
    for ref in ("hers", "anna/hers", id_):
        for path in ("", "/events", "/console", "/ssh"):
            assert carl.get(f"/vms/{ref}{path}").status_code == 404, path
        for verb in VERBS:
            assert carl.post(f"/vms/{ref}/{verb}", BODIES.get(verb)).status_code == 404, verb


def test_a_member_uses_it_and_does_not_release_it(trio: tuple[Caller, Caller, Caller]) -> None:
    anna, ben, _ = trio
    assert ben.get("/vms").json()["items"][0]["name"] == "hers"
    assert ben.get("/vms/hers/ssh").json()["login"] == "ben"
    assert ben.post("/vms/hers/stop").status_code == 202
    assert ben.post("/vms/hers/start").status_code == 202
    refused = ben.post("/vms/hers/release")
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "forbidden"
    assert ben.post("/vms/hers/snapshot", {"image": "x"}).status_code == 403
    assert anna.post("/vms/hers/release").status_code == 202


def test_others_see_the_fleet_but_neither_names_nor_doors(house: House, trio: tuple[Caller, Caller, Caller]) -> None:
    anna, _, carl = trio
    for caller, name in ((anna, "hers"), (house.admin, "hers"), (carl, None)):
        assert caller.get("/gpus").json()["items"][0]["slices"][0]["vm"] == name
        assert caller.get("/hosts/h1").json()["gpus"][0]["slices"][0]["vm"] == name
    assert carl.get("/hosts").json()["items"][0]["uri"] == ""
    assert carl.get("/hosts/h1").json()["facts"] is None
    assert house.admin.get("/hosts/h1").json()["uri"] == "qemu:///system"


def test_what_is_wrong_with_a_host_or_a_card_is_an_admins_to_know(
    house: House, trio: tuple[Caller, Caller, Caller]
) -> None:
    held = reason(ReasonCode.card_held_open, gpu="g", pid=4711, command="secret-job")
    away = reason(ReasonCode.host_unreachable, host="h1", detail="secret-job of root@10.0.0.1")
    with house.db.write() as session:
        host, gpu = session.exec(select(Host)).one(), session.exec(select(Gpu)).one()
        host.reason = away.as_dict()
        gpu.reason, gpu.facts = held.as_dict(), {**gpu.facts, "refusals": {"passthrough": held.sentence()}}
    for path in ("/hosts", "/hosts/h1", "/gpus", f"/gpus/{gpu.id}"):
        assert "secret-job" in house.admin.get(path).text, path
        assert "secret-job" not in trio[2].get(path).text, path


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (ReasonCode.host_unreachable, "Host h1 does not answer"),
        (ReasonCode.host_error, "Host h1 refused what this needs"),
        (ReasonCode.disk_elsewhere, "Its disk lies on host h1, where there is no room now"),
        (ReasonCode.retried_elsewhere, "It failed where it was and is tried once more elsewhere"),
        (ReasonCode.group_not_viable, "The card that was meant for it cannot be given out"),
        (ReasonCode.card_quarantined, "The card that would serve it is kept back until it was looked at"),
    ],
)
def test_an_owner_reads_what_it_means_and_not_the_insides_of_a_host(
    house: House, trio: tuple[Caller, Caller, Caller], code: ReasonCode, sentence: str
) -> None:
    anna, _, _ = trio
    secret = "of root@10.0.0.1"
    because = reason(code, host="h1", gpu=secret, detail=secret, hint=secret, culprit=secret, group=secret)
    with house.db.write() as session:
        vm = session.exec(select(VM).where(VM.name == "hers")).one()
        vm.reason = because.as_dict()
        session.add(Event(vm_id=vm.id, kind="state", reason=because.as_dict()))
        session.add(Image(name="mine", owner_id=vm.owner_id, state=ImageState.failed, reason=because.as_dict()))
    for path in ("/vms", "/vms/anna/hers", "/vms/anna/hers/events", "/events", "/images"):
        mine, all_of_it = anna.get(path).text, house.admin.get(path).text
        assert sentence in mine and "10.0.0.1" not in mine, path
        assert "10.0.0.1" in all_of_it, path


def test_what_is_an_admins(house: House, trio: tuple[Caller, Caller, Caller]) -> None:
    anna, _, _ = trio
    gpu = anna.get("/gpus").json()["items"][0]["id"]
    before = house.rows()
    calls = [
        ("POST", "/hosts", {"name": "h2", "uri": "fake://1xA100-40GB"}),
        ("PATCH", "/hosts/h1", {"draining": True}),
        ("DELETE", "/hosts/h1", None),
        ("POST", "/hosts/h1/survey", None),
        ("GET", "/hosts/setup?host=root@gpu1", None),
        ("POST", f"/gpus/{gpu}/clear", None),
        ("POST", f"/gpus/{gpu}/offer", {"offered": True}),
        ("PUT", "/gpu-units/A100-40GB", {"share": "0.5"}),
        ("POST", "/flavors", {"name": "f"}),
        ("DELETE", "/flavors/f", None),
        ("DELETE", "/images/base", None),
        ("POST", "/users", {"name": "x"}),
        ("DELETE", "/users/ben", None),
        ("POST", "/users/ben/link", None),
        ("GET", "/keys?user=ben", None),
        ("POST", "/keys?user=ben", {"keys": factories.A_KEY}),
        ("POST", "/tokens?user=ben", {"name": "x"}),
    ]
    for method, path, body in calls:
        assert anna(method, path, json=body).status_code == 403, (method, path)
    refused = anna("POST", "/images?name=x&format=raw", content=b"\0" * 512)
    assert refused.status_code == 403
    assert house.rows() == before and not list(house.settings.data_dir.glob("images/*"))


def test_a_private_image_is_its_owners(house: House, trio: tuple[Caller, Caller, Caller]) -> None:
    anna, ben, _ = trio
    factories.make_image(house.db, "team/mine:1", owner=anna.actor)
    factories.make_flavor(house.db)
    assert "team/mine:1" in [i["name"] for i in anna.get("/images").json()["items"]]
    assert anna.get("/images/team/mine:1").json()["owner"] == "anna"
    assert house.admin.get("/images/anna/team/mine:1").status_code == 200
    assert "team/mine:1" not in [i["name"] for i in ben.get("/images").json()["items"]]
    assert ben.get("/images/team/mine:1").status_code == 404
    wish = {"name": "b", "flavor": "small", "image": "team/mine:1"}
    assert ben.post("/vms", wish).status_code == 404
    assert anna.post("/vms", wish).status_code == 202


def test_a_cookie_signs_in_but_not_from_another_site(house: House) -> None:
    secret = people.make_link(house.db, house.admin.actor, "admin")
    _, session = people.sign_in(house.db, secret)
    cookie = {"cookie": f"{SESSION_COOKIE}={session}"}

    def post(**headers: str) -> int:
        return house.http.post("/api/v1/users", json={"name": "x"}, headers=cookie | headers).status_code

    assert house.http.get("/api/v1/whoami", headers=cookie).json()["name"] == "admin"
    assert post(origin="https://evil.example") == 403
    assert post(**{"sec-fetch-site": "cross-site"}) == 403
    assert house.admin.get("/users/x").status_code == 404
    assert post(origin="http://testserver") == 201
    assert house.http.get("/api/v1/whoami", headers={"authorization": f"Bearer {session}"}).status_code == 401
