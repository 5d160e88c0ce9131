"""Words on cells can be read on every colour of every scale."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest

from kvlab.views.base.head_map import cell_text, colours_at, ink_on, luminance
from kvlab.views.base.palette import DIVERGING, LOSS, SEQUENTIAL

SCALES = {f"{name} {theme}": scale[theme] for name, scale in
          (("diverging", DIVERGING), ("loss", LOSS), ("sequential", SEQUENTIAL)) for theme in scale}  # fmt: skip


def contrast(ink: str, ground: np.ndarray) -> float:
    channels = np.array([int(ink[place : place + 2], 16) for place in (1, 3, 5)])
    low, high = sorted((luminance(channels), luminance(ground)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_the_ink_has_the_contrast_that_small_text_needs(scale: list[str]):
    stops = list(zip(np.linspace(0, 1, len(scale)), scale, strict=True))
    grounds = colours_at(stops, np.linspace(0, 1, 101))
    assert min(contrast(ink_on(ground), ground) for ground in grounds) >= 4.2


def test_colours_between_stops_are_mixed():
    assert colours_at([(0, "#000000"), (1, "#FF8000")], np.array([[0.5]])).tolist() == [[[127.5, 64, 0]]]


def test_black_and_white_are_as_light_as_they_can_be():
    assert luminance(np.zeros(3)) == 0
    assert luminance(np.full(3, 255)) == pytest.approx(1)


def test_each_word_stands_on_its_cell_and_empty_ones_are_left_out():
    heat = go.Heatmap(
        z=[[0, 1], [np.nan, 0.5]], x=["a", "b"], y=["top", "foot"], zmin=0, zmax=1, colorscale=["#000000", "#FFFFFF"]
    )
    words = cell_text(heat, [["dark", "light"], ["", "grey"]])
    assert list(zip(words.x, words.y, words.text, strict=True)) == [
        ("a", "top", "dark"), ("b", "top", "light"), ("b", "foot", "grey"),
    ]  # fmt: skip
    assert words.textfont.color[:2] == ("#FFFFFF", "#12151C")
    assert len(cell_text(heat, [["", ""], ["", ""]]).text) == 0
