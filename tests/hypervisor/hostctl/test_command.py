"""The command as a host runs it: one line in, one line out, an exit status, and an end in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from vmgpu.hypervisor import hostctl

from .tree import Tree

ROOM = Path(hostctl.__file__).parent.parent
START = "import sys; sys.path.append(sys.argv.pop(1)); from hostctl.__main__ import main; sys.exit(main())"
HASTY = START.replace("from hostctl", "import hostctl.__main__ as m, dataclasses; m.VERBS = {n: dataclasses.replace(v, "
                      "seconds=0.5) for n, v in m.VERBS.items()}; from hostctl")  # fmt: skip


def run(
    *words: str, line: bytes = b"", start: str = START, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-I", "-c", start, str(ROOM), *words]
    return subprocess.run(
        command, input=line, capture_output=True, timeout=30, check=False, env={**os.environ, **(environment or {})}
    )


def answer(ran: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    assert ran.stdout.endswith(b"\n") and ran.stdout.count(b"\n") == 1 and ran.stdout.isascii()
    found = json.loads(ran.stdout)
    assert isinstance(found, dict)
    return found


def test_version() -> None:
    ran = run("version")
    assert ran.returncode == 0
    said = answer(ran)
    assert said["ok"] and said["result"]["hostctl"] == "1" and said["result"]["build"] == "source"
    assert said["result"]["python"] == sys.version.split()[0] and said["result"]["pynvml"]


def test_facts_of_a_tree(tree: Tree) -> None:
    tree.card("0000:41:00.0")
    ran = run("facts", "--sysroot", str(tree.root), line=b"{}\nleft over")
    assert ran.returncode == 0 and answer(ran)["result"]["pci"][0]["address"] == "0000:41:00.0"
    assert ran.stderr.startswith(b"hostctl: facts {}: ok after ")


def test_facts_of_this_machine() -> None:
    said = answer(run("facts"))
    assert said["ok"] and said["result"]["host"]["boot_id"]


@pytest.mark.parametrize(
    "words", [(), ("",), ("fact",), ("FACTS",), ("facts", "x"), ("../facts",), ("facts\n",), ("--help",)]
)
def test_no_verb_but_a_verb(words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.returncode == 2 and answer(ran)["error"]["code"] == "unknown_verb"


@pytest.mark.parametrize("words", [("facts", "--sysroot"), ("facts", "--sysroot", "relative")])
def test_a_root_is_absolute(words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.returncode == 2 and answer(ran)["error"]["code"] == "bad_argument"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("version", None),
        ("version --sysroot /", "unknown_verb"),
        ("version; reboot", "unknown_verb"),
        ("scp -t /", "unknown_verb"),
        ("", "unknown_verb"),
    ],
)
def test_as_a_forced_command_the_client_says_a_verb_and_no_more(asked: str, code: str | None) -> None:
    said = answer(run(environment={"SSH_ORIGINAL_COMMAND": asked}))
    assert said["ok"] if code is None else said["error"]["code"] == code


def test_what_is_no_json_is_told_with_its_place() -> None:
    error = answer(run("facts", line=b"{'address': 1}\n"))["error"]
    assert error["message"].startswith("The arguments are not JSON at character 2: ")


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"5",
        b"null",
        b'"x"',
        b'{"address": ',
        b"{'address': 1}",
        b'{"address": NaN}',
        b"\xff\xfe{}",
        b"[" * 60_000,
        b'{"address": "' + b"a" * 70_000 + b'"}',
        b'{"n": ' + b"9" * 10_000 + b"}",
        b'{"address": "0000:41:00.0\\u0000"}',
        b'{"address": "0000:41:00.0\\n"}',
        b'{"address": "../../../etc"}',
        b'{"address": "0000:41:00.0", "x": 1}',
    ],
    ids=lambda each: str(len(each)),
)
def test_hostile_lines(tree: Tree, line: bytes) -> None:
    ran = run("reset", "--sysroot", str(tree.root), line=line + b"\n")
    assert ran.returncode == 2
    error = answer(ran)["error"]
    assert error["code"] == "bad_argument" and set(error) == {"code", "message", "hint", "errno"}
    assert ran.stderr.count(b"\n") == 1 and len(ran.stderr) < 600  # the journal's one line


def test_a_refusal(tree: Tree) -> None:
    ran = run("reset", "--sysroot", str(tree.root), line=b'{"address": "0000:41:00.0"}')
    assert ran.returncode == 1
    assert answer(ran) == {
        "ok": False,
        "error": {"code": "not_found", "message": "There is no function 0000:41:00.0", "hint": "", "errno": None},
    }
    assert b'reset {"address": "0000:41:00.0"}: not_found after' in ran.stderr


def test_what_hangs_is_named_and_ended(tree: Tree) -> None:
    folder = tree.card("0000:41:00.0")
    (tree.root / folder / "resource").unlink()
    os.mkfifo(tree.root / folder / "resource")  # opening it never ends
    started = time.monotonic()
    ran = run("facts", "--sysroot", str(tree.root), start=HASTY)
    error = answer(ran)["error"]
    assert ran.returncode == 1 and error["code"] == "timeout" and f"reading {folder}/resource" in error["message"]
    assert time.monotonic() - started < 10


def test_a_client_that_says_nothing(tree: Tree) -> None:
    reading, writing = os.pipe()
    try:
        command = [sys.executable, "-I", "-c", HASTY, str(ROOM), "version"]
        ran = subprocess.run(command, stdin=reading, capture_output=True, timeout=30, check=False)
    finally:
        os.close(reading)
        os.close(writing)
    assert answer(ran)["error"]["code"] == "timeout"


def test_a_program_that_hangs_is_killed_with_its_children(tree: Tree) -> None:
    tree.card("0000:41:00.0", vfs_most=4)
    tree.program("usr/lib/nvidia/sriov-manage", 'sleep 77 & echo $! > "$root/child"; wait')
    ran = run("vfs", "--sysroot", str(tree.root), line=b'{"address": "0000:41:00.0", "on": true}', start=HASTY)
    assert answer(ran)["error"]["code"] == "timeout"
    child = int(tree.read("child"))
    for _ in range(50):
        status = Path(f"/proc/{child}/stat")
        if not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the child lives on")


def test_what_breaks_inside_still_answers(tree: Tree) -> None:
    broken = START.replace("from hostctl", "import hostctl.facts as f; f.run = None; from hostctl")
    ran = run("facts", "--sysroot", str(tree.root), start=broken)
    assert ran.returncode == 1 and "TypeError" in answer(ran)["error"]["message"]
