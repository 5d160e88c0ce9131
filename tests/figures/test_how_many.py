"""A picture that does not show all says how many of how many it shows, and what its words say is of all."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from kvlab.figures import influence, lineage


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
    figure = lineage.lineage_river(frame, 0, "slot", width=width)
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
    told = lineage.read_lineage_river(tree(211))
    assert told.startswith("211 tokens flowed into it") and "it stands for 212" in told
    assert "Drawn are 60 of 211 tokens, the widest; the last ribbon is all others." in told
    assert "Drawn" not in lineage.read_lineage_river(tree(60))


def test_few_tokens_have_a_ribbon_each():
    link = lineage.lineage_river(tree(60), 0, "slot").data[0].link
    assert len(link.value) == 60


def test_lines_of_some_tokens_say_of_how_many():
    share = np.linspace(0.1, 0.001, 30)
    frame = pd.DataFrame({"token": range(30), "text": "a", "step": 0, "share": share})
    figure, told = influence.members_over_steps(frame, 0), influence.read_members_over_steps(frame)
    assert len(figure.data) == 12
    assert "its 30 tokens make up 152 % of it" in told
    numbers = re.search(r"Drawn are (\d+) of (\d+) tokens, which make up ([\d.]+) % of it", told)
    assert numbers and numbers.groups()[:2] == ("12", "30")
    assert float(numbers[3]) == pytest.approx(100 * share[:12].sum(), abs=0.5)
