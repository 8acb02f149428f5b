"""The licence of a vGPU: when it is read in the guest, and what it means that the driver there says."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from vmgpu import guest, specs
from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.steps import Nap, World
from vmgpu.views import VMView

# After the boot: at once; when the daemon had its time to ask the server; when a vGPU without a licence has begun to
# slow down (20 minutes, NVIDIA AI Enterprise's guide on licensing). From then on rarely.
_AFTER_BOOT = (timedelta(0), timedelta(minutes=2), timedelta(minutes=25))
_RARELY = timedelta(hours=6)
_AGAIN = timedelta(minutes=5)  # where the guest did not answer


def read(vm: VMView, world: World) -> Nap:
    """Whether a vGPU has its licence, at the moments when that may have changed; a running VM never ends by it."""
    due, before = next_look(vm), verdict(vm)
    if due is None:
        return Nap(None)
    if due > world.now:
        return Nap((due - world.now).total_seconds(), before)
    try:
        state = guest.licence(specs.door(vm, world)) if vm.image.has_init else None
    except (guest.NotYet, guest.CheckFailed):
        return Nap(_AGAIN.total_seconds(), before)
    vm = replace(vm, licence=state, licence_at=world.now)
    found, again = verdict(vm), next_look(vm)
    seconds = (again - world.now).total_seconds() if again else None
    told = "unlicensed" if found and found != before else ""
    return Nap(seconds, found, {"licence": state, "licence_at": world.now}, news=told)


def next_look(vm: VMView) -> datetime | None:
    """When to read it next; None where there is nothing to read."""
    if vm.licensing is None or vm.ran_at is None:
        return None
    if vm.licence_at is None or vm.licence_at < vm.ran_at:
        return vm.ran_at
    for after in _AFTER_BOOT[1:]:
        if vm.licence_at < vm.ran_at + after:
            return vm.ran_at + after
    return vm.licence_at + _RARELY


def verdict(vm: VMView) -> Reason | None:
    """What is wrong with what the guest's driver said last; None while that is nothing, or not known yet.

    A guest that has only just booted is given the time that its daemon needs.
    """
    state = vm.licence
    if state is None or vm.licensing is None or is_licensed(state):
        return None
    if vm.licence_at is None or vm.ran_at is None or vm.licence_at < vm.ran_at + _AFTER_BOOT[1]:
        return None
    ours = vm.licensing.token or vm.licensing.server
    code = ReasonCode.vgpu_unlicensed if ours else ReasonCode.vgpu_licence_unset
    return reason(code, state=state, host=vm.host_name)


def is_licensed(state: str) -> bool:
    """Whether the driver's words mean a licence: `Licensed (Expiry: …)`."""
    return state.casefold().startswith("licensed")
