"""The page: what a person sees and presses. It works as plain forms; htmx only makes it quicker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Form, Query, Request
from pydantic import ValidationError
from sqlmodel import Session, col, func, select
from starlette.responses import HTMLResponse, RedirectResponse, Response

from vmgpu.api.deps import SESSION_COOKIE, Config, Db, Me
from vmgpu.api.picture import one_vm, picture
from vmgpu.db import Database
from vmgpu.errors import Forbidden, NotFound, Reason, VmgpuError
from vmgpu.models import Flavor, Image, ImageState, Key, now
from vmgpu.render import html
from vmgpu.requests import CaptureRequest, ExtendRequest, KeyRequest, StopRequest, VMRequest
from vmgpu.service import flavors, people, show, vms
from vmgpu.service.access import Actor, find_vm, visible_images
from vmgpu.settings import Settings
from vmgpu.units import say_mib, say_span

_STATIC = Path(__file__).parent / "static"
_KINDS = {
    "face.css": "text/css; charset=utf-8",
    "face.js": "text/javascript; charset=utf-8",
    "face.svg": "image/svg+xml",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "hx-sse.min.js": "text/javascript; charset=utf-8",
}
_SAFE = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self'; script-src 'self'; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # not no-referrer: with it browsers send `Origin: null` from our own forms too, and could not be told from others'
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


Find = Annotated[str, Query(max_length=200)]  # a part of OWNER/NAME


class Verb(StrEnum):
    """What the buttons of a VM ask for."""

    start = "start"
    stop = "stop"
    snapshot = "snapshot"
    extend = "extend"
    release = "release"


def _from_our_page(request: Request, config: Config) -> None:
    """Refuse a form that another site's page sent; a browser says so in headers that no page can forge."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    ours = {request.headers.get("host"), urlsplit(config.base_url).netloc}
    # browsers name the site only to servers they trust (https, or this machine); the origin they send to all
    same = site == "same-origin" if site else bool(origin) and urlsplit(origin or "").netloc in ours
    if not same:
        raise Forbidden("This form did not come from vmgpu's own page", hint="Open vmgpu itself and try again.")


router = APIRouter(include_in_schema=False)
_pressed = [Depends(_from_our_page)]


@router.get("/")
def home(request: Request, db: Db, me: Me, find: Find = "") -> Response:
    """The one page."""
    return _page(request, "home.html", me=me, **_now(db, me, find))


@router.get("/now")
def fragment(request: Request, db: Db, me: Me, find: Find = "") -> Response:
    """What changes on the page: the browser asks for it after news, and when another name is looked for."""
    return _page(request, "now.html", me=me, **_now(db, me, find))


@router.get("/signin")
def sign_in_page(request: Request, link: str = "") -> Response:
    """Ask for one press: programs that only look at the link must not use it up."""
    return _page(request, "signin.html", link=link)


@router.post("/signin", dependencies=_pressed)
def sign_in(request: Request, db: Db, config: Config, link: Annotated[str, Form()]) -> Response:
    """Use up a one-time link, and keep the session in a cookie that scripts cannot read."""
    _, secret = people.sign_in(db, link)
    answer = _to("/")
    answer.set_cookie(
        SESSION_COOKIE,
        secret,
        max_age=int(people.SESSION_LASTS.total_seconds()),
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https" or config.base_url.startswith("https:"),
    )
    return answer


@router.post("/signout", dependencies=_pressed)
def sign_out(request: Request, db: Db) -> Response:
    """End this browser's session."""
    people.sign_out(db, request.cookies.get(SESSION_COOKIE, ""))
    answer = _to("/")
    answer.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@router.get("/request")
def request_form(request: Request, db: Db, config: Config, me: Me) -> Response:
    """The form for new VMs."""
    return _request_form(request, db, config, me)


@router.post("/request", dependencies=_pressed)
def request_vms(
    request: Request,
    db: Db,
    config: Config,
    me: Me,
    name: Annotated[str, Form()] = "",
    count: Annotated[str, Form()] = "1",
    flavor: Annotated[str, Form()] = "",
    image: Annotated[str, Form()] = "",
    lease: Annotated[str, Form()] = "",
) -> Response:
    """Queue new VMs."""
    sent: dict[str, Any] = {"name": name, "count": count, "flavor": flavor, "image": image, "lease": lease}
    try:
        made = vms.request(db, config, me, VMRequest.model_validate({**sent, "lease": lease or None}))
    except (VmgpuError, ValidationError) as bad:
        return _request_form(request, db, config, me, sent=sent, error=_error(bad))
    several = f"{made[0].name} to {made[-1].name} are" if len(made) > 1 else f"{made[0].name} is"
    return _done(request, f"{several} requested")


