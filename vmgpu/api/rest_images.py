"""Images by REST; an import goes to disk as it comes."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from vmgpu.api.answers import PREFIX, Items, Wait, items, until
from vmgpu.api.deps import Config, Db, Me, Stopping
from vmgpu.api.faults import answers
from vmgpu.errors import Invalid, Unavailable, VmgpuError
from vmgpu.models import Image
from vmgpu.service import images, lists, show
from vmgpu.service.access import find_image
from vmgpu.service.shapes import ImageOut

router = APIRouter(prefix=PREFIX, tags=["images"], responses=answers(401, 404, 422))

_PIECE = 1024 * 1024
_DRAINED = 256 * _PIECE  # of a refused body: who still sends does not read our answer
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/images", response_model=Items[ImageOut])
def list_images(db: Db, me: Me) -> Response:
    """The images that you may use: everybody's and yours; an admin sees all."""
    with db.read() as session:
        return items(ImageOut, show.images(session, lists.images(session, me), to=me))


@router.post(
    "/images",
    status_code=201,
    response_model=ImageOut,
    openapi_extra=_BODY,
    responses=answers(403, 409, 503),
)
async def import_image(
    request: Request,
    db: Db,
    settings: Config,
    me: Me,
    name: Annotated[str, Query(max_length=300, examples=["team/name:tag"])],
    format: Annotated[str, Query(max_length=10, description="raw or qcow2; else as the file's name ends")] = "",
    filename: Annotated[str, Query(max_length=300)] = "",
    label: Annotated[list[str], Query(max_length=10, examples=[["init=none"]])] = [],  # noqa: B006
) -> ImageOut:
    """Take a disk in as everybody's image. The body is the file itself, as application/octet-stream."""
    stream = request.stream()
    try:
        begin = partial(
            images.begin, db, settings, me, name=name, format=format, filename=filename, labels=_labels(label)
        )
        incoming = await run_sync(begin)
        _see_room(settings.images_dir, request.headers.get("content-length", ""))
        try:
            sha256 = await _write(stream, incoming.part)
            image = await run_sync(partial(images.finish, db, settings, me, incoming, sha256=sha256))
        finally:
            incoming.part.unlink(missing_ok=True)
    except VmgpuError:
        await _drain(stream)
        raise
    return await run_sync(_shown, db, image)


@router.get("/images/{ref:path}", response_model=ImageOut)
def show_image(ref: str, db: Db, me: Me) -> ImageOut:
    """One image, by id, name or owner/name."""
    with db.read() as session:
        return show.images(session, [find_image(session, me, ref)], to=me)[0]


@router.delete("/images/{ref:path}", status_code=202, response_model=ImageOut, responses=answers(403, 409))
def remove_image(ref: str, db: Db, me: Me, stopping: Stopping, wait: Wait = 0) -> ImageOut:
    """Delete an image; refused while a VM's disk stands on it. `wait`: until every host has let go of it."""
    row = images.remove(db, me, ref)
    leaving = _shown(db, row)

    def gone() -> bool | None:
        with db.read() as session:
            return True if session.get(Image, row.id) is None else None

    until(gone, wait, stopping)
    return leaving


async def _write(stream: AsyncIterator[bytes], part: Path) -> str:
    """Put the body on disk, piece by piece; the answer is its SHA-256."""
    digest = hashlib.sha256()
    pending = bytearray()
    try:
        with part.open("wb") as file:

            def put(piece: bytes) -> None:
                digest.update(piece)
                file.write(piece)

            async for chunk in stream:
                pending += chunk
                if len(pending) >= _PIECE:
                    await run_sync(put, bytes(pending))
                    pending.clear()
            await run_sync(put, bytes(pending))
    except ClientDisconnect:
        raise Invalid("The upload broke off before its end", hint="Send the file again.") from None
    except OSError as bad:
        raise _no_room(bad) from bad
    return digest.hexdigest()


async def _drain(stream: AsyncIterator[bytes]) -> None:
    seen = 0
    try:
        async for chunk in stream:
            seen += len(chunk)
            if seen > _DRAINED:
                return
    except (ClientDisconnect, RuntimeError):  # RuntimeError: it was read to its end
        return


def _see_room(folder: Path, length: str) -> None:
    free = shutil.disk_usage(folder).free
    if length.isdecimal() and int(length[:20]) > free:
        raise Unavailable(
            f"The image has {int(length) // _PIECE} MiB, the store has {free // _PIECE} MiB free",
            hint=f"Make room on the disk of {folder}.",
        )


def _no_room(bad: OSError) -> VmgpuError:
    full = bad.errno in (errno.ENOSPC, errno.EDQUOT)
    said = "The disk of the image store is full" if full else f"The image store cannot be written: {bad.strerror}"
    return Unavailable(said, hint="Make room, or delete images that are no longer needed, and import again.")


def _labels(given: list[str]) -> dict[str, str]:
    labels = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals:
            raise Invalid(f"{one!r} is no label", hint="Write KEY=VALUE, like init=none.", where="label")
        labels[key] = value
    return labels


def _shown(db: Db, row: Image) -> ImageOut:
    with db.read() as session:
        return show.images(session, [row])[0]
