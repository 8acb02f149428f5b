"""One host's libvirt connection: opened when needed, opened again when lost, its errors in our words."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

import libvirt

from vmgpu.errors import HostRefused, HostUnreachable, VmgpuError

T = TypeVar("T")

# A silent host is given up after INTERVAL × COUNT seconds; libvirt's own default would wait for ever.
KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 5, 4

_TRANSPORT = {libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC}
_ABSENT = {
    libvirt.VIR_ERR_NO_DOMAIN,
    libvirt.VIR_ERR_NO_DOMAIN_METADATA,
    libvirt.VIR_ERR_NO_NETWORK,
    libvirt.VIR_ERR_NO_NODE_DEVICE,
    libvirt.VIR_ERR_NO_STORAGE_POOL,
    libvirt.VIR_ERR_NO_STORAGE_VOL,
}
_HINTS = {
    libvirt.VIR_ERR_AUTH_FAILED: "Run the service as root, or add its user to the group libvirt.",
    libvirt.VIR_ERR_AUTH_UNAVAILABLE: "Run the service as root, or add its user to the group libvirt.",
    libvirt.VIR_ERR_NO_DOMAIN: "It was undefined on the host; start the VM to define it again.",
    libvirt.VIR_ERR_NO_STORAGE_VOL: "A file is gone from the host's pool; reset the VM for a fresh disk.",
    libvirt.VIR_ERR_CONFIG_UNSUPPORTED: "This libvirt or QEMU cannot do it; compare their versions with the docs.",
    libvirt.VIR_ERR_OPERATION_TIMEOUT: "Another operation holds this VM on the host; it is tried again.",
    libvirt.VIR_ERR_OPERATION_FAILED: "The host's logs say more: libvirtd's journal and /var/log/libvirt/qemu.",
    libvirt.VIR_ERR_INTERNAL_ERROR: "The host's logs say more: libvirtd's journal and /var/log/libvirt/qemu.",
}


class Link:
    """A connection that many threads share.

    `changed` is told a domain's UUID when libvirt reports an event of it, and None when events may have been missed.
    It runs on the event thread, which serves every host: it must return at once.
    """

    def __init__(self, uri: str, changed: Callable[[str | None], None]) -> None:
        self.uri = uri
        self._changed = changed
        # The event thread takes `_lock`, so it is never held across a call; opening may hang, and has its own.
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._open: Any = None
        self._waiting: dict[str, list[threading.Event]] = {}

    @contextlib.contextmanager
    def use(self) -> Iterator[Any]:
        """The live `virConnect`; libvirt's errors leave as HostUnreachable or HostRefused."""
        connection = self._connected()
        try:
            yield connection
        except libvirt.libvirtError as error:
            raise _translated(error, alive=_alive(connection)) from error

    @contextlib.contextmanager
    def hearing(self, vm_id: str) -> Iterator[threading.Event]:
        """An Event that is set whenever something happens to this domain, or the connection is lost."""
        heard = threading.Event()
        with self._lock:
            self._waiting.setdefault(vm_id, []).append(heard)
        try:
            yield heard
        finally:
            with self._lock:
                self._waiting[vm_id].remove(heard)
                if not self._waiting[vm_id]:
                    del self._waiting[vm_id]

    def close(self) -> None:
        """Let go of the connection; a later use opens it again."""
        with self._lock:
            lost, self._open = self._open, None
        _let_go(lost)

    def _connected(self) -> Any:
        with self._opening:
            if self._open is not None and _alive(self._open):
                return self._open
            self.close()
            opened = self._connect()
            with self._lock:
                self._open = opened
        self._changed(None)
        return opened

    def _connect(self) -> Any:
        _start_events()
        try:
            connection = libvirt.open(self.uri)
        except libvirt.libvirtError as error:
            raise HostUnreachable(
                _words(error),
                hint=_HINTS.get(
                    error.get_error_code(),
                    "Is libvirtd running on the host? Start it there: systemctl enable --now libvirtd.",
                ),
            ) from error
        # libvirt's test driver has neither keepalive nor agent events.
        with contextlib.suppress(libvirt.libvirtError):
            connection.setKeepAlive(KEEPALIVE_INTERVAL, KEEPALIVE_COUNT)
        with contextlib.suppress(libvirt.libvirtError):
            connection.registerCloseCallback(self._on_close, None)
        for event in (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, libvirt.VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE):
            with contextlib.suppress(libvirt.libvirtError):
                connection.domainEventRegisterAny(None, event, self._on_event, None)
        return connection

    def _on_event(self, _connection: Any, domain: Any, _event: int, _detail: int, _opaque: Any) -> None:
        vm_id = domain.UUIDString()
        with self._lock:
            waiting = list(self._waiting.get(vm_id, ()))
        for heard in waiting:
            heard.set()
        self._changed(vm_id)

    def _on_close(self, _connection: Any, _reason: int, _opaque: Any) -> None:
        with self._lock:
            waiting = [heard for each in self._waiting.values() for heard in each]
        for heard in waiting:
            heard.set()
        self._changed(None)


def maybe(call: Callable[..., T], *args: Any) -> T | None:
    """The call's answer, or None where what it asks for is not there."""
    try:
        return call(*args)
    except libvirt.libvirtError as error:
        if error.get_error_code() in _ABSENT:
            return None
        raise


def _translated(error: libvirt.libvirtError, *, alive: bool) -> VmgpuError:
    code = error.get_error_code()
    if not alive or code == libvirt.VIR_ERR_NO_CONNECT or error.get_error_domain() in _TRANSPORT:
        return HostUnreachable(_words(error), hint="The connection to the host's libvirtd broke; it is tried again.")
    return HostRefused(_words(error), hint=_HINTS.get(code, ""))


def _words(error: libvirt.libvirtError) -> str:
    return str(error.get_error_message() or error)


def _alive(connection: Any) -> bool:
    try:
        return bool(connection.isAlive())
    except libvirt.libvirtError:
        return False


def _let_go(connection: Any) -> None:
    if connection is None:
        return
    with contextlib.suppress(libvirt.libvirtError):
        connection.unregisterCloseCallback()
    with contextlib.suppress(libvirt.libvirtError):
        connection.close()


_starting = threading.Lock()


def _start_events() -> None:
    with _starting:
        _events()


@lru_cache(maxsize=1)
def _events() -> threading.Thread:
    # A connection opened before the event loop is registered never gets an event or a keepalive.
    libvirt.virEventRegisterDefaultImpl()
    libvirt.registerErrorHandler(lambda _context, _error: None, None)  # else each error is printed on stderr, too
    thread = threading.Thread(target=_run_events, name="libvirt-events", daemon=True)
    thread.start()
    return thread


def _run_events() -> None:
    while True:
        with contextlib.suppress(libvirt.libvirtError):
            libvirt.virEventRunDefaultImpl()
