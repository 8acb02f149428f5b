"""vmgpu doctor: this machine, a host of the service, an error text; broken things are exit code 1."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests import factories
from tests.cli.conftest import Run, Service
from vmgpu.cli import cli
from vmgpu.hypervisor import checkup
from vmgpu.hypervisor.doctor import Check, Level, unseen
from vmgpu.hypervisor.doctor.findings import ok, warning
from vmgpu.models import Host, now

TEXT = "error: qemu unexpectedly closed the monitor: vfio 0000:41:00.0: group 27 is not viable\n"


def test_a_file_is_explained(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "vm.log"
    log.write_bytes(b"\xff\xfe broken bytes\n" + TEXT.encode())
    said = run("doctor", "--explain", str(log))
    assert said.code == 0 and said.err == ""
    assert said.out.startswith("Other functions of the card's IOMMU group are still with drivers of the host\n")
    data = run("doctor", "--explain", str(log), "--json").json
    assert [each["id"] for each in data["causes"]] == ["group-not-viable", "qemu-ended"]


def test_standard_input_is_explained() -> None:
    said = CliRunner().invoke(cli, ["doctor", "--explain", "-"], input=TEXT)
    assert said.exit_code == 0 and "IOMMU group" in said.output


def test_what_is_not_known_is_said_so(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "vm.log"
    log.write_text("all is well\n")
    said = run("doctor", "--explain", str(log)).out
    assert said.startswith("No message in it is known to vmgpu.") and "journalctl -k -b" in said
    assert run("doctor", "--explain", str(log), "--json").json == {"causes": []}


def test_this_machine_needs_no_service(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: tuple[Check, ...] = (
        ok("network", "vmgpu", "Guests get addresses."),
        warning("kvm", "tcg", "Slow.", "Nest."),
    )
    how: dict[str, Any] = {}
    monkeypatch.setattr(checkup, "here", lambda **given: how.update(given) or found)
    said = run("doctor", VMGPU_ACCEL="tcg", VMGPU_URL="http://127.0.0.1:1", VMGPU_DATA_DIR=str(tmp_path))
    assert said.code == 0 and said.out.endswith("\n1 ok, 1 warnings, 0 broken\n")
    assert how == {"wish": "tcg", "state_dir": tmp_path / "hosts"}
    found = (*found, unseen("no libvirtd", ""))
    assert run("doctor").code == 1
    data = run("doctor", "--json")
    assert data.code == 1 and [each["id"] for each in data.json["items"]] == ["network", "kvm", "host"]


def test_this_very_machine(run: Run) -> None:
    """Whatever it is and whoever asks: an answer, and nothing on standard error."""
    said = run("doctor", "--json")
    assert said.err == "" and said.code in (0, 1)
    assert {each["level"] for each in said.json["items"]} <= set(Level)
    assert said.code == any(each["level"] == "broken" for each in said.json["items"])


def test_a_host_is_asked_by_the_service(vmgpu: Run, service: Service) -> None:
    host = factories.make_host(service.db)
    late = vmgpu("doctor", "h1", "--wait", "0", "--json")
    assert late.code == 1 and late.error["code"] == "not_examined"
    for check, code in ((ok("network", "a\x1b[2Jb", "Fine."), 0), (unseen("no route", ""), 1)):
        with service.db.write() as session:
            row = session.get_one(Host, host.id)
            row.doctor, row.doctor_at = [check.as_dict()], now() + timedelta(hours=1)
        said = vmgpu("doctor", "h1")
        assert said.code == code and said.out.startswith(check.level) and "\x1b" not in said.out
        data = vmgpu("doctor", "h1", "--json")
        assert data.code == code and data.json["host"] == "h1" and data.json["items"] == [check.as_dict()]
    assert vmgpu("doctor", "none").code == 1


def test_wrong_usage(run: Run, tmp_path: Path) -> None:
    assert run("doctor", "h1", "--explain", "-").code == 2
    assert run("doctor", "--explain", str(tmp_path / "missing")).code == 2
    assert run("doctor", "--explain", str(tmp_path)).code == 2
