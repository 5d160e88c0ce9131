"""Token text in figures is inert and shows its white space; numbers read well."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.views.base.words import byte_size, byte_unit, lost_share, number, percent, plural, token_labels, visible


@given(st.text(max_size=80))
def test_no_tag_survives(text: str):
    shown = visible(text, 100)
    assert "<" not in shown
    assert ">" not in shown
    assert shown


def test_white_space_is_seen():
    assert visible(" a\n\tb") == "·a⏎⇥b"
    assert visible("") == "∅"
    assert visible("<script>") == "&lt;script&gt;"
    assert len(visible("x" * 99)) == 24


def test_a_number_that_is_a_token_cannot_be_read_as_part_of_its_position():
    texts = ["x"] * 689 + ["1"]
    assert token_labels([689], texts) == ["689 “1”"]


def test_sag_is_positive_where_attention_is_lost():
    assert lost_share(0.03) == "3 % lost"
    assert lost_share(-0.02) == "2 % gained"
    assert lost_share(math.nan) == "not recorded"


def test_labels_are_unique_even_for_equal_words():
    labels = token_labels([0, 1, 7], ["the", "the"])
    assert labels == ["0 “the”", "1 “the”", "7"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.12345, "0.123"),
        (1234, "1,230"),
        (2e-7, "2×10⁻⁷"),
        (-2.5e-7, "-2.5×10⁻⁷"),
        (1.5e6, "1.5×10⁶"),
        (math.nan, "not recorded"),
        (None, "not recorded"),
    ],
)
def test_numbers(value: float | None, shown: str):
    assert number(value) == shown


def test_shares_bytes_and_counts():
    assert percent(0.1234) == "12.3 %"
    assert percent(0) == "0 %"
    assert percent(12.3456) == "1,230 %"
    assert percent(1e-5) == "0.001 %"
    assert percent(3e-12) == percent(-3e-12) == "under 0.001 %"
    assert byte_size(2048) == "2 KiB"
    assert byte_size(3 * 1024**3) == "3 GiB"
    assert byte_size(1020 * 1024) == "1,020 KiB"
    assert byte_unit(5e6) == (1024**2, "MiB")
    assert plural(1, "merge") == "1 merge"
    assert plural(1200, "merge") == "1,200 merges"
