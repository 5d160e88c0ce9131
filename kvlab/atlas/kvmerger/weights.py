"""Figure 3d: the Gaussian kernel and the weights of a run."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.head_states import readable_heads, spread_heads
from kvlab.atlas.analysis.gaussian_weights import kernel, merged_pairs
from kvlab.atlas.claims.kernel import EVIDENCE, nearer
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import gaussian_kernel as figures
from kvlab.atlas.kvmerger.recordings import BUDGETS, METHODS, eviction_sentence, merging_run, sample_sentence
from kvlab.atlas.measurements import comparison
from kvlab.figures.base.palette import Theme
from kvlab.figures.base.words import number
from kvlab.results.provenance import of_run
from kvlab.results.sources import Sources

PAPER_SIGMAS = (1.0, 3.0, 6.0)  # KVMerger, Table 5


def draw_kernel(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """The kernel for the paper's sigmas and this run's, with every merged token on its set's curve."""
    run = merging_run(sources)
    if isinstance(run, Needs):
        return run
    heads = readable_heads(run, spread_heads(run))
    points, some = merged_pairs(run, heads), sample_sentence(run, heads)
    if points.empty:
        return Needs("Nothing was merged in this run's prefill.", comparison(sources, METHODS, BUDGETS))
    curves = kernel_curves(points)
    reading = f"{figures.read_kernel_curves(points)}{some} {eviction_sentence(run)}".strip()
    shown = figures.kernel_curves(points, curves, theme), reading
    on_one = figures.kernel_in_sigmas(points, theme), figures.read_kernel_in_sigmas(points) + some
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
