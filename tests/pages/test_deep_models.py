"""Pages at a depth at which their maps take the whole width: the head in view is outlined, and a sentence names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
LAYERS, HEADS = 20, 2


@pytest.fixture
def deep_runs(runs_root: Path) -> list[str]:
    size: dict[str, Any] = {"layers": LAYERS, "heads": HEADS, "prompt_tokens": 24, "steps": 3, "budget": 0.7}
    return [write_synthetic_run(runs_root, method=method, **size).name for method in ("full", "h2o", "keepkv")]


def outlined(page: AppTest) -> list[tuple[float, float]]:
    """Layer and head of the outlined cell of every chart that has one."""
    found = []
    for element in page.get("plotly_chart"):
        spec = json.loads(element.proto.spec)
        edges = [shape for shape in spec["layout"].get("shapes", []) if shape["type"] == "rect"]
        if edges:
            column, row = round(edges[-1]["x0"] + 0.5), round(edges[-1]["y0"] + 0.5)
            ranks = spec["layout"]["meta"].get("ranks", {"x": range(LAYERS), "y": range(HEADS)})
            found.append((ranks["x"][column], ranks["y"][row]))
    return found


def captions(page: AppTest) -> list[str]:
    """The captions without the backslashes that escape them."""
    return [caption.value.replace("\\", "") for caption in page.caption]


@pytest.mark.parametrize(
    ("name", "maps", "query"),
    [
        # Slots are the same in all heads, and this method merges all that leave: maps of one colour are not drawn.
        ("heads", 1, {}), ("regret", 0, {}), ("merges", 1, {}), ("similarity", 1, {}),
        ("timeline", 1, {"token": "9"}), ("sag", 1, {"scope": "all heads", "measure": "Prediction error"}),
        ("autopsy", 1, {"span": "4-18", "fate": "kept whole"}),
    ],
)  # fmt: skip
def test_every_map_of_heads_outlines_the_head_in_view(
    deep_runs: list[str], open_page: Open, name: str, maps: int, query: dict[str, str]
):
    page = open_page(name, run=deep_runs[2], layer="18", head="1", **query)
    assert not page.exception
    assert outlined(page) == maps * [(18, 1)]
    assert sum("Outlined: layer 18, head 1, the head in view." in told for told in captions(page)) == maps


def test_a_map_of_one_colour_becomes_a_sentence(deep_runs: list[str], open_page: Open):
    page = open_page("regret", run=deep_runs[2], layer="18", head="1")
    assert sum("All 40 cells have the same colour, so the map is not drawn." in told for told in captions(page)) == 2
    page = open_page("regret", run=deep_runs[1], layer="18", head="1")
    assert outlined(page) == [(18, 1)], "the regret of a method that evicts"


def test_a_page_without_pickers_outlines_the_head_that_was_chosen_or_the_first_to_look_at(
    deep_runs: list[str], open_page: Open
):
    for layer, head in (("99", "1"), ("3", "7"), ("x", "0")):
        page = open_page("heads", run=deep_runs[2], layer=layer, head=head)
        assert not page.exception
        told = "".join(captions(page))
        assert "the head in view" in told
        assert f"Outlined: layer {layer}, head {head}" not in told
