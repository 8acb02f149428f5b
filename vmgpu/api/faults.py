"""Every error as one shape: {"error": {code, message, hint, field, retry}}; for people in a browser, as a page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from vmgpu.errors import Unavailable, VmgpuError
from vmgpu.units import say_count, say_span

ErrorPage = Callable[[Request, int, Mapping[str, Any]], Response]  # the page, for who asks /… by a browser

log = logging.getLogger(__name__)


class Fault(BaseModel):
    """What went wrong. `field`: the part of the request; `retry`: the same call may work later."""

    code: str
    message: str
    hint: str
    field: str
    retry: bool


class FaultOut(BaseModel):
    """The answer to every call that did not do what was asked."""

    error: Fault


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These statuses, documented; by name, as FastAPI would build the model anew for each status of each route."""
    shown = {"application/json": {"schema": {"$ref": f"#/components/schemas/{FaultOut.__name__}"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": shown} for status in statuses}


def install(app: FastAPI) -> None:
    """Render everything that handlers raise; `app.state.error_page` may draw it for browsers."""
    app.add_exception_handler(VmgpuError, _deliberate)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(PoolTimeout, _busy)


def bug(request: Request, bad: Exception) -> Response:
    """What nobody foresaw: logged with its traceback, answered without."""
    log.error("a bug in %s %s", request.method, request.url.path, exc_info=bad)
    return render(
        request,
        500,
        {
            "code": "bug",
            "message": "Something broke inside vmgpu; nothing more was changed",
            "hint": "The log has the details under the id in X-Request-Id.",
            "field": "",
            "retry": False,
        },
    )


def render(request: Request, status: int, error: Mapping[str, Any]) -> Response:
    """The error as JSON, or as a page where a browser asks outside /api."""
    page: ErrorPage | None = getattr(request.app.state, "error_page", None) if "app" in request.scope else None
    wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None
    if page and wants_page:
        # the addresses of the API are of no use to who reads a page
        plain = {"hint": "Go to the start page."} if error["hint"] == _CODES[404][1] else {}
        return page(request, status, {**error, **plain})
    return JSONResponse({"error": dict(error)}, status, headers)


async def _deliberate(request: Request, bad: Exception) -> Response:
    assert isinstance(bad, VmgpuError)  # noqa: S101 - it is what we asked to be given
    if bad.status >= 500:
        log.warning("%s: %s", bad.code, bad.message)
    return render(request, bad.status, bad.as_dict())


async def _invalid(request: Request, bad: Exception) -> Response:
    assert isinstance(bad, RequestValidationError | ValidationError)  # noqa: S101
    first: ErrorDetails = bad.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    where = where or ("body" if first["type"] in ("missing", "model_attributes_type") else "")
    more = len(bad.errors()) - 1
    message = wording(first)
    if first["type"] == "json_invalid":
        said = first.get("ctx", {}).get("error", "")
        where, message = "", f"The body is not JSON at character {int(first['loc'][-1]) + 1}: {said}"
    hint = (
        f"{say_count(more, 'more field')} {'is' if more == 1 else 'are'} wrong as well."
        if more
        else _HINTS.get(first["type"], "")
    )
    return _say(request, 422, "invalid", f"{where}: {message}" if where else message, hint, where)


def wording(error: ErrorDetails) -> str:
    """What is wrong with one value, as a person says it."""
    kind, facts = error["type"], error.get("ctx", {})
    if kind in _RULES:
        said = {name: say_span(fact) if isinstance(fact, timedelta) else fact for name, fact in facts.items()}
        return _RULES[kind].format_map(said)
    return str(error["msg"]).removeprefix("Value error, ")


async def _http(request: Request, bad: Exception) -> Response:
    assert isinstance(bad, HTTPException)  # noqa: S101
    code, hint = _CODES.get(bad.status_code, ("error", ""))
    message = {404: "There is nothing at this address", 405: "This address does not take this method"}
    return _say(request, bad.status_code, code, message.get(bad.status_code, str(bad.detail)), hint, "")


async def _busy(request: Request, bad: Exception) -> Response:
    busy = Unavailable("Too many calls are waiting for the database", hint="Try again in some seconds.")
    return render(request, busy.status, busy.as_dict())


def _say(request: Request, status: int, code: str, message: str, hint: str, field: str) -> Response:
    error = {"code": code, "message": message, "hint": hint, "field": field, "retry": False}
    return render(request, status, error)


_RULES = {
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "greater_than": "more than {gt}",
    "less_than": "less than {lt}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "too_long": "at most {max_length} of them",
    "literal_error": "one of {expected}",
    "enum": "one of {expected}",
    "int_parsing": "a whole number is needed",
    "int_type": "a whole number is needed",
    "int_from_float": "a whole number is needed",
    "float_parsing": "a number is needed",
    "bool_parsing": "true or false",
    "model_attributes_type": "one JSON object is needed",
    "missing": "is needed",
    "extra_forbidden": "there is no such field",
}
_HINTS = {
    "json_invalid": "Send one JSON object, as the examples in /api/v1/openapi.json.",
    "model_attributes_type": "Send one JSON object, as the examples in /api/v1/openapi.json.",
    "missing": "/api/v1/openapi.json has examples.",
    "extra_forbidden": "/api/v1/openapi.json lists them.",
}
_CODES = {
    400: ("invalid", "Send one JSON object, as the examples in /api/v1/openapi.json."),
    404: ("not_found", "The addresses are in /api/v1/openapi.json."),
    405: ("method_not_allowed", "The methods are in /api/v1/openapi.json."),
    413: ("too_large", "Send less in one call."),
}
