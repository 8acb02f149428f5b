"""`make lab`: a GPU host with a real kernel, IOMMU, VFIO and mediated devices in a VM, and vmgpu proven on it.

`python -m vmgpu.lab.namespace -- python -m vmgpu.lab.lab [--write FILE]`: in namespaces of its own, where the host has
an address and a name, and all ends with them. Ends 0 only if each step was seen and nothing is left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from vmgpu import render
from vmgpu.errors import SetupError, VmgpuError
from vmgpu.lab import namespace, tiny
from vmgpu.lab.demo import signals_as_ctrl_c
from vmgpu.lab.demo_screen import Row, Screen
from vmgpu.lab.demo_service import Service, url_of
from vmgpu.lab.gpu_host import GpuHost, Machine
from vmgpu.lab.hostimage import ensure_host_image
from vmgpu.lab.kvm import kvm_works
from vmgpu.lab.lab_cli import Shell
from vmgpu.lab.lab_story import HOST, Stage, Story
from vmgpu.lab.lab_transcript import Transcript
from vmgpu.lab.programs import need_root, run
from vmgpu.settings import Accel, Settings, read_settings

# Of the loopback: who comes from there is its own gateway to the host, which knows no other way back.
_ADDRESS = "127.0.0.10"
_BASE = "/var/tmp"  # noqa: S108  the name below it is made by mkdtemp
_PATIENCE = {"kvm": 240.0, "tcg": 900.0}
_CPUS = 4
# An emulated host takes longer for everything than one that is to serve people may.
_SLOW = {"VMGPU_HOST_CALL_TIMEOUT": "5m", "VMGPU_GUEST_TIMEOUT": "30m"}


def main(arguments: list[str]) -> int:
    """Play the story; the exit code. Never a traceback for what a person can mend."""
    parser = argparse.ArgumentParser(prog="make lab", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="Save the transcript there, if all was seen.")
    given = parser.parse_args(arguments)
    screen = Screen()
    folder = Path(tempfile.mkdtemp(prefix="vmgpu-host-", dir=_BASE))
    try:
        with signals_as_ctrl_c():
            return Lab(screen, folder, write=given.write).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Lab:
    """One run: what it started, and what it must end."""

    def __init__(self, screen: Screen, folder: Path, *, write: Path | None) -> None:
        self._screen, self._folder, self._write = screen, folder, write
        self._settings = _settings(folder / "data")
        self._service = Service(self._settings.data_dir, self._settings)
        self._host: GpuHost | None = None
        self._transcript = Transcript()

    def run(self) -> int:
        """All of it, and the exit code."""
        code = 1
        try:
            self._play()
            code = 0
        except VmgpuError as bad:
            self._screen.error(bad.message, bad.hint)
            self._tell()
        except KeyboardInterrupt:
            code = 130
            self._screen.plain("Ending …")
        finally:
            self._end()
        self._screen.table()
        if code == 0 and self._write:
            self._save(self._write)
        return code

    def _play(self) -> None:
        with self._screen.step("The host's disk, from this distribution's packages, and a guest small enough for it"):
            image = ensure_host_image(lambda text: self._progress("host", text))
            guest = tiny.ensure_tiny_image(lambda text: self._progress("guest", text))
            accel = self._accel()
            self._screen.say(f"{image.disk.stat().st_size >> 20} MiB; the host is run by {accel}")
        with self._screen.step(f"A machine boots: {HOST}, with an IOMMU, three cards, and the kernel's sample drivers"):
            _name_the_host(self._folder)
            (self._folder / "host").mkdir()
            cpus = min(_CPUS, os.cpu_count() or 1)
            host = self._host = GpuHost(Machine(image, self._folder / "host", accel, _ADDRESS, cpus))
            host.prepare()
            _let_ssh_know(self._folder, host)
            host.start()
            host.wait_up(within=_PATIENCE[accel])
            self._screen.say(host.ask("uname -r").strip())
        with self._screen.step(f"vmgpu serve on {self._settings.bind}"):
            os.environ.update(_SLOW)
            self._service.start()
        self._transcript.names = {
            str(guest): "tiny.qcow2",
            str(self._folder / "host"): "~/host",
            str(self._folder): "~",
        }
        Story(self._stage(host, guest, accel)).play()

    def _stage(self, host: GpuHost, guest: Path, accel: str) -> Stage:
        environment = {
            "VMGPU_URL": url_of(self._settings),
            "VMGPU_TOKEN": self._service.token(),
            "HOME": str(self._folder),  # where `vmgpu vm ssh` keeps the host keys that it pins
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }
        shell = Shell(self._screen, self._transcript, environment)
        identity = self._folder / "id_ed25519"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", identity], doing="Making a key")
        return Stage(host, shell, self._screen, self._transcript, guest, identity, _PATIENCE[accel])

    def _accel(self) -> str:
        if self._settings.accel is not Accel.auto:
            return self._settings.accel.value
        return "kvm" if kvm_works() else "tcg"

    def _end(self) -> None:
        """Whatever became of the story: nothing that was started goes on."""
        try:
            with self._screen.step("The service and the host end"):
                self._service.stop()
                if self._host:
                    self._host.stop()
        except (VmgpuError, KeyboardInterrupt) as bad:
            self._screen.error(str(bad))

    def _tell(self) -> None:
        for line in self._service.last_words(6):
            self._screen.say(f"service: {line}")
        for line in self._host.console(6) if self._host else ():
            self._screen.say(f"host: {line}")

    def _save(self, path: Path) -> None:
        lines = [f"| {one.title} | {one.seconds:.0f} |" for one in self._screen.played]
        page = (render.folder("templates") / "lab/lab.md").read_text()
        page = page.replace("{{ seconds }}", "\n".join(lines)).replace("{{ transcript }}", self._transcript.text())
        path.write_text(page.rstrip() + "\n")
        if owner := os.environ.get("SUDO_UID"):
            os.chown(path, int(owner), int(os.environ.get("SUDO_GID", owner)))
        self._screen.plain(f"The transcript is in {path}.")

    def _progress(self, key: str, text: str) -> None:
        self._screen.show([Row(key, text, text)])


def _settings(data: Path) -> Settings:
    """The lab's own service: nothing of a service that the environment may name."""
    return read_settings(
        data_dir=data, bind="127.0.0.1:8000", database_url="", admin_token=None, public_url="",
    )  # fmt: skip


def _name_the_host(folder: Path) -> None:
    """Give it a name that holds in this namespace alone."""
    if namespace.INSIDE not in os.environ:
        raise SetupError("The lab needs namespaces of its own", hint="Run: make lab")
    hosts = folder / "hosts"
    hosts.write_text(f"{Path('/etc/hosts').read_text()}\n{_ADDRESS} {HOST}\n")
    run(["mount", "--bind", hosts, "/etc/hosts"], doing="Giving the host a name")


def _let_ssh_know(folder: Path, host: GpuHost) -> None:
    """What an admin has in the SSH client's settings: as whom, by which key, and which key the host shows."""
    settings = folder / "ssh_config.d"
    settings.mkdir()
    known = folder / "known_hosts"
    known.write_text(f"{HOST} {host.host_key}\n")
    (settings / "lab.conf").write_text(
        f"Host {HOST}\n  User admin\n  IdentityFile {host.admin_key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {known}\n  StrictHostKeyChecking yes\n  LogLevel ERROR\n"
    )
    run(["mount", "--bind", settings, "/etc/ssh/ssh_config.d"], doing="Telling ssh about the host")


if __name__ == "__main__":
    need_root("Running the lab")
    sys.exit(main(sys.argv[1:]))
