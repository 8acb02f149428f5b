"""The work on claimed hosts, images and copies of images."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

from sqlmodel import select

from vmgpu import crash, host_outcomes, machines, outcomes, views
from vmgpu.errors import HostRefused, HostUnreachable, Reason, ReasonCode, Unavailable, VmgpuError, reason
from vmgpu.hypervisor import Progress
from vmgpu.hypervisor.doctor import advice
from vmgpu.models import VM, Host, HostState, Image, ImageCopy, ImageState, VMState, now
from vmgpu.work import Ground, Job

log = logging.getLogger(__name__)


def visit(job: Job, ground: Ground) -> None:
    """See how a host is, or leave it for good."""
    with ground.db.read() as session:
        host = session.get_one(Host, job.row_id)
        known = frozenset(session.exec(select(VM.id).where(VM.state != VMState.gone)).all())
    due = machines.survey_due(host.survey_asked, host.surveyed_at, now())
    view = machines.HostView(host.id, host.name, host.state, due, ground.installation, known)
    job.doing, job.since, job.until = "visit", now(), now() + 2 * ground.settings.host_call_timeout
    crash.point("host.begin")
    try:
        open_host = ground.hosts.get(host.id)
        if view.state is HostState.removing and _holds_vms(ground, host.id):
            # given up as lost, and it answers after all: then it is not
            news = machines.visit(view, open_host)
        elif view.state is HostState.removing:
            with ground.db.read() as session:
                images_there = session.exec(outcomes.images_on(host.id)).all()
            for image in images_there:
                open_host.drop_image(views.image_ref(image))
            open_host.withdraw()
            news = None
        else:
            news = machines.visit(view, open_host)
    except VmgpuError as bad:
        if view.state is HostState.removing:
            _forget(ground, job)
            return
        if isinstance(bad, Unavailable):
            raise
        _not_visited(ground, job, host, bad)
        return
    findings = _findings(job, ground, host) if news else None
    crash.point("host.worked")
    if news is None:
        _forget(ground, job)
        return
    with ground.db.write() as session:
        row = outcomes.held(session, Host, job.row_id, job.token)
        if row.state is HostState.removing and view.state is not HostState.removing:
            outcomes.let_go(row, now())
            return
        host_outcomes.examined(row, findings)
        if twin := host_outcomes.twin(session, row, news):
            detail = f"it is the machine that is host {twin} already, at another address"
            hint = f"Take this one away again: vmgpu host remove {row.name}."
            because = reason(ReasonCode.survey_failed, host=row.name, detail=detail, hint=hint)
            host_outcomes.host_away(session, row, because, again=timedelta(seconds=30))
            return
        host_outcomes.apply_host(session, row, news, ground.installation, ground.settings.sync_every)
    crash.point("host.applied")


def _not_visited(ground: Ground, job: Job, host: Host, bad: VmgpuError) -> None:
    """Write why a visit failed; the doctor is asked all the same, since it is then that people ask for him."""
    findings = _findings(job, ground, host)
    silent = isinstance(bad, HostUnreachable) and host.surveyed_at is not None
    code = ReasonCode.host_unreachable if silent else ReasonCode.survey_failed
    hint = (advice(bad.message) if isinstance(bad, HostRefused) else "") or bad.hint
    because = reason(code, host=host.name, detail=bad.message, hint=hint)
    again = timedelta(seconds=5 if silent else 30)
    with ground.db.write() as session:
        row = outcomes.held(session, Host, job.row_id, job.token)
        host_outcomes.examined(row, findings)
        if silent or host.surveyed_at is None:
            host_outcomes.host_away(session, row, because, again=again)
        else:
            host_outcomes.survey_refused(session, row, because, again=again)


def _findings(job: Job, ground: Ground, host: Host) -> machines.Findings | None:
    """The doctor's answer, where somebody waits for it."""
    if host.doctor_asked is None or not machines.doctor_due(host.doctor_asked, host.doctor_at):
        return None
    job.goes_on()  # a slow survey took none of the doctor's time
    return machines.checkup(lambda: ground.hosts.get(host.id), host.doctor_asked)


