"""What benches of real guests share: an installation with a host and an image, a key, and the way to a first login."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.serving import Serving, serving
from vmgpu.errors import SetupError
from vmgpu.lab.guestimage import ensure_guest_image
from vmgpu.lab.tiny import ensure_tiny_image

TRY_EVERY = 0.25
URI = "qemu:///system"
FLAVOR = {"name": "plain", "vcpus": 1, "memory": "1g", "disk": "4g"}
IMAGE = "bench:1"

# On a disk, beside libvirt's pool, and readable by QEMU's user.
_PLACE = Path("/var/tmp")  # noqa: S108  the name below it is made by mkdtemp


@dataclass(frozen=True)
class Lab:
    """A running installation whose only host is this machine's private libvirt. `tiny`: its image is the tiny guest."""

    service: Serving
    folder: Path
    key: Path
    accel: str
    tiny: bool

    @property
    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()

    def request(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Ask for VMs; as the service answered."""
        body = {"name": name, "count": count, "flavor": FLAVOR["name"], "image": IMAGE}
        asked: list[dict[str, Any]] = self.service.post("/vms", body)["items"]
        return asked

    def addresses(self) -> dict[str, str]:
        """Every VM's address that is known, by name; a failed VM breaks the bench."""
        found = self.service.items("/vms")
        for vm in found:
            _see_it_has_not_failed(vm, self.service)
        return {vm["name"]: vm["address"] for vm in found if vm["address"]}

    def vm(self, name: str) -> dict[str, Any]:
        """A VM as it is now; a failed one breaks the bench."""
        found: dict[str, Any] = self.service.get(f"/vms/{name}")
        _see_it_has_not_failed(found, self.service)
        return found

    def login(self, vm: dict[str, Any]) -> str:
        """Who logs in: the tiny guest knows only root."""
        return "root" if self.tiny else str(vm["login"])

    def running(self, name: str) -> dict[str, Any]:
        """The VM, once it is running."""

        def look() -> dict[str, Any] | None:
            found = self.vm(name)
            return found if found["state"] == "running" else None

        return self.service.wait(f"{name} is running", look)

    def release(self, *names: str) -> None:
        """Let VMs go, and wait until nothing of them is left."""
        for name in names:
            self.service.post(f"/vms/{name}/release")
        self.service.wait("the VMs are gone", lambda: None if self.service.items("/vms") else True)


class Addresses:
    """What is asked for all guests at once, every 250 ms, however many wait for an answer."""

    def __init__(self, ask: Callable[[], dict[str, str]]) -> None:
        self._ask, self._lock, self._at, self._known = ask, threading.Lock(), 0.0, dict[str, str]()

    def of(self, guest: str) -> str | None:
        """This guest's address, None while it has none."""
        with self._lock:
            # A look that comes a little early would see nothing new, and the next one comes late.
            if (now := time.monotonic()) >= self._at + 0.9 * TRY_EVERY:
                self._known, self._at = self._ask(), now
            return self._known.get(guest)


@dataclass(frozen=True)
class Arrival:
    """Seconds from the start of a clock until the guest's address was known, and until somebody was in."""

    address: float
    login: float


@contextmanager
def lab(*, tiny: bool) -> Iterator[Lab]:
    """An installation that can start VMs at once: host surveyed, image imported, flavor and key known."""
    if not os.environ.get("VMGPU_TEST_LIBVIRT"):
        raise SetupError("This bench wants a libvirtd of its own", hint="Run: make bench NAME=…")
    image = ensure_tiny_image() if tiny else ensure_guest_image()
    with tempfile.TemporaryDirectory(prefix="vmgpu-bench-", dir=_PLACE) as made:
        folder = Path(made)
        folder.chmod(0o755)
        key = make_key(folder / "owner")
        with serving(folder / "data") as service:
            host = service.post("/hosts?wait=120", {"name": "local", "uri": URI})
            if host["state"] != "ready":
                raise SetupError(f"The host is not ready: {host['reason']}", hint=service.log_end())
            service.post("/keys", {"keys": key.with_suffix(".pub").read_text()})
            service.post("/flavors", FLAVOR)
            labels = "&label=init=none" if tiny else ""
            service.send(f"/images?name={IMAGE}&format=qcow2&filename=guest.qcow2{labels}", image)
            yield Lab(service, folder, key, host["facts"]["accel"], tiny)


def make_key(path: Path) -> Path:
    """An SSH key pair; the private half's path."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f", path], check=True)
    return path


def arrive(
    find: Callable[[], str | None], *, login: str, key: Path, host_key: str, began: float, within: float = 900
) -> Arrival:
    """Ask for the address, then try to run `true` by ssh, every 250 ms each, until it was run."""
    address, address_at = None, 0.0
    known = key.with_name(f"known-{os.urandom(4).hex()}")
    while (now := time.monotonic()) - began < within:
        if address is None and (address := find()):
            address_at = time.monotonic() - began
            known.write_text(f"{address} {host_key}\n")
        if address and _true_runs(address, login, key, known):
            known.unlink()
            return Arrival(address_at, time.monotonic() - began)
        time.sleep(max(0.0, now + TRY_EVERY - time.monotonic()))
    raise SetupError(f"Nobody could log in within {within:.0f} s; the address is {address}", hint="See its console.")


def ssh(address: str, login: str, key: Path, known: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a guest whose host key is pinned in `known`."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": "10",
        "GlobalKnownHostsFile": "none",
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(known),
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return subprocess.run(
        ["ssh", "-F", "none", "-i", key, *words, f"{login}@{address}", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )


def _see_it_has_not_failed(vm: dict[str, Any], service: Serving) -> None:
    if vm["state"] == "failed":
        raise SetupError(f"{vm['name']} failed: {vm['reason']}", hint=service.log_end())


def _true_runs(address: str, login: str, key: Path, known: Path) -> bool:
    return ssh(address, login, key, known, "true").returncode == 0
