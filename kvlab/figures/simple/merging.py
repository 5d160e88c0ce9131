"""Simple sentences on what leaves a cache, what is merged, and what one slot stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from kvlab.analysis.lineage.decision import cutoff
from kvlab.common.formatting import join_words
from kvlab.views.base.amounts import near, part, sentence, some_of
from kvlab.views.base.words import number, token_text


def scores_at_decision(frame: pd.DataFrame, chosen: Sequence[int] = ()) -> str:
    """Whether the scores explain who stayed."""
    line = cutoff(frame)
    if line.budget >= len(frame):
        return "Every token kept its slot."
    if not line.budget:
        return "No token kept its slot."
    if not line.by_score:
        return "The score alone does not explain who stayed: some tokens with lower scores did."
    if line.placed:
        return "The first and last tokens stayed because of their place, the others because of their scores."
    return "The tokens with the highest scores stayed."


def budgets_for(frame: pd.DataFrame) -> str:
    """How many heads kept the chosen tokens."""
    known = frame[frame["needed"].notna()]
    if known.empty:
        return "The score alone explains the decision of no head."
    kept = int((known["needed"] <= known["slots"]).sum())
    told = f"the chosen text was kept whole by {some_of(kept, len(known), 'head')}"
    return sentence(told if len(known) == len(frame) else f"where the score alone decides, {told}")


def merge_sankey(frame: pd.DataFrame) -> str:
    """How many tokens the slot stands for."""
    if frame.empty:
        return "This slot stands for its own token only."
    return f"This slot stands for {len(frame) + 1:,} tokens: its own and {len(frame):,} merged into it."


def influence_decay(frame: pd.DataFrame, half: float) -> str:
    """How fast a token's part in its slot shrinks."""
    if math.isinf(half):
        return "However often a slot was merged here, a token in it kept more than half of its part."
    if half < 1:
        return "The first merge already takes half of a token's part in its slot."
    return f"Half of a token's part in its slot is gone after {number(half, 2)} merges."


def members_over_steps(frame: pd.DataFrame) -> str:
    """The token with the largest part."""
    last = frame[frame["step"] == frame["step"].max()]
    if len(last) == 1:
        return "This slot holds one token."
    if not last["share"].notna().any():
        return "What each token has in this slot was not recorded."
    if near(float(last["share"].min()), float(last["share"].max())):
        return f"All {len(last):,} tokens have an equal part in this slot's value."
    top = last.loc[last["share"].idxmax()]
    return f"“{token_text(str(top['text']).strip())}” has the largest part in this slot's value."


def token_mosaic(frame: pd.DataFrame, counts: pd.DataFrame) -> str:
    """What became of the text by the last step."""
    return _fates(counts)


def state_totals(frame: pd.DataFrame) -> str:
    """What became of the text by the last step."""
    return _fates(frame)


def _fates(counts: pd.DataFrame) -> str:
    last = counts.iloc[-1]
    read = float(last[["own", "pivot", "absorbed", "evicted"]].sum())
    if not read:
        return "No token was read yet."
    shares = {
        "has slots of its own": last["own"],
        "shares slots with others": last["pivot"] + last["absorbed"],
        "was dropped": last["evicted"],
    }
    ordered = sorted((-float(count) / read, what) for what, count in shares.items() if count)
    told = [
        f"{part(-share)} of the text {what}" if not place else f"{part(-share)} {what}"
        for place, (share, what) in enumerate(ordered)
    ]
    return sentence(join_words(told))
