"""Error texts lead to causes in words, and ordinary text to none."""

from __future__ import annotations

import re
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hypervisor.doctor.messages import LEADS, ORDINARY
from vmgpu.hypervisor.doctor import explain
from vmgpu.hypervisor.doctor.cures import Family, Platform, platform_of
from vmgpu.hypervisor.doctor.known import ALL

PLATFORMS = (
    Platform(),
    *(Platform(family, loader) for family in Family for loader in ("grub", "systemd-boot", "zipl", "")),
    platform_of("pop", "ubuntu debian", "systemd-boot"),
)
LINES = [(cause, line) for cause, lines in LEADS.items() for line in lines]


@pytest.mark.parametrize(("cause", "line"), LINES, ids=[f"{cause}-{n}" for n, (cause, _) in enumerate(LINES)])
def test_a_message_leads_to_its_cause_in_any_case_and_wrapping(cause: str, line: str) -> None:
    wrapped = "\n    ".join(textwrap.wrap(line, 76, break_long_words=False, break_on_hyphens=False))
    for text in (line, line.upper(), f"some words before\r\n\x1b[31m{line}\x1b[0m\nand after", wrapped):
        found = explain(text)
        assert found and found[0].id == cause, text
        assert all(each.matched.strip() for each in found)


def test_every_cause_has_a_message_here() -> None:
    assert {each.id for each in ALL} == set(LEADS)


def test_ordinary_lines_lead_nowhere() -> None:
    assert [each for line in ORDINARY.splitlines() for each in explain(line)] == []
    assert explain(ORDINARY) == explain("") == explain("something else went wrong") == ()


def test_the_most_specific_cause_comes_first() -> None:
    text = (
        "internal error: qemu unexpectedly closed the monitor: vfio 0000:41:00.0: failed to setup container for "
        "group 27\n"
        "vfio 0000:41:00.0: group 27 is not viable\nCannot allocate memory"
    )
    assert [each.id for each in explain(text)] == ["group-not-viable", "vfio-container", "qemu-ended", "no-memory"]


def test_matched_is_the_line_that_led_there() -> None:
    (found,) = explain("first line\n  vfio 0000:41:00.0: Group 27 is not viable  \nlast line")
    assert found.matched == "vfio 0000:41:00.0: Group 27 is not viable"
    assert set(found.as_dict()) == {"id", "title", "means", "cure", "matched"}


def test_of_a_long_text_its_end_counts() -> None:
    assert explain("group 27 is not viable\n" + "x" * 2_000_000) == ()
    assert explain("x" * 2_000_000 + "\ngroup 27 is not viable")[0].id == "group-not-viable"
    assert len(explain("y" * 5000 + "group 27 is not viable" + "z" * 5000)[0].matched) <= 240


def test_every_cause_has_a_meaning_and_a_cure_on_every_platform() -> None:
    for each in ALL:
        assert each.title and each.means.endswith("."), each.id
        for platform in PLATFORMS:
            assert len(each.cure_on(platform)) > 15, each.id


@pytest.mark.parametrize(("cause", "line"), LINES, ids=[f"{cause}-{n}" for n, (cause, _) in enumerate(LINES)])
def test_a_title_names_the_cause_and_does_not_repeat_the_text(cause: str, line: str) -> None:
    title = next(each.title for each in ALL if each.id == cause)
    assert not _phrases(title) & _phrases(line), title


def test_cures_follow_the_distribution_and_boot_loader() -> None:
    text = "host doesn't support passthrough of host PCI devices"
    wanted = {
        Platform(Family.debian, "grub"): "update-grub",
        Platform(Family.rhel, "grub"): 'grubby --update-kernel=ALL --args="intel_iommu=on iommu=pt"',
        Platform(Family.debian, "systemd-boot"): "/etc/kernel/cmdline",
        platform_of("pop", "ubuntu debian", "systemd-boot"): 'kernelstub -a "intel_iommu=on iommu=pt"',
        Platform(): "With GRUB:",
    }
    for platform, words in wanted.items():
        assert words in explain(text, on=platform)[0].cure


@given(st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    explain(text)


def _phrases(text: str, length: int = 4) -> set[tuple[str, ...]]:
    """Every run of four words."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


def test_a_device_that_qemu_may_not_open_is_no_file_in_a_closed_folder() -> None:
    assert [each.id for each in explain("Could not access KVM kernel module: Permission denied")] == ["kvm-denied"]
