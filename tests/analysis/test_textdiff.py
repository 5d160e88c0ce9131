"""A diff loses nothing of either text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvlab.common.formatting import shared_prefix
from kvlab.views.frames.textdiff import diff


@given(st.text(max_size=60), st.text(max_size=60))
def test_segments_put_together_give_both_texts(own: str, full: str):
    segments = diff(own, full)
    assert "".join(segment.text for segment in segments if segment.kind != "missing") == own
    assert "".join(segment.text for segment in segments if segment.kind != "own") == full
    prefix = shared_prefix(own, full)
    assert own[:prefix] == full[:prefix]
    assert own[prefix : prefix + 1] != full[prefix : prefix + 1] or prefix == min(len(own), len(full))


def test_what_both_begin_with_is_the_same_even_where_a_later_part_would_match_better():
    own, full = " 48213.\n126.\nThe number is 48213.\nThe number", " 48213.\nThe number is"
    assert diff(own, full)[0] == ("same", " 48213.\n".rstrip())


def test_equal_texts_are_one_segment():
    assert [segment.kind for segment in diff("the old lamp", "the old lamp")] == ["same"]
    assert [segment.kind for segment in diff("the new lamp", "the old lamp")] == ["same", "missing", "own", "same"]
