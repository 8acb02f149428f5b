"""What is told in lines where nothing can be redrawn, and drawn over on a terminal."""

from __future__ import annotations

import io
import time

import pytest

from vmgpu.lab.demo_screen import Row, Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")


def test_in_a_log_only_news_is_told() -> None:
    out = io.StringIO()
    screen = Screen(out)
    for seconds in range(3):
        screen.show([Row("s1", "booting", f"s1 booting {seconds} s")])
    screen.show([Row("s1", "running", "s1 running")])
    assert [line[14:] for line in out.getvalue().splitlines()] == ["s1 booting 0 s", "s1 running"]


def test_a_terminal_sees_one_block_that_is_drawn_over() -> None:
    out = Terminal()
    screen = Screen(out)
    screen.show([Row("s1", 1, "s1"), Row("s2", 1, "s2")])
    screen.say("a line that stays")
    screen.show([Row("s1", 2, "s1 runs")])
    assert out.getvalue() == (
        "    s1\n    s2\n\x1b[2A\x1b[J    a line that stays\n    s1\n    s2\n\x1b[2A\x1b[J    s1 runs\n"
    )


def test_a_row_never_wraps_and_carries_no_control_characters() -> None:
    out = Terminal()
    Screen(out).show([Row("s1", 1, "\x1b[2J" + "x" * 100)])
    assert out.getvalue() == "     [2J" + "x" * 31 + "\n"


def test_the_table_tells_which_step_was_not_seen() -> None:
    out = io.StringIO()
    screen = Screen(out)
    with screen.step("first"):
        screen.say("done")
    with pytest.raises(KeyError), screen.step("second"):
        raise KeyError
    screen.table()
    ends = [line.split()[-1] for line in out.getvalue().splitlines()[-3:-1]]
    assert ends == ["seen", "SEEN"]
    assert "second  " in out.getvalue() and "NOT SEEN" in out.getvalue()


def test_a_step_that_says_nothing_is_heard_all_the_same() -> None:
    """Nobody should wonder whether it still works; once the step has ended nothing more comes of it."""
    out = io.StringIO()
    screen = Screen(out, quiet=0.05)
    with screen.step("Sleep"):
        until = time.monotonic() + 20
        while out.getvalue().count("still at it, ") < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert out.getvalue().count("still at it, ") >= 2
    said = out.getvalue()
    time.sleep(0.2)
    assert out.getvalue() == said


def test_a_step_that_speaks_is_not_spoken_for() -> None:
    out = io.StringIO()
    screen = Screen(out, quiet=30)
    with screen.step("Speak"):
        screen.say("something")
    assert "still at it" not in out.getvalue()
