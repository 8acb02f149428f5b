"""Log lines as JSON or text, each with the request and the VM it is about."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from vmgpu.settings import Settings

request_id: ContextVar[str] = ContextVar("request_id", default="")
vm_id: ContextVar[str] = ContextVar("vm_id", default="")

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"request_id", "vm_id", "message", "asctime", "taskName"}


def configure(settings: Settings) -> None:
    """Send every log line to standard error, in the form that `VMGPU_LOG` names (json, text)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_add_ids)
    handler.setFormatter(_Text() if settings.log == "text" else _Json())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("paramiko", "alembic", "httpx", "uvicorn.error", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for theirs in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(theirs).handlers.clear()
        logging.getLogger(theirs).propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # the envelope writes that line, with the request's id


@contextmanager
def about_vm(id_: str) -> Iterator[None]:
    """Lines written inside the block are about this VM."""
    token = vm_id.set(id_)
    try:
        yield
    finally:
        vm_id.reset(token)


def _add_ids(record: logging.LogRecord) -> bool:
    record.request_id = request_id.get()
    record.vm_id = getattr(record, "vm_id", "") or vm_id.get()
    return True


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        said |= {name: value for name in ("request_id", "vm_id") if (value := getattr(record, name, ""))}
        said |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        ids = "".join(f" [{value[:8]}]" for name in ("vm_id", "request_id") if (value := getattr(record, name, "")))
        extra = "".join(f" {name}={value}" for name, value in vars(record).items() if name not in _PLAIN)
        line = f"{when} {record.levelname.lower():7} {record.name}{ids} {record.getMessage()}{extra}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