def _holds_vms(ground: Ground, host_id: str) -> bool:
    with ground.db.read() as session:
        held = select(VM.id).where(VM.host_id == host_id, VM.state != VMState.gone)
        return session.exec(held).first() is not None


def _forget(ground: Ground, job: Job) -> None:
    with ground.db.write() as session:
        host_outcomes.forget_host(session, outcomes.held(session, Host, job.row_id, job.token))
    ground.hosts.drop(job.row_id)


def bring_image(job: Job, ground: Ground) -> None:
    """Copy an image into a host's pool."""
    with ground.db.read() as session:
        copy = session.get_one(ImageCopy, job.row_id)
        image = session.get_one(Image, copy.image_id)
        host = session.get_one(Host, copy.host_id)
    view = machines.CopyView(views.image_ref(image), image.name, host.name, ground.settings.images_dir / image.volume)
    job.doing, job.since, job.until = "copy", now(), now() + timedelta(minutes=30)
    failed = None
    crash.point("copy.begin")
    try:
        machines.bring(view, ground.hosts.get(host.id), _copy_progress(ground, job, copy))
    except HostUnreachable as bad:
        ground.away(host.id, bad)
        ground.drop(job, timedelta(seconds=10))
        return
    except Unavailable:
        raise
    except VmgpuError as bad:
        failed = _not_copied(image, host, bad)
    crash.point("copy.worked")
    with ground.db.write() as session:
        held = outcomes.held_copy(session, image.id, host.id, job.row_id, job.token)
        outcomes.apply_copy(session, held, failed=failed)
    crash.point("copy.applied")


def _not_copied(image: Image, host: Host, bad: VmgpuError) -> Reason:
    """Why a copy failed: by something at the host that the doctor knows, else the image is to blame."""
    if cure := advice(bad.message):
        return reason(ReasonCode.host_error, host=host.name, detail=bad.message, hint=cure)
    return reason(ReasonCode.image_broken, image=image.name, detail=bad.message)


def _copy_progress(ground: Ground, job: Job, copy: ImageCopy) -> Progress:
    said = [0]

    def tell(percent: int) -> None:
        if percent >= said[0] + 5:
            said[0] = percent
            job.goes_on()
            with ground.db.write() as session:
                held = outcomes.held_copy(session, copy.image_id, copy.host_id, job.row_id, job.token)
                outcomes.copy_at(session, held, percent)

    return tell


def tend_image(job: Job, ground: Ground) -> None:
    """Generalise a captured image, or delete one."""
    with ground.db.read() as session:
        image = session.get_one(Image, job.row_id)
        source = session.get(VM, image.source_vm) if image.source_vm else None
        host = session.get(Host, source.host_id) if source and source.host_id else None
    path = ground.settings.images_dir / image.volume
    job.doing = image.state
    job.until = now() + timedelta(hours=1)
    if image.state is ImageState.deleting:
        _delete_image(ground, job, image, path)
        return
    if image.state is not ImageState.generalising:
        ground.drop(job, timedelta(days=1))
        return
    accel = str((host.facts or {}).get("accel", "tcg")) if host else "tcg"
    view = machines.ImageView(image.id, image.name, image.state, path, accel, tuple(image.logins))
    crash.point("image.begin")
    news = machines.clean(view, simulated=image.simulated)
    crash.point("image.worked")
    with ground.db.write() as session:
        outcomes.apply_image(session, outcomes.held_image(session, job.row_id, job.token), news)
    crash.point("image.applied")


def _delete_image(ground: Ground, job: Job, image: Image, path: Path) -> None:
    """Remove every host's copy, then the master, then the rows; a host that does not answer is waited for."""
    with ground.db.read() as session:
        copies = session.exec(outcomes.copies_of(image.id)).all()
    for copy in copies:
        try:
            ground.hosts.get(copy.host_id).drop_image(views.image_ref(image))
        except HostUnreachable as bad:
            ground.away(copy.host_id, bad)
            ground.drop(job, timedelta(seconds=15))
            return
        except HostRefused as bad:
            log.warning("image %s: %s", image.name, bad.message)
            ground.drop(job, timedelta(seconds=30))
            return
    path.unlink(missing_ok=True)
    with ground.db.write() as session:
        outcomes.forget_image(session, outcomes.held(session, Image, job.row_id, job.token))
