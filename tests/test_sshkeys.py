"""Keys made here open locks; keys pasted by people are taken or refused with a word that helps."""

from __future__ import annotations

import base64
import io
import subprocess
from pathlib import Path

import paramiko
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmgpu import sshkeys
from vmgpu.errors import Invalid

GOOD = sshkeys.make_pair("alice@home").public
OTHER = sshkeys.make_pair().public


def field(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def line(*fields: bytes, kind: str = "") -> str:
    return f"{kind or fields[0].decode()} {base64.b64encode(b''.join(map(field, fields))).decode()}"


def keygen(folder: Path, *arguments: str) -> str:
    subprocess.run(
        ["ssh-keygen", "-q", "-N", "", "-C", "made here", "-f", folder / "key", *arguments], check=True, timeout=60
    )
    return (folder / "key.pub").read_text()


def test_a_pair_is_what_openssh_and_paramiko_read(tmp_path: Path) -> None:
    pair = sshkeys.make_pair("the host\nkey")
    assert pair.public.endswith(" the host key")
    assert paramiko.Ed25519Key.from_private_key(io.StringIO(pair.private)).get_base64() == pair.public.split()[1]
    (tmp_path / "key").write_text(pair.private)
    (tmp_path / "key").chmod(0o600)
    told = subprocess.run(
        ["ssh-keygen", "-y", "-f", tmp_path / "key"], capture_output=True, text=True, check=True, timeout=30
    )
    assert told.stdout.split()[:2] == pair.public.split()[:2]


@pytest.mark.parametrize(
    "arguments", [("-t", "ed25519"), ("-t", "rsa", "-b", "2048"), ("-t", "ecdsa"), ("-t", "ecdsa", "-b", "521")]
)
def test_what_ssh_keygen_makes_is_taken(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    made = keygen(tmp_path, *arguments)
    (key,) = sshkeys.parse(made)
    assert key.line == made.strip()
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", tmp_path / "key.pub"], capture_output=True, text=True, check=True, timeout=30
    )
    assert key.fingerprint == listed.stdout.split()[1]


def test_keys_on_security_tokens_are_taken() -> None:
    ed25519 = line(b"sk-ssh-ed25519@openssh.com", b"\x01" * 32, b"ssh:")
    ecdsa = line(b"sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", b"\x04" + b"\x01" * 64, b"ssh:")
    assert [key.line for key in sshkeys.parse(f"{ed25519}\n{ecdsa}")] == [ed25519, ecdsa]


def test_several_in_one_paste_each_once() -> None:
    paste = f"\ufeff# my keys\r\n\r\n  {GOOD}  \r{OTHER} work \t\x85 laptop\u202e 🎉\r\n{GOOD} again\n"
    first, second = sshkeys.parse(paste)
    assert first.line == GOOD
    assert second.comment == "work laptop 🎉"


REFUSED = {
    "empty": ("  \n# nothing\n", "no key here"),
    "private": ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA", "private key"),
    "private rsa": ("x\n-----BEGIN RSA PRIVATE KEY-----", "private key"),
    "private bare": ("-----BEGIN PRIVATE KEY-----", "private key"),
    "putty": ("PuTTY-User-Key-File-3: ssh-ed25519", "private key"),
    "rfc4716": ("---- BEGIN SSH2 PUBLIC KEY ----\nAAAA", "RFC 4716"),
    "command": (f'{GOOD}\ncommand="rm -rf /" {OTHER}', "line 2: options"),
    "from": (f'from="10.0.0.0/8",no-pty {OTHER}', "line 1: options"),
    "dsa": (line(b"ssh-dss", b"1", b"2", b"3", b"4"), "DSA"),
    "version 1": ("2048 65537 1234 me@home", "version 1"),
    "certificate": (f"ssh-ed25519-cert-v01@openssh.com {GOOD.split()[1]}", "certificates"),
    "prose": (f"{GOOD}\nhello world", "line 2: this is no SSH public key"),
    "no blob": ("ssh-ed25519", "damaged"),
    "wrapped": (f"{GOOD[:40]}\n{GOOD[40:]}", "line 1: this key is damaged"),
    "bad base64": ("ssh-ed25519 AAAA*AAA", "damaged"),
    "unicode base64": ("ssh-ed25519 ÄÄÄÄ", "damaged"),
    "other type inside": (f"ssh-rsa {GOOD.split()[1]}", "damaged"),
    "long field": (line(b"ssh-ed25519", b"x" * 33), "damaged"),
    "field past the end": ("ssh-ed25519 " + base64.b64encode(b"\xff\xff\xff\xff").decode(), "damaged"),
    "nothing inside": ("ssh-ed25519 " + base64.b64encode(b"\0\0\0\0").decode(), "damaged"),
    "short rsa": (line(b"ssh-rsa", b"\x01\x00\x01", b"\0" + b"\xff" * 128), "1024 bits"),
    "point not on the curve": (line(b"ecdsa-sha2-nistp256", b"nistp256", b"\x04" + b"\x01" * 64), "damaged"),
    "curve of another": (line(b"ecdsa-sha2-nistp256", b"nistp384", b"\x04" + b"\x01" * 96), "damaged"),
    "token without application": (line(b"sk-ssh-ed25519@openssh.com", b"\x01" * 32), "damaged"),
    "too long": ("#" * 70_000, "characters"),
    "too many": ("\n".join(line(b"ssh-ed25519", bytes([n]) * 32) for n in range(60)), "60 keys"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why(case: str) -> None:
    paste, why = REFUSED[case]
    with pytest.raises(Invalid, match=why) as refused:
        sshkeys.parse(paste)
    assert refused.value.hint
    assert refused.value.where == "keys"
    assert "AAAA" not in refused.value.message  # nothing secret is repeated


@settings(deadline=None)
@given(st.one_of(st.text(st.characters(codec=None)), st.text("ssh-ed25519 AAC#\r\n\"'=,").map(lambda t: GOOD + t)))
def test_any_text_is_taken_as_clean_lines_or_refused(text: str) -> None:
    try:
        keys = sshkeys.parse(text)
    except Invalid:
        return
    for key in keys:
        assert key.line.isprintable()
        assert sshkeys.parse(key.line) == (key,)
