"""Figures for Prometheus: of requests as they pass, of rows when somebody looks. Numbers and kinds only, no names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlmodel import col, func, select

from vmgpu.db import Database
from vmgpu.models import VM, Gpu, GpuState, Host, HostState, Slice, VMState, Wanted

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)


class Metrics:
    """The figures of one application."""

    def __init__(self, db: Database) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Rows(db))
        self._requests = Counter(
            "vmgpu_http_requests", "Answered requests", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "vmgpu_http_seconds",
            "Time to the first byte of the answer",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        known = method if method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD") else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    def text(self) -> bytes:
        """All figures in Prometheus' text form."""
        return generate_latest(self._registry)


class _Rows(Collector):
    def __init__(self, db: Database) -> None:
        self._db = db

    def collect(self) -> Iterator[Metric]:
        """What the rows say now."""
        with self._db.read() as session:
            vms = session.exec(select(VM.state, func.count()).where(VM.state != VMState.gone).group_by(VM.state)).all()
            hosts = session.exec(select(Host.state, func.count()).group_by(Host.state)).all()
            gpus = session.exec(
                select(Gpu.model, Gpu.state, Gpu.emulated, func.count()).group_by(
                    Gpu.model, Gpu.state, col(Gpu.emulated)
                )
            ).all()
            slices = session.exec(
                select(Gpu.model, Slice.profile, func.count())
                .join(Gpu, col(Gpu.id) == Slice.gpu_id)
                .group_by(Gpu.model, Slice.profile)
            ).all()
            waiting = session.exec(
                select(func.count()).select_from(VM).where(VM.state == VMState.pending, VM.wanted == Wanted.running)
            ).one()
        of_vms: dict[VMState, int] = {state: 0 for state in VMState if state is not VMState.gone}
        of_vms.update({VMState(state): n for state, n in vms})
        of_hosts: dict[HostState, int] = dict.fromkeys(HostState, 0)
        of_hosts.update({HostState(state): n for state, n in hosts})
        cards = [((model, GpuState(state).value, str(emulated).lower()), n) for model, state, emulated, n in gpus]
        pieces = [((model, profile), n) for model, profile, n in slices]
        yield _gauge("vmgpu_vms", "VMs", ["state"], [((state.value,), n) for state, n in of_vms.items()])
        yield GaugeMetricFamily("vmgpu_queue_length", "VMs that wait for a place", value=waiting)
        yield _gauge("vmgpu_hosts", "Hosts", ["state"], [((state.value,), n) for state, n in of_hosts.items()])
        yield _gauge("vmgpu_gpus", "Cards", ["model", "state", "emulated"], cards)
        yield _gauge("vmgpu_slices", "Pieces of cards that VMs hold", ["model", "profile"], pieces)


def _gauge(name: str, what: str, labels: list[str], values: Iterable[tuple[Sequence[str], int]]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=labels)
    for kinds, number in values:
        family.add_metric(kinds, number)
    return family
