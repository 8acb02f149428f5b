"""Turn plain values into documents; the only module that knows where templates lie."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vmgpu.errors import Invalid

# What XML 1.0 cannot carry, not even escaped: one such character makes a whole document unreadable.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml(template: str, **values: Any) -> str:
    """The XML document of `templates/<template>`; every value escaped, a missing one is an error."""
    return _xml().get_template(template).render(**values)


def script(template: str, **values: Any) -> str:
    """The shell script `templates/host/<template>`; nothing is escaped: the filter `sh` makes a value one word."""
    return _sh().get_template(template).render(**values)


def html(template: str, **values: Any) -> str:
    """The page `templates/web/<template>`; every value escaped, a missing one is an error."""
    return _html().get_template(template).render(**values)


@dataclass(frozen=True)
class Licence:
    """What a guest's vGPU is licensed by: NVIDIA's feature type, a server of the old kind (NAME[:PORT]), the token."""

    feature: int
    server: str
    token: str = field(repr=False)


def seed(
    *,
    instance_id: str,
    hostname: str,
    mac: str,
    host_key: str,
    host_key_private: str,
    logins: Iterable[tuple[str, Iterable[str]]],
    our_login: str,
    our_key: str,
    has_init: bool,
    licence: Licence | None = None,
) -> dict[str, bytes]:
    """The files of a VM's NoCloud disk, name to content; Invalid where a value has no place in them.

    `logins` are Linux logins with lines of authorized_keys, the owner's first. An image without an init of the usual
    kind (`init: none`) finds plain files beside cloud-init's: the host key's two halves and all keys that may log in.
    """
    people = [_account(login, keys, "/bin/bash") for login, keys in logins]
    accounts = [*people, _account(our_login, (our_key,), "/bin/sh", uid=_OUR_UID)]
    if len({account["name"] for account in accounts}) < len(accounts):
        raise Invalid("two people of one VM have the same login", where="members")
    values = {
        "hostname": dns_label(hostname),
        "instance_id": instance_id,
        "mac": _mac(mac),
        "accounts": accounts,
        "our_manager": f"/etc/systemd/system/user@{_OUR_UID}.service.d/vmgpu.conf",
        "host_key": _line(host_key, "host key"),
        "gridd_conf": _gridd_conf(licence) if licence else "",
        "token": licence.token if licence else "",
        "host_key_private": host_key_private.rstrip("\n") + "\n",
    }
    files = {name: _yaml().get_template(f"{name}.j2").render(**values) for name in _DOCUMENTS}
    if not has_init:
        keys = dict.fromkeys(key for account in accounts for key in account["keys"])
        files["ssh_host_ed25519_key"] = host_key_private.rstrip("\n") + "\n"
        files["ssh_host_ed25519_key.pub"] = f"{host_key}\n"
        files["authorized_keys"] = "".join(f"{key}\n" for key in keys)
    return {name: text.encode() for name, text in files.items()}


def dns_label(text: str) -> str:
    """The name a guest calls itself: a DNS label made from any text."""
    return re.sub("[^a-z0-9]+", "-", _ascii(text)).strip("-")[:63].rstrip("-") or "vm"


def logins(names: Sequence[str], *, taken: Collection[str] = ()) -> dict[str, str]:
    """User name → Linux login, each login once; of two alike, who comes first in `names` keeps the plain one."""
    # A name that is a login already never loses it to one that only resembles it.
    exact = [name for name in names if linux_login(name) == name]
    given: dict[str, str] = {}
    for name in dict.fromkeys((*exact, *names)):
        given[name] = linux_login(name, taken={*taken, *given.values()})
    return {name: given[name] for name in names}


def linux_login(user_name: str, *, taken: Collection[str] = ()) -> str:
    """A legal Linux login made from any text, none of `taken` and none that distributions use themselves."""
    word = re.sub("[^a-z0-9_]+", "-", _ascii(user_name.partition("@")[0])).strip("-_")[:24].rstrip("-_") or "user"
    if word[0].isdigit():
        word = f"u{word}"
    if word in _SYSTEM.split() or word.startswith("systemd"):
        word = f"{word}-user"
    return next(login for login in (word, *(f"{word}-{n}" for n in range(2, len(taken) + 3))) if login not in taken)


@lru_cache(maxsize=1)
def _html() -> Environment:
    return Environment(
        loader=FileSystemLoader(folder("templates") / "web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@lru_cache(maxsize=1)
def _sh() -> Environment:
    made = Environment(
        loader=FileSystemLoader(folder("templates") / "host"),
        autoescape=False,  # noqa: S701 - a script is no HTML
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    made.filters["sh"] = shlex.quote
    return made


@lru_cache(maxsize=1)
def _yaml() -> Environment:
    return Environment(
        loader=FileSystemLoader(folder("cloud-init")),
        autoescape=False,  # noqa: S701 - these are YAML, and every value is serialised by finalize
        undefined=StrictUndefined,
        finalize=_serialised,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _serialised(value: Any) -> str:
    # Everything not ASCII leaves as an escape, all on one line: no character ends a line, a comment or the document.
    # In a list of one, since a bare number would be followed by an end-of-document mark.
    return yaml.dump([value], Dumper=_Quoted, default_flow_style=True, width=2**31, allow_unicode=False).strip()[1:-1]


class _Quoted(yaml.SafeDumper):
    """Every text in double quotes: YAML reads no number, date, yes or null into it."""


_Quoted.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def _account(login: str, keys: Iterable[str], shell: str, uid: int | None = None) -> dict[str, Any]:
    if not _LOGIN.fullmatch(login):
        raise Invalid(f"{login!r} is no Linux login", where="members")
    return {"name": login, "shell": shell, "uid": uid, "keys": [_line(key, "key") for key in keys]}


def _gridd_conf(licence: Licence) -> str:
    """The licence daemon's settings, in NVIDIA's words; with a token alone it needs no server."""
    server, _, port = licence.server.partition(":")
    lines = [f"FeatureType={licence.feature}"]
    lines += [f"ServerAddress={server}"] if server else []
    lines += [f"ServerPort={port}"] if port else []
    return "".join(f"{_line(line, 'licence setting')}\n" for line in lines)


def _mac(text: str) -> str:
    if not re.fullmatch("([0-9a-f]{2}:){5}[0-9a-f]{2}", text):
        raise Invalid(f"{text!r} is no MAC address in lower case", where="mac")
    return text


def _line(text: str, what: str) -> str:
    # Plain lines of authorized_keys cannot be escaped: what ends a line there must not come in.
    if not text or not text.isprintable():
        raise Invalid(f"a {what} is one line of printable text", where="keys")
    return text


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode().casefold()


@lru_cache(maxsize=1)
def _xml() -> Environment:
    # `domain.xml.j2` is not an ending that select_autoescape() knows: escaping is switched on, not guessed.
    return Environment(
        loader=FileSystemLoader(folder("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_sayable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _sayable(value: Any) -> Any:
    return _NOT_XML.sub("", value) if type(value) is str else value


@lru_cache(maxsize=8)
def folder(name: str) -> Path:
    """A folder of files that ship with us: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent
    packaged = package / name
    return packaged if packaged.is_dir() else package.parent / name


_DOCUMENTS = ("user-data", "meta-data", "network-config")
# Between the ranges of people (to 60000) and of systemd (from 61184): the next account that a person makes in the
# guest is not numbered after ours, and one drop-in knows our account's unit.
_OUR_UID = 60990
_LOGIN = re.compile("[a-z_][a-z0-9_-]{0,30}")
# Users and groups that Debian, Ubuntu and Fedora make themselves; a login also names a group, so groups count.
_SYSTEM = """
    adm admin apache audio backup bin cdrom cgred chrony core crontab daemon dbus dialout dip disk dnsmasq docker
    fax floppy ftp fwupd-refresh games gnats halt input irc kmem kvm landscape libvirt libvirt-qemu list lock lp
    lxd mail man mem messagebus mysql netdev news nginx nobody nogroup ntp nvidia-persistenced operator plugdev
    polkit polkitd pollinate postgres printadmin proxy rdma redis render root rpc rpcuser sasl sgx shadow shutdown
    slocate src ssh ssh_keys sshd sssd staff sudo sync sys syslog tape tcpdump tss tty usbmux users utempter utmp
    uucp uuidd video voice wheel www-data
"""
