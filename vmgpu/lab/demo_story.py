"""The story that the demo plays, in the order in which it is told. Each step raises where it is not seen."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from vmgpu.lab.demo_api import Api, Problem, Refused
from vmgpu.lab.demo_screen import Row, Screen
from vmgpu.lab.demo_ssh import LOOK, Keyring, facts_in
from vmgpu.lab.demo_watch import Seen, Watch
from vmgpu.service.shapes import GpuOut, VMOut
from vmgpu.units import say_count

HOST, MODEL = "local", "A100-40GB"
PERSON = "student"
FLAVOR, WHOLE_FLAVOR = "half-a100", "whole-card"
FIRST, SECOND, THIRD, CLONE, ON_CARD = "s1", "s2", "s3", "clone", "whole"
SNAPSHOT = "demo/prepared:v1"


@dataclass(frozen=True)
class Stage:
    """Where the story is played: on a real hypervisor with a guest image, or on a simulated host, where nobody logs in.

    `patience` is the time that one boot may take, `every` how often things are looked at, both in seconds.
    """

    uri: str
    emulate: tuple[str, ...]
    image: str
    image_file: Path | None
    patience: float
    every: float

    @property
    def real(self) -> bool:
        """Whether there are guests to log in to."""
        return self.image_file is not None


class Story:
    """One run of it. `made` collects the ids of all VMs and images, for whoever looks at what is left of them."""

    def __init__(self, stage: Stage, screen: Screen, admin: Api, student: Api, keyring: Keyring) -> None:
        self._stage, self._screen = stage, screen
        self._admin, self._student, self._keyring = admin, student, keyring
        self._watch = Watch(student, screen, every=stage.every)
        self._written = secrets.token_hex(8)
        self._facts: dict[str, dict[str, list[str]]] = {}
        self.made: set[str] = set()

    def play(self, *, gpu: str | None) -> None:
        """All of it. Raises VmgpuError at the first thing that is not as it should be."""
        step = self._screen.step
        self._clear_the_stage()
        with step(f"This machine becomes host {HOST}, with an emulated {MODEL}"):
            self._add_host()
        if gpu:
            with step(f"The real card {gpu} is offered whole"):
                card = self._offer(gpu)
        with step(f"Image {self._stage.image}"):
            self._bring_image()
        with step(f"{PERSON} has a key; 1 fGPU is half a card"):
            self._make_sizes()
        with step("One request for three VMs of 1 fGPU each: two find a place, the third waits"):
            self._request_three()
        with step(f"{FIRST} and {SECOND} run"):
            self._two_run()
        with step(f"{SECOND} is released; {THIRD} gets its place by itself"):
            self._release_one()
        with step(f"{FIRST} writes a file and becomes the private image {SNAPSHOT}"):
            self._take_snapshot()
        with step(f"{THIRD} runs, {FIRST} runs again as it was"):
            self._both_run()
        with step(f"A new VM, {CLONE}, boots from {SNAPSHOT}"):
            self._clone()
        if gpu:
            with step(f"A VM with the whole card {gpu}"):
                self._run_on(card)

    def _clear_the_stage(self) -> None:
        """Release what an earlier run of the demo left, and nothing else."""
        ours = (FIRST, SECOND, THIRD, CLONE, ON_CARD)
        old = [vm for vm in self._student.vms() if vm.owner == PERSON and vm.name in ours]
        copies = [image for image in self._student.images() if (image.name, image.owner) == (SNAPSHOT, PERSON)]
        if not old and not copies:
            return
        with self._screen.step("What an earlier demo left is released"):
            self.made |= {vm.id for vm in old} | {image.id for image in copies}
            for vm in old:
                self._student.post("vms", vm.id, "release")
            self._gone([vm.id for vm in old])
            for image in copies:
                self._student.delete("images", image.id, wait=120)

    def _gone(self, ids: list[str]) -> None:
        self._watch.until(
            lambda seen: not any(vm.id in ids for vm in seen.vms.values()),
            what=f"The release of {say_count(len(ids), 'VM')}",
            within=self._stage.patience,
        )

    def _add_host(self) -> None:
        known = {host.name: host for host in self._admin.hosts()}
        if HOST not in known:
            body = {"name": HOST, "uri": self._stage.uri, "emulate": list(self._stage.emulate)}
            self._admin.post("hosts", body=body, wait=300)
        else:
            self._admin.post("hosts", HOST, "survey", wait=120)
        host = next(host for host in self._admin.hosts() if host.name == HOST)
        if host.state != "ready":
            why = host.reason
            raise Problem(
                f"Host {HOST} is {host.state}: {why.sentence if why else 'its survey is not in'}",
                hint=why.cure if why else "",
            )
        accel = (host.facts or {}).get("accel") or "unknown"
        self._screen.say(f"{host.threads} threads, {host.memory_mib} MiB of memory, guests run by {accel}")
        for card in host.gpus:
            self._screen.say(_told_of(card))
        half = [card for card in host.gpus if card.model == MODEL and (card.emulated or card.simulated)]
        if not half:
            raise Problem(f"Host {HOST} shows no emulated {MODEL}", hint=f"vmgpu host remove {HOST}; then again.")
        for cut in half[0].slices:
            raise Problem(
                f"{cut.vm or 'A VM'} holds a piece of the emulated card, and the story needs all of it",
                hint=f"Release it: vmgpu vm release {cut.vm}. Or give the demo another folder: VMGPU_DATA_DIR.",
            )

    def _offer(self, address: str) -> GpuOut:
        real = {card.address: card for card in self._admin.cards() if not card.emulated and card.address}
        found = [card for at, card in real.items() if at and (at == address or at.split(":", 1)[1] == address)]
        if not found:
            there = ", ".join(f"{card.name} at {at}" for at, card in real.items()) or "there is none"
            raise Problem(f"There is no card at {address}", hint=f"The cards of this machine: {there}.")
        self._admin.post("gpus", found[0].id, "offer", body={"offered": True})
        return found[0]

    def _bring_image(self) -> None:
        file, name = self._stage.image_file, self._stage.image
        old = next((one for one in self._admin.images() if one.name == name and one.owner is None), None)
        if old and (file is None or old.size_bytes == file.stat().st_size):
            self.made.add(old.id)
            return self._screen.say("It is there already")
        if file is None:
            raise Problem(f"There is no image {name}")
        if old:  # the recipe has changed since
            self._admin.delete("images", old.id, wait=120)

        def progress(percent: int) -> None:
            self._screen.show([Row("import", percent // 25, f"{percent} % sent")])

        image = self._admin.send_image(file, name, progress=progress)
        self.made.add(image.id)
        self._screen.settle()
        self._screen.say(
            f"{image.size_bytes >> 20} MiB, a disk of {image.virtual_mib} MiB, SHA-256 {image.sha256[:16]}…"
        )

    def _make_sizes(self) -> None:
        self._admin.post("keys", body={"keys": self._keyring.public()}, user=PERSON)
        self._admin.put("gpu-units", MODEL, body={"share": "0.5"})
        self._ensure_flavor(FLAVOR, fgpu="1")
        flavor = next(one for one in self._admin.flavors() if one.name == FLAVOR)
        becomes = next((one for one in flavor.becomes if one.model == MODEL), None)
        if becomes is None or becomes.per_card != 2:
            raise Problem(f"Flavor {FLAVOR} is not half of a card: {becomes.says if becomes else 'it becomes nothing'}")
        self._screen.say(f"Flavor {FLAVOR}: {flavor.vcpus} vCPU, {flavor.memory_mib} MiB, {flavor.fgpu} fGPU")
        self._screen.say(f"1 fGPU is {becomes.says}; {becomes.per_card} fit on a card")

    def _ensure_flavor(self, name: str, **wish: str) -> None:
        body = {"name": name, "vcpus": 1, "memory": "1g", "disk": "4g"} | wish
        try:
            self._admin.post("flavors", body=body)
        except Refused as no:
            if no.status != 409:  # there is one from an earlier run
                raise

    def _request_three(self) -> None:
        self._ask(name="s{n}", count=3)
        self._watch.until(
            lambda seen: all(seen.vms[name].state != "pending" for name in (FIRST, SECOND)) and _waits(seen, THIRD),
            what=f"A place for {FIRST} and {SECOND}, and {THIRD} waiting",
            within=120,
        )
        self._must_wait(THIRD)

    def _ask(self, *, name: str, count: int = 1, flavor: str = FLAVOR, image: str = "") -> None:
        made = self._student.request(name=name, count=count, flavor=flavor, image=image or self._stage.image)
        self.made |= {vm.id for vm in made}

    def _must_wait(self, name: str) -> None:
        vm = self._watch.look().vms[name]
        if vm.state != "pending" or vm.position != 1 or vm.reason is None or vm.reason.code != "no_slice_free":
            why = vm.reason.sentence if vm.reason else "no reason"
            raise Problem(f"{name} should wait at position 1 for a slice; it is {vm.state}, {vm.position}, {why}")
        self._screen.say(f"{name} is pending at position {vm.position}: {vm.reason.sentence}")

    def _two_run(self) -> None:
        self._come_up(FIRST, SECOND)
        self._must_wait(THIRD)
        for name in (FIRST, SECOND):
            self._look_inside(name)

    def _come_up(self, *names: str) -> None:
        self._watch.until(
            lambda seen: seen.running(*names),
            what=f"{' and '.join(names)} running",
            # two guests on two cores take more than one alone, and less than twice that
            within=self._stage.patience * len(names),
        )

    def _look_inside(self, name: str) -> None:
        """Log in, see that it is the right machine with its card, and keep what was seen."""
        vm = self._watch.look().vms[name]
        if not self._stage.real:
            self._screen.say(f"{name} is simulated: nobody can log in")
            return
        way = self._student.way_into(name)
        facts = facts_in(self._keyring.ask(way, LOOK, within=self._stage.patience))
        self._facts[name] = facts
        self._screen.say(f"ssh {way.login}@{way.address} 'hostname; nproc': {facts['host'][0]}, {facts['cpus'][0]} CPU")
        self._screen.say(f"  its card: {'; '.join((*facts['card'], *facts['says']))}")
        _must(facts["host"] == [name], f"the host name in {name} is {facts['host']}")
        _must(facts["cpus"] == [str(vm.vcpus)], f"{name} has {facts['cpus']} CPUs")
        pinned = " ".join(vm.host_key.split()[:2])
        _must(facts["hostkey"] == [pinned], f"{name} has other host keys than the one that is pinned")
        _must(len(facts["machine"]) == 1 and bool(facts["machine"][0]), f"{name} has no machine id")
        (cut,) = vm.slices
        named = f"emulated {MODEL} {cut.profile}"
        _must(bool(facts["card"]), f"{name} does not see its emulated card")
        _must(any(named in said for said in facts["says"]), f"{name} does not name its card {named!r}")

    def _release_one(self) -> None:
        self._student.post("vms", SECOND, "release")
        self._watch.until(
            lambda seen: SECOND not in seen.vms and bool(seen.vms[THIRD].slices),
            what=f"The release of {SECOND} and a place for {THIRD}",
            within=self._stage.patience,
        )

    def _take_snapshot(self) -> None:
        # THIRD boots meanwhile: it needs nothing from us
        if self._stage.real:
            way = self._student.way_into(FIRST)
            command = f"echo written by {FIRST}, {self._written} > handout.txt && sync && cat handout.txt"
            self._screen.say(f"in {FIRST}: {self._keyring.ask(way, command, within=self._stage.patience).strip()}")
        image = self._student.post("vms", FIRST, "snapshot", body={"image": SNAPSHOT})
        self.made.add(image["id"])
        self._watch.until(lambda seen: seen.ready(SNAPSHOT), what=f"Image {SNAPSHOT}", within=2 * self._stage.patience)
        made = self._watch.look().images[SNAPSHOT]
        _must(made.owner == PERSON, f"{SNAPSHOT} belongs to {made.owner or 'everybody'}")
        self._screen.say(f"{SNAPSHOT} is {made.state}: private to {made.owner}, {made.size_bytes >> 20} MiB")

    def _both_run(self) -> None:
        self._come_up(THIRD, FIRST)
        for name in (THIRD, FIRST):
            self._look_inside(name)
        if self._stage.real:
            _must(self._handout(FIRST), f"{FIRST} lost its file by the snapshot")

    def _clone(self) -> None:
        self._ask(name=CLONE, image=SNAPSHOT)
        self._watch.until(lambda seen: _waits(seen, CLONE), what=f"{CLONE} waiting", within=60)
        self._must_wait(CLONE)
        self._student.post("vms", THIRD, "release")
        self._come_up(CLONE)
        self._look_inside(CLONE)
        if not self._stage.real:
            return
        _must(self._handout(CLONE), f"{CLONE} does not have the file that {FIRST} wrote")
        self._screen.say(f"  the file is there: {self._facts[CLONE]['handout'][0]}")
        first, clone = self._facts[FIRST], self._facts[CLONE]
        vms = self._watch.look().vms
        _must(first["machine"] != clone["machine"], f"{CLONE} has the machine id of {FIRST}")
        _must(not set(first["hostkey"]) & set(clone["hostkey"]), f"{CLONE} has a host key of {FIRST}")
        _must(vms[FIRST].address != vms[CLONE].address, f"{CLONE} has the address of {FIRST}")
        self._screen.say(f"  machine id, host key and address are its own, not {FIRST}'s")

    def _handout(self, name: str) -> bool:
        return self._facts[name].get("handout") == [f"written by {FIRST}, {self._written}"]

    def _run_on(self, card: GpuOut) -> None:
        self._ensure_flavor(WHOLE_FLAVOR, profile="whole")
        self._ask(name=ON_CARD, flavor=WHOLE_FLAVOR)
        self._come_up(ON_CARD)
        vm = self._watch.look().vms[ON_CARD]
        _must([cut.gpu for cut in vm.slices] == [card.id], f"{ON_CARD} was given another card")
        self._screen.say(f"{ON_CARD} holds {card.name} at {card.address}; in the guest: card {vm.card}")


def release_all(admin: Api, screen: Screen, *, every: float, within: float) -> None:
    """Let go of every VM, image and host of this installation. Raises Problem where something stays."""
    held: list[VMOut] = admin.vms()
    for vm in held:
        admin.post("vms", vm.id, "release")
    Watch(admin, screen, every=every).until(lambda seen: not seen.vms, what="The release of all VMs", within=within)
    for image in admin.images():
        if "simulated" not in image.labels:
            admin.delete("images", image.id, wait=120)
    for host in admin.hosts():
        admin.delete("hosts", host.name, wait=120)
    stays = [image.name for image in admin.images() if "simulated" not in image.labels]
    stays += [f"host {host.name}" for host in admin.hosts()]
    if stays:
        raise Problem(f"The service still has {', '.join(stays)}")


def _waits(seen: Seen, name: str) -> bool:
    return seen.vms[name].position == 1 and seen.vms[name].reason is not None


def _told_of(card: GpuOut) -> str:
    if card.emulated or card.simulated:
        return f"card: {card.name}"  # which says itself that it is none
    refusals = "; ".join(card.refusals.values())
    given = "given out whole" if card.mode else "left alone"
    return f"real card: {card.name} at {card.address}, {given}" + (f" ({refusals})" if refusals else "")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise Problem(f"Not as promised: {what}")
