"""Looks into a disk with libguestfs: its file systems are mounted by a throw-away appliance, never by this kernel."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from vmgpu.errors import HostRefused, SetupError

Access = Literal["read", "write"]

_PLAIN = re.compile(rb"[A-Za-z0-9_./-]")
_GLOB_SIGNS = b"*?[]{},\\~"
_LINES_KEPT = 3
_NO_ROOT = ("vfat", "swap", "unknown")
_FOLDER = "vmgpu-guestfish-"
_DEVICE = re.compile(r"/dev/[\w./-]+")


class Session:
    """One running appliance with a disk's file systems mounted as its operating system mounts them."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, until: float) -> None:
        self._process, self.folder, self._until = process, folder, until
        self._asked = 0

    def tell(self, *commands: str) -> None:
        """Send commands; one that fails ends the session, unless it begins with a minus."""
        assert self._process.stdin is not None  # noqa: S101  for the type checker: opened as a pipe
        try:
            self._process.stdin.write("".join(f"{each}\n" for each in commands))
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail()

    def ask(self, command: str) -> str:
        """Send a command and wait for what it prints."""
        self._asked += 1
        answer = self.folder / f"answer-{self._asked}"
        done = answer.with_suffix(".done")
        # guestfish buffers what it prints to a pipe, so answers come as files; constant words but for our number.
        self.tell(f"{command} | cat >{answer.name}", f"echo | cat >{done.name}")
        while not done.exists():
            if self._process.poll() is not None:
                self._fail()
            self._wait()
        return answer.read_text(errors="surrogateescape")

    def mount(self) -> list[str]:
        """Mount what the disk's operating system mounts; the answer is where its file systems lie."""
        listed = (line.rpartition(": ") for line in self.ask("list-filesystems").splitlines())
        roots = [name for name, _, kind in listed if kind not in _NO_ROOT]
        if len(roots) == 1 and _DEVICE.fullmatch(roots[0]):
            # libguestfs's own inspection answers the same here, 8 s later under emulation.
            self.tell(f"mount {roots[0]} /")
            if self.ask("is-file /etc/passwd").strip() == "true":
                return ["/"]
            self.tell("umount-all")
        return self._inspected()

    def finish(self) -> None:
        """Unmount, and wait until everything is on the disk."""
        self.tell("umount-all", "shutdown", "exit")
        while self._process.poll() is None:
            self._wait()
        if self._process.returncode:
            self._fail()

    def _inspected(self) -> list[str]:
        roots = self.ask("inspect-os").split()
        if not roots or not _DEVICE.fullmatch(roots[0]):
            raise HostRefused(
                "No operating system was found on the disk", hint="Its file system may be broken, or never made."
            )
        said = self.ask(f"inspect-get-mountpoints {roots[0]}").splitlines()
        places = dict(line.rsplit(": ", 1) for line in said if ": " in line)
        places.setdefault("/", roots[0])
        # The shortest first, so that each finds its mount point. Only / is needed; what fstab says may be untrue.
        mounted = sorted((p for p in places if _DEVICE.fullmatch(places[p])), key=lambda p: (len(p), p))
        self.tell(*(f"{'' if place == '/' else '-'}mount {places[place]} {quoted(place)}" for place in mounted))
        return mounted

    def _wait(self) -> None:
        if time.monotonic() > self._until:
            raise HostRefused("Looking into the disk took too long and was ended", hint="Take the snapshot again.")
        time.sleep(0.05)

    def _fail(self) -> None:
        self._process.wait(5)
        raise HostRefused(
            f"libguestfs failed: {_last_words(self.folder / 'stderr')}",
            hint="libguestfs-test-tool says what is wrong on this machine.",
        )


@contextlib.contextmanager
def session(disk: Path, *, access: Access, accel: str, seconds: float) -> Iterator[Session]:
    """Start an appliance on a qcow2; it is gone when the block ends, whatever happens."""
    _need_tools()
    _end_earlier(disk)
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as made:
        folder = Path(made)
        # Under a name of ours: no sign in the disk's path is then read by guestfish.
        (folder / "disk").symlink_to(disk.absolute())
        with (folder / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                ["guestfish"],
                cwd=folder,
                env=_environment(folder, accel),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        try:
            running = Session(process, folder, time.monotonic() + seconds)
            # The format is told, never guessed: a guest could have written another format's header to its disk.
            option = "readonly:true" if access == "read" else "discard:enable"
            running.tell(f"add-drive disk format:qcow2 {option}", "set-network false", "run")
            yield running
            running.finish()
        finally:
            _end(process)


def quoted(text: str) -> str:
    """A word for guestfish: what a guest wrote may hold any sign, and a line of its own would be a command here."""
    return '"' + "".join(_sign(each) for each in _bytes(text)) + '"'


def literal(text: str) -> str:
    """The inside of a quoted pattern that matches just this text."""
    return "".join((r"\x5c" if each in _GLOB_SIGNS else "") + _sign(each) for each in _bytes(text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _sign(byte: int) -> str:
    return chr(byte) if _PLAIN.match(bytes((byte,))) else f"\\x{byte:02x}"


def _need_tools() -> None:
    if shutil.which("guestfish") is None:
        raise SetupError("guestfish is not installed", hint="apt install libguestfs-tools")
    if not any(Path("/boot").glob("vmlinuz*")):
        raise SetupError(
            "libguestfs finds no kernel in /boot to start its appliance with",
            hint="apt install linux-image-cloud-amd64 (Debian) or linux-image-virtual (Ubuntu)",
        )


def _environment(folder: Path, accel: str) -> dict[str, str]:
    """Nothing of ours: no ~/.guestfish, no settings that change what the tool says or does."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "LIBGUESTFS_TMPDIR": str(folder),  # so that nothing is left when the tool is killed; its cache lies elsewhere
        "LIBGUESTFS_BACKEND": "direct",
        # Left to itself it takes a /dev/kvm that opens but runs no guest, and hangs.
        "LIBGUESTFS_BACKEND_SETTINGS": "" if accel == "kvm" else "force_tcg",
    }


def _end_earlier(disk: Path) -> None:
    """End what is still at work on this disk for one of us who was killed: it holds the disk, and would write on."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):
            if (folder / "disk").readlink() != disk.absolute():
                continue
            until = time.monotonic() + 10
            while (left := _at_work_in(folder)) and time.monotonic() < until:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
            shutil.rmtree(folder, ignore_errors=True)


def _at_work_in(folder: Path) -> list[int]:
    mark, found = f"LIBGUESTFS_TMPDIR={folder}\0".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if mark in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _last_words(stderr: Path) -> str:
    lines = [line.strip() for line in stderr.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-_LINES_KEPT:]) or "it said nothing"
