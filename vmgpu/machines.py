"""The steps of hosts, images and image copies. As with VMs, each is safe to run twice and opens no session."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from vmgpu.errors import Reason, ReasonCode, Unavailable, VmgpuError, reason
from vmgpu.hypervisor import DomainSeen, Held, HostFacts, Hypervisor, ImageRef, Progress
from vmgpu.hypervisor.doctor import Check, unseen
from vmgpu.hypervisor.generalise import generalise
from vmgpu.models import HostState, ImageState, now

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostView:
    """A host as its step sees it."""

    id: str
    name: str
    state: HostState
    survey_due: bool
    installation: str = ""
    known: frozenset[str] = frozenset()  # the ids of all VMs that have a row


@dataclass(frozen=True)
class HostNews:
    """What a visit to a host brought: it answers, what runs there, and a survey where one was due.

    `held`: what each orphan there has of the cards, by the domain's id.
    """

    boot_id: str
    domains: tuple[DomainSeen, ...]
    facts: HostFacts | None = None
    held: Mapping[str, tuple[Held, ...]] = field(default_factory=dict)


def visit(view: HostView, host: Hypervisor) -> HostNews:
    """See that the host answers and what runs there; survey it when that is due."""
    facts = host.survey() if view.survey_due else None
    boot_id, domains = facts.boot_id if facts else host.boot_id(), host.domains()
    held = {each.id: host.holds(each.id) for each in orphans(domains, view.installation, view.known)}
    return HostNews(boot_id, domains, facts, held)


@dataclass(frozen=True)
class Findings:
    """What the doctor found at a host, for all who had asked by then."""

    checks: tuple[Check, ...]
    at: datetime


def checkup(host: Callable[[], Hypervisor], asked: datetime) -> Findings:
    """Have the doctor look; a host that nobody could look at is one finding. `asked`: the wish that this answers."""
    at = max(now(), asked)  # the clock of who asked may be ahead of ours
    try:
        return Findings(host().checkup(), at)
    except Unavailable:
        raise
    except VmgpuError as bad:
        return Findings((unseen(bad.message, bad.hint),), at)
    except Exception as bad:  # a host whose facts the doctor does not bear must be visited all the same
        log.exception("the doctor")
        return Findings((unseen(f"{type(bad).__name__}: {bad}", "The service's log says more; report it."),), at)


def doctor_due(asked: datetime | None, answered: datetime | None) -> bool:
    """Whether somebody waits for the doctor."""
    return asked is not None and (answered is None or asked > answered)


@dataclass(frozen=True)
class CopyView:
    """An image on its way to one host."""

    image: ImageRef
    image_name: str
    host_name: str
    source: Path


def bring(view: CopyView, host: Hypervisor, progress: Progress) -> None:
    """Copy the master into the host's pool unless it lies there whole."""
    if not host.has_image(view.image):
        host.ensure_image(view.image, view.source, progress=progress)


@dataclass(frozen=True)
class ImageView:
    """An image as its step sees it. `logins`: accounts whose keys must go from a capture."""

    id: str
    name: str
    state: ImageState
    path: Path
    accel: str
    logins: tuple[str, ...]


@dataclass(frozen=True)
class ImageNews:
    """What became of an image: its new state, and what to note on its row."""

    state: ImageState
    changes: Mapping[str, Any] = field(default_factory=dict)
    because: Reason | None = None


def clean(view: ImageView, *, simulated: bool) -> ImageNews:
    """Remove from a captured copy all that belongs to one machine or one person's access; then it is ready."""
    try:
        if not simulated:
            generalise(view.path, accel=view.accel, users=view.logins)
    except FileNotFoundError:
        # an earlier try failed, removed it, and was killed before it could say why
        return ImageNews(ImageState.failed, because=reason(ReasonCode.capture_failed, detail="the copy is gone"))
    except VmgpuError as bad:
        view.path.unlink(missing_ok=True)
        return ImageNews(ImageState.failed, because=reason(ReasonCode.capture_failed, detail=bad.message))
    return ImageNews(ImageState.ready, {"sha256": digest(view.path), "size_bytes": view.path.stat().st_size})


def digest(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def facts_as(facts: HostFacts) -> dict[str, Any]:
    """A survey in the form that rows keep; its cards have rows of their own."""
    kept = asdict(facts)
    kept.pop("gpus")
    return kept


def gone_by_hand(expected_running: set[str], expected_off: set[str], seen: tuple[DomainSeen, ...]) -> set[str]:
    """Ids of VMs whose domain is not as its row says: off, halted or gone while running, up while off."""
    running = {domain.id for domain in seen if domain.power == "running"}
    up = running | {domain.id for domain in seen if domain.power == "paused"}
    return (expected_running - running) | (expected_off & up)


def orphans(seen: Iterable[DomainSeen], installation: str, known: Collection[str]) -> list[DomainSeen]:
    """Domains that carry our installation's id and have no row: listed, never deleted."""
    return sorted((d for d in seen if d.installation == installation and d.id not in known), key=lambda d: d.name)


SURVEY_EVERY = timedelta(minutes=10)


def survey_due(asked: datetime | None, surveyed: datetime | None, at: datetime) -> bool:
    """Whether a survey is due: never made, asked for since, or old."""
    if surveyed is None or (asked is not None and asked > surveyed):
        return True
    return at - surveyed > SURVEY_EVERY
