from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.factories import admin, make_settings, make_user
from tests.web.conftest import OURS, Browse
from vmgpu.api import create_app
from vmgpu.api.deps import SESSION_COOKIE
from vmgpu.db import Database
from vmgpu.service import people
from vmgpu.settings import Settings


def test_who_is_not_signed_in_is_told_how(stranger: TestClient) -> None:
    page = stranger.get("/")
    assert page.status_code == 401
    assert "vmgpu user link NAME" in page.text


def test_a_fragment_sends_who_is_signed_out_to_the_start(stranger: TestClient) -> None:
    answer = stranger.get("/now", headers={"HX-Request": "true"})
    assert answer.status_code == 401
    assert answer.headers["HX-Redirect"] == "/"


def test_looking_at_a_link_does_not_use_it_up(stranger: TestClient, db: Database) -> None:
    link = people.make_link(db, admin(db), "admin")
    for _ in range(3):
        assert stranger.get("/signin", params={"link": link}).status_code == 200
    assert stranger.post("/signin", data={"link": link}, headers=OURS).status_code == 303
    assert stranger.get("/").status_code == 200


def test_a_link_works_once(stranger: TestClient, db: Database) -> None:
    link = people.make_link(db, admin(db), "admin")
    stranger.post("/signin", data={"link": link}, headers=OURS)
    again = stranger.post("/signin", data={"link": link}, headers=OURS)
    assert again.status_code == 401
    assert "was used already" in again.text
    assert "vmgpu user link NAME" in again.text


def test_the_cookie_is_for_the_browser_alone(stranger: TestClient, db: Database) -> None:
    answer = stranger.post("/signin", data={"link": people.make_link(db, admin(db), "admin")}, headers=OURS)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie


def test_the_cookie_is_secure_where_people_come_by_https(db: Database, settings: Settings) -> None:
    behind = make_settings(settings.data_dir, public_url="https://gpu.example.org")
    client = TestClient(create_app(db, behind), follow_redirects=False)
    link = people.make_link(db, admin(db), "admin")
    answer = client.post("/signin", data={"link": link}, headers={"Origin": "https://gpu.example.org"})
    assert answer.status_code == 303
    assert "Secure" in answer.headers["set-cookie"]


def test_signing_out_ends_the_session_itself(browse: Browse, db: Database) -> None:
    client = browse(make_user(db))
    secret = client.cookies[SESSION_COOKIE]
    assert client.post("/signout").status_code == 303
    client.cookies.set(SESSION_COOKIE, secret)
    assert client.get("/").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://testserver.evil.example"},
        {"Origin": "null"},
    ],
    ids=str,
)
def test_forms_of_other_sites_are_refused(stranger: TestClient, db: Database, headers: dict[str, str]) -> None:
    link = people.make_link(db, admin(db), "admin")
    answer = stranger.post("/signin", data={"link": link}, headers=headers)
    assert answer.status_code == 403
    assert SESSION_COOKIE not in answer.cookies


def test_our_form_is_taken_where_a_browser_sends_the_origin_alone(stranger: TestClient, db: Database) -> None:
    link = people.make_link(db, admin(db), "admin")
    answer = stranger.post("/signin", data={"link": link}, headers={"Origin": "http://testserver"})
    assert answer.status_code == 303


@pytest.mark.parametrize("address", ["/signout", "/request", "/keys", "/vms/some/release"])
def test_every_button_looks_where_it_was_pressed(browse: Browse, db: Database, address: str) -> None:
    answer = browse(make_user(db)).post(address, data={}, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
