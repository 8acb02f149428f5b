"""Turn plain values into documents; the only module that knows where templates lie."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

# What XML 1.0 cannot carry, not even escaped: one such character makes a whole document unreadable.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml(template: str, **values: Any) -> str:
    """The XML document of `templates/<template>`; every value escaped, a missing one is an error."""
    return _xml().get_template(template).render(**values)


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
