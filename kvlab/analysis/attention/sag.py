"""Sag and other effects of compression on attention: masses, regret, output error, guard activations."""

from __future__ import annotations

import pandas as pd

MASSES = ("kept_mass", "merged_true_mass", "merged_mass", "sag", "regret")
ERRORS = ("output_error", "score_error")
COUNTS = ("guard_activations", "evicted", "merged")


def over_steps(steps: pd.DataFrame, layer: int | None = None, head: int | None = None) -> pd.DataFrame:
    """One row per step: masses and errors averaged over the chosen layers and KV heads, counts summed."""
    chosen = steps
    for name, index in (("layer", layer), ("head", head)):
        if index is not None:
            chosen = chosen[chosen[name] == index]
    means = chosen.groupby("step")[[*MASSES, *ERRORS]].mean()
    return means.join(chosen.groupby("step")[list(COUNTS)].sum()).reset_index()


def by_head(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per layer and KV head: masses and errors averaged over steps, counts summed, largest votes."""
    groups = steps.groupby(["layer", "head"])
    table = groups[[*MASSES, *ERRORS]].mean().join(groups[list(COUNTS)].sum())
    return table.join(groups["max_votes"].max()).reset_index()


def has_shadow(steps: pd.DataFrame) -> bool:
    """Whether the run was measured against its own attention with nothing dropped (recording level `full`)."""
    return bool(steps[["kept_mass", "sag", "output_error"]].notna().any(axis=None)) if len(steps) else False


def totals(steps: pd.DataFrame) -> dict[str, float]:
    """Totals of the run: mean output error, mean and largest sag, mean regret, and summed counts."""
    means = {name: float(steps[name].mean()) for name in ("output_error", "sag", "regret")}
    return means | {"largest_sag": float(steps["sag"].max())} | {name: float(steps[name].sum()) for name in COUNTS}
