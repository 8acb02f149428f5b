"""The story that the lab plays on a GPU host with a real kernel. Each step raises where it is not seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmgpu.lab import gpu_host, host_recipe
from vmgpu.lab.demo_api import Problem
from vmgpu.lab.demo_screen import Row, Screen
from vmgpu.lab.gpu_host import GpuHost
from vmgpu.lab.lab_cli import Shell
from vmgpu.lab.lab_doctor import LOOK, Truth, expected, wrong
from vmgpu.lab.lab_transcript import Transcript

HOST = "gpuhost"
IMAGE = "lab/tiny:1"
# Serial ports, of which this host has two; and displays, which libvirt does not know as a parent.
SHARED, UNKNOWN = "mtty", "mbochs"
WHOLE, BOTH, ONE = "whole", "both", "one"
_FLAVORS = {WHOLE: "whole", BOTH: "mtty-2", ONE: "mtty-1"}
# one vCPU and as much as OVMF and the tiny guest need
_SIZE = ("--vcpus", "1", "--memory", "512m", "--disk", "1g")
# what lspci shows of each in a guest: QEMU's plain display, and the sample driver's serial card
_SEEN = {WHOLE: "[1234:1111]", BOTH: "[4348:3253]", ONE: "[4348:3253]"}
_EVERY = 2.0


@dataclass(frozen=True)
class Stage:
    """What the story is played with. `patience`: how long one step of the host or of a guest may take, in seconds."""

    host: GpuHost
    shell: Shell
    screen: Screen
    transcript: Transcript
    image: Path
    identity: Path
    patience: float


class Story:
    """One run of it."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._host, self._shell = stage, stage.host, stage.shell
        self._boot = ""

    def play(self) -> None:
        """All of it. Raises VmgpuError at the first thing that is not as it should be."""
        with self._step("A machine becomes a GPU host: vmgpu host setup, over its admin's own SSH"):
            self._set_up()
        with self._step("The host is added by qemu+ssh, with its key pinned"):
            self._add()
        with self._step("A card whose IOMMU group holds the host's network card is refused with the culprit named"):
            self._refuse()
        with self._step("The doctor is right in every line"):
            self._examine()
        with self._step("A card and a parent of mediated devices are given out"):
            self._give_out()
        with self._step("Three VMs ask for a whole card, for both ports of a parent, for one of them: the third waits"):
            self._request()
        with self._step("The card and the piece are seen in their VMs by lspci, over SSH with the host as jump"):
            self._see(WHOLE)
            self._see(BOTH)
        with self._step("Both ports are released: the VM that waited for one starts"):
            self._release_both()
        with self._step("The host reboots: what was cut is there again, and its VMs run with it"):
            self._reboot()
        with self._step("All VMs are released: the card and the parents are as they were"):
            self._release_all()
        with self._step("The host boots without its IOMMU: the doctor names the cure"):
            self._without_iommu()
        with self._step("The image and the host are let go: nothing of ours is left there"):
            self._let_go()

    def _step(self, title: str) -> Any:
        self._stage.transcript.chapter(title)
        return self._stage.screen.step(title)

    def _set_up(self) -> None:
        missing = self._host.ask("getent group libvirt || echo none").strip()
        _must(missing == "none", "the host has libvirt's group before it was set up")
        said = self._shell.vmgpu("host", "setup", f"{host_recipe.ADMIN}@{HOST}", "--run", within=self._stage.patience)
        _must("installing libvirt-daemon-system" in said, "the setup did not install libvirt")
        _must(self._host.host_key in said, "the setup did not name the host's own key")
        self._shell.seen("libvirt is installed, the account vmgpu is made, hostctl answers by sudo")

    def _add(self) -> None:
        uri = f"qemu+ssh://vmgpu@{HOST}/system"
        self._shell.vmgpu("host", "add", HOST, uri, "--host-key", self._host.host_key, "--wait", "300")
        settings = ["--device-id", gpu_host.ALONE, "--mdev-parent", SHARED, "--mdev-parent", UNKNOWN]
        self._shell.vmgpu("host", "set", HOST, *settings)
        self._shell.vmgpu("gpu", "list")
        keys = {card["name"] if card["address"] is None else _ids(card) for card in self._cards()}
        wanted = {SHARED, UNKNOWN, gpu_host.ALONE, gpu_host.BESIDE_THE_NIC, gpu_host.ON_THE_ROOT_BUS}
        _must(keys == wanted, f"the survey shows {sorted(keys)}, not {sorted(wanted)}")
        self._boot = self._host.boot_id() or ""
        self._shell.seen("three cards by their ids and addresses, two parents without any")

    def _refuse(self) -> None:
        nic = self._host.ask("basename $(readlink -f /sys/class/net/e*/device/..)").strip()
        beside = self._card(gpu_host.BESIDE_THE_NIC)
        said = self._shell.vmgpu("gpu", "offer", beside["address"], refused=True)
        _must(nic in said, f"the refusal of {beside['address']} does not name the network card {nic}")
        self._shell.seen(f"the culprit is {nic}, the network card by which the host is reached")
        console = self._card(gpu_host.ON_THE_ROOT_BUS)
        said = self._shell.vmgpu("gpu", "offer", console["address"], refused=True)
        _must("console" in said, f"the refusal of {console['address']} does not name the console")
        said = self._shell.vmgpu("gpu", "offer", UNKNOWN, "--mode", "vgpu", refused=True)
        _must("libvirt knows no parent" in said, f"the refusal of {UNKNOWN} does not say why")

    def _give_out(self) -> None:
        card = self._card(gpu_host.ALONE)
        _must(card["refusals"] == {} or "passthrough" not in card["refusals"], f"{card['address']}: {card['refusals']}")
        self._shell.vmgpu("gpu", "offer", card["address"])
        self._shell.vmgpu("gpu", "offer", SHARED, "--mode", "vgpu")
        for name, profile in _FLAVORS.items():
            self._shell.vmgpu("flavor", "add", name, "--profile", profile, *_SIZE)
        self._shell.vmgpu("image", "import", str(self._stage.image), "--name", IMAGE, "--label", "init=none")
        self._shell.vmgpu("key", "add", f"{self._stage.identity}.pub")

    def _request(self) -> None:
        for name in (WHOLE, BOTH, ONE):
            self._shell.vmgpu("vm", "request", "--name", name, "--flavor", name, "--image", IMAGE)
        self._until(lambda vms: vms[ONE]["reason"] is not None and vms[BOTH]["state"] != "pending", "a verdict")
        self._shell.vmgpu("vm", "list")
        waits = self._vms()[ONE]
        _must(waits["state"] == "pending" and waits["position"] == 1, f"{ONE} is {waits['state']}, not waiting")
        self._shell.seen(f"{ONE} waits: {waits['reason']['sentence']}")
        self._until(lambda vms: all(vms[name]["state"] == "running" for name in (WHOLE, BOTH)), "two VMs running")
        waits = self._vms()[ONE]
        _must(waits["state"] == "pending", f"{ONE} is {waits['state']} while {BOTH} holds all of {SHARED}")

    def _see(self, name: str) -> None:
        """Log in through the host, and see the piece in the guest and on the host."""
        found = self._shell.vmgpu(
            "vm", "ssh", name, "--login", "root", "-i", str(self._stage.identity), "--", "lspci", "-nn",
            within=self._stage.patience, shown=30,
        )  # fmt: skip
        _must(found.count(_SEEN[name]) == 1, f"{name} does not see one {_SEEN[name]}")
        (cut,) = self._vm(name)["slices"]
        if name == WHOLE:
            address = self._card(gpu_host.ALONE)["address"]
            driver = self._host.ask(f"basename $(readlink /sys/bus/pci/devices/{address}/driver)").strip()
            _must(driver == "vfio-pci", f"the card is bound to {driver} on the host")
            self._shell.seen(f"{address} is in {name}; on the host vfio-pci has it")
        else:
            live = self._mdevs()
            _must(list(live.values()) == [cut["profile"]], f"the host has {live}, and not one {cut['profile']}")
            self._shell.seen(f"the host's one mediated device, {cut['profile']} {next(iter(live))}, is in {name}")

    def _release_both(self) -> None:
        self._shell.vmgpu("vm", "release", BOTH, "--yes")
        self._until(lambda vms: BOTH not in vms and vms[ONE]["state"] == "running", f"{ONE} running")
        self._shell.vmgpu("vm", "list")
        self._see(ONE)

    def _reboot(self) -> None:
        before, live = {name: self._vm(name)["slices"] for name in (WHOLE, ONE)}, self._mdevs()
        self._boot = self._host.reboot(within=self._stage.patience)
        self._shell.note([f"{host_recipe.ADMIN}@{HOST}$ systemctl reboot"], "")
        self._until(
            lambda vms: (
                all(_rebooted(self._events(name)) for name in before)
                and all(vms[name]["state"] == "running" for name in before)
            ),
            "both VMs running again",
        )
        self._shell.vmgpu("vm", "list")
        for name, slices in before.items():
            _must(self._vm(name)["slices"] == slices, f"{name} holds other slices than before")
            self._see(name)
        _must(self._mdevs() == live, f"the host has {self._mdevs()}, and had {live}")
        self._shell.vmgpu("vm", "events", ONE)

    def _release_all(self) -> None:
        for name in (WHOLE, ONE):
            self._shell.vmgpu("vm", "release", name, "--yes", "--wait", "--timeout", "10m", within=700)
        _must(self._mdevs() == {}, f"the host still has {self._mdevs()}")
        address = self._card(gpu_host.ALONE)["address"]
        driver = self._host.ask(f"readlink /sys/bus/pci/devices/{address}/driver || echo none").strip()
        _must("vfio" not in driver, f"the card is still bound to {driver}")
        self._shell.seen("no mediated device is left, and the card is the host's again")

    def _without_iommu(self) -> None:
        self._host.shut_down(within=120)
        self._host.start(iommu=host_recipe.IOMMU_OFF)
        self._boot = self._host.wait_up(within=self._stage.patience)
        self._shell.note([f"{host_recipe.ADMIN}@{HOST}$ cat /proc/cmdline"], self._host.ask("cat /proc/cmdline"))
        self._shell.vmgpu("host", "survey", HOST, "--wait", "300")
        self._examine(cure="intel_iommu=off")

    def _examine(self, *, cure: str = "") -> None:
        """Have the doctor look, and compare each finding with the host's own shell; `cure` is in that of the IOMMU."""
        truth = Truth.of(self._host.ask(LOOK))
        self._shell.vmgpu("doctor", HOST, "--wait", "300", refused=True, shown=100)
        told = self._shell.ask("doctor", HOST, "--wait", "300", may_fail=True)["items"]
        bad = wrong(told, expected(truth))
        _must(not bad, "the doctor is not right: " + "; ".join(bad))
        named = next(each["cure"] for each in told if each["id"] == "kernel-iommu")
        _must(cure in named, f"the cure of the IOMMU is {named!r}")
        self._shell.seen(f"{len(told)} findings, each as the host's own shell says")

    def _let_go(self) -> None:
        self._shell.vmgpu("image", "remove", IMAGE, "--wait", "120")
        self._shell.vmgpu("host", "remove", HOST, "--yes", "--wait", "120")
        left = self._host.ask(
            "sudo sh -c 'virsh list --all --uuid; virsh pool-list --all --name; mdevctl list -d; "
            "find /var/lib/libvirt/images -type f'",
            within=self._stage.patience,
        ).split()
        _must(not left, f"on the host are left: {', '.join(left)}")

    def _cards(self) -> list[dict[str, Any]]:
        return list(self._shell.ask("gpu", "list")["items"])

    def _card(self, ids: str) -> dict[str, Any]:
        found = [card for card in self._cards() if card["address"] and _ids(card) == ids]
        _must(len(found) == 1, f"{len(found)} cards are {ids}")
        return found[0]

    def _vms(self) -> dict[str, dict[str, Any]]:
        return {vm["name"]: vm for vm in self._shell.ask("vm", "list")["items"]}

    def _vm(self, name: str) -> dict[str, Any]:
        return self._vms()[name]

    def _events(self, name: str) -> list[dict[str, Any]]:
        return list(self._shell.ask("vm", "events", name)["items"])

    def _mdevs(self) -> dict[str, str]:
        """The mediated devices that live on the host now: UUID and type."""
        look = (
            "cd /sys/bus/mdev/devices && for each in *; do [ -e $each ] && echo $each $(readlink $each/mdev_type); done"
        )
        lines = self._host.ask(f"{look}; true").splitlines()
        return {uuid: kind.rpartition("/")[2] for uuid, kind in (line.split() for line in lines)}

    def _tell_console(self, name: str) -> None:
        with suppress(Problem):
            for line in self._shell.ask("vm", "console", name)["text"].splitlines()[-15:]:
                self._stage.screen.say(f"{name} | {line}")

    def _until(self, goal: Callable[[Mapping[str, dict[str, Any]]], bool], what: str) -> None:
        """Look until it is so, and show what happens meanwhile."""
        end = time.monotonic() + 2 * self._stage.patience
        while True:
            self._host.must_live()
            vms = self._vms()
            self._stage.screen.show([_row(vm) for vm in vms.values()])
            if goal(vms):
                self._stage.screen.settle()
                return
            for vm in vms.values():
                failed = vm["state"] in ("failed", "lost") and vm["wanted"] != "running"
                if failed or time.monotonic() > end:
                    why = (vm["reason"] or {}).get("sentence", "no reason")
                    self._tell_console(vm["name"])
                    raise Problem(f"{what} was not seen: {vm['name']} is {vm['state']}: {why}")
            time.sleep(_EVERY)


def _ids(card: Mapping[str, Any]) -> str:
    return str(card["model"])


def _rebooted(events: Iterable[Mapping[str, Any]]) -> bool:
    return any((each.get("reason") or {}).get("code") == "restarted_after_host" for each in events)


def _row(vm: Mapping[str, Any]) -> Row:
    why = f": {vm['reason']['sentence']}" if vm["reason"] else ""
    return Row(vm["id"], (vm["state"], why), f"{vm['name']:<7} {vm['state']}{why}")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise Problem(f"Not as promised: {what}")
