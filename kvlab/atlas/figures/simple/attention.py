"""Simple sentences about attention rows: where attention goes, and when it comes back."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from kvlab.views.base.amounts import NOT_RECORDED, are_known, comparison_words, contrast, near, part, sentence


def attention_map(frame: pd.DataFrame) -> str:
    """How concentrated the attention is."""
    values = np.sort(frame.to_numpy(float), axis=1)[:, ::-1]
    values = values[values.sum(axis=1) > 0]
    if not len(values):
        return "There is no attention here."
    top = values[:, : max(1, values.shape[1] // 20)].sum(axis=1) / values.sum(axis=1)
    return sentence(f"{part(float(top.mean()))} of the attention is on the twentieth of the text that is read most")


def distance_by_layer(frame: pd.DataFrame, queries: int, most: int) -> str:
    """Whether the last layer looks further back than the first."""
    first = float(frame["distance"].iloc[0])
    last = float(frame["distance"].iloc[-1])
    if len(frame) == 1:
        return "Only one layer is shown."
    if not are_known(first, last):
        return NOT_RECORDED
    how = comparison_words(last, first, "further back than", "less far back than", "about as far back as", 0.05)
    return f"On average, the last layer looks {how} the first."


def cumulative_mass(frame: pd.DataFrame, layer: int, head: int, top: float) -> str:
    """How much attention the most attended tokens hold."""
    at = frame[np.isclose(frame["share"], top)]["mass"]
    return sentence(f"in a typical head, {part(float(at.median()))} of the attention is on the few tokens read most")


def returning_over_steps(frame: pd.DataFrame) -> str:
    """Whether tokens that would be dropped come back."""
    last = frame[frame["step"] == frame["step"].max()]["ever"].mean()
    return sentence(f"{part(float(last))} of what could be dropped becomes important again later")


def returning_by_head(frame: pd.DataFrame) -> str:
    """How many tokens come back, and whether heads differ."""
    told = f"{part(float(frame['ever'].mean()))} of what could be dropped becomes important again later"
    if not frame["ever"].notna().any():
        return NOT_RECORDED
    same = near(float(frame["ever"].min()), float(frame["ever"].max()))
    return sentence(told if same else f"{told}, in some heads more than in others")


def variance_by_token(frame: pd.DataFrame, ratio: float, shuffled: float) -> str:
    """Whether attention changes less within a short time."""
    if not math.isfinite(ratio):
        return "How much attention changes was not recorded."
    how = comparison_words(ratio, shuffled, "more", "less", "no less", 0.05)
    return f"Within a short time, a token's attention changes {how} than over steps in random order."


def error_by_step(frame: pd.DataFrame, kind: str) -> str:
    """The best and the worst predictor."""
    medians = frame[frame["kind"] == kind].groupby("predictor", sort=False)["error"].median()
    return contrast(
        medians,
        "The next attention is predicted best by {least}, and worst by {most}.",
        "All predict equally well.",
        "Only {only} is shown.",
        "There was nothing to predict.",
    )
