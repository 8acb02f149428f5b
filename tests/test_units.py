"""Sizes, times and names as people say them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from vmgpu.errors import Invalid
from vmgpu.units import a_or_an, parse_duration, say_count


@pytest.mark.parametrize(
    "said",
    [
        "an A100-40GB", "an A30-24GB", "an H100-80GB", "an L40S", "an RTX-6000", "an NVIDIA L4", "an MI300X",
        "a T4", "a V100", "a B200", "a GH200", "a P4", "a Tesla V100", "an emulated A30", "a 1g.5gb", "an 8086:56c0",
        "an 11", "a 110",
    ],
)  # fmt: skip
def test_a_name_has_the_article_it_is_said_with(said: str) -> None:
    article, _, name = said.partition(" ")
    assert a_or_an(name) == f"{article} {name}"


def test_a_number_alone_is_a_time_span_only_where_its_unit_is_agreed() -> None:
    with pytest.raises(Invalid, match="'8' has no unit") as refused:
        parse_duration(" 8 ")
    assert refused.value.hint == "Write it like 90s, 30m, 8h or 7d."
    assert parse_duration("8", bare="s") == timedelta(seconds=8)
    assert parse_duration("1h30m") == parse_duration("90", bare="m")


def test_one_is_no_plural() -> None:
    assert [say_count(number, "card") for number in (0, 1, 2)] == ["0 cards", "1 card", "2 cards"]
