"""Whatever is sent: a 4xx with code, message and what to do, nothing written, and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import factories
from tests.api.conftest import House, open_house
from tests.depth import examples
from vmgpu.api.envelope import MAX_BODY
from vmgpu.requests import VMRequest

NAMES = ["", " ", "a b", 'a"b', "<b>x</b>", "a\nb", "a\0b", "\U0001f600", "../x", "x" * 10_000, "{n}{n}", "Ä", "\ud800"]


@pytest.fixture(scope="module")
def open_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One installation for all generated bodies: they may write nothing, so none sees another's traces."""
    with open_house(tmp_path_factory.mktemp("house")) as house:
        factories.make_host(house.db)
        factories.make_image(house.db)
        factories.make_flavor(house.db, "small")
        factories.make_vm(house.db, house.admin.actor, "s1")
        yield house


def _send(house: House, method: str, path: str, body: Any) -> Any:
    # not by the client's own json=: it refuses what a hostile client sends
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return house.admin(method, path, content=content, headers={"content-type": "application/json"})


def _must_refuse(house: House, method: str, path: str, body: Any) -> None:
    before = house.rows()
    answer = _send(house, method, path, body)
    assert 400 <= answer.status_code < 500, (answer.status_code, body)
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "hint", "field", "retry"}
    assert _says_what_to_do(error), error
    assert "Traceback" not in answer.text
    assert house.rows() == before


def _says_what_to_do(error: dict[str, Any]) -> bool:
    """By a hint; where a value is wrong, the message says already how it is written."""
    return bool(error["code"] and error["message"] and (error["hint"] or error["code"] == "invalid"))


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_none(open_one: House, name: str) -> None:
    vm = {"name": name, "flavor": "small", "image": "base"}
    _must_refuse(open_one, "POST", "/vms", vm)
    for field in ("flavor", "image", "owner"):
        _must_refuse(open_one, "POST", "/vms", {"name": "ok", "flavor": "small", "image": "base"} | {field: name})
    _must_refuse(open_one, "POST", "/vms", vm | {"name": "ok", "members": [name]})
    _must_refuse(open_one, "POST", "/flavors", {"name": name})
    _must_refuse(open_one, "POST", "/users", {"name": name})
    _must_refuse(open_one, "POST", "/hosts?wait=0", {"name": name, "uri": "qemu:///system"})
    _must_refuse(open_one, "POST", "/hosts?wait=0", {"name": "h9", "uri": name})
    _must_refuse(open_one, "POST", "/hosts?wait=0", {"name": "h9", "uri": "qemu:///system", "host_key": name})
    _must_refuse(open_one, "POST", "/vms/s1/snapshot", {"image": name})
    _must_refuse(open_one, "POST", "/keys", {"keys": name})


@pytest.mark.parametrize(("name", "count"), [("x" * 63, 2), ("x" * 60 + "{n}", 1000), ("x" * 61, 10)])
def test_names_that_grow_too_long_by_their_number(open_one: House, name: str, count: int) -> None:
    _must_refuse(open_one, "POST", "/vms", {"name": name, "count": count, "flavor": "small", "image": "base"})


@pytest.mark.parametrize(("name", "count"), [("x" * 63, 1), ("x" * 60 + "{n}", 999), ("x" * 61, 9)])
def test_names_with_their_numbers_may_be_63_long(name: str, count: int) -> None:
    made = VMRequest(name=name, count=count, flavor="small", image="base").names()
    assert len(made) == len(set(made)) == count and len(made[-1]) == 63


@pytest.mark.parametrize(
    "size", [0, -1, 10**9, 10**30, "0g", "-1g", "999999999999g", "1.5", 1.5, "nan", True, [], None]
)
def test_sizes_that_are_none(open_one: House, size: Any) -> None:
    for field in ("memory", "disk", "vcpus"):
        if (field, size) == ("vcpus", True):
            continue  # JSON's true is Python's 1
        if not (size is True and field != "vcpus"):
            _must_refuse(open_one, "POST", "/flavors", {"name": "f", field: size})
    if size is not True:
        _must_refuse(open_one, "POST", "/vms", {"name": "x", "flavor": "small", "image": "base", "count": size})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"name": 1}',
        b'{"a":1e999}',
        b"9" * 5000,
        b'{"name":"x","flavor":"small","image":"base","surprise":1}',
        b'{"name":"x","flavor":"small","image":"no-such-image"}',
        b'{"name":"x","flavor":"no-such-flavor","image":"base"}',
        b'{"name":"x","flavor":"small","image":"base","owner":"nobody"}',
        b'{"name":"x","flavor":"small","image":"base","lease":"400d"}',
        b'{"name":"x","flavor":"small","image":"base","lease":"-1h"}',
        b'{"name":"x","flavor":"small","image":"base","count":501}',
    ],
)
def test_bodies_that_are_none(open_one: House, body: bytes) -> None:
    _must_refuse(open_one, "POST", "/vms", body)


def test_huge_bodies_are_not_read(open_one: House) -> None:
    answer = _send(open_one, "POST", "/vms", b" " * (MAX_BODY + 1))
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "too_large"

    def trickle() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 64 * 1024

    without_length = open_one.admin("POST", "/vms", content=trickle())
    assert without_length.status_code == 413, without_length.text


