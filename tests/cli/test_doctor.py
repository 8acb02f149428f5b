"""vmgpu doctor --explain: it needs no service."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from tests.cli.conftest import Run
from vmgpu.cli import cli

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
    assert run("doctor", "--explain", str(log)).out == "No message in it is known to vmgpu.\n"
    assert run("doctor", "--explain", str(log), "--json").json == {"causes": []}


def test_wrong_usage(run: Run, tmp_path: Path) -> None:
    assert run("doctor").code == 2
    assert run("doctor", "--explain", str(tmp_path / "missing")).code == 2
    assert run("doctor", "--explain", str(tmp_path)).code == 2
