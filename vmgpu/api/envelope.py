"""What surrounds every request: its id, its line in the log, its time, and the most that it may send."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vmgpu import logs
from vmgpu.api import faults

MAX_BODY = 1024 * 1024
STREAMED = "/api/v1/images"  # an image is as large as it is, and goes to disk as it comes
Observe = Callable[[str, str, int, float], None]  # method, route, status, seconds to the first byte

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
log = logging.getLogger("vmgpu.http")


class Envelope:
    """The outermost layer: nothing leaves without its id, and no traceback leaves at all."""

    def __init__(self, app: ASGIApp, observe: Observe) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        given = request.headers.get("x-request-id", "")
        name = given if _ID.fullmatch(given) else uuid4().hex
        token = logs.request_id.set(name)
        began, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
                self._note(scope, status, time.perf_counter() - began)
            await send(message)

        try:
            refusal = _refusal(request)
            if refusal:
                await faults.render(request, refusal[0], refusal[1])(scope, receive, answer)
            else:
                await self._app(scope, _limited(request, receive), answer)
        except Exception as bad:
            if status:
                log.error("the answer broke off", exc_info=bad)
                raise
            await faults.bug(request, bad)(scope, receive, answer)
        finally:
            logs.request_id.reset(token)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._observe(scope["method"], route, status, seconds)
        quiet = route in ("/healthz", "/readyz", "/metrics") and status < 400
        log.log(
            logging.DEBUG if quiet else logging.INFO,
            "%s %s %d",
            scope["method"],
            scope["path"],
            status,
            extra={"route": route, "milliseconds": round(seconds * 1000, 1)},
        )


def _refusal(request: Request) -> tuple[int, dict[str, object]] | None:
    # PostgreSQL takes no NUL in any text, so that none comes as far as a query
    if "\0" in request.url.path or "%00" in request.url.query:
        return 400, _error("invalid", "The address has a NUL character", "Leave it out.")
    length = request.headers.get("content-length", "0")
    if not _is_streamed(request) and (not length.isdecimal() or int(length[:20]) > MAX_BODY):
        return 413, _error("too_large", f"A body is at most {MAX_BODY // 1024} KiB", "Send less in one call.")
    return None


def _limited(request: Request, receive: Receive) -> Receive:
    if _is_streamed(request):
        return receive
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY:
            raise HTTPException(413, f"A body is at most {MAX_BODY // 1024} KiB")
        return message

    return counted


def _is_streamed(request: Request) -> bool:
    return request.method == "POST" and request.url.path == STREAMED


def _error(code: str, message: str, hint: str) -> dict[str, object]:
    return {"code": code, "message": message, "hint": hint, "field": "", "retry": False}
