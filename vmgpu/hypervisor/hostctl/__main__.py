"""The command: `hostctl VERB [--sysroot DIR]`, one JSON object as a line in, one out."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import facts, journal, mig, partition, reset, version, vfs, vgpu
from .deadline import Deadline
from .files import Files
from .patterns import VERB, Arguments
from .refusal import Refusal

_LONGEST_LINE = 64 * 1024


@dataclass(frozen=True)
class Verb:
    """What runs, and how many seconds it may."""

    run: Callable[[Files, Arguments, Deadline], dict[str, Any]]
    seconds: float


VERBS = {
    "facts": Verb(facts.run, 20),
    "vfs": Verb(vfs.run, 120),
    "vgpu": Verb(vgpu.run, 60),
    "mig": Verb(mig.run, 60),
    "partition": Verb(partition.run, 60),
    "reset": Verb(reset.run, 60),
    "version": Verb(version.run, 60),
}


class _Answer:
    """The one line that goes out, whoever says it first: the verb or the time-out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, answer: dict[str, Any]) -> None:
        if self._lock.acquire(blocking=False):
            _write(json.dumps(answer, separators=(",", ":")).encode("ascii") + b"\n")


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb; 0 done, 1 refused, 2 wrong use."""
    answer, files, started = _Answer(), Files(), time.monotonic()
    verb: str = ""
    given: dict[str, Any] = {}

    def expired() -> None:
        doing = files.doing or "reading its arguments"
        late = Refusal(
            "timeout",
            f"{verb} did not end within {VERBS[verb].seconds:g} s; it hung while {doing}",
            hint="A driver hangs, or a card does; the kernel log says more.",
        )
        journal.note(files, verb, given, late.code, time.monotonic() - started)
        answer.say({"ok": False, "error": late.as_dict()})
        os.close(1)  # whoever reads us waits for the end of this, and a thread in a hung driver outlives us
        os._exit(1)

    try:
        verb, files = _asked(sys.argv[1:] if words is None else words)
        with Deadline(VERBS[verb].seconds, expired) as deadline:
            given = _given()
            said: dict[str, Any] = {"ok": True, "result": VERBS[verb].run(files, Arguments(given), deadline)}
        ended = "ok"
    except Refusal as no:
        said, ended = {"ok": False, "error": no.as_dict()}, no.code
    except Exception as error:  # the service needs an answer whatever breaks here
        words_of_it = f"{verb} broke: {type(error).__name__}: {error}"
        said = {"ok": False, "error": Refusal("failed", words_of_it, hint="This is a fault of hostctl.").as_dict()}
        ended = "failed"
    journal.note(files, verb, given, ended, time.monotonic() - started)  # before the answer: who has it may end us
    answer.say(said)
    return 0 if ended == "ok" else 2 if ended in ("bad_argument", "unknown_verb") else 1


def _asked(words: Sequence[str]) -> tuple[str, Files]:
    """The verb and the root. As an SSH forced command the verb is what the client asked for, the root never."""
    left, root = list(words), Path("/")
    if "--sysroot" in left:
        at = left.index("--sysroot")
        if at + 1 == len(left) or not left[at + 1].startswith("/"):
            raise Refusal("bad_argument", "--sysroot needs a folder", hint="Write it as an absolute path.")
        root = Path(left[at + 1])
        del left[at : at + 2]
    if not left:
        left = [os.environ.get("SSH_ORIGINAL_COMMAND", "")]
    if len(left) != 1 or not VERB.fullmatch(left[0]) or left[0] not in VERBS:
        raise Refusal(
            "unknown_verb",
            "hostctl was asked for " + (ascii(" ".join(left))[:60] if any(left) else "no verb"),
            hint=f"Known are {', '.join(VERBS)}; sudo must keep SSH_ORIGINAL_COMMAND.",
        )
    return left[0], Files(root)


def _given() -> dict[str, Any]:
    """The arguments: one JSON object on one line, or nothing."""
    line = _line()
    if not line.strip():
        return {}
    try:
        given = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        at = f" at character {error.pos + 1}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise Refusal(
            "bad_argument", f"The arguments are not JSON{at}", hint="One object on one line, in UTF-8."
        ) from error
    if not isinstance(given, dict):
        raise Refusal("bad_argument", "The arguments are no JSON object", hint="One object on one line.")
    return given


def _line() -> bytes:
    """Up to the first newline or the end; a client may keep the channel open."""
    found = bytearray()
    while b"\n" not in found:
        piece = os.read(0, 4096)
        if not piece:
            break
        found += piece
        if len(found) > _LONGEST_LINE:
            raise Refusal("bad_argument", f"The arguments are longer than {_LONGEST_LINE} bytes")
    return bytes(found.partition(b"\n")[0])


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _write(line: bytes) -> None:
    """Past Python's buffer: a time-out must not wait for a thread that hangs."""
    while line:
        line = line[os.write(1, line) :]


if __name__ == "__main__":
    raise SystemExit(main())
