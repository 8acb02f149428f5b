"""What people read in their first hour: how a wish went, what waits, what was wrong, and what to do next."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests import factories
from tests.cli.conftest import Run, Service, serving
from vmgpu.cli.ssh import _ended
from vmgpu.errors import ReasonCode, Unauthenticated, reason
from vmgpu.models import VM, Gpu, VMState
from vmgpu.service import people


@pytest.fixture(scope="module", autouse=True)
def _rows(service: Service) -> None:
    host = factories.make_host(service.db)
    factories.make_image(service.db)
    factories.make_flavor(service.db, "small")
    factories.make_vm(service.db, factories.make_user(service.db, "anna"), "hers", host=host, profile="3g.20gb")


def test_what_a_wish_becomes_is_said_as_it_is(vmgpu: Run, service: Service) -> None:
    me = factories.admin(service.db)
    factories.make_vm(service.db, me, "up", state=VMState.running)
    factories.make_vm(service.db, me, "queued")
    assert vmgpu("vm", "reboot", "up").out == "up is being rebooted.\n"
    place = vmgpu("vm", "show", "queued", "--json").json["position"]
    assert vmgpu("vm", "start", "queued").out == f"queued waits already: place {place}.\n"
    both = vmgpu("vm", "stop", "up", "--keep-gpu", "--release-gpu")
    assert both.code == 2 and "either --keep-gpu or --release-gpu" in both.err
    assert vmgpu("vm", "show", "up", "--json").json["wanted"] == "running"
    vmgpu("vm", "release", "queued")
    with service.db.write() as session:
        session.get_one(VM, vmgpu("vm", "show", "queued", "--json").json["id"]).state = VMState.gone
    again = vmgpu("vm", "release", "queued")
    assert again.code == 1 and again.err.startswith("error: queued was released at 2")


def test_who_waits_for_a_place_alone_is_told_that_it_may_take_long(vmgpu: Run, service: Service) -> None:
    why = reason(ReasonCode.no_slice_free, profile="3g.20gb", places=2, cards=1).as_dict()
    id_ = factories.make_vm(service.db, factories.admin(service.db), "long", reason=why).id
    said = vmgpu("vm", "start", "long", "--timeout", "2s")
    line = "long waits; Ctrl-C leaves it in the queue. See: vmgpu vm why long\n"
    assert said.code == 1 and said.err.count(line) == 1
    with service.db.write() as session:
        session.get_one(VM, id_).state = VMState.gone


def test_a_wrong_value_is_refused_in_words(vmgpu: Run) -> None:
    ask = ("vm", "request", "--name", "x", "--flavor", "small", "--image", "base")
    assert vmgpu(*ask, "--lease", "8").err == "error: lease: '8' has no unit. Write it like 90s, 30m, 8h or 7d.\n"
    assert vmgpu(*ask, "--count", "0").err == "error: count: at least 1\n"
    assert vmgpu("vm", "extend", "hers", "4").err.startswith("error: by: '4' has no unit.")
    add = ("flavor", "add", "odd", "--memory")
    assert vmgpu(*add, "80000g").err == "error: memory: at most 16 TiB\n"
    assert vmgpu(*add, "8").err == ("error: memory: 8 MiB is too little, the least is 128 MiB. Did you mean 8g?\n")


def test_hosts_name_a_few_of_the_vms_that_keep_them(vmgpu: Run, service: Service) -> None:
    host = factories.make_host(service.db, "full")
    for number in range(1, 8):
        factories.make_vm(service.db, factories.admin(service.db), f"held-{number}", host=host)
    said = vmgpu("host", "remove", "full").err
    assert "Host full holds 7 VMs: held-1, held-2, held-3, held-4, held-5 … and 2 more" in said
    card = next(c for c in vmgpu("gpu", "list", "--json").json["items"] if c["host"] == "full")
    assert f"Card {card['name']} is emulated; it is given out already" in vmgpu("gpu", "offer", card["id"]).err


def test_secrets_come_alone_on_standard_output_and_say_how_long_they_are_good(vmgpu: Run) -> None:
    link = vmgpu("user", "link", "anna")
    assert len(link.out.split()) == 1 and link.err == "good once, for 30 minutes\n"
    token = vmgpu("token", "add", "--user", "anna")
    assert len(token.out.split()) == 1 and token.err.startswith("shown once")
    assert vmgpu("user", "link", "anna", "--json").err == ""


def test_a_link_that_was_used_up_says_who_makes_a_new_one(vmgpu: Run, service: Service) -> None:
    secret = vmgpu("user", "link", "anna").out.strip().partition("link=")[2]
    assert people.sign_in(service.db, secret)[0].name == "anna"
    with pytest.raises(Unauthenticated) as refused:
        people.sign_in(service.db, secret)
    assert refused.value.hint == "Ask an admin for a new one (vmgpu user link NAME)."


def test_who_runs_no_service_is_not_told_of_its_environment(vmgpu: Run, service: Service) -> None:
    ask = ("vm", "request", "--name", "m", "--count", "501", "--flavor", "small", "--image", "base")
    assert "VMGPU_MAX_VMS_PER_REQUEST" in vmgpu(*ask).err
    anna = vmgpu("token", "add", "--user", "anna").out.strip()
    assert "hint: Send several requests.\n" in vmgpu(*ask, VMGPU_TOKEN=anna).err


def test_a_model_of_which_nobody_has_said_what_1_fgpu_is(run: Run, tmp_path: Path) -> None:
    with serving(factories.make_settings(tmp_path / "data")) as service:
        here = {"VMGPU_URL": service.url, "VMGPU_TOKEN": factories.ADMIN_TOKEN}
        host = factories.make_host(service.db, cards=("H100-80GB",))
        half = {"name": "L40S-24Q", "compute": 1, "cells": 1, "starts": [0, 1], "memory_mib": 24576, "most": 2}
        halves = {
            "cells": 2,
            "compute": 2,
            "instances": 2,
            "equal": True,
            "pieces": [half | {"marks": [], "cuda": True}],
        }
        real = factories.make_real_gpu(service.db, host, facts={"modes": ["vgpu"], "cuts": {"vgpu": halves}})
        units = run("gpu", "unit", **here).out.splitlines()
        assert [line.split()[:4] for line in units[1:]] == [[m, "1", "(not", "set)"] for m in ("H100-80GB", "L40S")]
        warned = "1 fGPU is a whole H100-80GB here, until you say otherwise: vmgpu gpu unit H100-80GB 0.5\n"
        assert run("flavor", "add", "plain", **here).err == ""
        assert run("flavor", "add", "one", "--fgpu", "1", **here).err == warned
        offered = run("gpu", "offer", real.id, "--mode", "vgpu", **here)
        assert offered.err == warned.replace("H100-80GB", "L40S") and "vgpu: L40S-24Q (2 per card)" in offered.out
        run("gpu", "unit", "L40S", "0.5", **here)
        run("gpu", "unit", "H100-80GB", "0.5", **here)
        assert "(not set)" not in run("gpu", "unit", **here).out.splitlines()[1]
        assert run("flavor", "add", "two", "--fgpu", "2", **here).err == ""


def test_a_card_says_what_each_of_its_modes_can_be_cut_into(vmgpu: Run, service: Service) -> None:
    host = factories.make_host(service.db, "cut", cards=())
    with service.db.write() as session:
        facts = {"modes": ["emulated"]}
        session.add(
            Gpu(host_id=host.id, key="e", name="e", model="H100-80GB", mode="emulated", emulated=True, facts=facts)
        )
    said = vmgpu("gpu", "show", "e").out
    assert "emulated: whole, 7g.80gb, 3g.40gb (2 per card), 4g.40gb, " in said
    assert vmgpu("gpu", "show", "e", "--json").json["offers"]["emulated"][:2] == ["whole", "7g.80gb"]


def test_a_pattern_means_ones_own_vms(vmgpu: Run, service: Service) -> None:
    me, ben = factories.admin(service.db), factories.make_user(service.db, "ben")
    for owner, name in ((me, "lab-1"), (me, "lab-2"), (me, "other"), (ben, "lab-3")):
        factories.make_vm(service.db, owner, name)
    assert vmgpu("vm", "release", "lab*", "lab-1", "--yes").out == (
        "lab-1 is being released.\nlab-2 is being released.\n"
    )
    left = {vm["name"]: vm["wanted"] for vm in vmgpu("vm", "list", "--json").json["items"]}
    assert left["other"] == left["lab-3"] == "running"
    assert vmgpu("vm", "stop", "ben/lab-?").out.startswith("lab-3 is ")
    none = vmgpu("vm", "release", "other", "z*")
    assert none.code == 1 and none.err == "error: No VM of admin is called 'z*'\nhint: List them: vmgpu vm list.\n"


@pytest.mark.parametrize(("who", "hinted"), [("anna@192.168.171.10", True), ("vmgpu@gpu1", False)])
def test_a_vm_that_lets_no_key_in_says_which_keys_it_has(
    vmgpu: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, who: str, hinted: bool
) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncat\necho "{who}: Permission denied (publickey)." >&2; exit 255\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    said = vmgpu("vm", "ssh", "anna/hers")
    assert said.code == 255 and f"{who}: Permission denied (publickey).\n" in said.err
    assert ("hint: anna/hers lets in the keys its members had when it was built." in said.err) is hinted


def test_a_signal_to_us_is_for_ssh() -> None:
    before = signal.getsignal(signal.SIGTERM)
    process = subprocess.Popen(["sleep", "600"])

    def send() -> None:
        while signal.getsignal(signal.SIGTERM) is before:  # else it would be the end of the tests
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    assert _ended(process) == 128 + signal.SIGTERM
    sender.join()
    assert signal.getsignal(signal.SIGTERM) is before
