"""Every bench, at its smallest: it runs, and says its figures in the one form. No time is judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import figures

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FORM = {"figure", "value", "unit", "bar", "met"}

HERE = {
    "serve": {
        "start_new_seconds": 1.5,
        "start_again_seconds": 1.5,
        "memory_after_start": 120,
        "memory_after_20_lists": 120,
        "list_50_vms": 50,
        "list_50_vms_slowest": None,
        "command_vm_list_seconds": None,
    },
    "survey": {
        "cards": None,
        "functions": None,
        "survey_seconds": 1,
        "survey_seconds_worst": None,
        "files_opened_per_card": 50,
    },
    "sync": {"sync_20_first_seconds": 1, "sync_20_seconds": 1, "sync_20_finding_seconds": 1},
}
# The bars of these stand on real guests' times, so that their smallest runs have none.
ON_LIBVIRT = {
    "time_to_ssh": {
        "cold_seconds": None,
        "cold_plain_seconds": None,
        "cold_running_seconds": None,
        "cold_ratio": None,
    },
    "capture": {"copy_seconds": None, "copy_plain_seconds": None, "copy_ratio": None},
}


@pytest.mark.parametrize("name", HERE)
def test_a_bench_says_its_figures_as_json(name: str) -> None:
    said = run(name)

    assert {each["figure"]: each["bar"] for each in said} == HERE[name]


@pytest.mark.libvirt
@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.environ.get("VMGPU_TEST_LIBVIRT"), reason="VMGPU_TEST_LIBVIRT names no libvirt")
@pytest.mark.parametrize("name", ON_LIBVIRT)
def test_a_bench_of_guests_says_its_figures_as_json(name: str) -> None:
    said = run(name)

    assert {each["figure"]: each["bar"] for each in said} == ON_LIBVIRT[name]


@pytest.mark.parametrize("name", ON_LIBVIRT)
def test_a_bench_of_guests_asks_for_a_libvirtd_of_its_own(name: str) -> None:
    lines = (ROOT / "bench" / f"{name}.py").read_text().splitlines()

    assert "# needs: libvirtd" in lines  # what tools/bench.sh looks for


def test_every_bench_is_tested_here() -> None:
    benches = {path.stem for path in (ROOT / "bench").glob("*.py") if '__name__ == "__main__"' in path.read_text()}

    assert benches == {*HERE, *ON_LIBVIRT}


def test_a_missed_bar_makes_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(lambda made: made.figure("ratio", 1.2, "x", bar=1.1)) == 1
    assert json.loads(capsys.readouterr().out) == {
        "figure": "ratio",
        "value": 1.2,
        "unit": "x",
        "bar": 1.1,
        "met": False,
    }


def test_a_bar_that_is_just_met_makes_it_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(lambda made: made.figure("ratio", 1.1, "x", bar=1.1)) == 0
    assert json.loads(capsys.readouterr().out)["met"] is True


def test_a_figure_without_a_bar_is_met_by_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(lambda made: made.figure("seconds", 7, "s")) == 0
    assert json.loads(capsys.readouterr().out) == {
        "figure": "seconds",
        "value": 7,
        "unit": "s",
        "bar": None,
        "met": None,
    }


def test_no_figure_at_all_is_no_success() -> None:
    assert report(lambda made: None) == 1


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    made = figures.Report(as_json=False)
    made.figure("ratio", 1.2, "x", bar=1.1)
    made.figure("seconds", 7, "s")

    assert made.end() == 1
    shown = capsys.readouterr().out
    assert "ratio    1.200  x       1.100  NO" in shown
    assert "seconds" in shown


def run(name: str) -> list[dict[str, object]]:
    """A bench's smallest run; every line of its output is one figure in the one form."""
    command = [sys.executable, ROOT / "bench" / f"{name}.py", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: a bar was missed, which a busy machine may do
    said = [json.loads(line) for line in done.stdout.splitlines()]
    for each in said:
        assert set(each) == FORM
        assert isinstance(each["value"], int | float)
        assert each["value"] > 0
        assert (each["bar"] is None) == (each["met"] is None)
    return said


def report(measure: Callable[[figures.Report], None]) -> int:
    made = figures.Report(as_json=True)
    measure(made)
    return made.end()
