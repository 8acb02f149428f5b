"""One story with a full guest: people and their keys, a snapshot, clones, a reset, the lease; and kills on the way."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from tests.e2e import real_host
from tests.e2e.service import Service, answer
from tests.hypervisor.live import wait_for
from vmgpu.db import wake
from vmgpu.errors import ReasonCode
from vmgpu.hypervisor import guestfish
from vmgpu.models import VM, Event, Host, Image, ImageState, Slice, now
from vmgpu.requests import CaptureRequest, VMRequest
from vmgpu.service import people, vms

pytestmark = [pytest.mark.libvirt, pytest.mark.guest, pytest.mark.timeout(900)]

BOOT = 400  # seconds; about 50 alone on an idle machine of two processors, under emulation
THE_KEY = "/etc/ssh/ssh_host_ed25519_key"
HOST_KEY = f"sudo -n ssh-keygen -yf {THE_KEY} | cut -d' ' -f1,2"
LOOK = f"cat /etc/machine-id; id -un; sudo -n id -u; {HOST_KEY}; ls /etc/ssh/ssh_host_*_key; cat made 2>&1"


class Person:
    """Somebody with an account, a token and a key."""

    def __init__(self, service: Service, name: str) -> None:
        self.name, self.service = name, service
        admin = service.as_()
        answer(admin.post("/users", json={"name": name}), 201)
        token = answer(admin.post("/tokens", params={"user": name}, json={"name": "test"}), 201)["secret"]
        admin.close()
        self.actor = people.who(service.db, token)
        self.api = service.as_(token)
        self.key = self.new_key()

    def new_key(self) -> Path:
        """A key pair whose public half this person's next VMs know."""
        key = self.service.folder / f"{self.name}-{time.monotonic_ns()}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        answer(self.api.post("/keys", json={"keys": key.with_suffix(".pub").read_text()}), 201)
        return key

    def ssh(self, vm: str, command: str, *, key: Path | None = None, login: str = "") -> tuple[int, list[str]]:
        """Run a command in a VM, its host key pinned: the exit code, and the lines that it printed."""
        with self.service.db.read() as session:
            row = session.exec(select(VM).where(VM.name == vm, VM.state != "gone")).one()
        known = self.service.folder / f"known-{vm}"
        known.write_text(f"{row.address} {row.host_key}\n")
        options = [f"UserKnownHostsFile={known}", "StrictHostKeyChecking=yes", "IdentitiesOnly=yes", "BatchMode=yes"]
        given = [part for option in (*options, "ConnectTimeout=60") for part in ("-o", option)]
        who = f"{login or self.name}@{row.address}"
        ran = subprocess.run(
            ["ssh", "-F", "none", "-i", str(key or self.key), *given, who, command],
            capture_output=True,
            text=True,
            timeout=180,
        )
        return ran.returncode, (ran.stdout or ran.stderr).splitlines()

    def is_refused(self, vm: str, *, key: Path | None = None, login: str = "") -> bool:
        code, said = self.ssh(vm, "true", key=key, login=login)
        assert code in (0, 255), said
        assert code == 0 or "Permission denied" in said[-1], said
        return code == 255


