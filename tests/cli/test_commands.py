"""Every command against a real server: what it prints, and how it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests import factories
from tests.cli.conftest import Run, Service, serving
from vmgpu.api import answers
from vmgpu.cli import desk as desk_module
from vmgpu.cli import host as host_module
from vmgpu.cli import image as image_module
from vmgpu.cli.ssh import ssh_arguments
from vmgpu.errors import SetupError
from vmgpu.models import VM, Host, HostState, Image, VMState
from vmgpu.settings import read_settings


@pytest.fixture(scope="module", autouse=True)
def _rows(service: Service) -> None:
    host = factories.make_host(service.db)
    factories.make_image(service.db)
    factories.make_flavor(service.db, "small")
    anna = factories.make_user(service.db, "anna")
    factories.make_vm(service.db, anna, "hers", host=host, profile="3g.20gb")
    factories.make_vm(service.db, anna, "waits", fgpu="0.5")


def test_lists_are_tables_for_people_and_items_for_scripts(vmgpu: Run) -> None:
    for noun in ("host", "gpu", "flavor", "image", "vm", "queue", "event", "user", "key", "token"):
        words, data = vmgpu(noun, "list"), vmgpu(noun, "list", "--json")
        assert words.code == data.code == 0, (noun, words.err)
        assert isinstance(data.json["items"], list)
        assert "\x1b[" not in words.out
    lines = vmgpu("vm", "list").out.splitlines()
    assert lines[0].split() == ["NAME", "OWNER", "STATE", "QUEUE", "GPU", "HOST", "ADDRESS", "LEASE", "REASON"]
    assert lines[0].index("OWNER") == lines[1].index("anna") == lines[2].index("anna")


def test_a_host_says_what_vms_hold_of_what_they_may_have(vmgpu: Run) -> None:
    # 32 threads, 4 vCPUs each; 128 GiB of memory, of which the host keeps 5 %
    assert "2 of 128    2 GiB of 121.6 GiB" in vmgpu("host", "list").out
    told = vmgpu("host", "show", "h1").out
    assert "2 of 128 held; 32 threads, 4 vCPUs each" in told
    assert "2 GiB of 121.6 GiB held; 6.4 GiB more are kept for the host" in told


def test_show_is_one_object(vmgpu: Run) -> None:
    for noun, name in (("host", "h1"), ("flavor", "small"), ("image", "base"), ("vm", "anna/hers"), ("user", "anna")):
        assert vmgpu(noun, "show", name, "--json").json["name"] == name.split("/")[-1]
        assert name in vmgpu(noun, "show", name).out
    card = vmgpu("gpu", "list", "--json").json["items"][0]
    for ref in (card["id"], card["id"][:8], card["name"]):
        assert vmgpu("gpu", "show", ref, "--json").json["id"] == card["id"]
    assert (
        vmgpu("queue", "show", "waits", "--json").json["steps"] == vmgpu("vm", "why", "waits", "--json").json["steps"]
    )


def test_a_refusal_is_a_sentence_with_its_cure_and_exit_code_1(vmgpu: Run) -> None:
    said = vmgpu("vm", "show", "nope")
    assert said.code == 1 and said.out == ""
    assert said.err == "error: There is no VM 'nope'\nhint: List them: vmgpu vm list.\n"
    as_json = vmgpu("vm", "show", "nope", "--json")
    assert as_json.code == 1 and as_json.out == "" and as_json.error["code"] == "not_found"


def test_wrong_usage_is_exit_code_2(vmgpu: Run) -> None:
    for arguments in (["bogus"], ["vm", "request"], ["vm", "extend", "x"], ["completion", "csh"], []):
        assert vmgpu(*arguments).code == 2, arguments
    assert vmgpu("vm", "request", "--json").error["code"] == "usage"
    assert vmgpu("--help").code == 0


def test_where_nothing_answers(run: Run) -> None:
    said = run("vm", "list", VMGPU_URL="http://127.0.0.1:1")
    assert said.code == 1
    assert said.err == "error: No vmgpu answers at http://127.0.0.1:1\nhint: Start it: vmgpu serve.\n"
    assert run("vm", "list", VMGPU_BIND="0.0.0.0:1").err.startswith("error: No vmgpu answers at http://127.0.0.1:1\n")


def test_the_token_comes_from_the_environment_else_from_the_data_folder(
    run: Run, service: Service, tmp_path: Path
) -> None:
    said = run("vm", "list", VMGPU_URL=service.url, VMGPU_DATA_DIR=str(tmp_path))
    assert said.code == 1 and "VMGPU_TOKEN" in said.err
    (tmp_path / desk_module.TOKEN_FILE).write_text(factories.ADMIN_TOKEN + "\n")
    assert run("vm", "list", VMGPU_URL=service.url, VMGPU_DATA_DIR=str(tmp_path)).code == 0


@pytest.mark.parametrize(
    "token", ["ä…€😀 and what is à", "  sixteen and blanks  ", '%41 %C3%A4 + "quoted"', "über-sechzehn-Zeichen"]
)
def test_the_admins_token_is_any_printable_text(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("VMGPU_ADMIN_TOKEN", token)
    with serving(read_settings(data_dir=tmp_path, log="text")) as made:
        assert run("vm", "list", VMGPU_URL=made.url, VMGPU_TOKEN=token).code == 0
        other = run("vm", "list", "--json", VMGPU_URL=made.url, VMGPU_TOKEN=f"{token}x")
        assert other.error["code"] == "unauthenticated"


def test_a_client_that_writes_latin_1_is_understood(tmp_path: Path) -> None:
    token = "über-sechzehn-Zeichen"
    with serving(factories.make_settings(tmp_path, admin_token=token)) as made:
        for sent in (token.encode("latin-1"), token.encode()):
            header = {b"Authorization": b"Bearer " + sent}
            assert httpx.get(f"{made.url}/api/v1/whoami", headers=header).status_code == 200


def test_blanks_are_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMGPU_ADMIN_TOKEN", "fifteen letters" + " " * 9)
    with pytest.raises(SetupError, match="blanks at its ends not counted"):
        read_settings()


def test_what_is_hidden_here_is_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    from vmgpu.cli import cli
    from vmgpu.service import people
    from vmgpu.settings import Settings

    defaults = {option.name: option.default for option in cli.params}
    assert defaults["bind"] == Settings().bind
    assert Path(str(defaults["data_dir"])).expanduser() == Settings().data_dir
    assert desk_module.TOKEN_FILE == people.TOKEN_FILE


def test_a_flavor_and_vms_come_and_go(vmgpu: Run, service: Service) -> None:
    made = vmgpu("flavor", "add", "half", "--vcpus", "2", "--memory", "4g", "--disk", "10g", "--fgpu", "0.5", "--json")
    assert made.code == 0 and made.json["memory_mib"] == 4096 and made.json["becomes"][0]["profile"] == "3g.20gb"
    asked = vmgpu("vm", "request", "--name", "s{n}", "--count", "2", "--flavor", "half", "--image", "base", "--json")
    assert [vm["name"] for vm in asked.json["items"]] == ["s1", "s2"]
    assert vmgpu("vm", "stop", "s1", "--release-gpu", "--json").json["wanted"] == "stopped"
    assert vmgpu("vm", "start", "s1", "--json").json["wanted"] == "running"
    assert "its lease begins when it has its place" in vmgpu("vm", "extend", "s1", "4h").out
    assert vmgpu("vm", "extend", "s1", "99d").code == 1
    assert vmgpu("vm", "release", "s1", "--json").json["wanted"] == "gone"
    assert vmgpu("vm", "events", "s1").code == 0
    assert vmgpu("flavor", "remove", "half").code == 0


def test_waiting_says_each_phase(vmgpu: Run, service: Service) -> None:
    asked = vmgpu("vm", "request", "--name", "w", "--flavor", "small", "--image", "base", "--wait", "--timeout", "1s")
    assert asked.code == 1 and "w: pending (" in asked.err and "w is still pending after 1 s" in asked.err
    with service.db.write() as session:
        session.get_one(VM, vmgpu("vm", "show", "w", "--json").json["id"]).state = VMState.gone
    assert vmgpu("vm", "list", "--state", "gone", "--json").json["items"][0]["name"] == "w"


def test_a_host_that_is_not_surveyed_is_exit_code_1(vmgpu: Run, tmp_path: Path) -> None:
    said = vmgpu("host", "add", "slow", "qemu:///system?x", "--wait", "0.1")
    assert said.code == 1  # an address that is none
    said = vmgpu("host", "add", "f1", "fake://2xA100-40GB?cpus=8&memory=64g&mood=slow", "--wait", "0.2", "--json")
    assert said.code == 1 and said.json["simulated"] and said.error["code"] == "not_surveyed"
    assert vmgpu("host", "drain", "f1", "--json").json["draining"] is True
    assert vmgpu("host", "drain", "f1", "--off", "--json").json["draining"] is False
    assert vmgpu("host", "set", "f1", "--overcommit", "2", "--json").json["overcommit"] == 2
    token = tmp_path / "client_configuration_token.tok"
    token.write_text("ab.cd.ef\n")
    licensed = vmgpu("host", "set", "f1", "--licence-token", str(token), "--licence-feature", "2", "--json")
    assert licensed.json["licence"] == {"feature": 2, "server": "", "has_token": True}
    assert "ab.cd.ef" not in licensed.out and "ab.cd.ef" not in vmgpu("host", "show", "f1").out
    assert vmgpu("host", "set", "f1", "--licence-token", "ab.cd.ef").code == 2
    assert not vmgpu("host", "set", "f1", "--licence-token", "", "--json").json["licence"]["has_token"]
    assert vmgpu("host", "remove", "f1", "--wait", "0", "--json").json["state"] == "removing"


@pytest.mark.slow
@pytest.mark.parametrize("waiters", [answers.WAITERS, 0])
def test_what_is_not_gone_in_time_is_not_said_to_be_gone(
    vmgpu: Run, service: Service, monkeypatch: pytest.MonkeyPatch, waiters: int
) -> None:
    monkeypatch.setattr(answers, "_WAITERS", threading.Semaphore(waiters))
    vmgpu("host", "add", "f2", "fake://1xA100-40GB", "--wait", "0")
    factories.make_image(service.db, "old")
    for noun, name, kind in (("host", "f2", Host), ("image", "old", Image)):
        asked = vmgpu(noun, "remove", name, "--wait", "0")
        assert asked.code == 0 and "is being" in asked.out, asked
        late = vmgpu(noun, "remove", name, "--wait", "0.3")
        assert late.code == 1 and "is not gone after 0.3 s" in late.err and "is being" in late.out, late
        as_json = vmgpu(noun, "remove", name, "--wait", "0.3", "--json")
        assert as_json.json["name"] == name and as_json.error["code"] == "timeout"

        def forget(kind: type[Host | Image] = kind, id_: str = as_json.json["id"]) -> None:
            with service.db.write() as session:
                session.delete(session.get_one(kind, id_))

        leaving = threading.Timer(0.5, forget)  # as a worker does, of which there is none here
        leaving.start()
        done = vmgpu(noun, "remove", name, "--wait", "60")
        leaving.join()
        assert done.code == 0 and ("is let go" in done.out or "is removed" in done.out), done


def test_a_host_key_is_read_from_what_ssh_keyscan_prints(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("# gpu1:22 SSH-2.0\ngpu1 ssh-rsa AAAA\n\ngpu1 ssh-ed25519 BBBB\n")
    assert host_module._key_in(file) == "gpu1 ssh-ed25519 BBBB"


def test_an_image_is_imported_shown_and_refused(vmgpu: Run, service: Service, tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(b"\x55" * (3 * image_module._PIECE + 512))
    made = vmgpu("image", "import", str(disk), "--name", "team/x:1", "--label", "init=none", "--json")
    assert made.code == 0, made.err
    assert made.json["labels"] == {"init": "none"} and made.json["size_bytes"] == disk.stat().st_size
    digest = subprocess.run(["sha256sum", disk], capture_output=True, text=True, check=True).stdout.split()[0]
    assert made.json["sha256"] == digest
    stored = service.settings.images_dir / f"image-{made.json['id']}.raw"
    assert stored.read_bytes() == disk.read_bytes()
    assert "already" in vmgpu("image", "import", str(disk), "--name", "team/x:1").err
    assert vmgpu("image", "import", str(disk), "--name", "team/y", "--format", "qcow2").code == 1
    empty = tmp_path / "empty.raw"
    empty.touch()
    assert vmgpu("image", "import", str(empty), "--name", "team/z").code == 1
    assert vmgpu("image", "import", str(tmp_path / "none"), "--name", "team/z").code == 2
    assert [path.name for path in service.settings.images_dir.iterdir()] == [stored.name]
    assert vmgpu("image", "remove", "team/x:1", "--wait", "0", "--json").json["state"] == "deleting"


def test_people_keys_and_tokens(vmgpu: Run, service: Service, tmp_path: Path) -> None:
    assert vmgpu("user", "add", "ben").code == 0
    file = tmp_path / "id.pub"
    file.write_text(factories.A_KEY + "\n")
    key = vmgpu("key", "add", str(file), "--user", "ben", "--json").json["items"][0]
    assert vmgpu("key", "list", "ben", "--json").json["items"] == [key]
    assert vmgpu("key", "remove", key["id"], "--user", "ben").code == 0
    secret = vmgpu("token", "add", "--user", "ben", "--name", "x").out.strip()
    assert vmgpu("user", "show", "--json", VMGPU_TOKEN=secret).json["name"] == "ben"
    token = next(t for t in vmgpu("token", "list", "--user", "ben", "--json").json["items"] if t["name"] == "x")
    assert vmgpu("token", "remove", token["id"]).code == 0
    assert vmgpu("user", "link", "ben").out.startswith(f"{service.settings.base_url}/signin?link=")
    assert vmgpu("user", "remove", "ben").code == 0


def test_gpu_unit(vmgpu: Run) -> None:
    said = vmgpu("gpu", "unit", "A100-40GB", "0.5")
    assert said.out == "1 fGPU is 0.5 of an A100-40GB: 3g.20gb on A100-40GB: 50 % of memory, 43 % of compute.\n"
    assert vmgpu("gpu", "unit", "A100-40GB", "7").code == 1
    assert vmgpu("gpu", "unit", "A100-40GB").code == 2


def test_ssh_pins_the_host_key_and_runs_openssh(vmgpu: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/asked; exit 7\n')
    program.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(program.parent), prepend=":")
        assert vmgpu("vm", "ssh", "anna/hers", "--", "uname", "-a").code == 7
    line = (tmp_path / "asked").read_text().splitlines()
    known = next(word for word in line if word.startswith("UserKnownHostsFile=")).partition("=")[2]
    way = vmgpu("vm", "ssh", "anna/hers", "--json").json
    assert Path(known.strip('"')).read_text() == f"{way['alias']} {way['host_key']}\n"
    assert line[-3:] == ["anna@192.168.171.10", "uname", "-a"]
    assert {"StrictHostKeyChecking=yes", f"HostKeyAlias={way['alias']}"} <= set(line)
    pinned = {"jump": "root@h:2222", "jump_alias": "vmgpu-host-1"}
    jumped = ssh_arguments(way | pinned, tmp_path / "a 100%", login="root", command=[])
    (proxy,) = [word for word in jumped if word.startswith("ProxyCommand=")]
    assert "HostKeyAlias=vmgpu-host-1" in proxy and "a 100%%%%" in proxy and proxy.endswith("-- ssh://root@h:2222")
    assert jumped[-1] == "root@192.168.171.10"
    keyed = ssh_arguments(way, tmp_path, login=None, command=[], identity="key file")
    assert keyed[keyed.index("-i") + 1] == "key file"
    parsed = subprocess.run([*jumped[:-2], "-G", jumped[-1]], capture_output=True, text=True)
    assert "stricthostkeychecking true" in parsed.stdout, parsed.stderr
    assert f"userknownhostsfile {tmp_path}/a 100%" in parsed.stdout


def test_names_are_never_taken_for_addresses_or_colours(vmgpu: Run) -> None:
    for name in ("../users/anna", "a?b=c", "a#b", "%2e%2e", "a b", "\x1b[31mred"):
        said = vmgpu("vm", "show", name)
        assert said.code == 1 and "\x1b" not in said.err, name


def test_completion_prints_a_script(vmgpu: Run) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_VMGPU_COMPLETE" in vmgpu("completion", shell).out


def test_a_list_does_not_import_a_server(service: Service) -> None:
    code = "import sys, vmgpu.cli as c; c._run(['vm', 'list']); print(*[m for m in sys.modules], file=sys.stderr)"
    heavy = {"fastapi", "sqlalchemy", "pydantic", "uvicorn", "paramiko", "libvirt", "jinja2"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"VMGPU_URL": service.url, "VMGPU_TOKEN": factories.ADMIN_TOKEN, "PATH": "/usr/bin:/bin"},
    )
    assert "hers" in done.stdout and not heavy & set(done.stderr.split())


def test_several_are_released_and_one_that_is_not_there_holds_up_none(vmgpu: Run, service: Service) -> None:
    me = factories.admin(service.db)
    for name in ("many-1", "many-2", "many-3"):
        factories.make_vm(service.db, me, name)
    said = vmgpu("vm", "release", "many-1", "no-such", "many-2", "--yes")
    assert said.code == 1
    assert said.out.splitlines() == ["many-1 is being released.", "many-2 is being released."]
    assert "1 of 3 failed. no-such: There is no VM 'no-such'" in said.err
    said = vmgpu("vm", "stop", "many-2", "many-3", "--json")
    assert said.code == 1 and [vm["name"] for vm in said.json["items"]] == ["many-3"]
    assert said.error["code"] == "conflict" and said.error["message"].startswith("1 of 2 failed. many-2: ")
    said = vmgpu("vm", "start", "many-3", "--json")
    assert (said.code, said.json["name"]) == (0, "many-3")


def test_a_timeout_waits_and_one_that_is_none_asks_for_nothing(vmgpu: Run, service: Service) -> None:
    factories.make_vm(service.db, factories.admin(service.db), "patient")
    late = vmgpu("vm", "release", "patient", "--timeout", "1s", "--json")
    assert late.code == 1 and late.error["code"] == "timeout"
    factories.make_vm(service.db, factories.admin(service.db), "spared")
    bad = vmgpu("vm", "release", "spared", "--timeout", "soon")
    assert bad.code == 2 and "'soon' is not a time span" in bad.err
    assert vmgpu("vm", "show", "spared", "--json").json["wanted"] == "running"


def test_a_flavor_that_nothing_here_could_hold_is_taken_in_with_a_warning(run: Run, tmp_path: Path) -> None:
    with serving(factories.make_settings(tmp_path / "data")) as service:
        factories.make_host(service.db)
        here = {"VMGPU_URL": service.url, "VMGPU_TOKEN": factories.ADMIN_TOKEN}
        said = run("flavor", "add", "vast", "--profile", "9g.1tb", **here)
        assert said.code == 0 and "no card here offers profile 9g.1tb" in said.out
        assert "The nearest that fits" in said.out
        assert run("flavor", "show", "vast", "--json", **here).json["warning"]["code"] == "never_fits"
        assert run("flavor", "add", "modest", "--profile", "1g.5gb", "--json", **here).json["warning"] is None
        broad = run("flavor", "add", "broad", "--memory", "4t", "--json", **here).json["warning"]
        assert "4096 GiB of memory are more than any host has" in broad["sentence"]
        factories.make_host(service.db, "h2", state=HostState.new, facts=None)
        assert run("flavor", "show", "broad", "--json", **here).json["warning"] is None
