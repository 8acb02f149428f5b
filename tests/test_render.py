"""Seeds carry exactly the values they were given, whatever was typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.depth import examples
from vmgpu import render
from vmgpu.errors import Invalid

PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
LOGIN = re.compile("[a-z_][a-z0-9_-]{0,30}")


def seed(**change: Any) -> dict[str, bytes]:
    plain: dict[str, Any] = {
        "instance_id": "0f6c-1",
        "hostname": "s1",
        "mac": "52:54:00:ab:cd:ef",
        "host_key": "ssh-ed25519 AAAAhost",
        "host_key_private": PRIVATE,
        "logins": [("alice", ("ssh-ed25519 AAAAalice alice@home",)), ("bob", ())],
        "our_login": "vmgpu",
        "our_key": "ssh-ed25519 AAAAours",
        "has_init": True,
    }
    return render.seed(**{**plain, **change})


def read(files: dict[str, bytes], name: str) -> Any:
    return yaml.safe_load(files[name].decode())


def test_logins_are_made_as_the_concepts_say() -> None:
    people = ["Zoë.Smith@example.org", "admin", "7of9", "zoe smith"]
    assert list(render.logins(people).values()) == ["zoe-smith", "admin-user", "u7of9", "zoe-smith-2"]


def test_a_cloud_image_gets_three_documents() -> None:
    files = seed()
    assert set(files) == {"user-data", "meta-data", "network-config"}
    assert files["user-data"].startswith(b"#cloud-config\n")
    assert read(files, "meta-data") == {"instance-id": "0f6c-1", "local-hostname": "s1"}
    assert read(files, "network-config") == {
        "version": 2,
        "ethernets": {
            "primary": {"match": {"macaddress": "52:54:00:ab:cd:ef"}, "dhcp4": True, "dhcp-identifier": "mac"}
        },
    }


def test_the_host_key_is_ours_and_no_other_is_made() -> None:
    config = read(seed(), "user-data")
    assert config["ssh_keys"] == {"ed25519_private": PRIVATE, "ed25519_public": "ssh-ed25519 AAAAhost"}
    assert config["ssh_deletekeys"] is True
    assert config["ssh_genkeytypes"] == ["ed25519"]


def test_each_member_has_an_account_and_ours_comes_last() -> None:
    users = read(seed(), "user-data")["users"]
    assert [user["name"] for user in users] == ["alice", "bob", "vmgpu"]
    assert users[0]["ssh_authorized_keys"] == ["ssh-ed25519 AAAAalice alice@home"]
    assert "ssh_authorized_keys" not in users[1]  # cloud-init's schema refuses an empty list
    assert users[2]["uid"] == 60990
    assert "uid" not in users[0]
    assert all(user["lock_passwd"] is True and user["sudo"] == "ALL=(ALL) NOPASSWD:ALL" for user in users)


def test_an_image_without_init_finds_plain_files_too() -> None:
    files = seed(has_init=False, host_key_private=PRIVATE.rstrip("\n"))
    assert files["ssh_host_ed25519_key"].decode() == PRIVATE
    assert files["ssh_host_ed25519_key.pub"] == b"ssh-ed25519 AAAAhost\n"
    assert files["authorized_keys"] == b"ssh-ed25519 AAAAalice alice@home\nssh-ed25519 AAAAours\n"


@pytest.mark.parametrize(
    "change",
    [
        {"logins": [("alice", ("ssh-ed25519 AAAA\nssh-rsa BBBB",))]},
        {"logins": [("alice", ("ssh-ed25519 AAAA \ud800",))]},
        {"logins": [("alice", ("",))]},
        {"logins": [("Alice", ())]},
        {"logins": [("root\n", ())]},
        {"logins": [("vmgpu", ())]},
        {"logins": [("bob", ()), ("bob", ())]},
        {"mac": "52:54:00:AB:CD:EF"},
        {"mac": "52:54:00:ab:cd:ef\n"},
        {"our_key": "ssh-ed25519 \x85"},
        {"host_key": "a\rb"},
    ],
)
def test_what_has_no_place_in_a_seed_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        seed(**change)


ANY_TEXT = st.text(st.characters(codec=None), max_size=60)
NASTY = st.sampled_from(
    ["#", ": ", "- x", "\n", "\x85", "\u2028", "{{ x }}", "}", "]", "'", '"', "\\", "🎉", "%", "\0"]
)
TEXT = st.lists(st.one_of(ANY_TEXT, NASTY), max_size=6).map("".join)
PRINTABLE = TEXT.map(lambda text: "".join(c for c in text if c.isprintable())).filter(bool)


@settings(deadline=None, max_examples=examples(100))
@given(name=TEXT, comment=PRINTABLE, other=PRINTABLE, private=TEXT, instance=PRINTABLE)
def test_any_text_comes_back_as_it_went_in(name: str, comment: str, other: str, private: str, instance: str) -> None:
    key = f"ssh-ed25519 AAAA {comment}"
    login = render.linux_login(name, taken={"vmgpu"})
    files = seed(
        hostname=name,
        instance_id=instance,
        host_key_private=private.encode("utf-8", "ignore").decode(),
        logins=[(login, (key, other))],
        our_key=other,
    )
    config = read(files, "user-data")
    assert config["users"][0] == {
        "name": login,
        "shell": "/bin/bash",
        "lock_passwd": True,
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": [key, other],
    }
    assert config["users"][1]["ssh_authorized_keys"] == [other]
    assert len(config["users"]) == 2
    assert config["ssh_keys"]["ed25519_private"].rstrip("\n") == private.encode("utf-8", "ignore").decode().rstrip("\n")
    assert config["hostname"] == render.dns_label(name)
    assert read(files, "meta-data")["instance-id"] == instance
    assert set(config) == set(read(seed(), "user-data"))  # nothing typed became a key of the document
    assert all(content.isascii() for content in files.values())


PLAIN = st.one_of(TEXT, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))


@settings(deadline=None)
@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8))
def test_any_value_stands_on_one_line_and_is_read_back(value: Any) -> None:
    written = render._serialised(value)
    assert written.isascii()
    assert "\n" not in written
    assert yaml.safe_load(f"key: {written}\nnext: 1\n") == {"key": value, "next": 1}


@settings(deadline=None)
@given(TEXT)
def test_any_text_makes_a_host_name(text: str) -> None:
    assert re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", render.dns_label(text))


@settings(deadline=None)
@given(st.lists(TEXT, max_size=12), st.sets(st.sampled_from(["vmgpu", "user", "alice"])))
def test_any_names_make_logins_of_their_own(names: list[str], taken: set[str]) -> None:
    given_ = render.logins(names, taken=taken)
    assert list(given_) == list(dict.fromkeys(names))
    assert len(set(given_.values())) == len(given_)
    assert all(LOGIN.fullmatch(login) and login not in taken for login in given_.values())
    assert given_ == render.logins(names, taken=taken)


@pytest.mark.parametrize(
    ("name", "login"),
    [
        ("alice", "alice"),
        ("Max Mustermann", "max-mustermann"),
        ("josé.garcía@uni.example", "jose-garcia"),
        ("20231234", "u20231234"),
        ("Straße", "strasse"),
        ("李雷", "user"),
        ("🎉", "user"),
        ("", "user"),
        ("root", "root-user"),
        ("Docker", "docker-user"),
        ("systemd-network", "systemd-network-user"),
        ("_apt", "apt"),
        ("x" * 80, "x" * 24),
        ("'; rm -rf /", "rm-rf"),
    ],
)
def test_a_login_resembles_the_name(name: str, login: str) -> None:
    assert render.linux_login(name) == login


def test_people_with_names_alike_are_told_apart() -> None:
    names = ["Alice", "ALICE", "alice", "alice@b", "vmgpu"]
    assert render.logins(names, taken={"vmgpu"}) == {
        "alice": "alice",
        "Alice": "alice-2",
        "ALICE": "alice-3",
        "alice@b": "alice-4",
        "vmgpu": "vmgpu-2",
    }


def test_a_page_escapes_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web/x.html").write_text("<b>{{ name }}</b>")
    monkeypatch.setattr(render, "folder", lambda name: tmp_path)
    render._html.cache_clear()
    try:
        assert render.html("x.html", name="<i>&\"'") == "<b>&lt;i&gt;&amp;&#34;&#39;</b>"
    finally:
        render._html.cache_clear()
