"""The zipapp: the same bytes every time, whole in itself, and it knows which one it is."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

from vmgpu.hypervisor import hostctl_zip


def test_the_same_bytes_every_time() -> None:
    first, second = hostctl_zip.build(), hostctl_zip.build()
    assert first == second and first.startswith(b"#!/usr/bin/python3\n")
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.testzip() is None
        assert {each.date_time for each in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        names = archive.namelist()
        assert names == sorted(names) and len(names) == len(set(names))
        assert {"__main__.py", "pynvml.py", "hostctl/__init__.py", "hostctl/__main__.py"} <= set(names)
        assert hostctl_zip.VERSION.encode() in archive.read("hostctl/stamp.py")


def test_it_runs_alone_and_knows_itself(tmp_path: Path) -> None:
    app = tmp_path / "hostctl.pyz"
    app.write_bytes(hostctl_zip.build())
    ran = subprocess.run([sys.executable, "-I", "-S", app, "version"], input=b"", capture_output=True, check=True)
    said = json.loads(ran.stdout)["result"]
    assert said["build"] == hostctl_zip.VERSION and len(hostctl_zip.VERSION) == 12
    assert said["pynvml"] and said["pynvml"][0].isdigit()
    ran = subprocess.run(
        [sys.executable, "-I", "-S", app, "facts", "--sysroot", tmp_path],
        input=b"{}\n",
        capture_output=True,
        check=True,
    )
    # with pynvml inside it gets as far as asking for NVIDIA's own library
    assert json.loads(ran.stdout)["result"]["nvml"]["state"] in ("no_library", "no_driver", "ok")


def test_a_python_that_is_too_old_says_so(tmp_path: Path) -> None:
    app = tmp_path / "hostctl.pyz"
    app.write_bytes(hostctl_zip.build())
    start = "import sys, runpy; sys.version_info = (3, 6, 8); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    ran = subprocess.run([sys.executable, "-I", "-c", start, app, "version"], capture_output=True, check=False)
    error = json.loads(ran.stdout)["error"]
    assert (ran.returncode, error["code"]) == (1, "not_supported") and "Python 3.6" in error["message"]


def test_another_content_is_another_version(tmp_path: Path) -> None:
    changed = dict(hostctl_zip._contents())
    before = hostctl_zip._version_of(changed)
    changed["hostctl/vfs.py"] += b"\n"
    assert before == hostctl_zip.VERSION != hostctl_zip._version_of(changed)
