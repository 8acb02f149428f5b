"""Taking an image in, and deleting one. The header is read before any qemu program opens the file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError
from sqlmodel import Session, col, select

from vmgpu.db import HOLD, Database
from vmgpu.errors import Conflict, Forbidden, Invalid
from vmgpu.hypervisor.qcow2 import inspect
from vmgpu.models import VM, Image, ImageState, VMState, new_id, now
from vmgpu.requests import ImageName
from vmgpu.service.access import Actor, find_image, must_be_admin
from vmgpu.settings import Settings
from vmgpu.units import say_count, say_names

SIMULATED_IMAGE = "base"  # every simulated host has it
_NAME = TypeAdapter(ImageName)
_KNOWN_LABELS = {"init": ("none",), "cuda": ("yes",)}
_FORMATS: Mapping[str, Literal["raw", "qcow2"]] = {"qcow2": "qcow2", "raw": "raw", "img": "raw"}


@dataclass(frozen=True)
class Incoming:
    """An image on its way in: where its bytes go until they are all there."""

    name: str
    format: Literal["raw", "qcow2"]
    labels: Mapping[str, str]
    part: Path


def begin(
    db: Database, settings: Settings, actor: Actor, *, name: str, format: str, filename: str, labels: Mapping[str, str]
) -> Incoming:
    """Check what can be checked before the bytes come. The format: as said, else by the file's ending."""
    must_be_admin(actor)
    try:
        _NAME.validate_python(name)
    except ValidationError as bad:
        said = str(bad.errors()[0]["msg"]).removeprefix("Value error, ")
        raise Invalid(said, hint="Like team/name:tag.", where="name") from None
    chosen = _FORMATS.get(format or Path(filename).suffix.lower().lstrip("."))
    if chosen is None:
        raise Invalid(
            f"The format of {filename or 'the file'} is not known", hint="Say --format raw or qcow2.", where="format"
        )
    for label, value in labels.items():
        if value not in _KNOWN_LABELS.get(label, ()):
            raise Invalid(f"{label}={value} is no label", hint="Labels are init=none and cuda=yes.", where="labels")
    with db.read() as session:
        _refuse_taken(session, name)
    settings.images_dir.mkdir(parents=True, exist_ok=True)
    return Incoming(name, chosen, dict(labels), settings.images_dir / f"incoming-{new_id()}.part")


def finish(db: Database, settings: Settings, actor: Actor, incoming: Incoming, *, sha256: str) -> Image:
    """The bytes are all there: refuse what is not one plain disk, else it is everybody's image, ready."""
    try:
        header = inspect(incoming.part, incoming.format)
        image = Image(
            name=incoming.name,
            state=ImageState.ready,
            labels=dict(incoming.labels),
            format=incoming.format,
            virtual_mib=-(-header.virtual_bytes // (1024 * 1024)),
            size_bytes=incoming.part.stat().st_size,
            sha256=sha256,
            created_at=now(),
        )
        # the file is in its place before the row says so: a row without its file would be a lie
        target = settings.images_dir / image.volume
        incoming.part.replace(target)
        try:
            with db.write() as session:
                # again, where nobody comes between: two owners may be None at once for the unique constraint
                _refuse_taken(session, incoming.name)
                session.add(image)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return image
    finally:
        incoming.part.unlink(missing_ok=True)


def remove(db: Database, actor: Actor, ref: str) -> Image:
    """Delete an image; refused while a VM's disk stands on it."""
    with db.write() as session:
        image = find_image(session, actor, ref)
        session.refresh(image, with_for_update=HOLD)
        if image.owner_id != actor.id and not actor.admin:
            raise Forbidden(f"Image {ref} is not yours", hint="Its owner or an admin deletes it.")
        if image.name == SIMULATED_IMAGE and image.labels.get("simulated"):
            raise Invalid("The simulated image is always there", hint="Remove the simulated hosts instead.")
        used = session.exec(select(VM).where(VM.image_id == image.id, VM.state != VMState.gone)).all()
        if used:
            held = f"{say_count(len(used), 'VM')}: {say_names(vm.name for vm in used)}"
            raise Conflict(f"Image {image.name} is in use by {held}", hint="Release them first.")
        if image.state in (ImageState.copying, ImageState.generalising):
            raise Conflict(f"Image {image.name} is being made", hint="Wait until its capture has ended.")
        image.state, image.due_at, image.wakes = ImageState.deleting, now(), image.wakes + 1
        return image


_OLD = 24 * 3600  # seconds


def sweep(db: Database, settings: Settings) -> None:
    """Remove what interrupted imports and captures left in the store.

    On SQLite nothing is at work on it at this moment; else others may be: of theirs each file grows, or is a row's.
    """
    if not db.embedded:
        for path in settings.images_dir.glob("incoming-*.part"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _OLD:
                    path.unlink()
        return
    with db.read() as session:
        known = {image.volume for image in session.exec(select(Image)).all()}
    for path in settings.images_dir.glob("*"):
        if path.is_file() and path.name not in known:
            path.unlink(missing_ok=True)


def _refuse_taken(session: Session, name: str) -> None:
    taken = select(Image).where(Image.name == name, col(Image.owner_id).is_(None))
    if session.exec(taken).first():
        raise Conflict(f"There is an image {name} already", hint="Take another name or tag.", where="name")