@router.get("/vms/{ref}/{verb}")
def verb_form(request: Request, db: Db, config: Config, me: Me, ref: str, verb: Verb) -> Response:
    """Ask once, and for what the verb needs to know."""
    return _verb_form(request, db, config, me, ref, verb)


@router.post("/vms/{ref}/{verb}", dependencies=_pressed)
def press(
    request: Request,
    db: Db,
    config: Config,
    me: Me,
    ref: str,
    verb: Verb,
    slices: Annotated[str, Form()] = "",
    image: Annotated[str, Form()] = "",
    by: Annotated[str, Form()] = "",
) -> Response:
    """Wish what the button says."""
    try:
        said = _wish(db, config, me, ref, verb, slices=slices, image=image, by=by)
    except (VmgpuError, ValidationError) as bad:
        sent = {"slices": slices, "image": image, "by": by}
        return _verb_form(request, db, config, me, ref, verb, sent=sent, error=_error(bad))
    return _done(request, said)


@router.get("/keys")
def keys_form(request: Request, db: Db, me: Me) -> Response:
    """A person's SSH keys, and room for more."""
    return _keys_form(request, db, me)


@router.post("/keys", dependencies=_pressed)
def add_keys(request: Request, db: Db, me: Me, keys: Annotated[str, Form()] = "") -> Response:
    """Take in pasted public keys."""
    try:
        made = people.add_keys(db, me, me.name, KeyRequest(keys=keys))
    except (VmgpuError, ValidationError) as bad:
        return _keys_form(request, db, me, sent=keys, error=_error(bad))
    return _done(request, f"{len(made)} key(s) added; VMs built from now on let you in")


@router.get("/static/{name}")
def static(name: str, v: str = "") -> Response:
    """A file of ours, or one that `VENDORED.md` names; nothing here comes from another server."""
    if name not in _KINDS:
        raise NotFound("There is nothing at this address")
    body, digest = _file(name)
    # an address with the right sum never changes its meaning
    kept = "public, max-age=31536000, immutable" if v == digest else "no-cache"
    return Response(body, media_type=_KINDS[name], headers={**_SAFE, "Cache-Control": kept})


def error_page(request: Request, status: int, error: Mapping[str, Any]) -> Response:
    """An error as a page; where nobody is signed in, how to get in."""
    if status == 401 and _quick(request):
        return Response(status_code=401, headers={**_SAFE, "HX-Redirect": "/"})
    if status == 401 and request.method == "GET":
        return _page(request, "welcome.html", status=401)
    return _page(request, "error.html", status=status, error=error)


def _now(db: Database, me: Actor, find: str) -> dict[str, Any]:
    own = select(Image).where(Image.owner_id == me.id, Image.state != ImageState.deleting).order_by(col(Image.name))
    with db.read() as session:
        return {
            "picture": picture(session, me, now(), find),
            "flavors": session.exec(select(func.count()).select_from(Flavor)).one(),
            "images": session.exec(select(func.count()).select_from(Image).where(visible_images(me))).one(),
            "own": show.images(session, session.exec(own).all(), to=me),
            "keys": session.exec(select(func.count()).select_from(Key).where(Key.user_id == me.id)).one(),
        }


def _wish(db: Database, config: Settings, me: Actor, ref: str, verb: Verb, *, slices: str, image: str, by: str) -> str:
    match verb:
        case Verb.start:
            return f"{vms.start(db, me, ref).name} is being started"
        case Verb.stop:
            asked = StopRequest.model_validate({"slices": slices or None})
            return f"{vms.stop(db, me, ref, asked).name} is being stopped"
        case Verb.snapshot:
            made = vms.capture(db, config, me, ref, CaptureRequest(image=image))
            return f"Image {made.name} is being made"
        case Verb.extend:
            longer = ExtendRequest.model_validate({"by": by})
            return f"The lease of {vms.extend(db, config, me, ref, longer).name} is {say_span(longer.by)} longer"
        case Verb.release:
            return f"{vms.release(db, me, ref).name} is being released"


