"""Takes out of a copied disk what belongs to one machine and its users; users and their files stay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from vmgpu.hypervisor import guestfish, qcow2
from vmgpu.hypervisor.guestfish import literal, quoted

SECONDS = 900.0

# Patterns as the shell has them; each directory or file that matches goes.
_ONE_MACHINES = (
    # who it is
    "/var/lib/dbus/machine-id",
    "/etc/ssh/ssh_host_*",
    "/var/lib/systemd/{random-seed,credential.secret}",
    "/var/lib/NetworkManager/{secret_key,*.lease,timestamps}",
    # what cloud-init knows and wrote: it must take a clone for a new machine, also where a user switched it off
    "/var/lib/cloud",
    "/etc/cloud/cloud-init.disabled",
    "/etc/netplan/50-cloud-init.yaml",
    "/etc/network/interfaces.d/50-cloud-init*",
    "/etc/systemd/network/*cloud-init*",
    "/etc/sudoers.d/90-cloud-init-users",
    # which network cards it had, and their addresses
    "/etc/udev/rules.d/70-persistent-net.rules",
    "/var/lib/{dhcp,dhclient,dhcpcd}/*",
    # what happened on it
    "/var/log/journal/*",
    "/var/{crash,lib/systemd/coredump}/*",
    "/var/{mail,spool/mail}/*",
    "/var/lib/sudo/{lectured,ts}/*",
    "/{tmp,var/tmp}/{*,.[!.]*}",
    "/etc/{shadow,gshadow}-",
    # whose licence its vGPU used
    "/etc/nvidia/gridd.conf",
    "/etc/nvidia/ClientConfigToken/*",
)
# What holds a key or a password is overwritten where it lies, before it goes: trimming frees whole clusters only, and
# a small file's cluster is full of others that stay.
_SECRETS = (
    "/etc/ssh/ssh_host_*_key",
    "/etc/{shadow,gshadow}-",
    "/var/lib/cloud/instances/*/*.{txt,i,pkl}",
    "/var/lib/cloud/seed/*/*",
    "/etc/nvidia/gridd.conf",
    "/etc/nvidia/ClientConfigToken/*",
)
_SECRETS_OF_A_HOME = "{.ssh/id_*,.*_history}"
_OVERWRITTEN = 64 * 1024
# Folders stay: services find theirs with its owner and mode.
_FILES_ONLY = ("/var/log/{*,*/*,*/*/*}",)
_OF_A_HOME = (
    "{.ssh/{authorized_keys,id_,known_hosts}*,.*_history,.*_history-*,"
    ".{lesshst,viminfo,wget-hsts,Xauthority,ICEauthority},.local/share/{fish/fish_history,recently-used.xbel},"
    ".ipython/profile_default/history.sqlite*}"
)


def generalise(path: Path, *, accel: str, users: Sequence[str], seconds: float = SECONDS) -> None:
    """Make the copy at `path` a disk that any number of machines may start from; may be repeated.

    `users`: whose passwords are locked, too.
    """
    qcow2.inspect(path, "qcow2")
    with guestfish.session(path, access="write", accel=accel, seconds=seconds) as disk:
        mounted = disk.mount()
        homes = _homes(disk.ask("cat /etc/passwd"))
        secrets = [*(_pattern(each) for each in _SECRETS)]
        secrets += [_pattern(_SECRETS_OF_A_HOME, home) for home in homes]
        tokens = [_pattern("*.tok", place) for place in _token_folders(disk.ask("-cat /etc/nvidia/gridd.conf"))]
        secrets += tokens
        (disk.folder / "zeros").write_bytes(bytes(_OVERWRITTEN))
        disk.tell(*(f"-glob upload-offset zeros {each} 0" for each in secrets), "sync")
        # Empty, not missing: systemd then makes a new one, without taking the machine for never set up.
        disk.tell("touch /etc/machine-id", "truncate /etc/machine-id")
        disk.tell(
            *(f"glob rm-rf {_pattern(each)}" for each in _ONE_MACHINES), *(f"-glob rm-f {each}" for each in tokens)
        )
        # A pattern may match a folder, which rm-f refuses and which stays.
        disk.tell(*(f"-glob rm-f {_pattern(each)}" for each in _FILES_ONLY))
        disk.tell(*(f"-glob rm-f {_pattern(_OF_A_HOME, home)}" for home in homes))
        _lock(disk, users)
        # What was deleted must not lie on in free blocks, where a clone's root could read it.
        disk.tell("sync", *(f"-fstrim {quoted(place)}" for place in mounted))


def what_remains(path: Path, *, accel: str = "tcg", seconds: float = SECONDS) -> tuple[str, ...]:
    """What of one machine is still on the disk, one line each: its id, keys, cloud-init's state, its licence."""
    with guestfish.session(path, access="read", accel=accel, seconds=seconds) as disk:
        disk.mount()
        found = [f"machine-id {word}" for word in disk.ask("-cat /etc/machine-id").split()]
        homes = _homes(disk.ask("cat /etc/passwd"))
        patterns = [_pattern("/etc/ssh/ssh_host_*"), _pattern("/var/lib/cloud/*")]
        patterns += [_pattern("/etc/nvidia/{gridd.conf,ClientConfigToken/*}")]
        patterns += [_pattern("{.ssh/authorized_keys*,.*_history}", home) for home in homes]
        for pattern in patterns:
            found += disk.ask(f"glob-expand {pattern}").splitlines()
    return tuple(found)


def _pattern(pattern: str, home: str = "") -> str:
    """A pattern of ours as guestfish's word, below a home whose name is taken as it is."""
    return f'"{literal(home.rstrip("/") + "/") if home else ""}{pattern}"'


def _homes(passwd: str) -> list[str]:
    """Every home that an account names; those that are not there cost nothing."""
    fields = (line.split(":") for line in passwd.splitlines())
    named = {each[5] for each in fields if len(each) == 7 and each[5].startswith("/")}
    return sorted((named | {"/root"}) - {"/", "/nonexistent", "/dev", "/dev/null", "/proc"})


def _token_folders(gridd_conf: str) -> list[str]:
    """Where else than in its own folder the licence daemon was told to look for tokens."""
    return re.findall(r"^\s*ClientConfigTokenPath\s*=\s*[\"']?(/[^\"'\n]*[^\"'\s])", gridd_conf, re.M)


def _lock(disk: guestfish.Session, users: Iterable[str]) -> None:
    shadow = disk.ask("cat /etc/shadow")
    locked = shadow
    for user in users:
        locked = re.sub(rf"^({re.escape(user)}:)(?=[^!*:])", r"\1!", locked, flags=re.M)
    if locked != shadow:
        (disk.folder / "shadow").write_text(locked, errors="surrogateescape")
        disk.tell("upload shadow /etc/shadow")  # into the file that is there: owner and mode stay
