"""How a host runs guests: KVM only where a guest kernel was seen to boot under it, once per boot of the host."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import libvirt
from defusedxml.ElementTree import fromstring

from vmgpu import render

SECONDS = 12.0
KERNELS = ("/boot/vmlinuz*", "/var/cache/vmgpu/**/vmlinuz*")
# Without a disk a kernel that works ends in this panic about a second after its start. Its first line alone proves
# nothing: nested hypervisors are known that let a guest print and then spin for ever.
_PROOF = b"Kernel panic - not syncing: VFS"
_FIRST_LINE = b"Linux version"
_PTY_POLL = 1.2  # QEMU looks once a second whether somebody listens to a pty, and drops what it prints before


@dataclass(frozen=True)
class Choice:
    """`kvm` or `tcg`, and why, for people."""

    accel: str
    why: str


def choose(
    wish: str,
    connection: Any,
    *,
    pool: str,
    boot_id: str,
    state_dir: Path,
    local: bool,
    device: Path = Path("/dev/kvm"),
    kernels: Sequence[str] = KERNELS,
    seconds: float = SECONDS,
) -> Choice:
    """What the settings say, else what a probe saw; its answer is kept until the host, libvirt or QEMU changes."""
    found = known(wish, connection, boot_id=boot_id, state_dir=state_dir, local=local, device=device)
    if found is not None:
        return found
    kernel = newest_kernel(kernels)
    if kernel is None:
        # Not kept: installing a kernel package mends it.
        return Choice("tcg", "KVM was not probed: no readable guest kernel was found under " + " or ".join(kernels))
    choice = probe(connection, kernel, pool=pool, seconds=seconds)
    _remember(_memory(connection, boot_id, state_dir), choice)
    return choice


def known(
    wish: str, connection: Any, *, boot_id: str, state_dir: Path, local: bool, device: Path = Path("/dev/kvm")
) -> Choice | None:
    """What can be said without a probe, or after one; None where only a probe can tell."""
    if wish in ("kvm", "tcg"):
        return Choice(wish, "set by the administrator")
    if not offers_kvm(connection):
        return Choice("tcg", "libvirt offers no KVM on this host")
    if local and not device.exists():
        return Choice("tcg", f"{device} is missing")
    return _remembered(_memory(connection, boot_id, state_dir)) if boot_id else None


def offers_kvm(connection: Any) -> bool:
    """Whether libvirt lists KVM for x86_64 guests; it says nothing about whether one runs."""
    arches = fromstring(connection.getCapabilities()).findall("guest/arch[@name='x86_64']")
    return any(domain.get("type") == "kvm" for arch in arches for domain in arch.findall("domain"))


def newest_kernel(patterns: Sequence[str]) -> Path | None:
    """The newest readable kernel file that matches the first pattern with any."""
    for pattern in patterns:
        # Ubuntu's kernels are for root alone.
        found = [each for each in Path("/").glob(pattern.lstrip("/")) if each.is_file() and os.access(each, os.R_OK)]
        if found:
            return max(found, key=lambda each: each.stat().st_mtime)
    return None


def probe(connection: Any, kernel: Path, *, pool: str, seconds: float = SECONDS, kind: str = "kvm") -> Choice:
    """Boot a kernel and watch its console; nothing of it is left behind. `kind`: libvirt's name of what runs it."""
    name = f"vmgpu-probe-{uuid4().hex[:8]}"
    try:
        with _uploaded(connection, kernel, pool=pool, name=name) as path:
            return _watched(connection, render.xml("libvirt/probe.xml.j2", name=name, kernel=path, kind=kind), seconds)
    except libvirt.libvirtError as refused:
        if not connection.isAlive():
            raise
        return Choice("tcg", f"the KVM probe could not be run: {_one_line(refused)}")


def dotted(version: int) -> str:
    """libvirt's way to write a version in one number, as people write it."""
    return f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"


def _watched(connection: Any, described: str, seconds: float) -> Choice:
    try:
        domain = connection.createXML(described, libvirt.VIR_DOMAIN_START_PAUSED | libvirt.VIR_DOMAIN_START_AUTODESTROY)
    except libvirt.libvirtError as refused:
        return Choice("tcg", f"QEMU did not start a guest under KVM: {_one_line(refused)}")
    try:
        began, printed = time.monotonic(), b""
        for printed in _console(connection, domain, seconds):
            if _PROOF in printed:
                took = time.monotonic() - began - _PTY_POLL
                return Choice("kvm", f"a guest kernel booted under KVM in {took:.1f} s")
        seen = "it printed its first lines and then stood still" if _FIRST_LINE in printed else "it printed nothing"
        return Choice("tcg", f"a guest kernel made no progress under KVM within {seconds:g} s: {seen}")
    finally:
        with contextlib.suppress(libvirt.libvirtError):
            domain.destroy()  # gone already when its kernel rebooted after the panic


def _console(connection: Any, domain: Any, seconds: float) -> Iterator[bytes]:
    """All that the guest has printed so far, again and again, until it ends or the time is over."""
    stream = connection.newStream(libvirt.VIR_STREAM_NONBLOCK)
    domain.openConsole(None, stream, 0)
    time.sleep(_PTY_POLL)
    domain.resume()
    printed, until = b"", time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            # Any call reads the connection's socket, so that the stream fills without an event loop too.
            alive = domain.isActive()
            printed += (more := _received(stream))
            yield printed
            if not alive and not more:
                return
            time.sleep(0.1)
    except libvirt.libvirtError:
        yield printed  # the domain ended between two looks
    finally:
        with contextlib.suppress(libvirt.libvirtError):
            stream.abort()


def _received(stream: Any) -> bytes:
    """What lies ready in a non-blocking stream: -2 is "nothing now", empty is its end."""
    text = b""
    with contextlib.suppress(libvirt.libvirtError):
        while isinstance(more := stream.recv(65536), bytes) and more:
            text += more
    return text


@contextlib.contextmanager
def _uploaded(connection: Any, kernel: Path, *, pool: str, name: str) -> Iterator[str]:
    """The kernel as a file of the pool: the one folder that QEMU's account can read for sure, on any host."""
    folder = connection.storagePoolLookupByName(pool)
    size = kernel.stat().st_size
    described = f"<volume><name>{name}.kernel</name><capacity unit='B'>{size}</capacity></volume>"
    volume = folder.createXML(described, 0)
    try:
        stream = connection.newStream(0)
        volume.upload(stream, 0, size, 0)
        with kernel.open("rb") as source:
            stream.sendAll(lambda _stream, count, file: file.read(count), source)
        stream.finish()
        yield volume.path()
    finally:
        with contextlib.suppress(libvirt.libvirtError):
            volume.delete(0)


def _memory(connection: Any, boot_id: str, state_dir: Path) -> Path:
    """The file that keeps the probe's answer for this boot of this host."""
    seen = f"{connection.getHostname()} {boot_id} {connection.getLibVersion()} {connection.getVersion()}"
    return state_dir / f"accel-{hashlib.sha256(seen.encode()).hexdigest()[:16]}.json"


def _remembered(memory: Path) -> Choice | None:
    try:
        stored = json.loads(memory.read_text())
        return Choice(str(stored["accel"]), str(stored["why"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(memory: Path, choice: Choice) -> None:
    memory.parent.mkdir(parents=True, exist_ok=True)
    half = memory.with_suffix(f".{uuid4().hex[:8]}")
    half.write_text(json.dumps(asdict(choice)))
    half.replace(memory)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