def _request_form(
    request: Request,
    db: Database,
    config: Settings,
    me: Actor,
    *,
    sent: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> Response:
    with db.read() as session:
        rows = session.exec(select(Flavor).order_by(col(Flavor.name))).all()
        never = {name: _never(why) for name, why in flavors.never(session, rows).items()}
        sizes = [(flavor, say_mib(flavor.memory_mib), never.get(flavor.name)) for flavor in show.flavors(session, rows)]
        images = _images(session, me)
    sizes.sort(key=lambda size: size[2] is not None)  # a stable sort: each half stays in the order of names
    start = {"name": "", "count": "1", "flavor": "", "image": "", "lease": ""}
    sent = sent or start
    usable = [flavor.name for flavor, _, refused in sizes if not refused]
    return _form(
        request,
        "request.html",
        error,
        me=me,
        flavors=sizes,
        chosen=sent["flavor"] if sent["flavor"] in usable else next(iter(usable), ""),
        images=images,
        sent=sent,
        lease=say_span(config.lease).replace(" ", ""),
        longest=say_span(config.max_lease),
    )


def _never(why: Reason) -> str:
    return "no card here can hold this" if why.args.get("what") == "gpu" else "no host here can hold this"


def _images(session: Session, me: Actor) -> list[Any]:
    usable = col(Image.state).not_in([ImageState.failed, ImageState.deleting])
    rows = session.exec(select(Image).where(visible_images(me), usable).order_by(col(Image.name))).all()
    return show.images(session, rows, to=me)


def _verb_form(
    request: Request,
    db: Database,
    config: Settings,
    me: Actor,
    ref: str,
    verb: Verb,
    *,
    sent: Mapping[str, str] | None = None,
    error: Mapping[str, Any] | None = None,
) -> Response:
    with db.read() as session:
        one = one_vm(session, me, find_vm(session, me, ref), now())
    start = {"slices": "", "image": f"{one.vm.owner}/{one.vm.name}:v1", "by": "4h"}
    spans = {"keep": say_span(config.keep_gpu), "longest": say_span(config.max_lease)}
    return _form(request, "verb.html", error, me=me, one=one, verb=verb.value, sent=sent or start, **spans)


def _keys_form(
    request: Request, db: Database, me: Actor, *, sent: str = "", error: Mapping[str, Any] | None = None
) -> Response:
    with db.read() as session:
        keys = session.exec(select(Key).where(Key.user_id == me.id).order_by(col(Key.created_at))).all()
    return _form(request, "keys.html", error, me=me, keys=keys, sent=sent)


def _form(request: Request, template: str, error: Mapping[str, Any] | None, **values: Any) -> Response:
    return _page(request, template, status=error["status"] if error else 200, error=error, **values)


def _done(request: Request, said: str) -> Response:
    # the page hears of the change like everybody else's: there is nothing to send back but a word
    if _quick(request):
        return Response(status_code=204, headers={**_SAFE, "HX-Trigger": json.dumps({"done": said})})
    return _to("/")


def _to(where: str) -> RedirectResponse:
    return RedirectResponse(where, status_code=303, headers=_SAFE)


def _page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    text = html(template, asset=_address, quick=_quick(request), **values)
    return HTMLResponse(text, status, headers={**_SAFE, "Vary": "HX-Request"})


def _quick(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


def _error(bad: VmgpuError | ValidationError) -> dict[str, Any]:
    if isinstance(bad, VmgpuError):
        return {**bad.as_dict(), "status": bad.status}
    first = bad.errors()[0]
    message = str(first["msg"]).removeprefix("Value error, ")
    field = str(first["loc"][0]) if first["loc"] else ""
    return {"code": "invalid", "message": message[:1].upper() + message[1:], "hint": "", "field": field, "status": 422}


def _address(name: str) -> str:
    return f"/static/{name}?v={_file(name)[1]}"


@lru_cache(maxsize=len(_KINDS))
def _file(name: str) -> tuple[bytes, str]:
    body = (_STATIC / name).read_bytes()
    return body, hashlib.sha256(body).hexdigest()[:16]
