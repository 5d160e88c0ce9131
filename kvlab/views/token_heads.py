"""One token of a live session: which heads hold it, and how much attention the last answer gave it.

These are not registered views: until a session is recorded as a comparison there is no run to open, only what its
worker read of one branch after the last answer, which the next answer replaces.
"""

import pandas as pd
import plotly.graph_objects as go

from kvlab.views.base import STATE_COLOURS, Theme, near, sentence, some_of, stepped_scale
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.frames.token_heads import STATES

COLOURS = ("evicted", "absorbed", "kept")  # of the states, as in all texts
SHORT = ("no slot", "merged", "own slot")


def heads_that_hold(table: pd.DataFrame, word: str, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """The state of a token in every head; the head `focus` is outlined.

    `table` is `kvlab.views.frames.token_heads.TokenHeads.of_token`.
    """
    wide = table.pivot(index="layer", columns="head", values="state")
    colours = stepped_scale([STATE_COLOURS[name] for name in COLOURS], theme)
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


def caption_heads_that_hold(table: pd.DataFrame) -> str:
    """How many heads hold the token."""
    held = int((table["state"] > 0).sum())
    return sentence(f"this token is still held by {some_of(held, len(table), 'head')}")


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


def caption_attention_to_token(table: pd.DataFrame) -> str:
    """The head that reads the token most."""
    values = table["attention"].fillna(0)
    if values.max() <= 0:
        return "No head looks at this token."
    if near(float(values.min()), float(values.max())):
        return "Every head looks at this token equally much."
    most = table.loc[values.idxmax()]
    return f"This token is looked at most in layer {int(most['layer'])}, head {int(most['head'])}."
