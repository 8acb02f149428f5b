"""The seed disk: a small ISO 9660 file system made in memory."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

import pycdlib

LABEL = "cidata"  # what cloud-init's NoCloud looks for


def seed_iso(files: Mapping[str, bytes]) -> bytes:
    """An ISO 9660 image labelled cidata; Rock Ridge and Joliet keep the files' names exactly."""
    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, sys_ident="", vol_ident=LABEL, joliet=3, rock_ridge="1.09")
    try:
        # The plain ISO names allow neither case nor dashes and nobody reads them: they only have to differ.
        for number, (name, content) in enumerate(sorted(files.items())):
            iso.add_fp(
                BytesIO(content),
                len(content),
                f"/F{number:07d}.;1",
                rr_name=name,
                joliet_path=f"/{name}",
                file_mode=0o100400,
            )
        image = BytesIO()
        iso.write_fp(image)
        return image.getvalue()
    finally:
        iso.close()
