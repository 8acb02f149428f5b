"""vmgpu host setup: the script on paper, or run over the caller's own SSH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import factories
from tests.cli.conftest import Run, Service
from vmgpu.cli import host as host_module


@pytest.fixture
def ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stand-in for OpenSSH that notes what it is asked and what it is given."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
echo "$*" >{tmp_path}/asked
cat >{tmp_path}/got
echo by the way >&2
echo ssh-ed25519 AAAA
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return program


def test_it_is_printed(vmgpu: Run) -> None:
    said = vmgpu("host", "setup", "root@gpu9")
    assert said.code == 0 and said.out.startswith("#!/bin/sh\n") and said.out.endswith('main "$@"\n')
    assert vmgpu("host", "setup", "root@gpu9", "--json").json == {"script": said.out}
    assert vmgpu("host", "setup", "no such").code == 1


def test_it_is_run_there(vmgpu: Run, ssh: Path, tmp_path: Path) -> None:
    ran = vmgpu("host", "setup", "root@gpu9", "--run")
    assert (ran.code, ran.out, ran.err) == (0, "ssh-ed25519 AAAA\n", "by the way\n")
    assert (tmp_path / "got").read_text() == vmgpu("host", "setup", "root@gpu9").out
    assert (tmp_path / "asked").read_text().startswith("-T -- root@gpu9 sh -c ")


def test_a_host_that_is_known_is_entered_by_the_callers_own_account(vmgpu: Run, service: Service, ssh: Path) -> None:
    factories.make_host(service.db, "far", uri="qemu+ssh://vmgpu@gpu7:2222/system")
    said = vmgpu("host", "setup", "far", "--run", "--json").json
    assert said == {"target": "ssh://gpu7:2222", "host_key": "ssh-ed25519 AAAA", "output": ["ssh-ed25519 AAAA"]}


def test_what_fails_there_is_said(vmgpu: Run, ssh: Path) -> None:
    ssh.write_text("#!/bin/sh\ncat >/dev/null\nexit 255\n")
    said = vmgpu("host", "setup", "root@gpu9", "--run", "--json")
    assert said.code == 1 and said.error["code"] == "setup" and "root@gpu9" in said.error["message"]
    ssh.write_text("#!/bin/sh\nexit 255\n")  # it did not even read the script
    assert vmgpu("host", "setup", "root@gpu9", "--run", "--json").error["code"] == "setup"


def test_a_host_key_is_given_itself_or_in_a_file(vmgpu: Run, tmp_path: Path) -> None:
    assert host_module._key("ssh-ed25519 AAAA root@gpu1") == "ssh-ed25519 AAAA root@gpu1"
    file = tmp_path / "key"
    file.write_text("gpu1 ssh-ed25519 BBBB\n")
    assert host_module._key(str(file)) == "gpu1 ssh-ed25519 BBBB"
    said = vmgpu("host", "add", "x", "qemu+ssh://vmgpu@x/system", "--host-key", str(tmp_path / "none"))
    assert said.code == 2 and "neither a key nor a file" in said.err
