"""What the work on any claimed row stands on, whatever its kind."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from vmgpu import host_outcomes, outcomes
from vmgpu.connections import OpenHosts
from vmgpu.db import HOLD, Database, setting
from vmgpu.errors import HostUnreachable, ReasonCode, VmgpuError, reason
from vmgpu.models import Claimed, Host, now
from vmgpu.settings import Settings

log = logging.getLogger(__name__)


@dataclass
class Job:
    """One claimed row at work in a thread. `until`: when it is given up."""

    kind: type[Claimed]
    row_id: str
    token: str
    lane: str
    since: datetime = field(default_factory=now)
    until: datetime | None = None
    doing: str = ""
    given_up: bool = False

    def goes_on(self) -> None:
        """It has just shown progress: its time begins anew."""
        if self.until:
            self.since, self.until = now(), now() + (self.until - self.since)


class Ground:
    """The database, the settings, the open hosts, and what this installation knows of itself."""

    def __init__(self, db: Database, settings: Settings, hosts: OpenHosts, stopping: threading.Event) -> None:
        self.db, self.settings, self.hosts, self.stopping = db, settings, hosts, stopping
        self.installation = self.our_key = self.our_public_key = ""

    def learn(self) -> None:
        """Read what the first start noted."""
        with self.db.read() as session:
            self.installation = setting(session, "installation") or ""
            self.our_key = setting(session, "ssh_private") or ""
            self.our_public_key = setting(session, "ssh_public") or ""

    def drop(self, job: Job, again: timedelta) -> None:
        """End a claim whose step broke, and try again later."""
        try:
            with self.db.write() as session:
                outcomes.let_go(outcomes.held(session, job.kind, job.row_id, job.token), now() + again)
        except outcomes.TakenOver:
            log.info("%s %s: the claim is no longer ours", job.kind.__name__, job.row_id)
        except VmgpuError as bad:
            log.warning("%s %s: its claim runs out by itself: %s", job.kind.__name__, job.row_id, bad.message)

    def away(self, host_id: str | None, bad: HostUnreachable) -> None:
        """A step met a host that does not answer: note it, and look at the host soon."""
        if host_id is None:
            return
        with self.db.write() as session:
            host = session.get(Host, host_id, with_for_update=HOLD)
            if host is not None and host.claim_token is None:
                because = reason(ReasonCode.host_unreachable, host=host.name, detail=bad.message)
                host_outcomes.host_away(session, host, because, again=timedelta(seconds=1))
