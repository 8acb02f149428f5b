"""How a bench speaks: tables for people; with --json one line per figure, alone on stdout."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import FrameType

from vmgpu.errors import VmgpuError


@dataclass(frozen=True)
class Figure:
    """One number that was measured. `bar` is the most that it may be; None: it only stands there."""

    figure: str
    value: float
    unit: str
    bar: float | None
    met: bool | None


class Report:
    """What a bench found out, in the order in which it did."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json, self._figures = as_json, list[Figure]()
        load, cpus = os.getloadavg()[0], os.cpu_count() or 1
        self.note(f"The load is {load:.2f} on {cpus} CPUs: on a busy machine no figure means much.")

    def figure(self, name: str, value: float, unit: str, *, bar: float | None = None) -> None:
        """Say a number, and with a bar whether it is small enough."""
        rounded = round(value, 3)
        met = None if bar is None else rounded <= bar
        self._figures.append(figure := Figure(name, rounded, unit, bar, met))
        if self._as_json:
            print(json.dumps(asdict(figure)), flush=True)

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Rows for people: text to the left, numbers to the right."""
        self.note(f"\n{title}")
        _print_table(head, rows, sys.stderr if self._as_json else sys.stdout)

    def note(self, text: str) -> None:
        """A sentence for people."""
        print(text, file=sys.stderr if self._as_json else sys.stdout, flush=True)

    def step(self, text: str) -> None:
        """What is being done now, for those who wait, and the load meanwhile."""
        print(f"  {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)

    def end(self) -> int:
        """The table of all figures; the exit code is 1 where a bar was missed, or where nothing was measured."""
        if not self._as_json:
            rows = [
                (f.figure, f.value, f.unit, "-" if f.bar is None else f.bar, _verdict(f.met)) for f in self._figures
            ]
            self.table("Figures", ("figure", "value", "unit", "at most", "met"), rows)
        return 0 if self._figures and all(figure.met is not False for figure in self._figures) else 1


Measure = Callable[[Report, argparse.Namespace], None]


def main(description: str, measure: Measure, parser: argparse.ArgumentParser) -> int:
    """Run a bench. 0: all is well; 1: a bar was missed; 2: it broke."""
    parser.description = description
    parser.add_argument("--json", action="store_true", help="one line per figure instead of tables")
    parser.add_argument("--quick", action="store_true", help="the smallest run that shows that the bench works")
    options = parser.parse_args()
    report = Report(as_json=options.json)
    signal.signal(signal.SIGTERM, _end)
    try:
        measure(report, options)
    except VmgpuError as broken:
        print(f"error: {broken.message}\n{broken.hint}", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        return 2
    return report.end()


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, smallest and largest, as tables show them."""
    return statistics.median(values), min(values), max(values)


def _end(number: int, _frame: FrameType | None) -> None:
    """End like by an exception, so that nothing is left behind; a second signal would cut that off."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def _verdict(met: bool | None) -> str:
    return "-" if met is None else "yes" if met else "NO"


def _print_table(head: Sequence[str], rows: Sequence[Sequence[object]], stream: object) -> None:
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    right = [bool(rows) and isinstance(value, float | int) for value in rows[0]] if rows else [False] * len(head)
    for line in (head, ["-" * width for width in widths], *texts):
        padded = [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(line, widths, right, strict=True)]
        print("  ".join(padded).rstrip(), file=stream)  # type: ignore[call-overload]


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
