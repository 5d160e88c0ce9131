"""Simple sentences about similarity of neighbouring tokens."""

from __future__ import annotations

import pandas as pd

from kvlab.common.formatting import join_words
from kvlab.views.base.amounts import alike, near, sentence
from kvlab.views.similarity import FAR


def maps_side_by_side(found: pd.DataFrame) -> str:
    """Whether near tokens are more alike, by kind of vector; columns near and any_pair, indexed by kind."""
    return _closer([str(kind) for kind, one in found.iterrows() if one["near"] > one["any_pair"] + FAR], len(found))


def cosine_by_distance(frame: pd.DataFrame) -> str:
    """Whether adjacent tokens are more alike than others, by kind."""
    first = frame.groupby("kind", sort=False)[["cosine", "any_pair"]].first()
    kinds = [str(kind) for kind, one in first.iterrows() if one["cosine"] > one["any_pair"] + FAR]
    return _closer(kinds, len(first))


def neighbours_of_heads(frame: pd.DataFrame, every: int) -> str:
    """How much alike adjacent tokens are, and whether heads differ."""
    beside_it = frame[frame["offset"].abs() == 1].groupby(["layer", "head"])["similarity"].mean()
    if not beside_it.notna().any():
        return "The text has no other token."
    told = f"on average, adjacent tokens are {alike(float(beside_it.mean()))}"
    same = near(float(beside_it.min()), float(beside_it.max()))
    return sentence(told if same or len(beside_it) == 1 else f"{told}, in some heads more than in others")


def _closer(kinds: list[str], every: int) -> str:
    if not kinds:
        return "Neighbouring tokens are no more alike than any two."
    if len(kinds) == every:
        return "Neighbouring tokens are more alike than any two."
    return f"Neighbouring tokens are more alike than any two only in their {join_words(kinds)}."
