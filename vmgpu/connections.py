"""The hosts as this process has them open, and a lane of threads for each: a host that hangs holds up only itself."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from vmgpu.db import Database, setting
from vmgpu.errors import HostUnreachable
from vmgpu.hypervisor import HostKeys, HostRef, Hypervisor
from vmgpu.hypervisor.here import machine_id
from vmgpu.models import Host
from vmgpu.service import host_keys
from vmgpu.settings import Settings
from vmgpu.views import network_of

OnChange = Callable[[str], None]


class OpenHosts:
    """Connections, opened at first use and kept."""

    def __init__(self, db: Database, settings: Settings, on_change: OnChange) -> None:
        self._db, self._settings, self._on_change = db, settings, on_change
        self._open: dict[str, tuple[HostRef, Hypervisor]] = {}
        self._lock = threading.Lock()

    def get(self, host_id: str) -> Hypervisor:
        """This host, opened; opened anew when its row says something else than before."""
        with self._db.read() as session:
            host = session.get(Host, host_id)
            if host is None:
                raise HostUnreachable("This host was removed")
            installation = setting(session, "installation") or ""
            ref = host_ref(host, installation, self._settings, host_keys.private(session, host.uri))
            there = (host.facts or {}).get("here")
        if there and there != machine_id():
            raise HostUnreachable(
                f"{ref.name} is the machine of another process of the service, and {ref.uri} here means this one",
                hint="Add it as qemu+ssh://USER@MACHINE/system, or run every process on that machine.",
            )
        with self._lock:
            known = self._open.get(host_id)
            if known and known[0] == ref:
                return known[1]
        fresh = open_host(ref, on_change=self._on_change)
        with self._lock:
            other = self._open.get(host_id)
            if other is None or other[0] != ref:
                self._open[host_id] = (ref, fresh)
        if other is None:
            return fresh
        surplus, kept = (fresh, other[1]) if other[0] == ref else (other[1], fresh)  # two may open it at once
        surplus.close()
        return kept

    def drop(self, host_id: str) -> None:
        """Close a host's connection; none is fine."""
        with self._lock:
            known = self._open.pop(host_id, None)
        if known:
            known[1].close()

    def close(self) -> None:
        """Close all."""
        for host_id in list(self._open):
            self.drop(host_id)


def open_host(ref: HostRef, *, on_change: OnChange) -> Hypervisor:
    """Open a host by its URI; libvirt and the simulation are loaded when a host needs them."""
    if ref.uri.startswith("fake:"):
        from vmgpu.hypervisor.fake import open_fake

        return open_fake(ref, on_change=on_change)
    from vmgpu.hypervisor.kvm import open_kvm

    return open_kvm(ref, on_change=on_change)


def host_ref(host: Host, installation: str, settings: Settings, keys: HostKeys | None = None) -> HostRef:
    """A host row as the hypervisor room is told of it."""
    return HostRef(
        id=host.id,
        name=host.name,
        uri=host.uri,
        installation=installation,
        network=network_of(host),
        accel=settings.accel.value,
        state_dir=settings.fake_dir if host.simulated else settings.data_dir / "hosts",
        emulate=tuple(host.emulate),
        device_ids=tuple(host.device_ids),
        mdev_parents=tuple(host.mdev_parents),
        host_key=host.host_key,
        keys=keys,
        start_seconds=settings.start_timeout.total_seconds(),
        start_seconds_per_gib=settings.start_timeout_per_gib.total_seconds(),
    )


@dataclass
class Lane:
    """Threads that work on one host, so many at once; the rest waits in line."""

    width: int
    busy: int = 0
    line: deque[Callable[[], None]] = field(default_factory=deque)


class Lanes:
    """One lane a host. A thread that hangs is given up: its place in the lane is free again."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lanes: dict[str, Lane] = {}
        self._lock = threading.Lock()

    def run(self, key: str, work: Callable[[], None]) -> None:
        """Run the work in this lane, now or when there is room."""
        with self._lock:
            lane = self._lanes.setdefault(key, Lane(self._width))
            if lane.busy >= lane.width:
                lane.line.append(work)
                return
            lane.busy += 1
        threading.Thread(target=work, name=f"lane-{key[:8]}", daemon=True).start()

    def done(self, key: str) -> None:
        """One place in the lane is free: its work has ended, or was given up."""
        with self._lock:
            lane = self._lanes[key]
            if not lane.line:
                lane.busy -= 1
                return
            work = lane.line.popleft()
        threading.Thread(target=work, name=f"lane-{key[:8]}", daemon=True).start()