class Story:
    """An installation with half cards to give out, and three people."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.service = Service(folder, sync_every="2s")
        self.service.take_in("debian", image)
        self.service.start()
        self.service.until_ready()
        self.admin = self.service.as_()
        host = {"name": "h1", "uri": "qemu:///system", "emulate": ["A100-40GB"]}
        answer(self.admin.post("/hosts", json=host), 201)
        answer(self.admin.put("/gpu-units/A100-40GB", json={"share": "0.5"}), 200)
        flavor = {"name": "half", "vcpus": 1, "memory": "1g", "disk": "4g", "fgpu": "1"}
        answer(self.admin.post("/flavors", json=flavor), 201)
        self.anna, self.bert, self.carl = (Person(self.service, name) for name in ("anna", "bert", "carl"))
        self.machine_ids: list[str] = []

    def close(self) -> None:
        for client in (self.admin, self.anna.api, self.bert.api, self.carl.api):
            client.close()
        self.service.close()

    def vm(self, name: str) -> dict[str, Any]:
        return answer(self.admin.get(f"/vms/anna/{name}"), 200)

    def holders(self) -> set[str]:
        with self.service.db.read() as session:
            return set(session.exec(select(Slice.vm_id)).all())

    def image(self, name: str) -> Image:
        with self.service.db.read() as session:
            return session.exec(select(Image).where(Image.name == name)).one()

    def until_image(self, name: str, state: ImageState, *, within: float = 300) -> None:
        self.service.until(lambda _: self.image(name).state is state, f"{name} is {state}", within=within)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, debian: Path, before: frozenset[str]) -> Iterator[Story]:
    made = Story(tmp_path_factory.mktemp("story"), debian)
    yield made
    made.close()
    real_host.clear(before)


def cleaners() -> list[Path]:
    """The throw-away machines in which libguestfs looks into a disk."""
    found = Path("/proc").glob("[0-9]*/cmdline")
    return [path for path in found if path.exists() and b"guestfs" in path.read_bytes()]


def test_a_request_becomes_a_guest_though_the_service_is_killed_at_every_step(story: Story) -> None:
    service = story.service
    service.kill()
    asked = VMRequest(name="s1", flavor="half", image="debian", members=("bert",))
    vms.request(service.db, service.settings, story.anna.actor, asked)
    for point in ("vm.carving.worked", "copy.applied", "vm.building.worked", "vm.booting.worked", "vm.checking.worked"):
        service.dies_at(point, within=BOOT)
    service.start()
    service.until_vm("s1", "running", within=BOOT)
    seen = story.vm("s1")
    assert (seen["card"], seen["warnings"], seen["login"]) == ("seen", [], "anna")
    assert [(cut["profile"], cut["emulated"]) for cut in seen["slices"]] == [("3g.20gb", True)]
    assert real_host.qemus().count(seen["id"]) == 1
    assert real_host.video_kib(seen["id"]) == [64 * 1024]


def test_its_members_log_in_each_with_their_own_key_and_nobody_else(story: Story) -> None:
    anna, bert, carl = story.anna, story.bert, story.carl
    code, said = anna.ssh("s1", f"echo by anna >made; sync; {LOOK}")
    machine_id, *rest = said
    assert (code, rest) == (0, ["anna", "0", story.vm("s1")["host_key"], THE_KEY, "by anna"])
    story.machine_ids.append(machine_id)
    code, said = bert.ssh("s1", "id -un; sudo -n id -u; cloud-init status; df --output=size -BG / | tail -1")
    assert (code, [line.strip() for line in said]) == (0, ["bert", "0", "status: done", "4G"])
    assert anna.is_refused("s1", key=bert.key)
    assert carl.is_refused("s1", login="anna")
    answer(carl.api.get("/vms/anna/s1"), 404)
    assert [vm["name"] for vm in answer(bert.api.get("/vms"), 200)["items"]] == ["s1"]
    assert "Cloud-init" in anna.api.get("/vms/s1/console").text


def test_a_snapshot_becomes_its_owners_image_though_the_service_is_killed(story: Story) -> None:
    """Taken by an admin. The third kill meets libguestfs at work on the copy."""
    service, before = story.service, story.vm("s1")
    service.kill()
    vms.capture(service.db, service.settings, service.me, "anna/s1", CaptureRequest(image="team/x:1"))
    service.dies_at("vm.capturing.worked")
    wait_for(lambda: before["id"] not in real_host.qemus(), 120)
    service.dies_at("vm.capturing.worked", within=120)
    service.start()
    wait_for(cleaners, 120)
    time.sleep(1)
    service.kill()
    service.dies_at("image.worked", within=300)
    service.dies_at("image.applied", within=300)
    service.start()
    story.until_image("team/x:1", ImageState.ready)
    service.until_vm("s1", "running", within=BOOT)
    assert (story.vm("s1")["slices"], story.vm("s1")["host_key"]) == (before["slices"], before["host_key"])
    assert real_host.qemus().count(before["id"]) == 1
    assert story.anna.ssh("s1", "cat made") == (0, ["by anna"])
    assert sorted(path.name for path in service.settings.images_dir.iterdir()) == sorted(
        story.image(name).volume for name in ("debian", "team/x:1")
    )


def test_the_image_is_nobody_elses(story: Story) -> None:
    listed = {
        person.name: {image["name"] for image in answer(person.api.get("/images"), 200)["items"]}
        for person in (story.anna, story.carl)
    }
    assert listed == {"anna": {"debian", "team/x:1"}, "carl": {"debian"}}
    answer(story.carl.api.get("/images/team/x:1"), 404)
    answer(story.carl.api.post("/vms", json={"name": "c", "flavor": "half", "image": "team/x:1"}), 404)
    answer(story.carl.api.delete("/images/team/x:1"), 404)


def test_two_clones_are_two_machines_and_the_first_owners_key_opens_neither(story: Story) -> None:
    """The key that the image's VM was made with is taken from the account before the clones are asked for."""
    anna, old = story.anna, story.anna.key
    (known,) = answer(anna.api.get("/keys"), 200)["items"]
    answer(anna.api.delete(f"/keys/{known['id']}"), 204)
    anna.key = anna.new_key()
    answer(anna.api.post("/vms", json={"name": "c{n}", "count": 2, "flavor": "half", "image": "team/x:1"}), 202)
    story.service.until(lambda _: story.service.vm("c2").reason, "c2 is told why it waits")
    assert (story.vm("c2")["state"], story.vm("c2")["position"]) == ("pending", 1)
    for name in ("debian", "team/x:1"):
        answer(story.admin.delete(f"/images/{name}"), 409)
    answer(anna.api.post("/vms/s1/stop", json={"slices": "release"}), 202)
    for name in ("c1", "c2"):
        story.service.until_vm(name, "running", within=BOOT)
    for name in ("c1", "c2"):
        code, (machine_id, *rest) = anna.ssh(name, LOOK)
        assert (code, rest) == (0, ["anna", "0", story.vm(name)["host_key"], THE_KEY, "by anna"])
        story.machine_ids.append(machine_id)
        assert anna.is_refused(name, key=old)
        assert story.bert.is_refused(name)
    assert len({story.vm(name)["host_key"] for name in ("s1", "c1", "c2")}) == 3
    assert len({story.vm(name)["address"] for name in ("c1", "c2")}) == 2
    assert len(set(story.machine_ids)) == 3
    assert story.vm("s1")["state"] == "stopped"


