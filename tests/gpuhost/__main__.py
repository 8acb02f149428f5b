"""The process that is the host: `python -m tests.gpuhost DESCRIPTION.json --mount DIR --nvml SOCKET`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from threading import Thread

from tests.gpuhost import levers, lines, nvml
from tests.gpuhost.describe import build
from tests.gpuhost.mount import Tree, mount, unmount
from tests.gpuhost.root import root


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.gpuhost", description=__doc__)
    asked.add_argument("description", type=Path)
    asked.add_argument("--mount", type=Path, required=True, help="the empty folder that becomes the host's root")
    asked.add_argument("--nvml", type=Path, required=True, help="the socket that libnvidia-ml.so.1 asks")
    asked.add_argument("--levers", type=Path, help="the socket by which a test drives the host")
    asked.add_argument(
        "--until-eof", action="store_true", help="end with standard input, so with the test that began it"
    )
    options = asked.parse_args()
    host = build(json.loads(options.description.read_text()))
    host.may_block = True
    lines.serve(options.nvml, partial(nvml.answer, host))
    if options.levers:
        lines.serve(options.levers, partial(levers.answer, host))
    if options.until_eof:
        Thread(target=_end_with_input, args=(options.mount,), daemon=True).start()
    mount(Tree(host, root(host), _say_ready), options.mount)


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _end_with_input(at: Path) -> None:
    sys.stdin.read()
    unmount(at)
    os._exit(0)  # a write that hangs would keep the process for ever


if __name__ == "__main__":
    main()
