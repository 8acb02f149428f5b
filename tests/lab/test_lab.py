"""The pure parts of the lab: the host's machine, what the doctor must say of it, and what is written down."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from vmgpu.lab import gpu_host, host_recipe, hostimage, lab_cli
from vmgpu.lab.demo_api import Problem
from vmgpu.lab.demo_screen import Screen
from vmgpu.lab.gpu_host import Machine
from vmgpu.lab.hostimage import HostImage
from vmgpu.lab.lab_cli import Shell
from vmgpu.lab.lab_doctor import ALONE, BESIDE, CONSOLE, LOOK, Truth, expected, wrong
from vmgpu.lab.lab_transcript import Transcript
from vmgpu.lab.recipe import DISTRIBUTIONS

IMAGE = HostImage(Path("disk"), Path("vmlinuz"), Path("initrd"))
HEALTHY = Truth(virtualization=True, kvm=True, vfio_pci=False, groups=True)


def machine(**changes: Any) -> Machine:
    return replace(Machine(IMAGE, Path("/lab"), "tcg", "127.0.0.10", 2), **changes)


def after(words: list[str], option: str) -> list[str]:
    """What each use of an option was given."""
    return [words[at + 1] for at, word in enumerate(words) if word == option]


class TestTheMachine:
    def test_has_an_iommu_before_everything_that_it_serves(self) -> None:
        devices = after(gpu_host.command(machine()), "-device")
        assert devices[0].startswith("intel-iommu,") and "intremap=on" in devices[0]

    def test_has_a_card_beside_the_network_card_and_one_alone(self) -> None:
        devices = after(gpu_host.command(machine()), "-device")
        shared = [each.split(",")[0] for each in devices if "bus=shared" in each]
        assert shared == ["virtio-net-pci", "ati-vga"]
        assert [each.split(",")[0] for each in devices if "bus=alone" in each] == ["bochs-display"]

    def test_reaches_nothing_but_is_reached(self) -> None:
        (net,) = after(gpu_host.command(machine()), "-netdev")
        assert "restrict=on" in net and "hostfwd=tcp:127.0.0.10:22-:22" in net

    @pytest.mark.parametrize("iommu", [host_recipe.IOMMU_ON, host_recipe.IOMMU_OFF])
    def test_boots_with_the_words_about_its_iommu(self, iommu: str) -> None:
        (line,) = after(gpu_host.command(machine(iommu=iommu)), "-append")
        assert line.endswith(iommu) and "modprobe.blacklist=radeon" in line

    def test_an_emulated_processors_virtualization_is_left_alone(self) -> None:
        assert "kvm_amd" in gpu_host.blacklist("tcg") and "kvm" not in gpu_host.blacklist("kvm")


class TestTheDoctorsWord:
    def told(self, truth: Truth, **changes: str) -> list[dict[str, str]]:
        levels = {name: min(levels) for name, levels in expected(truth).items()} | changes
        return [{"id": name, "level": level, "seen": "so", "cure": "do this"} for name, level in levels.items()]

    def test_is_right_where_all_is_told(self) -> None:
        assert wrong(self.told(HEALTHY), expected(HEALTHY)) == []

    def test_is_wrong_by_a_level_a_missing_line_a_new_line_and_a_missing_cure(self) -> None:
        told = self.told(HEALTHY, **{"kernel-iommu": "broken", "surprise": "ok"})
        told = [each for each in told if each["id"] != "helper"]
        next(each for each in told if each["id"] == f"card-group:{BESIDE}")["cure"] = ""
        faults = "\n".join(wrong(told, expected(HEALTHY)))
        for named in ("kernel-iommu is broken, not ok", "surprise", "helper was not told", "has no cure"):
            assert named in faults
        assert len(faults.splitlines()) == 4

    def test_without_an_iommu_no_group_is_told_of(self) -> None:
        off = expected(replace(HEALTHY, groups=False))
        assert off["kernel-iommu"] == {"broken"} and off["libvirt-hostdev"] == {"broken"}
        assert not [name for name in off if name.startswith("card-group")]

    def test_the_truth_is_the_shells(self) -> None:
        assert Truth.of("kvm\ngroups\n") == Truth(False, True, False, True)
        assert all(word in LOOK for word in ("virtualization", "kvm", "vfio-pci", "groups"))

    def test_knows_all_three_cards(self) -> None:
        assert {f"card-driver:{each}" for each in (CONSOLE, BESIDE, ALONE)} <= set(expected(HEALTHY))


class TestTheTranscript:
    def test_names_nothing_of_this_machine_or_this_run(self) -> None:
        page = Transcript({"/opt/x": "~", "/opt/x/host": "~/host"})
        page.chapter("A step")
        key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "x" * 43
        said = f"/opt/x/host/console {key}\n18:00:01  large: running\nat 2030-01-01 10:00:00\n"
        page.command(["vmgpu", "host", "add", "h", "/opt/x/key"], said + "0d3c5a3e-1111-4222-8333-944455556666\n")
        text = page.text()
        assert text.startswith("## A step\n")
        assert "$ vmgpu host add h '~/key'" in text or "$ vmgpu host add h ~/key" in text
        for hidden in ("/opt", "x" * 43, "18:00", "2030", "944455556666"):
            assert hidden not in text
        assert "~/host/console" in text and "0d3c5a3e-…" in text

    def test_leaves_out_what_nobody_needs_and_colours(self) -> None:
        page = Transcript()
        page.command(["x"], "\x1b[32mgreen\x1b[0m\nGet:1 a\n", leave_out=re.compile("^Get:"))
        assert page.text() == "```text\n$ x\ngreen\n```\n"


class TestTheShell:
    """Commands as a person gives them: what they say is read, and how they end is what was expected of them."""

    @pytest.fixture
    def shell(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
        script = tmp_path / "vmgpu"
        script.write_text('#!/bin/sh\necho "{\\"said\\": \\"$*\\"}"\necho aside >&2\n[ "$1" != no ]\n')
        script.chmod(0o755)
        monkeypatch.setattr(lab_cli, "program", lambda: script)
        self.page, self.shown = Transcript(), StringIO()
        return Shell(Screen(self.shown), self.page, {"VMGPU_URL": "x"})

    def test_writes_down_what_was_said_on_both_channels(self, shell: Shell) -> None:
        assert shell.vmgpu("gpu", "list").splitlines()[1] == "aside"
        assert "$ vmgpu gpu list" in self.page.text() and "aside" in self.page.text()
        assert "$ vmgpu gpu list" in self.shown.getvalue()

    def test_a_refusal_must_be_one(self, shell: Shell) -> None:
        assert "no way" in shell.vmgpu("no", "way", refused=True)
        with pytest.raises(Problem, match="ended badly"):
            shell.vmgpu("no", "way")
        with pytest.raises(Problem, match="was to be refused"):
            shell.vmgpu("yes", refused=True)

    def test_asks_for_itself_without_a_word(self, shell: Shell) -> None:
        assert shell.ask("vm", "list") == {"said": "vm list --json"}
        assert self.page.text() == "" and self.shown.getvalue() == ""


class TestTheDisk:
    @pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda each: each.codename)
    def test_has_a_full_kernel_of_each_distribution(self, distribution: Any) -> None:
        kernel = host_recipe.full_kernel(distribution)
        assert "cloud" not in kernel.image and "virtual" not in kernel.image
        assert kernel.headers.rpartition("-")[2] == kernel.image.rpartition("-")[2]

    def test_lacks_what_the_setup_is_to_install(self) -> None:
        assert not set(host_recipe.PACKAGES) & set(host_recipe.LATER_PACKAGES)
        assert "libvirt-daemon-system" in host_recipe.LATER_PACKAGES

    def test_a_folder_of_packages_becomes_a_repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        packages = tmp_path / "later"
        packages.mkdir()
        for name in ("b_1_all.deb", "a_1_all.deb"):
            (packages / name).write_bytes(name.encode())
        monkeypatch.setattr(hostimage, "run", lambda line, *, doing: f"Package: {Path(line[-1]).name[0]}\nVersion: 1\n")
        hostimage._make_repository(packages, tmp_path / "tree/srv/packages")
        entries = (tmp_path / "tree/srv/packages/Packages").read_text().split("\n\n")
        assert [entry.splitlines()[0] for entry in entries] == ["Package: a", "Package: b"]
        assert "Filename: ./a_1_all.deb" in entries[0] and "Size: 11" in entries[0] and "SHA256: " in entries[0]
        assert (tmp_path / "tree/srv/packages/a_1_all.deb").read_bytes() == b"a_1_all.deb"
