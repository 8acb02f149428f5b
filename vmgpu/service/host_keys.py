"""The installation's two SSH keys on hosts: one for libvirt and channels to guests, one for hostctl."""

from __future__ import annotations

from urllib.parse import urlsplit

from sqlmodel import Session

from vmgpu import sshkeys
from vmgpu.db import note_setting, setting
from vmgpu.hypervisor import HostKeys
from vmgpu.hypervisor.host_setup import ACCOUNT, PublicKeys

_LIBVIRT, _HOSTCTL = "host_libvirt", "host_hostctl"


def make(session: Session) -> None:
    """Both pairs, where they are not made yet."""
    for name in (_LIBVIRT, _HOSTCTL):
        if setting(session, f"{name}_private") is None:
            pair = sshkeys.make_pair(f"vmgpu {name.removeprefix('host_')}")
            note_setting(session, f"{name}_private", pair.private)
            note_setting(session, f"{name}_public", pair.public)


def private(session: Session, uri: str) -> HostKeys | None:
    """What opens a host of this address; None where it is not one that was set up for us."""
    if urlsplit(uri).username != ACCOUNT:
        return None
    halves = [setting(session, f"{name}_private") for name in (_LIBVIRT, _HOSTCTL)]
    return HostKeys(halves[0], halves[1]) if halves[0] and halves[1] else None


def public(session: Session) -> PublicKeys:
    """What a host lets in."""
    return PublicKeys(*(setting(session, f"{name}_public") or "" for name in (_LIBVIRT, _HOSTCTL)))
