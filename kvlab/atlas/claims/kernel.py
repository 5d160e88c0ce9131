"""KVMerger, figure 3d: tokens nearer to the pivot get more weight."""

from __future__ import annotations

import pandas as pd

from kvlab.analysis.similarity.head_states import readable_heads, spread_heads
from kvlab.atlas.analysis.gaussian_weights import merged_pairs
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.prompt_means import basis_of, mean_text, over_prompts
from kvlab.figures.base.words import percent, two_digits
from kvlab.results.verdict import OPEN, Claim, Threshold, judge
from kvlab.trace.reader import Run

NEARER = "Tokens whose keys are nearer to the pivot's get more weight."
CLEARLY = Threshold(1.1, "equal weights give 1; a tenth more is the least that can move a merged key")


def head_rows(run: Run) -> pd.DataFrame:
    """One row per head: `weight_ratio` of its merges in the prefill."""
    points = merged_pairs(run, readable_heads(run, spread_heads(run)))
    groups = points.groupby(["layer", "head"], sort=False)
    return pd.DataFrame([{"layer": a, "head": b, **weight_ratio(group)} for (a, b), group in groups])


def weight_ratio(points: pd.DataFrame) -> dict[str, float]:
    """`ratio`: weight of the nearest over that of the furthest token, median over sets of at least three tokens;
    `sets`: number of these; `pairs`: number of sets of two."""
    larger = points[points["others"] > 1].groupby("target")["weight"]
    ratio = float((larger.max() / larger.min()).median()) if len(larger) else float("nan")
    return {"ratio": ratio, "sets": len(larger), "pairs": int((points["others"] == 1).sum())}


EVIDENCE = Evidence("kernel", head_rows, ("kvmerger",))


def nearer(rows: pd.DataFrame) -> Claim:
    """Weight of the nearest over that of the furthest token, over all sets of at least three tokens."""
    sets, pairs = (int(rows[name].sum()) if name in rows else 0 for name in ("sets", "pairs"))
    basis = basis_of(rows, sets + pairs)
    if not sets:
        return Claim(NEARER, OPEN, "All sets are pairs: their weight does not depend on the distance.", basis)
    ratio = over_prompts(rows, "ratio")
    finding = (
        f"In {sets:,} sets of three tokens and more the nearest weighs {mean_text(ratio, two_digits)} "
        f"times the furthest (median of a head, mean over heads), but {percent(pairs / (sets + pairs))} of the sets "
        "are pairs, which have one distance and so one fixed weight."
    )
    return judge(NEARER, ratio, CLEARLY, basis, finding)