@pytest.mark.parametrize(
    "path",
    ["/vms/%00", "/vms?owner=%00", "/vms?state=flying", "/events?after=-1", "/events?after=9" + "9" * 30,
     "/events?limit=0", "/events?limit=x", "/vms/%F0%9F%98%80", "/vms/%2e%2e%2fetc", "/nothing", "/keys?user=%00",
     "/vms/s1/console?wait=1e9"],
)  # fmt: skip
def test_addresses_that_are_none(open_one: House, path: str) -> None:
    answer = open_one.admin.get(path)
    assert 400 <= answer.status_code < 500
    assert _says_what_to_do(answer.json()["error"])


_TEXT = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [*NAMES, "s1", "small", "base", "admin", "8h", "1g", "0.5", "fake://1xA100-40GB", "qemu:///system"]
    ),
)
_VALUE: st.SearchStrategy[Any] = st.one_of(
    _TEXT, st.integers(), st.floats(), st.booleans(), st.none(), st.lists(_TEXT, max_size=3)
)
_WRITES = {
    ("POST", "/vms"): ["name", "count", "flavor", "image", "owner", "members", "lease", "on_stop"],
    ("POST", "/flavors"): ["name", "vcpus", "memory", "disk", "profile", "fgpu", "on_stop"],
    ("POST", "/hosts?wait=0"): ["name", "uri", "emulate", "bridge", "overcommit", "host_key"],
    ("PATCH", "/hosts/h1"): ["draining", "overcommit"],
    ("POST", "/users"): ["name", "admin"],
    ("POST", "/keys"): ["keys"],
    ("POST", "/tokens"): ["name", "valid"],
    ("PUT", "/gpu-units/A100-40GB"): ["share"],
    ("POST", "/vms/s1/stop"): ["slices"],
    ("POST", "/vms/s1/extend"): ["by"],
    ("POST", "/vms/s1/snapshot"): ["image"],
}


@given(data=st.data())
@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
def test_generated_bodies_never_break_it(open_one: House, data: st.DataObject) -> None:
    method, path = data.draw(st.sampled_from(sorted(_WRITES)))
    body = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(_WRITES[method, path], _VALUE)))
    before = open_one.rows()
    answer = _send(open_one, method, path, body)
    assert answer.status_code < 500, (answer.text, body)
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert _says_what_to_do(error)
        assert open_one.rows() == before


@given(text=st.text(min_size=1, max_size=60))
@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
def test_generated_names_in_addresses_never_break_it(open_one: House, text: str) -> None:
    from urllib.parse import quote

    try:
        ref = quote(text, safe="")
    except UnicodeEncodeError:
        return
    for path in ("/vms/{}", "/vms/{}/events", "/hosts/{}", "/images/{}", "/users/{}", "/gpus/{}", "/queue/{}/why"):
        assert open_one.admin.get(path.format(ref)).status_code < 500


def test_a_bug_is_logged_and_answered_without_its_traceback(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr("vmgpu.service.lists.queue", broken)
    answer = house.admin.get("/queue", headers={"x-request-id": "mine-1"})
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "bug"
    assert "secret" not in answer.text and "the secret inside" in caplog.text
    assert answer.headers["x-request-id"] == "mine-1"
    assert house.admin.get("/queue", headers={"x-request-id": "a b\u00e9".encode()}).headers["x-request-id"] != "a b"


def test_a_browser_gets_a_page_where_one_draws_it(house: House) -> None:
    from starlette.responses import HTMLResponse

    house.http.app.state.error_page = lambda request, status, error: HTMLResponse(  # type: ignore[attr-defined]
        f"<h1>{error['code']}</h1>", status
    )
    browser = {"accept": "text/html,*/*"}
    assert house.http.get("/no-such-page", headers=browser).text == "<h1>not_found</h1>"
    assert house.http.get("/api/v1/nothing", headers=browser).json()["error"]["code"] == "not_found"
    assert house.http.get("/no-such-page").json()["error"]["code"] == "not_found"


def test_the_store_is_not_littered(open_one: House) -> None:
    images: Path = open_one.settings.images_dir
    for query, content in (
        ("name=x&format=raw", b""),
        ("name=x&format=qcow2", b"\0" * 4096),
        ("name=x&filename=x.vmdk", b"\0" * 4096),
        ("name=x%20y&format=raw", b"\0" * 4096),
        ("name=x&format=raw&label=init=maybe", b"\0" * 4096),
        ("name=x&format=raw&label=nonsense", b"\0" * 4096),
        ("name=base&format=raw", b"\0" * 4096),
    ):
        before = open_one.rows()
        answer = open_one.admin("POST", f"/images?{query}", content=content)
        assert 400 <= answer.status_code < 500, query
        assert _says_what_to_do(answer.json()["error"]), query
        assert open_one.rows() == before
        assert not list(images.glob("*")) if images.exists() else True


def test_a_body_that_is_no_json_is_told_with_its_place(open_one: House) -> None:
    headers = {"content-type": "application/json"}
    refused = open_one.admin("POST", "/flavors", content=b'{"name": "x",}', headers=headers)
    assert refused.status_code == 422
    assert refused.json()["error"]["message"].startswith("The body is not JSON at character 1")
