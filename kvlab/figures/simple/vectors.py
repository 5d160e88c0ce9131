"""Simple sentences on how much alike keys, values and heads are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.views.base.amounts import NOT_RECORDED, alike, are_known, near

FAR = 0.02  # smaller differences of cosines count as none


def similarity_map(frame: pd.DataFrame, sets: int = 0, every: int = 0) -> str:
    """How much alike two tokens are on average."""
    return f"On average, two tokens here are {alike(float(np.nanmean(frame.to_numpy(float))))}."


def similarity_band(frame: pd.DataFrame) -> str:
    """Whether neighbours are more alike."""
    return _neighbours(float(np.nanmean(frame.iloc[:1])), float(np.nanmean(frame.iloc[len(frame) // 2 :])))


def similarity_wall(frame: pd.DataFrame, layers: Sequence[int] | None = None, every: int = 0) -> str:
    """Whether neighbours are more alike, over heads."""
    return _neighbours(float(frame["near"].mean()), float(frame["far"].mean()))


def neighbours(frame: pd.DataFrame) -> str:
    """How far away the most similar token is."""
    others = frame[(frame["offset"] != 0) & frame["similarity"].notna()]
    if others.empty:
        return "The text has no other token."
    values = others["similarity"]
    if len(others) > 1 and near(float(values.min()), float(values.max())):
        return "All tokens around are equally similar to it."
    away = abs(int(others.loc[values.idxmax(), "offset"]))
    return f"The token most similar to it is {'right beside it' if away == 1 else f'{away:,} tokens away'}."


def heads_plane(table: pd.DataFrame, groups: pd.DataFrame) -> str:
    """How many kinds of heads there are."""
    if len(groups) == 1:
        return "All heads attend in much the same way."
    return f"By the way they attend, the heads fall into {len(groups)} groups."


def groups_by_head(table: pd.DataFrame) -> str:
    """Whether heads of one layer are of one group."""
    same = table.groupby("layer")["group"].agg(lambda groups: groups.value_counts(normalize=True).iloc[0]).mean()
    if table["group"].nunique() == 1:
        return "All heads are of one group."
    if near(float(same), 1.0):
        return "All heads of a layer are of one group."
    if same > 0.55:
        return "On average, most heads of a layer are of one group."
    return "The heads of a layer are of several groups."


def _neighbours(close: float, far: float) -> str:
    if not are_known(close, far):
        return NOT_RECORDED
    if abs(close - far) <= FAR:
        return "Neighbouring tokens are about as much alike as distant ones."
    return f"Neighbouring tokens are {'more' if close > far else 'less'} alike than distant ones."
