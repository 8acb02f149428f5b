"""The zipapp that a GPU host runs: the package hostctl and NVIDIA's pynvml, the same bytes whoever builds them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path

_PACKAGE = Path(__file__).parent / "hostctl"
_SHEBANG = b"#!/usr/bin/python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest a zip can say
# Written for any Python 3: an old one would end in a traceback that nobody understands.
_MAIN = '''\
"""Where the zipapp starts."""

import sys

if sys.version_info < (3, 9):
    sys.stdout.write(
        '{"ok":false,"error":{"code":"not_supported","message":"This host has Python %d.%d, hostctl needs 3.9"'
        ',"hint":"Install a newer python3 and let /usr/bin/python3 be it.","errno":null}}\\n' % sys.version_info[:2]
    )
    raise SystemExit(1)

from hostctl.__main__ import main  # noqa: E402

raise SystemExit(main())
'''
_PYNVML = "nvidia-ml-py"


def build() -> bytes:
    """The zipapp. Stored, not compressed: zlib's bytes differ between its versions, and imports are quicker."""
    target = io.BytesIO()
    target.write(_SHEBANG)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted({**_contents(), "hostctl/stamp.py": _stamp()}.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, content)
    return target.getvalue()


def _contents() -> Mapping[str, bytes]:
    """Every file but the stamp, by its name in the archive."""
    found = {f"hostctl/{each.name}": each.read_bytes() for each in _PACKAGE.glob("*.py") if each.name != "stamp.py"}
    return {**found, "__main__.py": _MAIN.encode(), "pynvml.py": _pynvml().read_bytes()}


def _stamp() -> bytes:
    words = '"""Which build this is."""\n\nBUILD = {!r}\nPYNVML = {!r}\n'
    return words.format(VERSION, metadata.version(_PYNVML)).encode()


def _pynvml() -> Path:
    found = util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise FileNotFoundError("pynvml")
    return Path(found.origin)


def _version_of(contents: Mapping[str, bytes]) -> str:
    """A short hash of all that is inside, so that an old or changed one can be told from the one we would install."""
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


VERSION = _version_of(_contents())
