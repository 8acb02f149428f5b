"""A sync pass: a host's domains are read from libvirt and compared with the rows, as the worker does it.

libvirt's test driver holds 200 domains that carry our mark, and the database a row for each, on SQLite. A pass is the
worker's whole visit to a host: what is asked of libvirt, the comparison, and one transaction with what follows. The
first pass also asks for every domain's mark, later ones know them. In the second half of the passes every tenth VM is
found off, so that rows are woken. The test driver answers in this process: what a real libvirtd adds is its socket.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import libvirt
from sqlmodel import select

from bench import figures
from tests import factories
from vmgpu import host_outcomes, machines, outcomes
from vmgpu.db import Database
from vmgpu.hypervisor import HostRef, Network, NetworkRef
from vmgpu.hypervisor.domain import MARK
from vmgpu.hypervisor.kvm import KvmHost
from vmgpu.models import VM, Host, HostState

BAR = 1.0
INSTALLATION = "bench"


def measure(report: figures.Report, options: argparse.Namespace) -> None:
    """The first pass, the later ones, and those that find something."""
    domains, passes = (20, 2) if options.quick else (200, 20)
    with tempfile.TemporaryDirectory(prefix="vmgpu-bench-") as made:
        folder = Path(made)
        db = factories.make_database(factories.make_settings(folder / "data"))
        row, vms = _rows(db, domains)
        host = KvmHost(_ref(folder, _test_driver(folder / "node.xml", vms)), on_change=lambda _vm_id: None)
        try:
            _known_boot(db, row, host.boot_id())
            first = _pass(db, host, row, expected=0)
            later = [_pass(db, host, row, expected=0) for _ in range(passes)]
            off = vms[::10]
            for vm_id in off:
                host.power_off(vm_id)
            finding = [_pass(db, host, row, expected=len(off)) for _ in range(passes)]
        finally:
            host.close()
            db.close()
    rows = [
        ("the first", first, first, first),
        ("later", *figures.spread(later)),
        (f"with {len(off)} found off", *figures.spread(finding)),
    ]
    report.table(f"Seconds of a pass over {domains} domains", ("pass", "median", "min", "max"), rows)
    report.figure(f"sync_{domains}_first_seconds", first, "s", bar=BAR)
    report.figure(f"sync_{domains}_seconds", statistics.median(later), "s", bar=BAR)
    report.figure(f"sync_{domains}_finding_seconds", statistics.median(finding), "s", bar=BAR)


def _pass(db: Database, host: KvmHost, host_id: str, *, expected: int) -> float:
    """One visit from begin to commit, the VM rows due for nothing before; `expected` of them are woken by it."""
    token = uuid4().hex
    with db.write() as session:
        row = session.get_one(Host, host_id)
        row.claim_token = token
        for vm in session.exec(select(VM)).all():
            vm.due_at = None
    began = time.perf_counter()
    news = machines.visit(machines.HostView(host_id, "sync", HostState.ready, survey_due=False), host)
    with db.write() as session:
        held = outcomes.held(session, Host, host_id, token)
        host_outcomes.apply_host(session, held, news, INSTALLATION, timedelta(seconds=30))
    took = time.perf_counter() - began
    with db.read() as session:
        woken = sum(vm.due_at is not None for vm in session.exec(select(VM)).all())
        assert woken == expected, f"{woken} VMs were woken, {expected} should be"
    return took


def _rows(db: Database, domains: int) -> tuple[str, list[str]]:
    """A host, and so many VMs that run on it."""
    me = factories.admin(db)
    factories.make_image(db)
    host = factories.make_host(db, "sync", threads=domains)
    return host.id, [factories.make_vm(db, me, f"s{n}", host=host).id for n in range(domains)]


def _known_boot(db: Database, host_id: str, boot_id: str) -> None:
    """A host that seems to have booted anew wakes all its VMs; this one was seen before."""
    with db.write() as session:
        session.get_one(Host, host_id).boot_id = boot_id


def _ref(folder: Path, uri: str) -> HostRef:
    return HostRef("h1", "sync", uri, INSTALLATION, NetworkRef(Network.nat, "vmgpu"), "tcg", folder / "state")


def _test_driver(file: Path, ids: list[str]) -> str:
    """A node of libvirt's test driver on which these domains run."""
    domains = "".join(
        f"""
        <domain type="test">
          <name>s{number}-{vm_id[:8]}</name>
          <uuid>{vm_id}</uuid>
          <metadata><vmgpu:vm xmlns:vmgpu="{MARK}" installation="{INSTALLATION}" build="1"/></metadata>
          <memory unit="MiB">16</memory>
          <vcpu>1</vcpu>
          <os><type>hvm</type></os>
        </domain>"""
        for number, vm_id in enumerate(ids)
    )
    file.write_text(f"<node>{domains}</node>")
    uri = f"test://{file}"
    libvirt.open(uri).close()  # a file that libvirt cannot read is found here
    return uri


if __name__ == "__main__":
    sys.exit(figures.main("A sync pass over many domains.", measure, argparse.ArgumentParser()))
