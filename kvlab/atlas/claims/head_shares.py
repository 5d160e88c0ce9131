"""DuoAttention, Attention Matching: how a global cut distributes slots over heads, prompt by prompt."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.compression_ratio import persistence
from kvlab.atlas.claims.pyramid import GROWS
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.prompt_means import basis_of, interval_of, mean_text
from kvlab.common.formatting import prompts
from kvlab.common.intervals import Interval, pairs_interval
from kvlab.figures.base.words import percent, two_digits
from kvlab.results.verdict import OPEN, Claim, Threshold, judge
from kvlab.trace.reader import Run

CUT = "kvzip"
INVARIANT = "DuoAttention, Attention Matching: where a model wants its slots hardly depends on the text."
LATER = "Attention Matching: later layers want more slots than early ones."
SAME = Threshold(0.8, "about where four pairs of heads of five are in the same order in two prompts")


def shares(run: Run) -> pd.DataFrame:
    """One row per head: its `share` of the slots kept of the prompt."""
    steps = run.steps
    if steps.empty or run.record.hyper_parameters.get("level", "pair") != "pair":
        return pd.DataFrame()
    first = steps[steps["step"] == steps["step"].min()][["layer", "head", "live_slots"]]
    return first.assign(share=first["live_slots"] / first["live_slots"].sum()).drop(columns="live_slots")


EVIDENCE = Evidence("head-shares", shares, (CUT,))


def invariant(rows: pd.DataFrame) -> Claim:
    """Rank correlation of the heads' shares in two prompts, over all pairs of prompts."""
    basis = basis_of(rows)
    table = rows.groupby(["layer", "head", "prompt"])["share"].mean().unstack("prompt") if len(rows) else pd.DataFrame()
    found = persistence(table) if basis.prompts > 1 else np.zeros((0, 0))
    if len(found) < 2 or np.isnan(found).any():
        return Claim(INVARIANT, OPEN, f"{prompts(basis.prompts).capitalize()}: it takes 2.", basis, threshold=SAME)
    pairs = pairs_interval(found)
    over = Interval(pairs.mean, pairs.low, pairs.high, basis.prompts, pairs.samples)
    return judge(
        INVARIANT, over, SAME, basis, f"Two prompts' shares have a rank correlation of {mean_text(over, two_digits)}."
    )


def later(rows: pd.DataFrame) -> Claim:
    """Rank correlation of layer index and share, prompt by prompt."""
    by_layer = rows.groupby(["prompt", "layer"])["share"].sum().unstack("layer") if len(rows) else pd.DataFrame()
    trend = [float(line.rank().corr(pd.Series(line.index, line.index).rank())) for _, line in by_layer.iterrows()]
    found = interval_of(trend)
    most = "" if by_layer.empty else f" Layer {by_layer.mean().idxmax()} has most, {percent(by_layer.mean().max())}."
    finding = f"A layer's place and its share have a rank correlation of {mean_text(found, two_digits)}.{most}"
    return judge(LATER, found, GROWS, basis_of(rows), finding)
