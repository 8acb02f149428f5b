"""The script that makes a machine a host, and the installation's keys in it."""

from __future__ import annotations

import pytest
from sqlmodel import col, delete, select

from tests import factories
from tests.api.conftest import House
from vmgpu.models import Setting
from vmgpu.service import host_keys, people


def settings(house: House) -> dict[str, str]:
    with house.db.read() as session:
        return {each.name: each.value for each in session.exec(select(Setting)).all()}


def test_a_machine_that_is_no_host_yet(house: House) -> None:
    said = house.admin.get("/hosts/setup?host=ssh://root@GPU1.example.org:2222")
    assert said.status_code == 200 and said.headers["content-type"].startswith("text/plain")
    assert said.text.startswith("#!/bin/sh\n") and 'permitopen="192.168.128.2:22"' in said.text
    assert "vmgpu host add gpu1 qemu+ssh://vmgpu@GPU1.example.org:2222/system --host-key" in said.text
    nameless = house.admin.get("/hosts/setup?host=10.0.0.7").text
    assert "vmgpu host add NAME qemu+ssh://vmgpu@10.0.0.7/system" in nameless


def test_the_public_halves_are_in_it_and_the_private_ones_are_not(house: House) -> None:
    text, rows = house.admin.get("/hosts/setup?host=gpu1").text, settings(house)
    assert all(f" {rows[f'host_{name}_public']}\n" in text for name in ("libvirt", "hostctl"))
    private = [rows[f"host_{name}_private"] for name in ("libvirt", "hostctl")]
    secret = [line for key in private for line in key.splitlines() if line and "-----" not in line]
    # the first line is the same in every key of this kind
    assert secret and not [line for line in secret if line in text]


def test_a_host_that_is_known(house: House) -> None:
    factories.make_host(house.db, "mine", uri="qemu+ssh://vmgpu@gpu1/system")
    factories.make_host(house.db, "old", uri="qemu+ssh://root@gpu2/system")
    factories.make_host(house.db, "bridged", uri="qemu+ssh://vmgpu@gpu3/system", bridge="br0")
    factories.make_host(house.db, "here")
    mine, old, bridged = (house.admin.get(f"/hosts/setup?host={name}").text for name in ("mine", "old", "bridged"))
    assert "vmgpu host survey mine" in mine and "vmgpu host add" not in mine
    assert 'permitopen="192.168.171.2:22"' in mine and "192.168.128.2" not in mine  # as its survey has seen it
    assert "vmgpu host remove old" in old and "vmgpu host add old qemu+ssh://vmgpu@gpu2/system" in old
    assert "permitopen" not in bridged
    assert house.admin.get("/hosts/setup?host=here").status_code == 409


@pytest.mark.parametrize(
    "bad", ["", "-oProxyCommand=x", "root@gpu1;id", "gpu1 x", "$(id)", "a'b", "root@gpu1\nid", "root@", "user:pw@h"]
)
def test_what_is_no_ssh_target_is_refused(house: House, bad: str) -> None:
    assert house.admin.get("/hosts/setup", params={"host": bad}).status_code == 422


def test_it_is_an_admins(house: House) -> None:
    assert house.person("anna").get("/hosts/setup?host=gpu1").status_code == 403


def test_no_host_takes_its_address(house: House) -> None:
    assert house.admin.post("/hosts", {"name": "setup", "uri": "fake://1xA100-40GB"}).status_code == 422


def test_an_older_installation_gets_its_keys_on_hosts(house: House) -> None:
    before = settings(house)
    with house.db.write() as session:
        session.execute(delete(Setting).where(col(Setting.name).like("host_%")))
    people.settle_in(house.db, house.settings)
    after = settings(house)
    assert after.keys() == before.keys() and after["ssh_private"] == before["ssh_private"]
    assert len({value for name, value in after.items() if name.endswith("_private")}) == 3
    people.settle_in(house.db, house.settings)
    assert settings(house) == after
    with house.db.read() as session:
        assert host_keys.private(session, "qemu+ssh://root@gpu1/system") is None
        keys = host_keys.private(session, "qemu+ssh://vmgpu@gpu1/system")
    assert keys and (keys.libvirt, keys.hostctl) == (after["host_libvirt_private"], after["host_hostctl_private"])


def test_admins_jump_as_themselves(house: House) -> None:
    """Our account on a host gives nobody a shell, and lets nobody's key in but ours."""
    factories.make_image(house.db)
    host = factories.make_host(house.db, uri="qemu+ssh://vmgpu@gpu2:2222/system")
    factories.make_vm(house.db, house.admin.actor, "a", host=host)
    assert house.admin.get("/vms/a/ssh").json()["jump"] == "gpu2:2222"
