"""The table of Reasons: code, the sentence a person reads, and the cure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ReasonCode(StrEnum):
    """Why something waits, failed or was refused; stored on rows and events, worded only at the edge."""

    # why a VM waits
    no_slice_free = "no_slice_free"
    cut_otherwise = "cut_otherwise"
    group_held = "group_held"
    group_kept_back = "group_kept_back"
    no_gpu_of_kind = "no_gpu_of_kind"
    no_host_cpu = "no_host_cpu"
    no_host_memory = "no_host_memory"
    no_disk_space = "no_disk_space"
    no_host = "no_host"
    host_draining = "host_draining"
    host_unreachable = "host_unreachable"
    host_unsurveyed = "host_unsurveyed"
    disk_elsewhere = "disk_elsewhere"
    card_quarantined = "card_quarantined"
    card_excluded = "card_excluded"
    host_excluded = "host_excluded"
    other_kind = "other_kind"
    never_fits = "never_fits"
    # what a step is doing or waiting for
    carving = "carving"
    uploading_image = "uploading_image"
    waiting_address = "waiting_address"
    waiting_ssh = "waiting_ssh"
    waiting_guest = "waiting_guest"
    waiting_cloud_init = "waiting_cloud_init"
    checking_card = "checking_card"
    shutting_down = "shutting_down"
    copying_disk = "copying_disk"
    generalising = "generalising"
    image_not_ready = "image_not_ready"
    # why something failed
    no_address = "no_address"
    seed_not_found = "seed_not_found"
    cloud_init_error = "cloud_init_error"
    cloud_init_degraded = "cloud_init_degraded"
    card_missing = "card_missing"
    card_wrong_memory = "card_wrong_memory"
    card_unassigned = "card_unassigned"
    cuda_failed = "cuda_failed"
    driver_failed = "driver_failed"
    ssh_no_answer = "ssh_no_answer"
    ssh_wrong_host_key = "ssh_wrong_host_key"
    ssh_key_refused = "ssh_key_refused"
    guest_powered_off = "guest_powered_off"
    guest_crashed = "guest_crashed"
    domain_gone = "domain_gone"
    host_given_up = "host_given_up"
    disk_gone = "disk_gone"
    step_too_long = "step_too_long"
    host_error = "host_error"
    call_hangs = "call_hangs"
    start_too_long = "start_too_long"
    survey_failed = "survey_failed"
    image_broken = "image_broken"
    image_not_on_host = "image_not_on_host"
    capture_failed = "capture_failed"
    no_room_for_copy = "no_room_for_copy"
    card_held_open = "card_held_open"
    card_is_console = "card_is_console"
    group_not_viable = "group_not_viable"
    card_unhealthy = "card_unhealthy"
    card_other_mode = "card_other_mode"
    # what happened to a VM
    lease_warning = "lease_warning"
    lease_ended = "lease_ended"
    grace_warning = "grace_warning"
    grace_ended = "grace_ended"
    keep_ended = "keep_ended"
    stopped_by_guest = "stopped_by_guest"
    paused = "paused"
    vgpu_unlicensed = "vgpu_unlicensed"
    vgpu_licence_unset = "vgpu_licence_unset"
    restarted_after_host = "restarted_after_host"
    retried_elsewhere = "retried_elsewhere"
    asked = "asked"


# code → (what happened and what it means, what to do). Names in braces are the Reason's arguments.
_WORDS: Mapping[ReasonCode, tuple[str, str]] = {
    ReasonCode.no_slice_free: (
        "{places:The one place|Both places|All # places} for {profile} on {cards:the one card|# cards} {places:is|are} "
        "taken; it starts by itself when one is released",
        "Wait, release a VM that is no longer needed, or ask for a smaller share.",
    ),
    ReasonCode.cut_otherwise: (
        "{cards:# card|# cards} could hold {profile}, and {cards:is|are} cut in pieces of {pieces} until the last of "
        "{held:# VM|# VMs} there ends: a card takes one size at a time",
        "Wait: then it starts by itself. Or ask for that size.",
    ),
    ReasonCode.group_held: (
        "{cards:# card is|# cards are} free, but {cards:shares|each shares} its IOMMU group with one that a VM has "
        "({mates}): a group goes to one VM at a time",
        "Wait: it starts by itself when that VM gives its card back.",
    ),
    ReasonCode.group_kept_back: (
        "Card {gpu} shares IOMMU group {group} with card {mate}, which is {how}: the host would lose both",
        "An admin gives that one out as well (vmgpu gpu offer {mate}), or moves one of them to another slot.",
    ),
    ReasonCode.no_gpu_of_kind: (
        "No card that can be used now offers {wish}",
        "Ask an admin to add a card or to end the drain of a host that has one.",
    ),
    ReasonCode.no_host_cpu: (
        "{needed} vCPUs are asked for, the most that is free on one host is {free}",
        "Wait, or ask for fewer vCPUs; an admin can raise the host's overcommit.",
    ),
    ReasonCode.no_host_memory: (
        "{needed_mib} MiB of memory are asked for, the most that is free on one host is {free_mib} MiB",
        "Wait, or ask for less memory; memory is never promised twice.",
    ),
    ReasonCode.no_disk_space: (
        "{needed_gib} GiB of disk are needed (with its image, where that is new), {free_gib} GiB are free on the "
        "host with the most room",
        "Release VMs or delete images that are no longer needed, or add disk to a host.",
    ),
    ReasonCode.no_host: ("There is no host yet", "Ask an admin to add one: vmgpu host add NAME URI."),
    ReasonCode.host_draining: (
        "Host {host} takes no new VMs: it is being drained",
        "Ask an admin to end the drain: vmgpu host drain {host} --off.",
    ),
    ReasonCode.host_unreachable: (
        "Host {host} does not answer ({detail})",
        "Its VMs keep their state and slices until it answers. Check its network and its libvirtd.",
    ),
    ReasonCode.host_unsurveyed: ("Host {host} has not been surveyed yet", "Wait for the first survey to end."),
    ReasonCode.disk_elsewhere: (
        "Its disk lies on host {host}, where there is no room now: {detail}",
        "Wait until there is room on that host.",
    ),
    ReasonCode.card_quarantined: (
        "Card {gpu} is quarantined: {detail}",
        "An admin checks the card, then runs: vmgpu gpu clear {gpu}.",
    ),
    ReasonCode.card_excluded: ("Card {gpu} failed this VM before and is not tried again", "Add or free another card."),
    ReasonCode.host_excluded: ("Host {host} failed this VM before and is not tried again", "Add or free another host."),
    ReasonCode.other_kind: (
        "Its image does not run there ({hosts}): simulated images run on simulated hosts only, and real ones "
        "there only while there is no real host",
        "Choose another image, or ask an admin to add a host that runs this one.",
    ),
    ReasonCode.never_fits: (
        "No host could ever hold this, even when empty: {detail}",
        "The nearest that fits: {nearest}.",
    ),
    ReasonCode.carving: ("Cutting {profile}", ""),
    ReasonCode.uploading_image: ("Copying image {image} to host {host}: {percent} %", ""),
    ReasonCode.waiting_address: ("Waiting for the guest's address", ""),
    ReasonCode.waiting_ssh: ("Waiting for SSH at {address}", ""),
    ReasonCode.waiting_guest: ("Waiting for the guest to start up", ""),
    ReasonCode.waiting_cloud_init: ("Waiting for cloud-init to end", ""),
    ReasonCode.checking_card: ("Looking for the card inside the guest", ""),
    ReasonCode.shutting_down: ("Waiting for the guest to shut down", ""),
    ReasonCode.copying_disk: ("Copying the disk: {percent} %", ""),
    ReasonCode.generalising: ("Removing what belongs to one machine from the copy", ""),
    ReasonCode.image_not_ready: ("Image {image} is not ready yet", "Wait until its capture or import has ended."),
    ReasonCode.no_address: (
        "The guest has no address after {seconds} s",
        "Look at the console: vmgpu vm console {vm}. "
        "Network {network} must give out DHCP leases and the image must ask for one.",
    ),
    ReasonCode.seed_not_found: (
        "cloud-init found no seed: the image does not see its second virtio disk",
        "Use an image whose kernel has virtio-blk and whose cloud-init allows NoCloud.",
    ),
    ReasonCode.cloud_init_error: (
        "cloud-init ended with an error: {detail}",
        "Look at /var/log/cloud-init.log in the guest, or at the console: vmgpu vm console {vm}.",
    ),
    ReasonCode.cloud_init_degraded: ("cloud-init is done, with warnings: {detail}", "The VM is usable."),
    ReasonCode.card_missing: (
        "The guest does not show its card ({wanted})",
        "An admin looks at the host's log of this VM and at the card's IOMMU group.",
    ),
    ReasonCode.card_wrong_memory: (
        "The card has {seen_mib} MiB in the guest, {wanted_mib} MiB were promised",
        "An admin compares the card's layout with what the host shows.",
    ),
    ReasonCode.card_unassigned: (
        "The guest sees the card, but gave no address range to BAR {bar}",
        "The guest's 64-bit MMIO window is too small for this card.",
    ),
    ReasonCode.cuda_failed: (
        "The CUDA smoke test failed: {detail}",
        "The profile or the image's driver cannot run CUDA.",
    ),
    ReasonCode.driver_failed: (
        "The guest sees its card, but the driver in it does not work: {detail}",
        "Use an image whose driver supports this card and this way of giving it out.",
    ),
    ReasonCode.ssh_no_answer: (
        "SSH at {address} did not answer within {seconds} s: {detail}",
        "Look at the console: vmgpu vm console {vm}.",
    ),
    ReasonCode.ssh_wrong_host_key: (
        "Another machine answers at {address}: its host key is not the one we made",
        "Look for a second machine with this address on the host's network.",
    ),
    ReasonCode.ssh_key_refused: (
        "The guest answers with the right host key but refuses our login",
        "cloud-init did not create our account; look at the console: vmgpu vm console {vm}.",
    ),
    ReasonCode.guest_powered_off: (
        "The guest powered itself off while it was being started",
        "Look at the console: vmgpu vm console {vm}.",
    ),
    ReasonCode.guest_crashed: (
        "The virtual machine crashed on its host ({detail})",
        "Look at the host's log of this VM; start it again.",
    ),
    ReasonCode.domain_gone: (
        "The host no longer knows this VM: it was undefined by hand; its slices went back, its disk is kept",
        "Start it to define it again: vmgpu vm start {vm}. Or release it.",
    ),
    ReasonCode.host_given_up: ("Its host {host} was given up, with all that lay there", ""),
    ReasonCode.disk_gone: ("Its disk is no longer on host {host}", "Reset the VM for a fresh disk, or release it."),
    ReasonCode.step_too_long: (
        "{state} took longer than {seconds} s; the last thing seen: {detail}",
        "Look at the console: vmgpu vm console {vm}. Start it to try again.",
    ),
    ReasonCode.host_error: ("Host {host} refused: {detail}", "{hint}"),
    ReasonCode.call_hangs: (
        "A call to host {host} has not returned for {seconds} s",
        "Restart libvirtd on that host; other hosts go on.",
    ),
    ReasonCode.start_too_long: (
        "The host had not started it after {seconds} s; the start was broken off and nothing of it is left running",
        "With a real card all of its {memory_gib} GiB of memory are pinned first: hugepages make that quicker, and "
        "VMGPU_START_TIMEOUT_PER_GIB gives it longer. Else an admin looks at the host's load and its log of this VM.",
    ),
    ReasonCode.survey_failed: ("The survey of host {host} failed: {detail}", "{hint}"),
    ReasonCode.image_not_on_host: (
        "Image {image} is no longer on host {host}",
        "It is copied there again; the VM goes on by itself.",
    ),
    ReasonCode.image_broken: ("Image {image} cannot be used: {detail}", "Import or capture it again."),
    ReasonCode.capture_failed: ("The capture failed: {detail}", "The VM is as it was. Take the snapshot again."),
    ReasonCode.no_room_for_copy: (
        "A copy of the disk may need {needed_mib} MiB, {free_mib} MiB are free in {where}: the VM was left as it is",
        "Delete images that are no longer needed, or add disk there; then take the snapshot again.",
    ),
    ReasonCode.card_held_open: (
        "Card {gpu} is held open by process {pid} ({command})",
        "End that process, or keep the card for the host.",
    ),
    ReasonCode.card_is_console: (
        "Card {gpu} is the host's console (boot_vga)",
        "Choose another card, or make another one the firmware's primary display.",
    ),
    ReasonCode.group_not_viable: (
        "IOMMU group {group} of card {gpu} also holds {culprit}, which the host needs",
        "Move the card to another slot; groups follow the slots.",
    ),
    ReasonCode.card_unhealthy: (
        "Card {gpu} does not answer: {detail}",
        "Power-cycle the host; the card is not given out before.",
    ),
    ReasonCode.card_other_mode: (
        "Card {gpu} is given out as {mode} and has come back as {now}",
        "Somebody, or a reboot, has changed it. Bring it back on the host and survey again, or give it out as it is "
        "(vmgpu gpu offer {gpu} --mode {now}); then: vmgpu gpu clear {gpu}.",
    ),
    ReasonCode.lease_warning: ("The lease ends in {left}", "Extend it: vmgpu vm extend {vm} 4h."),
    ReasonCode.lease_ended: (
        "The lease ended: the VM was stopped and its slices went back; the disk stays until {delete_at}",
        "Extend and start it again before then: vmgpu vm extend {vm} 4h.",
    ),
    ReasonCode.grace_warning: (
        "The disk is deleted in {left}",
        "Extend the lease to keep it: vmgpu vm extend {vm} 4h.",
    ),
    ReasonCode.grace_ended: ("The grace time ended: the VM and its disk were released", ""),
    ReasonCode.keep_ended: (
        "It was stopped for {minutes} minutes: its slices went back to those who wait",
        "Start it to queue for new ones.",
    ),
    ReasonCode.stopped_by_guest: (
        "The guest was shut off ({detail}): taken as a stop",
        "Start it: vmgpu vm start {vm}.",
    ),
    ReasonCode.paused: (
        "The host has halted it ({detail}): nothing in it moves",
        "An admin makes room in the host's pool, or looks at its log of this VM; then: virsh resume.",
    ),
    ReasonCode.vgpu_unlicensed: (
        "Its vGPU has no licence (its driver says: {state}): 20 minutes after its boot it slows down to a crawl",
        "The guest must reach the licence server on ports 443 and 80, and its clock must be right; journalctl -u "
        "nvidia-gridd in the guest says more. A newer token: vmgpu host set {host} --licence-token FILE, then stop "
        "and start the VM. With a licence the vGPU is at full speed at once.",
    ),
    ReasonCode.vgpu_licence_unset: (
        "Its vGPU has no licence (its driver says: {state}): 20 minutes after its boot it slows down to a crawl",
        "An admin gives host {host} the token of the licence server: vmgpu host set {host} --licence-token FILE; then "
        "stop and start the VM.",
    ),
    ReasonCode.restarted_after_host: ("It was found off after {detail} and is started again", ""),
    ReasonCode.retried_elsewhere: ("It failed ({detail}) and is tried once more elsewhere", ""),
    ReasonCode.asked: ("{who} asked for: {what}", ""),
}


class _Number(int):
    """A number whose format is its words for 1, perhaps for 2, and for more: `# card|# cards`; # is the number."""

    def __format__(self, words: str) -> str:
        if "|" not in words:
            return format(int(self), words)
        one, *two, more = words.split("|")
        return {1: one, 2: (two or [more])[0]}.get(int(self), more).replace("#", str(int(self)))


