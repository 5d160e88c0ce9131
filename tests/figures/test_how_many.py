"""A picture that does not show all says how many of how many it shows, and what its words say is of all."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from kvlab.papers.gvote.probe_figures import scatter_of_rows
from kvlab.papers.zsmerge.contents import cache_contents
from kvlab.report import pictures, slide_parts
from kvlab.results.sources import Sources
from kvlab.views import lineage, scores, similarity, timeline
from kvlab.views.base.provenance import Provenance
from kvlab.views.frames.lineage import State
from tests.figures.generated_frames import draw_with


def tree(count: int, depth: int = 1) -> pd.DataFrame:
    """`count` tokens that flow into slot 0 in chains of `depth`; the attention they bring grows with their position."""
    source = np.arange(1, count + 1)
    inner = source % depth != 0
    return pd.DataFrame(
        {
            "source": source, "target": np.where(inner, source + 1, 0), "source_text": "a", "target_text": "b",
            "step": 3, "kind": "merge", "votes": 1, "similarity": 0.5, "value_weight": 0.1,
            "depth": np.where(inner, depth - source % depth + 1, 1), "flow": source / 1000,
        }
    )  # fmt: skip


@pytest.mark.parametrize("width", ["flow", "votes"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_widest_ribbons_are_drawn_and_the_last_is_all_others(width: str, depth: int):
    frame = tree(210, depth)
    figure = lineage.draw_river(frame, slot=0, width=width)
    link, labels = figure.data[0].link, figure.data[0].node.label
    assert len(link.value) == 61 and labels[link.source[-1]] == "150 others" and link.target[-1] == 0
    if width == "flow":
        own = {int(labels[place].split()[0]) for place in link.source[:-1]}
        assert own == set(range(151, 211))  # they bring the most, whatever their place in the frame
        outer = frame[(frame["source"] <= 150) & ((frame["target"] == 0) | (frame["target"] > 150))]
        assert link.value[-1] == pytest.approx(outer["flow"].sum())
    # Each ribbon ends at the slot or at another one that is drawn.
    assert set(link.target) <= {0, *link.source}


def test_the_words_are_of_all_tokens_of_the_slot():
    told = lineage.describe_river(tree(211))
    assert told.startswith("This slot stands for 212 tokens: its own and 211 merged into it.")
    assert "Showing 60 of 211 tokens, the widest; the last ribbon is the rest." in told
    assert "Showing" not in lineage.describe_river(tree(60))


def test_few_tokens_have_a_ribbon_each():
    link = lineage.draw_river(tree(60), slot=0).data[0].link
    assert len(link.value) == 60


def test_lines_of_some_tokens_say_of_how_many():
    share = np.linspace(0.1, 0.001, 30)
    frame = pd.DataFrame({"token": range(30), "text": "a", "step": 0, "share": share})
    figure, told = lineage.draw_members(frame, "light", slot=0), lineage.describe_members(frame)
    assert len(figure.data) == 12
    numbers = re.search(r"Showing (\d+) of (\d+) tokens, which make up ([\d.]+) %", told)
    assert numbers and numbers.groups()[:2] == ("12", "30")
    assert float(numbers[3]) == pytest.approx(100 * share[:12].sum(), abs=0.5)


def heads_of(layers: int, heads: int, best: tuple[int, int]) -> pd.DataFrame:
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    frame = pd.DataFrame(places, columns=["layer", "head"]).assign(mean=0.3, near=0.5, far=0.3)
    frame.loc[(frame["layer"] == best[0]) & (frame["head"] == best[1]), "mean"] = 0.9
    frame.loc[(frame["layer"] == 28) & (frame["head"] == 0), "mean"] = 0.01
    return frame


@pytest.mark.parametrize("best", [(5, 1), (11, 2), (29, 0)])
def test_a_wall_of_a_deep_model_speaks_of_all_heads_and_shows_the_one_in_focus(best: tuple[int, int]):
    frame = heads_of(60, 3, best)
    for focus in (7, 17, 18):
        shown = similarity.drawn_layers(frame, (focus, 0))
        assert {focus, best[0], 28} <= set(shown) and len(shown) <= similarity.MOST_LAYERS + 3
        told = similarity.caption_similarity_wall(frame, shown)
        assert f"Showing {3 * len(shown)} of 180 heads, those of layers {', '.join(map(str, shown))}." in told


def test_a_wall_of_a_few_layers_is_whole():
    assert similarity.drawn_layers(pd.DataFrame({"layer": [3, 1, 0], "mean": 0.3}), (7, 0)) == [0, 1, 3]
    assert similarity.drawn_layers(heads_of(30, 1, (0, 0)), (7, 0)) == [*range(30)]
    assert "Showing" not in similarity.caption_similarity_wall(heads_of(29, 1, (0, 0)), list(range(29)))
    assert "10 of 40 heads were read" in similarity.caption_similarity_wall(heads_of(10, 1, (0, 0)), None, 40)


@pytest.mark.parametrize(("layers", "heads"), [(30, 3), (6, 4), (4, 8), (19, 32)])
def test_layers_of_a_wall_lie_across(layers: int, heads: int):
    maps = {(layer, head): np.full((8, 8), layer / 100) for layer in range(layers) for head in range(heads)}
    figure = similarity.similarity_wall(maps)
    assert figure.layout.meta["go"] == {"x": "layer", "y": "head"}
    assert figure.layout.meta["ranks"] == {"x": list(range(layers)), "y": list(range(heads))}
    # The map at the place of a layer is that layer's.
    cells, size = np.asarray(figure.data[0].z), round(1 / figure.data[0].dx)
    assert cells.shape == (heads * size, layers * size)
    assert (cells[:, -size:] == layers - 1).all()


def test_a_wall_says_how_many_heads_it_shows_and_outlines_the_one_in_view():
    maps = {(layer, head): np.zeros((8, 8)) for layer in (0, 4, 29) for head in range(3)}
    figure = similarity.similarity_wall(maps, every=90, focus=(29, 2))
    assert "in 9 of 90 heads" in figure.layout.title.text
    edges = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert {(edge.x0, edge.x1, edge.y0, edge.y1) for edge in edges} == {(1.5, 2.5, 1.5, 2.5)}
    assert "in each head" in similarity.similarity_wall(maps, every=9).layout.title.text
    assert len(similarity.similarity_wall(maps, focus=(28, 2)).layout.shapes) == 1


def test_the_mosaic_speaks_of_all_tokens_and_not_of_what_most_of_a_block_are():
    """Where one token in five keeps its slot, none of the blocks does."""
    counts = pd.DataFrame({"step": [4], "unseen": 0, "own": 200, "pivot": 0, "absorbed": 0, "evicted": 800})
    told = timeline.describe_states(counts)
    assert told == "After step 4, most of the text was dropped and about a fifth has slots of its own."
    assert "A cell is a block of about 20 tokens, in their most common state" in timeline.block_note(50, 1000)
    assert not timeline.block_note(1000, 1000)


def test_tokens_panels_and_slots_that_are_not_drawn_are_counted():
    rows = pd.DataFrame({"position": range(1600), "true": 0.5, "synthetic": 0.4})
    scatter = scatter_of_rows(rows, ["a"] * 1600, 0.5, Provenance(), None, "light")
    assert "Showing 1,500 of 1,600 tokens" in scatter.caption and len(scatter.figure.data[0].x) == 1500
    means = pd.DataFrame(
        {"arm": ["a", "b"], "tasks": 11, "prompts": 9, "score": [1.0, 0.5], "score_low": 0.4, "score_high": 1.0,
         "difference": np.nan, "difference_low": np.nan, "difference_high": np.nan}
    )  # fmt: skip
    assert "Showing 9 of 11 tasks, the first." in scores.caption_score_against_budget(means)
    slots = pd.DataFrame({"step": 1, "tokens": 9, "position": range(28), "region": "context", "votes": 1, "slots": 340})
    drawn = cache_contents(slots, ["a"] * 28, Provenance(), None, "light")
    assert "Showing 28 of 340 slots, those that move first." in drawn.caption
    tile = pd.DataFrame(np.zeros((2, 2)))
    assert "Outlined: 2,000 of 2,400 merge sets" in similarity.caption_similarity_map(tile, 2000, 2400)
    assert "Outlined" not in similarity.caption_similarity_map(tile, 12, 12)
    assert pictures.estimate_gif(200).startswith("64 frames of 200 steps")


def test_what_an_exhibit_does_not_show_is_counted(compared_runs: Sources, monkeypatch: pytest.MonkeyPatch):
    """Of 1,600 tokens, of 300 queries, and of blocks of 20 tokens."""
    of_tokens = pd.DataFrame({"variance": 1.0, "window_variance": 0.5, "shuffled": 1.0, "mean": 0.1}, index=range(1600))
    instead = {"variances": of_tokens.assign(token=range(1600))}
    (drawn,) = draw_with(monkeypatch, "keepkv attention.draw_variance", instead, compared_runs)
    assert "Showing 1,500 of 1,600 tokens" in drawn.caption
    layers = pd.DataFrame({"layer": [0], "distance": 1.0, "share": 0.1, "sink_mass": 0.1, "local_mass": 0.1})
    instead = {"pyramid.layer_means": layers.assign(lowest=0.1, highest=0.1)}
    instead |= {"pyramid.attention_map": pd.DataFrame(np.ones((300, 2)))}
    _, drawn = draw_with(monkeypatch, "pyramid_pool recordings.draw_attention", instead, compared_runs)
    assert "Sampled: 64 of 300 queries" in drawn.caption
    (drawn,) = draw_with(monkeypatch, "kvmerger similarity.draw_neighbours", {"heads_with_states": 90}, compared_runs)
    assert f"Showing {len(drawn.frame[['layer', 'head']].drop_duplicates())} of 90 heads." in drawn.caption
    counts = pd.DataFrame({"step": [4], "unseen": 0, "own": 200, "pivot": 0, "absorbed": 0, "evicted": 800})
    blocks = pd.DataFrame(np.full((50, 1), State.EVICTED, np.uint8), columns=[4])
    instead = {"mosaic": blocks, "state_counts": counts}
    (drawn,) = draw_with(monkeypatch, "zsmerge contents.draw_strategies", instead, compared_runs)
    assert "A cell is a block of about 20 tokens" in drawn.caption


def test_a_long_report_has_all_its_lines_on_slides():
    lines = [f"line {index}" for index in range(15)]
    parts = slide_parts._chunks(lines, slide_parts.LINES_A_SLIDE)
    assert [line for part in parts for line in part] == lines
    assert max(map(len, parts)) <= slide_parts.LINES_A_SLIDE
