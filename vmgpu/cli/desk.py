"""What a command works with: calls to the API, and its one way to answer, as JSON or in words."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import click

from vmgpu.errors import VmgpuError

if TYPE_CHECKING:
    import httpx

NOTHING_TO_SAY = 204
TOKEN_FILE = "admin-token"  # noqa: S105 - a file's name
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - who listens everywhere also listens here


class Refused(VmgpuError):
    """The service's own error, or the reason why there was no answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"], hint=error.get("hint", ""), where=error.get("field", ""))
        self.code, self.retry = error["code"], bool(error.get("retry"))


class Desk:
    """The caller's place: where the service is, who calls, and in which form the answer is wanted."""

    def __init__(self, given: dict[str, str | None], *, as_json: bool) -> None:
        self.as_json = as_json
        self.url = given["url"] or f"http://{_here(given['bind'] or '')}"
        self._folder = Path(given["data_dir"] or "").expanduser()
        self._token = given["token"] or _token_in(self._folder)
        self._client: httpx.Client | None = None

    def get(self, *path: str, **query: Any) -> Any:
        """What lies at an address."""
        return self.call("GET", path, query=query)

    def items(self, *path: str, **query: Any) -> list[dict[str, Any]]:
        """The list at an address."""
        found: list[dict[str, Any]] = self.get(*path, **query)["items"]
        return found

    def post(self, *path: str, body: Any = None, **query: Any) -> Any:
        """Ask for something."""
        return self.call("POST", path, query=query, body=body)

    def put(self, *path: str, body: Any) -> Any:
        """Set something."""
        return self.call("PUT", path, body=body)

    def patch(self, *path: str, body: Any) -> Any:
        """Change something."""
        return self.call("PATCH", path, body=body)

    def delete(self, *path: str, **query: Any) -> Any:
        """Remove something."""
        return self.call("DELETE", path, query=query)

    def call(
        self, method: str, path: Sequence[str], *, query: dict[str, Any] | None = None, body: Any = None, **more: Any
    ) -> Any:
        """One call. Raises Refused with the service's own words."""
        import httpx

        address = "/api/v1/" + "/".join(_quoted(part) for part in path)
        params = {name: value for name, value in (query or {}).items() if value not in (None, "", ())}
        if body is not None:
            more["json"] = body
        try:
            answer = self._http().request(method, address, params=params, **more)
        except httpx.ConnectError:
            raise Refused(
                {"code": "no_answer", "message": f"No vmgpu answers at {self.url}", "hint": "Start it: vmgpu serve."}
            ) from None
        except httpx.InvalidURL as bad:
            raise Refused({"code": "invalid", "message": f"{self.url}: {bad}", "hint": "Correct VMGPU_URL."}) from None
        except httpx.HTTPError as bad:
            said = f"{self.url} broke off: {bad or type(bad).__name__}"
            raise Refused({"code": "no_answer", "message": said, "hint": "Try again; look at its log."}) from None
        return self._read(answer)

    def done(self, what: Any, in_words: Callable[[], None]) -> None:
        """Answer: the thing as JSON, or in words."""
        if self.as_json:
            click.echo(json.dumps(what, indent=2, ensure_ascii=False))
        else:
            in_words()

    def sure(self, question: str, *, yes: bool) -> None:
        """Ask a person at a terminal before something cannot be undone; scripts are never asked."""
        asks = not yes and not self.as_json and sys.stdin.isatty() and sys.stdout.isatty()
        if asks and not click.confirm(question, err=True):
            raise Refused({"code": "declined", "message": "Nothing was done", "hint": "Answer y to do it."})

    def _http(self) -> httpx.Client:
        import httpx

        if self._client is None:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise Refused(
                    {"code": "invalid", "message": f"{self.url!r} is no address", "hint": "Like http://127.0.0.1:8000."}
                )
            # as bytes: httpx takes text for ASCII; without the blanks at its ends, which no header can carry
            token = (self._token or "").strip(" ").encode(errors="surrogateescape")
            headers = {b"Authorization": b"Bearer " + token} if token else {}
            self._client = httpx.Client(
                base_url=self.url.rstrip("/"),
                headers=headers,
                timeout=httpx.Timeout(30, read=330),
                verify=parts.scheme == "https",  # reading all certificates for plain HTTP takes longer than the call
                trust_env=parts.hostname not in ("127.0.0.1", "::1", "localhost"),  # no proxy leads to this machine
            )
        return self._client

    def _read(self, answer: httpx.Response) -> Any:
        if answer.status_code == NOTHING_TO_SAY:
            return None
        if answer.is_success and answer.headers.get("content-type", "").startswith("text/plain"):
            return answer.text
        try:
            found = answer.json()
            error: dict[str, Any] | None = None if answer.is_success else found["error"]
        except (ValueError, KeyError, TypeError):
            said = f"{self.url} answered {answer.status_code}, and not as vmgpu does"
            raise Refused({"code": "error", "message": said, "hint": "Is this the address of vmgpu?"}) from None
        if error is None:
            return found
        if error["code"] == "unauthenticated":
            error["hint"] = "Set VMGPU_TOKEN to a token: an admin makes one by vmgpu token add."
            if not self._token:
                error["hint"] += f" Or VMGPU_DATA_DIR to the service's folder: in {self._folder} is no {TOKEN_FILE}."
        raise Refused(error)


def verb(group: click.Group | None, name: str, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """A command, of a group or by itself: its first argument is a Desk, and it takes --json."""

    def made(function: Callable[..., None]) -> click.Command:
        def run(as_json: bool, **arguments: Any) -> None:
            function(Desk(click.get_current_context().find_root().obj, as_json=as_json), **arguments)

        functools.update_wrapper(run, function)  # with the options that are declared on it
        command = group.command if group else click.command
        return command(name, **settings)(click.option("--json", "as_json", is_flag=True, help="As JSON.")(run))

    return made


def _quoted(part: str) -> str:
    # a name like ../x would otherwise walk to another address before it is sent
    segments = (quote(segment, safe="") for segment in part.split("/"))
    return "/".join(s.replace(".", "%2E") if s.strip(".") == "" else s for s in segments)


def _here(bind: str) -> str:
    host, colon, port = bind.rpartition(":")
    return f"{_ANYWHERE.get(host, host)}{colon}{port}"


def _token_in(folder: Path) -> str | None:
    try:
        return (folder / TOKEN_FILE).read_text().strip() or None
    except OSError:
        return None
