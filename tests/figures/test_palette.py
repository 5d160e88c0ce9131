"""One colour a method, everywhere the same; readable on its ground."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import product

import pandas as pd
import pytest

from kvlab.views import regret
from kvlab.views.base.palette import (
    HUES,
    METHODS,
    STATE_COLOURS,
    SURFACES,
    Theme,
    method_style,
    mix,
    run_styles,
    stepped_scale,
)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_every_hue_stands_out_from_its_ground():
    for name, pair in HUES.items():
        for theme, colour in zip(("light", "dark"), pair, strict=True):
            assert contrast(colour, SURFACES[theme]) >= 3, (name, theme)


def test_marks_of_all_layers_stand_out_from_their_ground():
    frame = pd.DataFrame({"layer": range(30), "head": 0, "live_slots": 1, "regret": 0.1, "output_error": 0.1})
    for theme in ("light", "dark"):
        for trace in regret.budget_against_regret(frame, theme).data:
            colour = "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", trace.marker.color)[:3])
            assert contrast(colour, SURFACES[theme]) >= 2, (trace.name, theme)


def test_no_two_methods_look_the_same():
    for theme in ("light", "dark"):
        styles = {method: method_style(method, theme) for method in METHODS}
        assert len(set(styles.values())) == len(METHODS)


def test_the_methods_one_compares_first_have_hues_of_their_own():
    first = ("full", "streaming-llm", "h2o", "snapkv", "zsmerge", "kvmerger", "pyramid-pool", "keepkv", "gvote")
    shipped = ("full", "streaming-llm", "h2o", "snapkv", "zsmerge", "keepkv", "exactmerge2")
    for papers_rivals in (
        first,
        shipped,
        ("gvote", "streaming-llm", "snapkv", "adakv"),
        ("h2o", "pyramidinfer", "cam", "d2o"),
    ):
        assert len({METHODS[method][0] for method in papers_rivals}) == len(papers_rivals)


def test_budgets_of_a_method_share_the_hue_and_differ_in_dash():
    styles = run_styles([("a 10 %", "keepkv"), ("a 20 %", "keepkv"), ("b", "h2o")])
    first, second = styles["a 10 %"], styles["a 20 %"]
    assert first == method_style("keepkv")
    assert first.marker == second.marker
    assert first.dash != second.dash
    assert first.colour != second.colour
    for theme, method in product(("light", "dark"), METHODS):
        later = method_style(method, theme, rank=3).colour
        assert contrast(later, SURFACES[theme]) >= 3, "no budget of a method is pale"
    assert styles["b"] == method_style("h2o")


def test_an_unknown_method_looks_the_same_in_every_process():
    code = "from kvlab.views.base.palette import method_style; print(method_style('my-own'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == str(method_style("my-own"))


def test_the_scale_of_states_has_one_step_a_state():
    scale = stepped_scale(STATE_COLOURS.values(), "light")
    assert len(scale) == 2 * len(STATE_COLOURS)
    assert (scale[0][0], scale[-1][0]) == (0, 1)


def test_mixing_colours():
    assert mix("#000000", "#FFFFFF", 0) == "#000000"
    assert mix("#000000", "#FFFFFF", 0.5) == "#808080"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_two_methods_of_a_comparison_share_a_colour(theme: Theme):
    """Those that share a hue in the palette too, in any order of the runs."""
    methods = ["kvzip", "exactmerge2", "pyramid-pool", "h2o", "tova", "keepkv", "full", "snapkv"]
    methods += ["streaming-llm", "zsmerge", "kvmerger", "gvote", "cam"]  # more than hues
    styles = run_styles([(name, name) for name in methods], theme)
    assert len({style.colour for style in styles.values()}) == len(methods)
    assert run_styles([(name, name) for name in reversed(methods)], theme) == styles
    assert styles["full"] == method_style("full", theme) and styles["h2o"] == method_style("h2o", theme)
    # With every method there is, each still has a style.
    assert run_styles([(name, name) for name in METHODS], theme).keys() == METHODS.keys()
