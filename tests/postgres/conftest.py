"""A PostgreSQL server of the run's own: made for it, on a socket and a loopback port of its own, gone after it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest

from tests.factories import ADMIN_TOKEN
from vmgpu.db import Database, migrate
from vmgpu.service import people
from vmgpu.settings import Settings

FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "400",
    "shared_buffers": "32MB",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "warning",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.postgres)


@dataclass
class Server:
    """A running server; `log` is what it had to say."""

    port: int
    log: Path

    def url(self, name: str, **options: str) -> str:
        more = "".join(f"&{key}={value}" for key, value in options.items())
        return f"postgresql://vmgpu@127.0.0.1:{self.port}/{name}?connect_timeout=10{more}"

    def run(self, statement: str, name: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement as the owner of all."""
        with psycopg.connect(self.url(name), autocommit=True) as conn:
            done = conn.execute(statement)  # type: ignore[call-overload]
            return list(done.fetchall()) if done.description else []


def programs() -> Path:
    """The folder of the newest server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        pytest.skip("no PostgreSQL server is installed (Debian: postgresql)")
    return found[-1].parent


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    bin_dir, folder = programs(), Path(tempfile.mkdtemp(prefix="vmgpu-pg-"))
    user = None
    if os.getuid() == 0:  # a server refuses to run as root
        user = "postgres"
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    as_user = {"user": user, "cwd": folder} if user else {"cwd": folder}
    made = [str(bin_dir / "initdb"), "-D", str(folder / "data"), "-U", "vmgpu", "-A", "trust", "-E", "UTF8", "-N"]
    subprocess.run([*made, "--locale=C.UTF-8"], check=True, capture_output=True, **as_user)  # type: ignore[call-overload]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [part for name, value in FAST.items() for part in ("-c", f"{name}={value}")]
    command = [str(bin_dir / "postgres"), "-D", str(folder / "data"), "-k", str(folder), "-p", str(port), *options]
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **as_user)  # type: ignore[call-overload]
    running = Server(port, log)
    try:
        _wait_for(running, process)
        yield running
        said = log.read_text()
        assert "deadlock detected" not in said, said[-4000:]
    finally:
        process.terminate()
        process.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """A migrated database with its first admin, to be copied."""
    server.run("CREATE DATABASE template_vmgpu")
    db = Database(server.url("template_vmgpu"))
    migrate(db)
    people.settle_in(db, Settings(admin_token=ADMIN_TOKEN, database_url=server.url("template_vmgpu")))
    db.close()
    return "template_vmgpu"


_numbers = count(1)


@pytest.fixture
def empty(server: Server) -> Iterator[str]:
    """The name of a database in which there is nothing at all."""
    name = f"test_{next(_numbers)}"
    server.run(f"CREATE DATABASE {name}")
    yield name
    server.run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(server: Server, template: str) -> Iterator[str]:
    """The name of a database of this test's own, migrated and settled in."""
    name = f"test_{next(_numbers)}"
    server.run(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield name
    server.run(f"DROP DATABASE {name} WITH (FORCE)")


def _wait_for(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            server.run("SELECT 1")
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server does not start: {server.log.read_text()[-2000:]}") from None
            time.sleep(0.1)
