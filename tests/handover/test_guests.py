"""Guests that are clones, warn, hide their address, or whose owners paste keys."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.site import Site
from vmgpu import guest, sshkeys
from vmgpu.errors import ReasonCode
from vmgpu.guest import facts
from vmgpu.hypervisor import HostRef, Network, NetworkRef
from vmgpu.hypervisor.kvm import KvmHost
from vmgpu.models import VMState

RUNNING, GONE = VMState.running, VMState.gone


def test_a_clone_with_an_old_name_is_a_new_instance_for_its_new_owner(site: Site) -> None:
    """F14: VM1 `vm` is captured and gone; VM2 `vm` is another student's. cloud-init runs anew, the old key is out.

    F13 is played by real guests: tests/e2e/test_story_debian.py sees two clones with two machine-ids, host keys and
    addresses, and tests/hypervisor/test_generalise.py sees what is emptied, removed and locked in a captured disk.
    """
    hand = site.host("h1", "cpu")
    site.rest("POST", "/flavors", {"name": "plain", "vcpus": 1, "memory": "1g", "disk": "2g"}, 201)
    voices = {name: site.person(name) for name in ("anna", "bert")}
    keys = {name: sshkeys.make_pair(name).public.split()[1] for name in voices}
    for name, voice in voices.items():
        voice("POST", "/keys", {"keys": f"ssh-ed25519 {keys[name]} {name}@laptop"}, 201)
    seeds = []
    for owner, image in (("anna", "base"), ("bert", "anna/team/week3:1")):
        asked = {"name": "vm", "flavor": "plain", "image": image, "owner": owner}
        (made,) = site.rest("POST", "/vms", asked, 202)["items"]
        site.until(lambda made=made: site.vm_of(made["id"]).state is RUNNING)  # type: ignore[misc]
        seeds.append(hand.seed_of(made["id"]))
        if owner == "anna":
            taken = site.rest("POST", f"/vms/{made['id']}/snapshot", {"image": "team/week3:1"}, 202)
            site.until(lambda taken=taken: _state(site, taken["id"]) == "ready")  # type: ignore[misc]
            site.rest("POST", f"/vms/{made['id']}/release")
            site.until(lambda made=made: site.vm_of(made["id"]).state is GONE)  # type: ignore[misc]
    first, second = (yaml.safe_load(seed["meta-data"]) for seed in seeds)
    assert first["instance-id"] != second["instance-id"]
    assert first["local-hostname"] == second["local-hostname"] == "vm"
    assert keys["anna"] in seeds[0]["user-data"] and keys["anna"] not in seeds[1]["user-data"]
    assert keys["bert"] in seeds[1]["user-data"]


def _state(site: Site, image_id: str) -> str:
    return str(site.rest("GET", f"/images/{image_id}")["state"])


@pytest.mark.parametrize(
    ("said", "code", "outcome"),
    [
        (
            json.dumps(
                {
                    "status": "done",
                    "extended_status": "degraded done",
                    "datasource": "nocloud",
                    "errors": [],
                    "recoverable_errors": {"WARNING": ["Failed at merging in cloud config part"]},
                }
            ),
            2,
            ("degraded", ("warning: Failed at merging in cloud config part",)),
        ),
        ("status: done\n", 0, ("done", ())),
        (json.dumps({"status": "error", "errors": ["no space left"]}), 1, ReasonCode.cloud_init_error),
        (json.dumps({"status": "running", "errors": []}), 0, None),
    ],
)
def test_warnings_are_no_failure_and_old_images_speak_in_words(said: str, code: int, outcome: Any) -> None:
    """F15: exit 2 is usable, with its warnings; an error is one; an image without JSON is read as text.

    tests/test_guest.py has the same through a real SSH server, with programs that refuse the option.
    """
    parts = {"program": said, "code": str(code)}
    if outcome is None:
        with pytest.raises(facts.Unfinished):
            facts.look_at_cloud_init(parts)
    elif isinstance(outcome, ReasonCode):
        with pytest.raises(facts.Trouble) as failed:
            facts.look_at_cloud_init(parts)
        assert failed.value.reason.code is outcome
    else:
        assert facts.look_at_cloud_init(parts) == (guest.CloudInit(outcome[0]), outcome[1])


def test_keys_pasted_without_a_last_line_break_stay_apart(site: Site) -> None:
    """F21: one file ends without a line break, another follows with three keys: four keys in, four lines out."""
    hand = site.host("h1", "cpu")
    anna = site.person("anna")
    keys = [sshkeys.make_pair(f"k{n}").public.split()[1] for n in range(4)]
    first = f"ssh-ed25519 {keys[0]} student@laptop"
    rest = "".join(f"ssh-ed25519 {key}\n" for key in keys[1:])
    anna("POST", "/keys", {"keys": first}, 201)
    anna("POST", "/keys", {"keys": rest}, 201)
    glued = site.person("bert")("POST", "/keys", {"keys": first + rest}, 422)["error"]
    assert "two keys are on one line" in glued["message"]
    site.rest("POST", "/flavors", {"name": "plain", "vcpus": 1, "memory": "1g", "disk": "2g"}, 201)
    (made,) = anna("POST", "/vms", {"name": "vm", "flavor": "plain", "image": "base"}, 202)["items"]
    site.until(lambda: site.vm_of(made["id"]).state is RUNNING)
    user = next(one for one in yaml.safe_load(hand.seed_of(made["id"])["user-data"])["users"] if one["name"] == "anna")
    lines = user["ssh_authorized_keys"]
    assert sorted(line.split()[1] for line in lines) == sorted(keys)
    assert all("\n" not in line and line.startswith("ssh-ed25519 ") for line in lines)


class _Guest:
    """A domain on a bridge whose agent shows Docker's bridge first."""

    def __init__(self, mac: str) -> None:
        self.mac, self.patience = mac, 0

    def XMLDesc(self, flags: int = 0) -> str:
        agent = "<target type='virtio' name='org.qemu.guest_agent.0' state='connected'/>"
        return f"<domain><devices><channel>{agent}</channel></devices></domain>"

    def agentSetResponseTimeout(self, seconds: int, flags: int) -> None:
        self.patience = seconds

    def interfaceAddresses(self, source: int, flags: int = 0) -> dict[str, Any]:
        def at(address: str, kind: int) -> dict[str, Any]:
            return {"addr": address, "type": kind, "prefix": 16}

        return {
            "lo": {"hwaddr": "00:00:00:00:00:00", "addrs": [at("127.0.0.1", 0)]},
            "docker0": {"hwaddr": "02:42:ac:11:00:01", "addrs": [at("172.17.0.1", 0)]},
            "enp1s0": {"hwaddr": self.mac.upper(), "addrs": [at("fe80::5054", 1), at("10.20.3.7", 0)]},
        }


def test_the_address_is_that_of_our_own_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F25: on a bridge no lease is waited for: the agent is asked, for so long, and believed for our MAC alone."""
    mac, bridge = "52:54:00:aa:00:01", NetworkRef(Network.bridge, "br0")
    host = KvmHost(HostRef("h", "h", "qemu:///system", "here", bridge, "tcg", tmp_path), on_change=lambda _: None)
    found = _Guest(mac)

    class Link:
        def use(self) -> Any:
            return nullcontext(type("Connection", (), {"lookupByUUIDString": lambda self, vm_id: found})())

    monkeypatch.setattr(host, "_link", Link())
    assert host.address("the-vm", mac, bridge) == "10.20.3.7"
    assert 0 < found.patience <= 10
    assert host.address("the-vm", "52:54:00:aa:00:02", bridge) is None
