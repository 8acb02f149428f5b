"""Sees to it that this process has a libvirtd: the machine's, or in a network namespace one of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import time
from pathlib import Path

from vmgpu.errors import SetupError
from vmgpu.lab.kvm import kvm_works
from vmgpu.lab.programs import need_programs, need_root, run
from vmgpu.settings import Accel, settings

URI = "qemu:///system"

_SOCKETS = (Path("/run/libvirt/libvirt-sock"), Path("/run/libvirt/virtqemud-sock"))
_DAEMONS = ("virtlogd", "libvirtd")
# What libvirt keeps of its own, and the folder of ours that stands in for it.
_FOLDERS = {
    "run": Path("/run/libvirt"),
    "lib": Path("/var/lib/libvirt"),
    "log": Path("/var/log/libvirt"),
    "cache": Path("/var/cache/libvirt"),
    "etc": Path("/etc/libvirt"),
}
_LIBVIRTD_CONF = """\
auth_unix_rw = "none"
unix_sock_group = "root"
unix_sock_rw_perms = "0770"
log_outputs = "3:file:/var/log/libvirt/libvirtd.log"
"""
_QEMU_CONF = """\
# No security module: its profiles are loaded into the machine's kernel, which is not ours.
security_driver = "none"
# Who owned a disk before is remembered in extended attributes, which not every file system here has.
remember_owner = 0
"""
# libvirt gives each QEMU a /dev of its own, and fails to move what is mounted on /dev/kvm into it.
_QEMU_CONF_NO_KVM = "namespaces = []\n"


def ensure_libvirtd(state_dir: Path) -> str:
    """The URI of a libvirtd whose guests this process can reach; started if need be, left alone if it runs."""
    if _answers_here():
        return URI
    need_root("Starting libvirtd")
    need_programs(("virsh", "qemu-system-x86_64", *_DAEMONS), doing="Starting libvirtd")
    if _with_init("net"):
        _start_the_machines(state_dir)
    elif _with_init("mnt"):
        raise SetupError(
            "This network namespace still has the machine's mounts: a libvirtd here would write over the machine's",
            hint="Use: unshare --net --mount",
        )
    else:
        start_private(state_dir)
    return URI


def start_private(state_dir: Path) -> None:
    """Start a libvirtd over folders of `state_dir`; this changes the mounts of the caller's mount namespace."""
    if (state_dir / "run").exists() and _FOLDERS["run"].exists() and (state_dir / "run").samefile(_FOLDERS["run"]):
        return start_daemons(state_dir)
    run(["mount", "--make-rprivate", "/"], doing="Separating the mounts")
    run(["ip", "link", "set", "lo", "up"], doing="Starting the loopback")
    # The old /sys shows the other namespace's network devices, and leads to the machine's control groups and
    # service manager, who would take the guests for theirs. Unmounted, not covered: libvirt reads the list of mounts.
    run(["umount", "--recursive", "--lazy", "/sys"], doing="Leaving the machine's /sys")
    run(["mount", "-t", "sysfs", "sysfs", "/sys"], doing="Showing this namespace's devices")
    _lay_folders(state_dir)
    for name, place in _FOLDERS.items():
        _mount_over(state_dir / name, place)
    if Path("/run/dbus").is_dir():
        _mount_over(_made(state_dir / "dbus"), Path("/run/dbus"))
    if _kvm_must_hide():
        _append(state_dir / "etc/qemu.conf", _QEMU_CONF_NO_KVM)
        blank = _blank_device(state_dir)
        run(["mount", "--bind", blank, "/dev/kvm"], doing="Hiding /dev/kvm")
        run(["mount", "-o", "remount,bind,ro", "/dev/kvm"], doing="Hiding /dev/kvm")
    return start_daemons(state_dir)


def start_daemons(state_dir: Path) -> None:
    """Start virtlogd and libvirtd where `stop` left them or a crash took them; a running one is left alone."""
    for daemon in _DAEMONS:
        if _pid_of(daemon, state_dir) is None:
            run([daemon, "-d", "-p", state_dir / f"{daemon}.pid"], doing=f"Starting {daemon}")
    _wait_until_it_answers(state_dir / "log/libvirtd.log")


def stop(state_dir: Path) -> None:
    """End the daemons that were started for `state_dir`, if they run; guests are left to whoever made them."""
    for daemon in reversed(_DAEMONS):
        if pid := _pid_of(daemon, state_dir):
            os.kill(pid, signal.SIGTERM)
            _wait_until_gone(pid)
        (state_dir / f"{daemon}.pid").unlink(missing_ok=True)