class _Blank(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        found = self.get(key, "?")
        return _Number(found) if type(found) is int else _Unknown() if found == "?" else found


class _Unknown(str):
    """What a row does not say: a question mark, whatever format is asked for."""

    def __new__(cls) -> _Unknown:
        return super().__new__(cls, "?")

    def __format__(self, words: str) -> str:
        return words.rpartition("|")[2].replace("#", "?") if "|" in words else "?"


@dataclass(frozen=True)
class Reason:
    """A code with plain arguments: what rows keep; words are made when somebody reads it."""

    code: ReasonCode
    args: Mapping[str, Any] = field(default_factory=dict)

    def sentence(self) -> str:
        """What happened and what it means."""
        return _WORDS[self.code][0].format_map(_Blank(self.args))

    def cure(self) -> str:
        """What to do about it; empty where nothing is to be done."""
        return _WORDS[self.code][1].format_map(_Blank(self.args))

    def as_dict(self) -> dict[str, Any]:
        """The form rows and events keep."""
        return {"code": self.code.value, "args": dict(self.args)}

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Reason | None:
        """The Reason that `as_dict` stored, or None."""
        return cls(ReasonCode(stored["code"]), dict(stored["args"])) if stored else None


def reason(code: ReasonCode, **args: Any) -> Reason:
    """A Reason with its arguments by name."""
    return Reason(code, args)
