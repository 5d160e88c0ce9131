"""Colours of the two runs of a difference: those of their methods, and never two that look alike."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pandas as pd
import pytest

from kvlab.views.base.palette import HUES, METHODS, method_look, pick
from kvlab.views.difference import FAMILIES, changed_hues, class_looks, draw_difference_kl, hues_of


def family(hue: str) -> tuple[str, ...]:
    return next(family for family in FAMILIES if hue in family)


def test_every_hue_is_of_one_family():
    assert sorted(hue for names in FAMILIES for hue in names) == sorted(HUES)


def test_no_two_runs_look_alike_and_a_keeps_the_colour_of_its_method():
    for a, b in product(METHODS, METHODS):
        hues, looks = hues_of(a, b), class_looks(hues_of(a, b))
        assert family(hues[0]) != family(hues[1]), (a, b)
        assert len(set(looks.values())) == len({hue for hue, _ in looks.values()}) == 4, (a, b)
        assert len({pattern for _, pattern in looks.values()}) == 4
        if method_look(a)[0] != "grey":
            assert hues[0] == method_look(a)[0]
        if method_look(b)[0] != "grey" and family(method_look(b)[0]) != family(hues[0]):
            assert hues[1] == method_look(b)[0]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_pair_that_was_drawn_in_two_blues_is_wine_and_blue(theme: str):
    """exactmerge2 is wine in all other figures."""
    hues = hues_of("exactmerge2", "streaming-llm")
    assert hues == ("wine", "sky")
    frame = pd.DataFrame({"token": [1, 2], "a": [0.1, 0.2], "b": [0.3, 0.1], "text": [" a", " b"]})
    records = [
        SimpleNamespace(method=method, label=method, prompt_tokens=9) for method in ("exactmerge2", "streaming-llm")
    ]
    runs = [SimpleNamespace(record=record) for record in records]
    drawn = [trace.line.color for trace in draw_difference_kl(frame, theme, runs).data]
    assert drawn == [pick(HUES["wine"], theme), pick(HUES["sky"], theme)]
    assert class_looks(hues)["in both"][0] not in ("wine", "red", "grey", "blue", "sky")


def test_a_replaced_colour_is_said():
    assert changed_hues("h2o", "keepkv") == changed_hues("exactmerge2", "streaming-llm") == ""
    assert changed_hues("keepkv", "streaming-llm").startswith("B (streaming-llm) has another colour here")
    assert changed_hues("h2o", "h2o").startswith("B (h2o) has")
    assert "A (window) and B (duoattention) have" in changed_hues("window", "duoattention")
