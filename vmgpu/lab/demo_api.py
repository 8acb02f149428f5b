"""The demo as a client: calls to the service over HTTP, with a token, as anybody's program would make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from vmgpu.errors import VmgpuError
from vmgpu.service.shapes import FlavorOut, GpuOut, HostOut, ImageOut, LinkOut, ReachOut, VMOut

_PIECE = 1024 * 1024
_VMS = TypeAdapter(list[VMOut])


class Problem(VmgpuError):
    """The demo cannot go on: what was not as it should be, and what to do."""

    code = "demo"


class Refused(Problem):
    """The service said no; the words are its own."""

    def __init__(self, error: dict[str, Any], status: int) -> None:
        super().__init__(error["message"], hint=error["hint"], where=error["field"])
        self.code, self.status = error["code"], status


class Api:
    """One caller at the service. `pulse` raises where the service has ended."""

    def __init__(self, url: str, token: str, *, pulse: Callable[[], None] = lambda: None) -> None:
        self._pulse = pulse
        self._http = httpx.Client(
            base_url=f"{url}/api/v1/",
            headers={b"Authorization": b"Bearer " + token.encode()},  # as text it would have to be ASCII
            timeout=httpx.Timeout(60, read=330),  # some answers are waited for by the service itself, up to 300 s
            trust_env=False,  # no proxy leads to this machine
        )

    def get(self, *path: str, **query: Any) -> Any:
        """What lies at an address."""
        return self._call("GET", path, query)

    def post(self, *path: str, body: Any = None, **query: Any) -> Any:
        """Ask for something."""
        return self._call("POST", path, query, json=body)

    def put(self, *path: str, body: Any) -> Any:
        """Set something."""
        return self._call("PUT", path, {}, json=body)

    def delete(self, *path: str, **query: Any) -> Any:
        """Remove something."""
        return self._call("DELETE", path, query)

    def vms(self) -> list[VMOut]:
        """The VMs that the caller sees, oldest first."""
        return _VMS.validate_python(self.get("vms")["items"])

    def images(self) -> list[ImageOut]:
        """The images that the caller may use."""
        return [ImageOut.model_validate(one) for one in self.get("images")["items"]]

    def hosts(self) -> list[HostOut]:
        """All hosts with their cards."""
        return [HostOut.model_validate(one) for one in self.get("hosts")["items"]]

    def cards(self) -> list[GpuOut]:
        """All cards with their slices."""
        return [GpuOut.model_validate(one) for one in self.get("gpus")["items"]]

    def flavors(self) -> list[FlavorOut]:
        """All sizes of VMs."""
        return [FlavorOut.model_validate(one) for one in self.get("flavors")["items"]]

    def request(self, **wish: Any) -> list[VMOut]:
        """Ask for VMs."""
        return _VMS.validate_python(self.post("vms", body=wish)["items"])

    def way_into(self, vm: str) -> ReachOut:
        """How a VM is reached by SSH."""
        return ReachOut.model_validate(self.get("vms", vm, "ssh"))

    def console(self, vm: str, *, lines: int) -> list[str]:
        """The last lines of a VM's serial console."""
        kept = [line for line in self.get("vms", vm, "console", wait=5).splitlines() if line.strip()]
        return kept[-lines:]

    def link(self, user: str) -> LinkOut:
        """A link that signs a person's browser in, once."""
        return LinkOut.model_validate(self.post("users", user, "link"))

    def send_image(self, file: Path, name: str, *, progress: Callable[[int], None]) -> ImageOut:
        """Import a disk, piece by piece; `progress` is told the percent sent."""
        size = file.stat().st_size
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        query = {"name": name, "filename": file.name}
        return ImageOut.model_validate(
            self._call("POST", ("images",), query, content=_pieces(file, size, progress), headers=headers)
        )

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def _call(self, method: str, path: tuple[str, ...], query: dict[str, Any], **more: Any) -> Any:
        address = "/".join(quote(part, safe="/") for part in path)
        try:
            answer = self._http.request(method, address, params=query, **more)
        except httpx.HTTPError as bad:
            self._pulse()
            raise Problem(f"The service did not answer {method} {address}: {bad or type(bad).__name__}") from None
        if answer.is_success:
            said = answer.headers.get("content-type", "")
            return answer.json() if said.startswith("application/json") else answer.text
        try:
            error: dict[str, Any] = answer.json()["error"]
        except (ValueError, KeyError, TypeError):
            raise Problem(f"{method} {address} was answered {answer.status_code}, and by no vmgpu error") from None
        raise Refused(error, answer.status_code)


def _pieces(file: Path, size: int, progress: Callable[[int], None]) -> Iterator[bytes]:
    sent = 0
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE):
            yield piece
            sent += len(piece)
            progress(100 * sent // max(1, size))