def test_one_is_released_though_the_service_is_killed(story: Story, before: frozenset[str]) -> None:
    service = story.service
    c2 = story.vm("c2")["id"]
    service.kill()
    vms.release(service.db, story.anna.actor, "c2")
    service.dies_at("vm.releasing.worked")
    assert not [line for line in real_host.traces() if c2 in line]
    real_host.must_be_sound(service, before)
    service.start()
    service.until_ready()
    service.until_vm("c2", "gone")
    assert c2 not in story.holders()


def test_the_lease_ends_and_the_disk_goes_after_the_grace(story: Story) -> None:
    """While the one that stopped is reset, which makes it wait for a slice, and gives it a fresh disk."""
    service = story.service
    answer(story.anna.api.post("/vms/s1/reset"), 202)
    c1 = story.vm("c1")["id"]
    set_time(story, "c1", "expires_at")
    service.until_vm("c1", "stopped")
    left = story.vm("c1")
    assert left["slices"] == []
    assert timedelta(days=6) < service.vm("c1").delete_at - now() < timedelta(days=7)
    assert [line for line in real_host.traces() if c1 in line]
    set_time(story, "c1", "delete_at")
    service.until_vm("c1", "gone")
    assert not [line for line in real_host.traces() if c1 in line]
    with service.db.read() as session:
        kinds = [event.kind for event in session.exec(select(Event).where(Event.vm_id == c1)).all()]
    assert kinds.index("lease_ended") < kinds.index("grace_ended")


def set_time(story: Story, name: str, column: str) -> None:
    """As if that moment had come."""
    with story.service.db.write() as session:
        vm = session.exec(select(VM).where(VM.name == name)).one()
        setattr(vm, column, now())
        session.flush()
        wake(session, VM, VM.id == vm.id)


def test_a_guest_that_finds_no_seed_fails_and_says_so(story: Story, debian: Path) -> None:
    """Beside the reset one, which boots meanwhile."""
    blind = story.service.folder / "blind.qcow2"
    shutil.copy(debian, blind)
    with guestfish.session(blind, access="write", accel="tcg", seconds=300) as disk:
        disk.mount()
        disk.tell('write /etc/cloud/cloud.cfg.d/99-blind.cfg "datasource_list: [None]\\n"')
    story.service.take_in("blind", blind)
    blind.unlink()
    answer(story.anna.api.post("/vms", json={"name": "b1", "flavor": "half", "image": "blind"}), 202)
    story.service.until_vm("b1", "failed", within=BOOT)
    said = story.vm("b1")
    assert said["reason"]["code"] == ReasonCode.seed_not_found
    assert "Cloud-init" in story.admin.get("/vms/anna/b1/console").text
    answer(story.anna.api.post("/vms/b1/release"), 202)


def test_a_reset_gives_a_fresh_disk(story: Story) -> None:
    story.service.until_vm("s1", "running", within=BOOT)
    _code, said = story.anna.ssh("s1", f"{LOOK}; cat /var/lib/cloud/data/instance-id")
    vm = story.vm("s1")
    nothing = "cat: made: No such file or directory"
    assert said[1:] == ["anna", "0", vm["host_key"], THE_KEY, nothing, f"{vm['id']}-2"]
    assert story.anna.is_refused("s1", key=story.bert.key)
    assert not story.bert.is_refused("s1")


def test_nothing_is_left(story: Story, before: frozenset[str]) -> None:
    service = story.service
    answer(story.anna.api.post("/vms/s1/release"), 202)
    for name in ("s1", "b1"):
        service.until_vm(name, "gone")
    assert story.holders() == set()
    for name in ("team/x:1", "debian", "blind"):
        answer(story.admin.delete(f"/images/{name}", params={"wait": 30}), 202)
    service.until(lambda s: not s.exec(select(Image)).all(), "the images are forgotten")
    answer(story.admin.delete("/hosts/h1", params={"wait": 30}), 202)
    service.until(lambda s: not s.exec(select(Host)).all(), "the host is forgotten")
    assert real_host.traces() == before
    assert list(service.settings.images_dir.iterdir()) == []
    service.end()
