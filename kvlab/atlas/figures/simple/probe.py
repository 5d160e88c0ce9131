"""Simple sentences about sampled queries and what they attend to."""

from __future__ import annotations

import math

import pandas as pd

from kvlab.views.base.amounts import NOT_RECORDED, are_known, contrast, near, part, sentence
from kvlab.views.base.words import token_text


def histograms(frame: pd.DataFrame, layer: int) -> str:
    """Whether the channels are nearly normal."""
    off = frame[frame["channel"] == frame["channel"].iloc[0]]
    step = float(off["deviation"].iloc[1] - off["deviation"].iloc[0])
    overlap = 1 - float((off["density"] - off["normal"]).abs().sum()) * step / 2
    return f"All channels together {_how_well(overlap)} follow a bell curve."


def quantile_pairs(frame: pd.DataFrame, layer: int) -> str:
    """The channels nearest to and furthest from a bell curve."""
    off = (frame["quantile"] - frame["normal"]).abs().groupby(frame["channel"], sort=False).max()
    return contrast(
        off,
        "Nearest to a bell curve: {least}; furthest from it: {most}.",
        "All channels are equally near to a bell curve.",
    )


def moments_by_layer(frame: pd.DataFrame) -> str:
    """How many channels are nearly normal."""
    return sentence(f"{_plural_part(float(frame['close'].mean()))} channels are shaped nearly like a bell curve")


def overlap_and_usage(frame: pd.DataFrame, prefix: str = "") -> str:
    """How much of the next query's attention a sample finds."""
    share = part(float(frame[f"{prefix}overlap"].mean()))
    return sentence(f"on average, a guessed query finds {share} of the next query's attention")


def growth_by_samples(frame: pd.DataFrame) -> str:
    """Tokens kept and attention covered as samples are added."""
    first = frame.iloc[min(1, len(frame) - 1)]
    last = frame.iloc[-1]
    if not are_known(float(first["covered"]), float(last["covered"])):
        return NOT_RECORDED
    if near(float(first["covered"]), float(last["covered"])):
        return "More guessed queries find no more of the next query's attention."
    how = "more" if last["covered"] > first["covered"] else "less"
    return f"With more guessed queries, {how} of the next query's attention is found."


def coverage_ahead(frame: pd.DataFrame) -> str:
    """How much of later queries' attention is kept."""
    return sentence(f"on average, {part(float(frame['covered'].mean()))} of later attention is on what was kept")


def attention_strips(frame: pd.DataFrame, texts: list[str]) -> str:
    """Whether samples and the true query read the same token most."""
    true, guessed = (texts[int(frame.loc[frame[name].idxmax(), "position"])] for name in ("true", "synthetic"))
    same = int(frame["true"].idxmax()) == int(frame["synthetic"].idxmax())
    if same:
        return f"The true query and the guessed ones look at the same token most: “{token_text(true.strip())}”."
    read = token_text(true.strip())
    sampled = token_text(guessed.strip())
    return f"The true query looks most at “{read}”, the guessed ones look most at “{sampled}”."


def scatter_of_rows(correlation: float, inner: float, tokens: int) -> str:
    """How well samples agree with the true query."""
    if not math.isfinite(correlation):
        return "Guessed and true attention cannot be compared."
    bounds = ((0.2, "hardly"), (0.5, "loosely"), (0.8, "roughly"))
    how = next((words for bound, words in bounds if correlation < bound), "closely")
    return f"Guessed attention {how} follows the true attention."


def _how_well(overlap: float) -> str:
    bounds = ((0.8, "hardly"), (0.9, "roughly"), (0.97, "closely"))
    return next((words for bound, words in bounds if overlap < bound), "very closely")


def _plural_part(share: float) -> str:
    return {"none": "no", "all": "all"}.get(part(share), f"{part(share)} of the")
