"""One token of a live session: which heads hold it, and how much attention the last answer gave it.

These are not registered views: until a session is recorded as a comparison there is no run to open, only what its
worker read of one lane after the last answer, which the next answer replaces.
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.views.base import simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.palette import STATE_COLOURS, Theme, pick, stepped_scale
from kvlab.views.base.words import percent
from kvlab.views.frames.token_heads import MERGED, NO_SLOT, OWN, STATES

COLOURS = ("evicted", "absorbed", "kept")  # of the states, as in all texts
SHORT = ("no slot", "merged", "own slot")


def heads_that_hold(table: pd.DataFrame, word: str, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """The state of a token in every head; the head `focus` is outlined.

    `table` is `kvlab.views.frames.token_heads.TokenHeads.of_token`.
    """
    wide = table.pivot(index="layer", columns="head", values="state")
    colours = stepped_scale([pick(STATE_COLOURS[name], theme) for name in COLOURS])
    key = {"tickvals": list(range(len(SHORT))), "ticktext": list(SHORT)}
    names = wide.map(lambda state: STATES[int(state)]).to_numpy(object)
    return head_map(
        wide,
        f"Heads that hold {word}",
        theme,
        bar="",
        hover=": %{customdata}",
        focus=focus,
        colours=colours,
        low=-0.5,
        high=len(SHORT) - 0.5,
        bar_options=key,
        customdata=names,
    )


@with_simple(simple.heads_that_hold)
def caption_heads_that_hold(table: pd.DataFrame) -> str:
    """Shares of heads by state."""
    in_own_slot, merged, gone = ((table["state"] == state).mean() for state in (OWN, MERGED, NO_SLOT))
    parts = [f"{percent(in_own_slot)} of {len(table)} heads hold it in a slot of its own"]
    if merged > 0:
        parts.append(f"{percent(merged)} in another token's slot")
    return f"{', '.join(parts)}, {percent(gone)} not at all."


def attention_to_token(table: pd.DataFrame, word: str, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """Mean attention of the last answer's tokens to the slot that holds the token, by head."""
    wide = table.pivot(index="layer", columns="head", values="attention")
    return head_map(
        wide,
        f"Attention of the last answer to {word}",
        theme,
        bar="attention",
        hover=": %{z:.4f}",
        focus=focus,
        high=max(float(table["attention"].max()), 1e-9),
    )


@with_simple(simple.attention_to_token)
def caption_attention_to_token(table: pd.DataFrame) -> str:
    """The head that reads the token most, and the mean over heads."""
    most = table.loc[table["attention"].idxmax()]
    if most["attention"] <= 0:
        return "No head gave it attention."
    return (
        f"Layer {most['layer']:.0f}, head {most['head']:.0f} reads it most: {percent(float(most['attention']))} of the "
        f"attention of the answer's tokens; the mean over all heads is {percent(float(table['attention'].mean()))}. "
        "A merged token has the attention of its slot."
    )
