"""SSH keys: make a pair, and read the public keys that people paste."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from vmgpu.errors import Invalid

MOST_KEYS = 50
MOST_CHARACTERS = 64 * 1024


@dataclass(frozen=True)
class KeyPair:
    """A private key in OpenSSH's own form, unencrypted, and its public line."""

    private: str
    public: str


@dataclass(frozen=True)
class PublicKey:
    """A public key as we keep it: no options, a comment of printable text."""

    type: str
    base64: str
    comment: str

    @property
    def line(self) -> str:
        """The line of authorized_keys."""
        return f"{self.type} {self.base64} {self.comment}".rstrip()

    @property
    def fingerprint(self) -> str:
        """The form that `ssh-keygen -l` prints."""
        digest = sha256(base64.b64decode(self.base64)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def make_pair(comment: str = "") -> KeyPair:
    """A new ed25519 key pair."""
    # like paramiko below, imported at first use: the service listens before anybody needs a key
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private.decode(), f"{public.decode()} {_printable(comment)}".rstrip())


# how the encoded form of every key begins: the length of its type's name, 0 to 255, in four bytes
_BLOB = re.compile(r"(^|\s)AAAA[A-D][0-9A-Za-z+/]{60,}")


def parse(text: str) -> tuple[PublicKey, ...]:
    """The keys in a paste of one or more public key files, each once; Invalid names the line that is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise _refusal(f"more than {MOST_CHARACTERS} characters were pasted", "Paste public keys only, one a line.")
    if _PRIVATE.search(text):
        raise _refusal(
            "this is a private key: it must never leave your own machine",
            "Paste the other file, the one that ends in .pub. Nothing was stored here, "
            "but where the private key was sent or pasted elsewhere, make a new pair: ssh-keygen -t ed25519.",
        )
    if _RFC4716.search(text):
        raise _refusal(
            "this public key is in the SSH2 (RFC 4716) form",
            "Turn it into one line: ssh-keygen -i -f FILE. PuTTYgen shows that line at the top of its window.",
        )
    found: dict[str, PublicKey] = {}
    # Only what ends a line in authorized_keys ends one here: splitlines() would also split comments at U+2028.
    for number, line in enumerate(re.split("\r\n|\r|\n", text.removeprefix("\ufeff")), start=1):
        words = line.split(None, 2)
        if not words or words[0].startswith("#"):
            continue
        key = _read(words, number)
        found.setdefault(key.base64, key)
    if not found:
        raise _refusal("there is no key here", "Paste the line of your .pub file: it begins with ssh-ed25519.")
    if len(found) > MOST_KEYS:
        raise _refusal(f"{len(found)} keys were pasted, {MOST_KEYS} are the most", "Paste fewer keys.")
    return tuple(found.values())


def _read(words: list[str], number: int) -> PublicKey:
    from paramiko import SSHException

    kind = words[0]
    if kind not in _TYPES:
        raise _not_taken(words, number)
    if len(words) > 2 and _BLOB.search(words[2]):
        # files put together where one had no last line break: the second key would be a comment, and its owner outside
        raise _refusal(f"line {number}: two keys are on one line", "Put each key on a line of its own.")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (IndexError, binascii.Error, ValueError):
        raise _cut(number) from None
    try:
        fields = tuple(_fields(blob))
        if fields[0] != kind.encode():
            raise _cut(number)
        _TYPES[kind](blob, fields, number)
    except (SSHException, ValueError, IndexError, TypeError):
        raise _cut(number) from None
    return PublicKey(kind, base64.b64encode(blob).decode(), _printable(words[2] if len(words) > 2 else ""))


def _not_taken(words: list[str], number: int) -> Invalid:
    kind = words[0]
    if "-cert-v01@" in kind:
        return _refusal(f"line {number}: certificates are not taken", "Paste the plain public key it was made from.")
    if kind == "ssh-dss":
        return _refusal(
            f"line {number}: DSA keys are not taken: no current SSH server accepts them",
            "Make a new one: ssh-keygen -t ed25519.",
        )
    if kind.isdecimal():
        return _refusal(f"line {number}: keys of SSH version 1 are not taken", "Make one: ssh-keygen -t ed25519.")
    if any(word in _TYPES for word in " ".join(words).split()):
        return _refusal(
            f"line {number}: options before a key (command=, from= and the like) are not taken",
            "Paste the line without what stands before the key's type.",
        )
    return _refusal(
        f"line {number}: this is no SSH public key",
        "A key is one line that begins with its type, such as ssh-ed25519, and was not wrapped.",
    )


def _check_ed25519(blob: bytes, fields: tuple[bytes, ...], number: int) -> None:
    import paramiko

    if len(fields) != 2 or len(fields[1]) != 32:
        raise _cut(number)
    paramiko.Ed25519Key(data=blob)


def _check_rsa(blob: bytes, fields: tuple[bytes, ...], number: int) -> None:
    import paramiko

    if len(fields) != 3:
        raise _cut(number)
    bits = int.from_bytes(fields[2], "big").bit_length()
    if not 2048 <= bits <= 16384:
        raise _refusal(
            f"line {number}: an RSA key of {bits} bits; 2048 to 16384 are taken",
            "Make a new one: ssh-keygen -t ed25519.",
        )
    paramiko.RSAKey(data=blob)


def _check_ecdsa(blob: bytes, fields: tuple[bytes, ...], number: int) -> None:
    import paramiko

    if len(fields) != 3 or fields[0] != b"ecdsa-sha2-" + fields[1]:
        raise _cut(number)
    paramiko.ECDSAKey(data=blob)


def _check_token(blob: bytes, fields: tuple[bytes, ...], number: int) -> None:
    # A key on a security token: the plain key's fields, then the application's name, mostly `ssh:`.
    of_curve = fields[0].startswith(b"sk-ecdsa")
    if len(fields) != (4 if of_curve else 3) or not fields[-1].isascii() or not fields[-1]:
        raise _cut(number)
    if of_curve and (fields[1] != b"nistp256" or len(fields[2]) != 65 or fields[2][0] != 4):
        raise _cut(number)
    if not of_curve and len(fields[1]) != 32:
        raise _cut(number)


def _fields(blob: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(blob):
        length = int.from_bytes(blob[at : at + 4], "big")
        at += 4 + length
        if at > len(blob):
            raise ValueError("a field runs past the end")
        yield blob[at - length : at]


def _printable(comment: str) -> str:
    return "".join(c for c in " ".join(comment.split()) if c.isprintable())[:100].strip()


def _cut(number: int) -> Invalid:
    return _refusal(
        f"line {number}: this key is damaged or cut off",
        "Copy the whole line of the .pub file again; a terminal may have wrapped it.",
    )


def _refusal(message: str, hint: str) -> Invalid:
    return Invalid(message, hint=hint, where="keys")


_PRIVATE = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File|SSH PRIVATE KEY FILE FORMAT")
_RFC4716 = re.compile(r"---- ?BEGIN SSH2 PUBLIC KEY")
_TYPES = {
    "ssh-ed25519": _check_ed25519,
    "ssh-rsa": _check_rsa,
    "ecdsa-sha2-nistp256": _check_ecdsa,
    "ecdsa-sha2-nistp384": _check_ecdsa,
    "ecdsa-sha2-nistp521": _check_ecdsa,
    "sk-ssh-ed25519@openssh.com": _check_token,
    "sk-ecdsa-sha2-nistp256@openssh.com": _check_token,
}
