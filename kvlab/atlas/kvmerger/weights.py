"""KVMerger, figure 3d: the Gaussian kernel and the weights of a run; nearer tokens get more weight."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.merging_sets import kernel, merged_pairs
from kvlab.atlas.evidence import Evidence, basis_of, gather, mean_text, over_prompts
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import merging_sets as figures
from kvlab.atlas.kvmerger.recordings import BUDGETS, METHODS, eviction_sentence, merging_run, sample_sentence
from kvlab.atlas.measurements import comparison
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, Threshold, judge
from kvlab.trace.reader import Run
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import of_run
from kvlab.views.base.words import number, percent, two_digits
from kvlab.views.frames.head_states import readable_heads, spread_heads

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


PAPER_SIGMAS = (1.0, 3.0, 6.0)  # KVMerger, Table 5


def draw_kernel(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """The kernel for the paper's sigmas and this run's, with every merged token on its set's curve."""
    run = merging_run(sources)
    if isinstance(run, Needs):
        return run
    heads = readable_heads(run, spread_heads(run))
    points = merged_pairs(run, heads)
    some = sample_sentence(run, heads)
    if points.empty:
        return Needs("Nothing was merged in this run's prefill.", comparison(sources, METHODS, BUDGETS))
    curves = kernel_curves(points)
    caption = figures.caption_kernel_curves(points).within(after=f"{some} {eviction_sentence(run)}")
    shown = figures.kernel_curves(points, curves, theme), caption
    on_one = figures.kernel_in_sigmas(points, theme), figures.caption_kernel_in_sigmas(points).within(after=some)
    return (
        Drawn("by distance", shown[0], points, shown[1], of_run(run)),
        Drawn("in sigmas", on_one[0], points, on_one[1], of_run(run), nearer(gather(sources, EVIDENCE, [run]))),
    )


def kernel_curves(points: pd.DataFrame) -> pd.DataFrame:
    """The kernel over the observed distances, for the paper's sigmas and the run's median; columns as in the figure."""
    distance = np.linspace(0, 1.05 * float(points["distance"].max()), 160)
    median = float(points["sigma"].median())
    sigmas = {f"sigma {sigma:g}": sigma for sigma in PAPER_SIGMAS}
    sigmas[f"sigma {number(median, 2)}, this run's median"] = median
    parts = [
        pd.DataFrame({"name": name, "sigma": sigma, "distance": distance, "kernel": kernel(distance, sigma)})
        for name, sigma in sigmas.items()
    ]
    return pd.concat(parts, ignore_index=True)


DRAWINGS = {"fig-3d": draw_kernel}