def _pid_of(daemon: str, state_dir: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        pid = int((state_dir / f"{daemon}.pid").read_text())
        # The number may have gone to somebody else since, and a dead one may not be collected yet.
        if Path(f"/proc/{pid}/comm").read_text().strip() == daemon and not _is_gone(pid):
            return pid
    return None


def _answers_here() -> bool:
    """True if a libvirtd answers and lives in our network namespace; one seen through shared mounts may not."""
    for path in _SOCKETS:
        with socket.socket(socket.AF_UNIX) as knock, contextlib.suppress(OSError):
            knock.connect(str(path))
            size = struct.calcsize("3i")
            pid, _, _ = struct.unpack("3i", knock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            # Process 0: a listener of another process namespace, hence not one of ours.
            if pid and _same_namespace("net", pid):
                return True
    return False


def _with_init(kind: str) -> bool:
    """True if this process shares init's namespace; where init lets nobody look, the kernel's threads tell as well."""
    kernel_threads = Path("/proc/2/comm")
    try:
        Path(f"/proc/1/ns/{kind}").readlink()
    except PermissionError:
        if kernel_threads.exists() and kernel_threads.read_text().strip() == "kthreadd":
            return _same_namespace(kind, 2)
    return _same_namespace(kind, 1)


def _same_namespace(kind: str, pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/{kind}").readlink() == Path(f"/proc/self/ns/{kind}").readlink()
    except PermissionError:
        return True  # only root may look, and only root may have made a namespace that differs
    except OSError:
        return False


def _start_the_machines(state_dir: Path) -> None:
    if Path("/proc/1/comm").read_text().strip() == "systemd":
        run(["systemctl", "start", "libvirtd"], doing="Starting libvirtd")
        return _wait_until_it_answers(Path("/var/log/libvirt/libvirtd.log"))
    _made(state_dir)
    prefix = _without_kvm(state_dir) if _kvm_must_hide() else []
    for daemon in _DAEMONS:
        run([*prefix, daemon, "-d", "-p", state_dir / f"{daemon}.pid"], doing=f"Starting {daemon}")
    return _wait_until_it_answers(Path("/var/log/libvirt/libvirtd.log"))


def _without_kvm(state_dir: Path) -> list[str]:
    """A prefix for a command that must not see /dev/kvm, while the rest of the machine still does."""
    conf = state_dir / "qemu.conf"
    shutil.copy("/etc/libvirt/qemu.conf", conf)
    _append(conf, _QEMU_CONF_NO_KVM)
    script = (
        'mount --bind "$0" /etc/libvirt/qemu.conf && mount --bind "$1" /dev/kvm && '
        'mount -o remount,bind,ro /dev/kvm && shift && exec "$@"'
    )
    hidden = [str(conf), str(_blank_device(state_dir))]
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, *hidden]


def _append(conf: Path, lines: str) -> None:
    conf.write_text(f"{conf.read_text()}\n{lines}")


def _kvm_must_hide() -> bool:
    """libvirt asks QEMU again at every call, seconds each, while a /dev/kvm opens that runs no guest."""
    if not Path("/dev/kvm").exists() or settings().accel is Accel.kvm:
        return False
    try:
        return settings().accel is Accel.tcg or not kvm_works()
    except SetupError:
        return True  # nothing to try it with; emulation always works


def _blank_device(state_dir: Path) -> Path:
    """What is put in place of /dev/kvm: no mode for libvirt's user, and mounted read-only for root's sake."""
    blank = _made(state_dir) / "no-kvm"
    blank.touch(mode=0o000)
    return blank


def _lay_folders(state_dir: Path) -> None:
    # What ran in an earlier namespace is gone, as after a reboot; libvirt would look for it.
    shutil.rmtree(state_dir / "run", ignore_errors=True)
    for name in _FOLDERS:
        _made(state_dir / name)
    # Where storage pools lie; packages make it, nothing at run time does.
    _made(state_dir / "lib/images")
    etc = state_dir / "etc"
    # Only the settings: the machine's own guests and networks are defined in there too, and are not ours to start.
    for conf in Path("/etc/libvirt").glob("*.conf"):
        shutil.copy(conf, etc / conf.name)
    for folder in ("nwfilter", "hooks"):
        _made(etc / folder)
    (etc / "libvirtd.conf").write_text(_LIBVIRTD_CONF)
    (etc / "qemu.conf").write_text(_QEMU_CONF)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    return folder


def _mount_over(source: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    run(["mount", "--bind", source, place], doing=f"Putting a folder of ours in place of {place}")


def _wait_until_it_answers(log: Path, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not _answers_here():
        if time.monotonic() > deadline:
            said = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
            detail = "\n  ".join(said) or "it said nothing"
            raise SetupError(f"libvirtd does not answer after {within:.0f} s:\n  {detail}", hint=f"Its log is {log}.")
        time.sleep(0.05)
    run(["virsh", "-c", URI, "uri"], doing="Asking libvirtd")


def _wait_until_gone(pid: int, within: float = 15.0) -> None:
    deadline = time.monotonic() + within
    while not _is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
