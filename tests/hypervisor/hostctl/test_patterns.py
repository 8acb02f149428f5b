"""Whatever a stranger writes as an argument, only what matches goes on."""

from __future__ import annotations

from typing import Any

import pytest

from vmgpu.hypervisor.hostctl.patterns import ADDRESS, PARENT, Arguments
from vmgpu.hypervisor.hostctl.refusal import Refusal

HOSTILE = [
    "",
    "../../etc/passwd",
    "0000:41:00.0/../../../../etc",
    "0000:41:00.0\n",
    "0000:41:00.0\0",
    "\n0000:41:00.0",
    "0000:41:00.8",
    "0000:4A:00.0",
    "000:41:00.0",
    "٠٠٠٠:٤١:٠٠.٠",
    "0000:41:00.0 -d ALL",
    "ALL",
    "-e",
    "; reboot",
    "$(reboot)",
    "a" * 100_000,
    0,
    1.5,
    True,
    [],
    {},
    ["0000:41:00.0"],
]


def refused(call: Any, *arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(*arguments)
    assert caught.value.code == "bad_argument"
    assert len(caught.value.message) < 200
    assert caught.value.message.isascii() and caught.value.message.isprintable()
    return caught.value


@pytest.mark.parametrize("value", [*HOSTILE, None], ids=lambda each: type(each).__name__)
def test_no_address_but_an_address(value: Any) -> None:
    refused(Arguments({"address": value}).address)


@pytest.mark.parametrize("value", ["0000:41:00.0", "0001:c8:1f.7", "00010000:00:00.0", "10000:e1:00.0"])
def test_addresses_of_every_domain(value: str) -> None:
    assert Arguments({"address": value}).address() == value


@pytest.mark.parametrize(
    "value", [-1, 2**31, 10**5000, 1.0, "1", True, [], float("inf"), "٣"], ids=lambda each: type(each).__name__
)
def test_no_number_but_a_number(value: Any) -> None:
    refused(lambda: Arguments({"start": value}).number("start"))


def test_numbers_that_are_left_out() -> None:
    assert Arguments({"placement": None}).maybe_number("placement") is None
    assert Arguments({"placement": 0}).maybe_number("placement") == 0  # 0 is a place, not an absence
    assert "missing" in refused(lambda: Arguments({}).number("id")).message


@pytest.mark.parametrize("value", [1, 0, "true", "on", None, [True]])
def test_no_flag_but_a_flag(value: Any) -> None:
    refused(lambda: Arguments({"on": value}).flag("on"))


@pytest.mark.parametrize(
    "value", ["", "../x", "a\nb", "L40S-4Q\0", "Ⅳ", "x" * 65, "-1", 0, -1, True, 2**31, "a/b", None, []]
)
def test_no_type_but_a_type(value: Any) -> None:
    refused(Arguments({"type": value}).vgpu_type)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1150, 1150),
        ("1150", 1150),
        ("NVIDIA L40S-4Q", "NVIDIA L40S-4Q"),
        ("NVIDIA H200X-1-18CME", "NVIDIA H200X-1-18CME"),
    ],
)
def test_types_by_number_and_name(value: Any, read: Any) -> None:
    assert Arguments({"type": value}).vgpu_type() == read


def test_a_misspelt_argument_is_not_ignored() -> None:
    refused(lambda: Arguments({"addres": "0000:41:00.0"}).only("address"))
    Arguments({"addres": None}).only("address")


def test_choices() -> None:
    assert Arguments({"action": "set"}).choice("action", "set", "clear") == "set"
    for value in ("SET", "set ", ["set"], None):
        refused(lambda value=value: Arguments({"action": value}).choice("action", "set", "clear"))


def test_names_of_parents() -> None:
    assert all(PARENT.fullmatch(each) for each in ("0000:06:00.0", "css_0_0_0023", "0.0.26ab", "mtty"))
    assert not any(PARENT.fullmatch(each) for each in ("..", "a..b", "a/b", "a\n", "x" * 65, "é"))
    assert not ADDRESS.fullmatch("0000:06:00.0\n")
