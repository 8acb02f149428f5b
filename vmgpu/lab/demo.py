"""`make demo`: a libvirtd, a guest image, a service, then the story; it stays, or with `once` leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from vmgpu.errors import SetupError, VmgpuError
from vmgpu.lab import demo_traces, libvirtd, tiny
from vmgpu.lab.demo_api import Api, Problem, Refused
from vmgpu.lab.demo_ending import told_at_the_end, told_when_left, told_when_private
from vmgpu.lab.demo_screen import Row, Screen
from vmgpu.lab.demo_service import Service, must_be_free, url_of
from vmgpu.lab.demo_ssh import Keyring
from vmgpu.lab.demo_story import MODEL, PERSON, Stage, Story, release_all
from vmgpu.lab.guestimage import ensure_guest_image, this_distribution
from vmgpu.service.shapes import ImageOut, VMOut
from vmgpu.settings import Settings, read_settings

# Not /tmp: on Debian 13 that is memory, and guests' disks may lie here.
_ONCE_BASE = "/var/tmp"  # noqa: S108  the name below it is made by mkdtemp
_TOKEN = "student-token"  # noqa: S105  a file's name
_BOOT_SECONDS = 600.0  # under emulation, on two cores that others use as well


def main(*, once: bool, gpu: str | None, stage: Stage | None = None) -> int:
    """Play the story and keep serving until Ctrl-C; `once`: end after it and remove all. Never a traceback.

    Without a `stage` it is played on this machine.
    """
    screen = Screen()
    try:
        with signals_as_ctrl_c():
            settings = _settings(once=once)
            return Demo(screen, settings, once=once, gpu=gpu, stage=stage).run()
    except VmgpuError as bad:
        screen.error(bad.message, bad.hint)
        return 1
    except KeyboardInterrupt:
        screen.plain("Ended.")
        return 130


class Demo:
    """One run: what it started, and what it must end."""

    def __init__(self, screen: Screen, settings: Settings, *, once: bool, gpu: str | None, stage: Stage | None) -> None:
        self._screen, self._settings, self._once, self._gpu, self._stage = screen, settings, once, gpu, stage
        self._folder = settings.data_dir
        self._service = Service(self._folder, settings)
        self._keyring = Keyring(self._folder)
        self._admin: Api | None = None
        self._story: Story | None = None
        self._before: demo_traces.Before | None = None

    def run(self) -> int:
        """Everything, and the exit code: 0 only if each step was seen and, with `once`, nothing is left."""
        code = 1
        try:
            self._play()
            code = 0
            if not self._once:
                self._serve_on()
        except VmgpuError as bad:
            code = 1
            self._screen.error(bad.message, bad.hint)
            self._tell_log()
        except KeyboardInterrupt:
            code = 130 if code else 0  # after the story it is the way to end
            self._screen.plain("Ending …")
        except Exception as bad:  # whatever it is, a person is told in words and nothing is left behind
            code = 1
            self._screen.error(f"The demo itself broke: {type(bad).__name__}: {bad}", "Please report this.")
        try:
            clean = self._remove() if self._once else self._leave()
        except KeyboardInterrupt:
            clean = False
            hint = f"vmgpu serve knows what is left, with VMGPU_DATA_DIR={self._folder}."
            self._screen.error("Ended before all was removed", hint)
        if self._once and self._screen.played:
            self._screen.table()
        return code if clean else code or 1

    def _play(self) -> None:
        must_be_free(self._settings)
        if self._stage is None:
            self._stage = self._prepare_this_machine()
        with self._screen.step(f"vmgpu serve on {self._settings.bind}"):
            self._service.start()
            admin = self._admin = self._caller(self._service.token())
            self._screen.say(f"{url_of(self._settings)}, SQLite and log in {self._folder}")
        story = self._story = Story(self._stage, self._screen, admin, self._student(admin), self._keyring)
        story.play(gpu=self._gpu)

    def _prepare_this_machine(self) -> Stage:
        progress = self._progress
        with self._screen.step("A guest image of this machine's own distribution"):
            try:
                image = ensure_guest_image(lambda text: progress("guest image", text))
                tiny.ensure_kernel(lambda text: progress("probe", text))  # with it libvirtd's start tries KVM out
            except SetupError as bad:
                hint = f"Where there is a network, run: make setup. {bad.hint}"
                raise SetupError(bad.message, hint=hint) from None
            self._screen.say(f"{image}, {image.stat().st_size >> 20} MiB")
        with self._screen.step("libvirtd"):
            state = self._libvirtd_folder
            _end_a_lost_one(state)
            uri = libvirtd.ensure_libvirtd(state)
            self._screen.say(f"{uri}, {self._whose_libvirtd()}")
            self._before = demo_traces.before(uri)
        tag = f"{this_distribution().id}:{_version()}"
        return Stage(uri, (MODEL,), tag, image, patience=_BOOT_SECONDS, every=1.0)

    def _student(self, admin: Api) -> Api:
        """The person whose VMs these are, by a token that is kept for the next run."""
        with suppress(Refused):  # there from an earlier run
            admin.post("users", body={"name": PERSON})
        kept = self._folder / _TOKEN
        if kept.exists():
            student = self._caller(kept.read_text().strip())
            with suppress(Refused):
                student.get("whoami")
                return student
        kept.touch(mode=0o600)
        kept.write_text(admin.post("tokens", body={"name": "demo"}, user=PERSON)["secret"] + "\n")
        return self._caller(kept.read_text().strip())

    def _serve_on(self) -> None:
        assert self._admin is not None  # noqa: S101  the story was played with it
        self._screen.table()
        told = told_at_the_end(self._admin, self._keyring, self._folder, self._folder / _TOKEN, self._settings)
        self._hand_over()
        self._screen.plain(told)
        while True:
            self._service.must_live()
            time.sleep(1)

    def _hand_over(self) -> None:
        """Where sudo made us root, the keys and tokens are for the person who called."""
        uid, gid = (int(os.environ.get(name, "0")) for name in ("SUDO_UID", "SUDO_GID"))
        if uid and not os.geteuid():
            for path in (self._folder, *(path for path in self._folder.iterdir() if path.is_file())):
                os.chown(path, uid, gid)

    def _leave(self) -> bool:
        """End the service; VMs stay, unless they live in a network namespace that ends with us."""
        if not self._service.started:
            return True
        vms, images = list[VMOut](), list[ImageOut]()
        if self._admin and self._service.alive:
            with suppress(VmgpuError):
                vms, images = self._admin.vms(), self._admin.images()
        self._service.stop()
        if self._is_private():
            with suppress(VmgpuError):
                demo_traces.power_off_all(libvirtd.URI)
            libvirtd.stop(self._libvirtd_folder)
            self._screen.plain(told_when_private(vms, self._folder))
        else:
            self._screen.plain(
                told_when_left(vms, images, self._folder, self._settings, by_sudo="SUDO_UID" in os.environ)
            )
        return True

    def _remove(self) -> bool:
        """Remove all that was made, whatever became of the story; True if nothing is left."""
        clean = True
        if self._service.alive and self._admin:
            clean = self._tried("All that was made is removed", self._release)
        if self._service.started:
            clean = self._tried("The service ends", self._service.stop) and clean
        if self._before:
            clean = self._tried("Nothing is left on this machine's hypervisor", self._must_leave_nothing) and clean
        if self._libvirtd_folder.exists():
            clean = self._tried("libvirtd, where it was started for this, ends", self._end_libvirtd) and clean
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._folder.exists():
            self._screen.error(f"{self._folder} could not be removed whole")
            clean = False
        return clean

    def _tried(self, title: str, part: Callable[[], None]) -> bool:
        try:
            with self._screen.step(title):
                part()
        except VmgpuError as bad:
            self._screen.error(bad.message, bad.hint)
            return False
        return True

    def _release(self) -> None:
        assert self._admin is not None and self._stage is not None  # noqa: S101  _remove asks for both
        release_all(self._admin, self._screen, every=self._stage.every, within=self._stage.patience)

    def _must_leave_nothing(self) -> None:
        assert self._before is not None  # noqa: S101  _remove asks for it
        made = self._story.made if self._story else set[str]()
        if left := demo_traces.left(libvirtd.URI, self._before, made):
            demo_traces.sweep(libvirtd.URI, self._before, made)
            still = demo_traces.left(libvirtd.URI, self._before, made)
            after = f"; {', '.join(still)} could not be removed by hand either" if still else "; removed by hand now"
            raise Problem(f"Left behind: {', '.join(left)}{after}")
        self._screen.say(f"no domain, process, disk, seed, NVRAM, pool or network of {len(made)} VMs and images")

    def _end_libvirtd(self) -> None:
        libvirtd.stop(self._libvirtd_folder)

    @property
    def _libvirtd_folder(self) -> Path:
        return self._folder / "libvirtd"

    def _is_private(self) -> bool:
        ours, used = self._libvirtd_folder / "run", Path("/run/libvirt")
        return ours.exists() and used.exists() and ours.samefile(used)

    def _whose_libvirtd(self) -> str:
        if self._is_private():
            return "the demo's own, in this network namespace alone"
        started = (self._libvirtd_folder / "libvirtd.pid").exists()
        return "this machine's, started by the demo" if started else "this machine's"

    def _caller(self, token: str) -> Api:
        return Api(url_of(self._settings), token, pulse=self._service.must_live)

    def _progress(self, key: str, text: str) -> None:
        self._screen.show([Row(key, text, text)])

    def _tell_log(self) -> None:
        for line in self._service.last_words(8):
            self._screen.say(f"service: {line}")


def _settings(*, once: bool) -> Settings:
    """As the environment has them, with the demo's own folder, and a port where any will do."""
    settings = read_settings()
    host, _, port = settings.bind.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SetupError(f"VMGPU_BIND: {settings.bind!r} is no address", hint="Write HOST:PORT, like 127.0.0.1:8000.")
    changes: dict[str, object] = {}
    if int(port) == 0:
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            changes["bind"] = f"{host}:{any_port.getsockname()[1]}"
    if once:
        changes["data_dir"] = Path(tempfile.mkdtemp(prefix="vmgpu-demo-", dir=os.environ.get("TMPDIR") or _ONCE_BASE))
    elif "data_dir" not in settings.model_fields_set:
        changes["data_dir"] = Path.home() / ".local/share/vmgpu-demo"
    return settings.model_copy(update=changes)


def _version() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_ID":
            return str(json.loads(value)) if value.startswith('"') else value
    return "latest"


def _end_a_lost_one(state: Path) -> None:
    """End a libvirtd that an earlier run started in a network namespace which nobody can enter any more."""
    with suppress(OSError, ValueError):
        pid = int((state / "libvirtd.pid").read_text())
        its, ours = (Path(f"/proc/{one}/ns/net").readlink() for one in (str(pid), "self"))
        if its != ours and Path(f"/proc/{pid}/comm").read_text().strip() == "libvirtd":
            libvirtd.stop(state)


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """A closed terminal and a service manager are heard like Ctrl-C: there is something to tidy up."""

    def heard(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    old = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
