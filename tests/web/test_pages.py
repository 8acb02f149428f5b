from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from sqlmodel import select

from tests.factories import (
    A_KEY,
    admin,
    make_flavor,
    make_host,
    make_image,
    make_key,
    make_real_gpu,
    make_user,
    make_vm,
)
from tests.web.conftest import Browse
from vmgpu.db import Database
from vmgpu.errors import ReasonCode, reason
from vmgpu.models import VM, Event, Gpu, GpuState, Host, HostState, Image, ImageState, Key, VMState, Wanted, now

STATIC = Path(__file__).parents[2] / "vmgpu/api/static"
HX = {"HX-Request": "true"}
HOSTILE = "<script>alert('x')</script>\"' onmouseover=\"y\" <img src=x>"


def test_an_empty_installation_says_what_to_do_next(browse: Browse, db: Database) -> None:
    client = browse(admin(db))
    assert "vmgpu host add local qemu:///system --emulate A100-40GB" in client.get("/").text
    make_host(db)
    assert "vmgpu flavor add" in client.get("/").text
    make_flavor(db)
    assert "vmgpu image import" in client.get("/").text
    make_image(db)
    text = client.get("/").text
    assert "There are no VMs yet" in text
    assert "Request VMs" in text


def test_an_admin_sees_what_the_doctor_found_last(browse: Browse, db: Database) -> None:
    host = make_host(db)
    client, person = browse(admin(db)), browse(make_user(db))
    assert "Doctor" not in client.get("/now").text  # nobody has asked him
    well = {"id": "kvm", "level": "ok", "seen": "fine", "means": "", "cure": ""}
    ill = {"id": "pool", "level": "warning", "seen": "20 GiB free", "means": "Soon full.", "cure": HOSTILE}
    worse = {"id": "network", "level": "broken", "seen": "not running", "means": "", "cure": "virsh net-start"}
    with db.write() as session:
        row = session.get_one(Host, host.id)
        row.doctor, row.doctor_at = [well], now() - timedelta(minutes=5)
    assert re.search(r"Doctor, \d{4}-\d\d-\d\d \d\d:\d\d UTC: all well", client.get("/now").text)
    with db.write() as session:
        session.get_one(Host, host.id).doctor = [well, ill, worse]
    text = client.get("/now").text
    assert "1 broken, 1 warning" in text and "20 GiB free" in text and "virsh net-start" in text
    assert text.index("not running") < text.index("20 GiB free")  # the worst first
    assert "<script>alert" not in text
    assert "Doctor" not in person.get("/now").text and "20 GiB free" not in person.get("/now").text


def test_who_is_no_admin_is_sent_to_one(browse: Browse, db: Database) -> None:
    text = browse(make_user(db)).get("/").text
    assert "Ask an admin to add one" in text
    assert "vmgpu host add" not in text


def test_what_is_not_real_is_called_so_wherever_it_shows(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_image(db)
    make_vm(db, anna, "real", host=make_host(db, "local"), profile="3g.20gb", card="seen")
    text = browse(anna).get("/now").text
    assert text.count('<span class="chip odd">emulated</span>') == 1
    assert "an emulated A100-40GB" in text
    assert "Emulated card seen in the guest" in text
    make_vm(
        db,
        anna,
        "made-up",
        host=make_host(db, "sim", cards=("A30",), uri="fake://1xA30"),
        profile="2g.12gb",
        card="seen",
    )
    text = browse(anna).get("/now").text
    assert text.count('<span class="chip odd">simulated</span>') == 3  # the host, its card, the VM on it
    assert "a simulated A30" in text
    assert "Simulated card: no guest was asked" in text


def test_a_simulated_vm_offers_no_ssh(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_image(db)
    make_vm(db, anna, "real", host=make_host(db, "local"), profile="3g.20gb", address="192.0.2.7")
    make_vm(db, anna, "sim", host=make_host(db, "sim", uri="fake://1xA30"), address="192.0.2.8")
    text = browse(anna).get("/now").text
    assert re.search(r"ssh [^<]*anna@192\.0\.2\.7", text)
    assert not re.search(r"ssh [^<]*anna@192\.0\.2\.8", text)
    assert "no guest to log in to" in text


def test_troubled_hosts_and_cards_show_why(browse: Browse, db: Database) -> None:
    away = reason(ReasonCode.host_unreachable, host="gpu7", detail="no route")
    make_host(db, "gpu7", cards=(), state=HostState.unreachable, reason=away.as_dict())
    host = make_host(db, "gpu8", draining=True)
    sick = reason(ReasonCode.card_quarantined, gpu="gpu8/0", detail="it hangs")
    with db.write() as session:
        gpu = session.exec(select(Gpu)).one()
        gpu.state, gpu.reason = GpuState.quarantined, sick.as_dict()
        session.add(gpu)
    make_real_gpu(db, host, facts={"refusals": {"passthrough": "Card 0000:41:00.0 is the host's console"}})
    text = browse(admin(db)).get("/now").text
    for said in (
        "unreachable",
        "Host gpu7 does not answer (no route)",
        "draining: no new VMs",
        "quarantined",
        "Card gpu8/0 is quarantined: it hangs",
        "1 card left alone",
        "NVIDIA L40S",
        "0000:41:00.0 is the host&#39;s console",
    ):
        assert said in text
    assert "GPU memory free" not in text  # nothing that could be given out is left


def test_a_host_says_what_is_free_of_what_vms_may_have(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_image(db)
    host = make_host(db, threads=2, overcommit=4, memory_mib=18 * 1024)
    make_vm(db, anna, host=host, vcpus=2, memory_mib=2048)
    text = browse(anna).get("/now").text
    assert "6 of 8 vCPU, 15 of 17 GiB memory, 900 GiB disk free" in text


def test_a_vm_was_ready_after_its_last_way_alone(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_image(db)
    vm = make_vm(db, anna, "s1", host=make_host(db))
    first = [("pending", 40), ("carving", 5), ("building", 300), ("booting", 60), ("checking", 20)]
    again = [("booting", 20), ("checking", 12)]
    with db.write() as session:
        for was, state, seconds in _steps([*first, ("running", 900), ("capturing", 120), *again, ("running", None)]):
            session.add(Event(vm_id=vm.id, kind="state", was=was, state=state, seconds=seconds))
    text = browse(anna).get("/now").text
    assert "was ready in 32 s" in text
    assert "5 m" not in text.partition("phases")[2].partition("</ol>")[0]  # nor beside the steps of the first way


def test_slices_lie_where_they_are(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_image(db)
    host = make_host(db)
    make_vm(db, anna, "s1", host=host, profile="1g.10gb")
    text = browse(anna).get("/now").text
    bar = re.search(r'<ul class="bar">(.*?)</ul>', text, re.DOTALL)
    assert bar
    cells = re.findall(r'<li class="(free|slice span-\d+)', bar[1])
    assert cells == ["free"] * 6 + ["slice span-2"]  # the planner cuts it at cell 6
    assert "1g.10gb: 25 % of memory, 14 % of compute; held by s1" in text
    assert "6 of 8 cells free" in text


def test_another_persons_vm_has_no_name_anywhere(browse: Browse, db: Database) -> None:
    anna, bob = make_user(db, "anna"), make_user(db, "bob")
    make_image(db)
    secret = make_vm(db, bob, "bobs-secret", host=make_host(db), profile="3g.20gb")
    make_vm(db, bob, "bobs-waiting")
    make_vm(db, anna, "mine")
    client = browse(anna)
    text = client.get("/").text
    assert "bobs" not in text
    assert secret.id not in text
    assert "in use" in text
    assert "position </span>2<" in text
    assert "1 VM of another person waits as well" in text
    assert client.get(f"/vms/{secret.id}/stop").status_code == 404
    assert client.post(f"/vms/{secret.id}/release").status_code == 404
    assert "bob/bobs-secret" in browse(admin(db)).get("/now").text


def test_a_member_uses_a_vm_but_does_not_release_it(browse: Browse, db: Database) -> None:
    anna, bob = make_user(db, "anna"), make_user(db, "bob")
    make_image(db)
    vm = make_vm(db, bob, "shared", host=make_host(db), members=[anna])
    client = browse(anna)
    text = client.get("/now").text
    assert "bob/shared" in text
    assert f"/vms/{vm.id}/stop" in text
    assert f"/vms/{vm.id}/release" not in text
    assert client.post(f"/vms/{vm.id}/release").status_code == 403


def test_nothing_that_people_or_hosts_say_becomes_markup(browse: Browse, db: Database) -> None:
    # the checks of requests let none of this in; the page must not depend on that
    anna = make_user(db, HOSTILE)
    make_key(db, anna)
    make_image(db, HOSTILE)
    make_flavor(db, HOSTILE, profile="3g.20gb")
    host = make_host(db, HOSTILE, reason=reason(ReasonCode.survey_failed, host="h", detail=HOSTILE, hint="").as_dict())
    make_real_gpu(db, host, name=HOSTILE, key="z", address=HOSTILE, facts={"refusals": {"x": HOSTILE}})
    vm = make_vm(
        db, anna, HOSTILE, flavor=HOSTILE, warnings=[HOSTILE],
        reason=reason(ReasonCode.cloud_init_error, detail=HOSTILE, vm=HOSTILE).as_dict(),
    )  # fmt: skip
    make_vm(db, anna, HOSTILE + "2", host=host, profile="3g.20gb", address=HOSTILE)
    client = browse(anna)
    for address in ("/", "/now", "/request", "/keys", f"/vms/{vm.id}/release", f"/vms/{vm.id}/snapshot"):
        text = client.get(address).text
        assert "<script>alert" not in text, address
        assert "<img" not in text, address
        assert not re.search(r"<[^>]*\sonmouseover=\"y", text), address
    assert "&lt;script&gt;alert(&#39;x&#39;)" in client.get("/").text


def test_pages_hold_to_their_own_security_policy(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_image(db)
    make_flavor(db)
    vm = make_vm(db, anna, host=make_host(db), profile="3g.20gb")
    client = browse(anna)
    addresses = ["/", "/now", "/signin?link=x", "/request", "/keys", "/nothing"]
    addresses += [f"/vms/{vm.id}/{verb}" for verb in ("start", "stop", "snapshot", "extend", "release")]
    for address in addresses:
        page = client.get(address)
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert page.headers["Cache-Control"] == "no-store"
        assert not re.search(r"\s(style|on[a-z]+)=|<style|<script>|javascript:|https?://", page.text), address


def test_three_vms_by_the_plain_form(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    image = make_image(db)
    make_flavor(db, "half", fgpu="0.5")
    make_host(db)
    client = browse(anna)
    form = client.get("/request").text
    assert "3g.20gb on A100-40GB: 50 % of memory, 43 % of compute" in form
    sent = {"name": "s{n}", "count": "3", "flavor": "half", "image": image.id, "lease": "2h"}
    answer = client.post("/request", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    with db.read() as session:
        made = session.exec(select(VM).order_by(VM.ticket)).all()  # type: ignore[arg-type]
    assert [vm.name for vm in made] == ["s1", "s2", "s3"]
    assert {vm.lease_seconds for vm in made} == {7200}


def test_what_no_host_can_ever_hold_comes_last_and_cannot_be_chosen(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    image = make_image(db)
    make_host(db)
    make_flavor(db, "a-whole-h100", profile="7g.80gb")
    make_flavor(db, "big", memory_mib=1 << 20)
    make_flavor(db, "half", fgpu="0.5")
    make_flavor(db, "small")
    client = browse(anna)
    form = client.get("/request").text
    assert _flavors(form) == [("half", "checked"), ("small", ""), ("a-whole-h100", "disabled"), ("big", "disabled")]
    assert "7g.80gb: no card here can hold this" in form
    assert "no host here can hold this" in form
    sent = {"name": "No", "count": "1", "flavor": "small", "image": image.id, "lease": ""}
    assert _flavors(client.post("/request", data=sent, headers=HX).text)[1] == ("small", "checked")
    sent["flavor"] = "big"
    assert _flavors(client.post("/request", data=sent, headers=HX).text)[0] == ("half", "checked")
    # a host that does not answer may have more than is known: nothing is ruled out
    make_host(db, "h2", state=HostState.unreachable)
    form = client.get("/request").text
    assert "disabled" not in form
    assert "7g.80gb: no card has that now" in form


def test_a_quick_form_answers_with_a_word_alone(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    image = make_image(db)
    make_flavor(db)
    make_host(db)
    client = browse(anna)
    sent = {"name": "one", "count": "1", "flavor": "small", "image": image.id, "lease": ""}
    answer = client.post("/request", data=sent, headers=HX)
    assert answer.status_code == 204
    assert json.loads(answer.headers["HX-Trigger"]) == {"done": "one is requested"}
    again = client.post("/request", data=sent, headers=HX)
    assert again.status_code == 409
    assert "<html" not in again.text
    assert "anna has a VM called &#39;one&#39; already" in again.text
    assert "Release it first" in again.text
    assert 'value="one"' in again.text


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "Bad Name", "A VM name has small letters"),
        ("name", "", "A VM name has small letters"),
        ("count", "0", "greater than or equal to 1"),
        ("count", "many", "valid integer"),
        ("count", "9999", "more than one call takes"),
        ("lease", "soon", "is not a time span"),
        ("lease", "90d", "A lease is at most 30 days"),
        ("flavor", "none", "There is no flavor"),
        ("image", "none", "There is no image"),
        ("flavor", "huge", "No host could ever hold this"),
    ],
)
def test_a_wrong_field_is_said_beside_what_was_sent(
    browse: Browse, db: Database, field: str, value: str, said: str
) -> None:
    anna = make_user(db)
    image = make_image(db)
    make_flavor(db)
    make_flavor(db, "huge", memory_mib=16 * 1024 * 1024)
    make_host(db)
    sent = {"name": "one", "count": "1", "flavor": "small", "image": image.id, "lease": "3h"} | {field: value}
    answer = browse(anna).post("/request", data=sent, headers=HX)
    assert 400 <= answer.status_code < 500
    assert said in answer.text
    assert 'role="alert"' in answer.text
    assert f'value="{sent["lease"]}"' in answer.text
    with db.read() as session:
        assert session.exec(select(VM)).all() == []


def test_buttons_wish_what_they_say(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_image(db)
    end = now() + timedelta(hours=1)
    vm = make_vm(db, anna, "s1", host=make_host(db), expires_at=end)
    client = browse(anna)

    def row() -> VM:
        with db.read() as session:
            return session.get_one(VM, vm.id)

    assert client.post(f"/vms/{vm.id}/extend", data={"by": "4h"}).status_code == 303
    assert row().expires_at == end + timedelta(hours=4)
    assert client.post(f"/vms/{vm.id}/snapshot", data={"image": "anna/s1:v1"}).status_code == 303
    with db.read() as session:
        assert session.get_one(Image, row().capture_as).name == "anna/s1:v1"
    assert client.post(f"/vms/{vm.id}/stop", data={"slices": "release"}).status_code == 303
    assert (row().wanted, row().stop_mode) == (Wanted.stopped, "release")
    assert client.post(f"/vms/{vm.id}/start").status_code == 303
    assert row().wanted is Wanted.running
    assert client.post(f"/vms/{vm.id}/release").status_code == 303
    assert row().wanted is Wanted.gone
    assert "is being released" in client.post(f"/vms/{vm.id}/extend", data={"by": "4h"}, headers=HX).text


@pytest.mark.parametrize(
    ("verb", "sent", "said"),
    [
        ("extend", {"by": "-1h"}, "is not a time span"),
        ("extend", {"by": "60d"}, "more than 30 days"),
        ("snapshot", {"image": "NO"}, "An image name is like team/name:tag"),
        ("stop", {"slices": "burn"}, "Input should be"),
    ],
)
def test_a_refused_wish_is_said_in_the_dialog(
    browse: Browse, db: Database, verb: str, sent: dict[str, str], said: str
) -> None:
    anna = make_user(db)
    make_image(db)
    vm = make_vm(db, anna, host=make_host(db))
    answer = browse(anna).post(f"/vms/{vm.id}/{verb}", data=sent, headers=HX)
    assert answer.status_code == 422
    assert said in answer.text
    assert "<form" in answer.text


def test_a_person_sees_what_became_of_a_snapshot(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    failed = reason(ReasonCode.capture_failed, detail="the disk is full")
    make_image(db, "anna/s1:v1", owner=anna, state=ImageState.failed, reason=failed.as_dict())
    make_image(db, "anna/s2:v1", owner=anna)
    make_image(db, "bob/secret:v1", owner=make_user(db, "bob"))
    text = browse(anna).get("/now").text
    assert "The capture failed: the disk is full" in text
    assert "0.5 GiB, private" in text
    assert "secret" not in text


def test_a_full_house_is_counted_whole_and_drawn_from_its_head(
    browse: Browse, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vmgpu.api.picture.MOST", 2)
    monkeypatch.setattr("vmgpu.api.picture.LINES", 4)
    anna, bob = make_user(db, "anna"), make_user(db, "bob")
    make_image(db)
    host = make_host(db)
    ran = [make_vm(db, anna, f"r{number}", host=host, profile="1g.10gb") for number in range(3)]
    for number in range(6):
        make_vm(db, bob, f"w{number}")
    text = browse(admin(db)).get("/now").text
    assert re.findall(r"<dt>(Running|Waiting)</dt><dd>(\d+)</dd>", text) == [("Running", "3"), ("Waiting", "6")]
    placed, queue = _section(text, "vms"), _section(text, "queue")
    assert text.index('id="vms"') < text.index('id="queue"')
    # each section says at its top what it leaves out
    assert "1 more is not drawn" in placed.partition("<ul")[0]
    assert "2 more are not drawn" in queue.partition("<ol")[0]
    assert _drawn(placed) == ["anna/r0", "anna/r1"]
    assert placed.count(">Release<") == 2
    assert _drawn(queue) == [f"bob/w{number}" for number in range(4)]
    assert re.findall(r"position </span>(\d+)<", queue) == ["1", "2", "3", "4"]
    # a place on a card is its VM's, whether that is drawn or not; what leads nowhere is no link
    fleet = _section(text, "fleet")
    assert len(re.findall(r'class="slice span-2 tint-\d"', fleet)) == 3
    assert "others" not in fleet
    assert re.findall(r'href="#vm-([^"]+)"', fleet) == [ran[1].id, ran[0].id]
    assert "held by anna/r2" in fleet


def test_those_who_wait_for_one_reason_read_it_once(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_image(db)
    full = reason(ReasonCode.no_slice_free, places=2, profile="3g.20gb", cards=1).as_dict()
    small = reason(ReasonCode.no_host_cpu, needed=9, free=1).as_dict()
    for name, why in (("a", full), ("b", small), ("c", full), ("d", full)):
        make_vm(db, anna, name, reason=why)
    queue = _section(browse(anna).get("/now").text, "queue")
    assert queue.count("Both places for 3g.20gb") == queue.count("9 vCPUs are asked for") == 1
    assert _drawn(queue) == ["a", "c", "d", "b"]
    assert re.findall(r"position </span>(\d+)<", queue) == ["1", "3", "4", "2"]


def test_vms_are_found_by_a_part_of_their_name_or_of_their_owners(browse: Browse, db: Database) -> None:
    anna, bob = make_user(db, "anna"), make_user(db, "bob")
    make_image(db)
    host = make_host(db)
    make_vm(db, anna, "lab-1", host=host)
    make_vm(db, bob, "lab-2", host=host)
    for name in ("exam-1", "exam-2"):
        make_vm(db, bob, name)
    client = browse(admin(db))
    text = client.get("/now?find=Bob").text
    assert _drawn(text) == ["bob/lab-2", "bob/exam-1", "bob/exam-2"]
    assert '<span class="count">1 of 2</span>' in _section(text, "vms")
    assert '<span class="count">2</span>' in _section(text, "queue")
    assert re.findall(r"<dt>(Running|Waiting)</dt><dd>(\d+)</dd>", text) == [("Running", "2"), ("Waiting", "2")]
    assert _drawn(client.get("/now?find=lab-").text) == ["anna/lab-1", "bob/lab-2"]
    assert _drawn(client.get("/now?find=b/exam-2").text) == ["bob/exam-2"]
    whole = client.get("/?find=%25").text  # no pattern: it is looked for as it stands
    assert _drawn(whole) == []
    assert whole.count("None of them is called “%”") == 2
    assert 'value="%"' in whole  # without scripts the page comes back with what was asked
    assert _drawn(browse(anna).get("/now?find=lab").text) == ["lab-1"]


def test_a_vm_tells_its_members_how_to_enter_and_others_who_can(browse: Browse, db: Database) -> None:
    anna, bob = make_user(db, "anna"), make_user(db, "bob")
    make_image(db)
    make_vm(db, anna, "s1", host=make_host(db), members=[bob], address="192.0.2.7")
    for who, command in ((anna, "vmgpu vm ssh s1"), (bob, "vmgpu vm ssh anna/s1")):
        text = browse(who).get("/now").text
        assert f'data-copy="{command}"' in text.partition("<details")[0]
        assert "Opens with" not in text
        details = text.partition("<details")[2]
        assert re.search(rf'data-copy="ssh -o HostKeyAlias=\S+ {who.name}@192\.0\.2\.7"', details)
    text = browse(admin(db)).get("/now").text
    assert "Opens with keys of: anna, bob" in text
    assert "vmgpu vm ssh" not in text


def test_keys_are_pasted(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_host(db)
    client = browse(anna)
    assert "You have no SSH key here yet" in client.get("/").text
    assert client.post("/keys", data={"keys": "nonsense"}, headers=HX).status_code == 422
    assert client.post("/keys", data={"keys": A_KEY}).status_code == 303
    with db.read() as session:
        assert session.exec(select(Key)).one().user_id == anna.id
    assert "You have no SSH key" not in client.get("/").text
    assert "someone@laptop" in client.get("/keys").text


def test_a_failed_vm_says_why_and_what_to_do(browse: Browse, db: Database) -> None:
    anna = make_user(db)
    make_image(db)
    why = reason(ReasonCode.card_missing, wanted="3g.20gb")
    make_vm(db, anna, "s1", host=make_host(db), state=VMState.failed, wanted=Wanted.stopped, reason=why.as_dict())
    text = browse(anna).get("/now").text
    assert "The guest does not show its card (3g.20gb)" in text
    assert "An admin looks at the host&#39;s log" in text
    assert ">Start<" in text


def test_vendored_files_are_those_that_are_named(browse: Browse, db: Database) -> None:
    named = dict(
        re.findall(r"^\| `(\S+)` \|.*`([0-9a-f]{64})` \|$", (STATIC / "VENDORED.md").read_text(), re.MULTILINE)
    )
    assert set(named) == {path.name for path in STATIC.glob("*.min.js")}
    for name, digest in named.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest


def test_static_files_are_kept_only_under_their_own_sum(browse: Browse, db: Database) -> None:
    client = browse(make_user(db))
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', client.get("/").text)
    assert len(addresses) == 5
    for address in addresses:
        kept = client.get(address)
        assert kept.status_code == 200
        assert "immutable" in kept.headers["Cache-Control"]
        assert client.get(address.split("?")[0]).headers["Cache-Control"] == "no-cache"
    for wrong in ("nothing.js", "VENDORED.md", "..%2fpages.py"):
        assert client.get(f"/static/{wrong}").status_code == 404


def _steps(way: list[tuple[str, float | None]]) -> Iterator[tuple[str, str, float | None]]:
    for (was, seconds), (state, _) in pairwise(way):
        yield was, state, seconds


def _flavors(form: str) -> list[tuple[str, str]]:
    return re.findall(r'name="flavor" value="([^"]+)" required ?(checked|disabled|)>', form)


def _section(text: str, name: str) -> str:
    return text.partition(f'<section id="{name}"')[2].partition('<section id="')[0]


def _drawn(text: str) -> list[str]:
    return re.findall(r'data-vm="([^"]+)"', text)
