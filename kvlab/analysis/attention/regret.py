"""Regret, the attention lost to eviction: by layer and step, by token, and against the budgets."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.views.frames.float16 import block_edges, block_means
from kvlab.views.frames.lineage import Lineage
from kvlab.views.frames.memory import budgets_by_layer

MAX_STEPS = 384


def regret_map(steps: pd.DataFrame) -> pd.DataFrame:
    """Mean regret over heads, one row per layer and one column per step (at most `MAX_STEPS`, neighbours averaged)."""
    table = steps.groupby(["layer", "step"])["regret"].mean().unstack("step")
    edges = block_edges(0, table.shape[1], MAX_STEPS)
    values = block_means(table.to_numpy(np.float32).T, edges).T
    return pd.DataFrame(values, index=table.index, columns=pd.Index(table.columns[edges[:-1]], name="step"))


def regret_over_steps(steps: pd.DataFrame, tokens: pd.DataFrame) -> pd.DataFrame:
    """One row per step: mean and largest regret, the head with the largest, the token the step predicts, and its KL.

    Step k reads the k-th token of the continuation and predicts the next; its row names the token read. The last step
    predicts nothing that was recorded.
    """
    known = steps[steps["regret"].notna()]
    worst = known.loc[known.groupby("step")["regret"].idxmax(), ["step", "layer", "head", "regret"]]
    table = steps.groupby("step")["regret"].mean().rename("mean").reset_index()
    table = table.merge(worst.rename(columns={"regret": "largest"}), on="step", how="left")
    forced = tokens[tokens["phase"] == "forced"].sort_values("position").reset_index(drop=True)
    forced = forced.reindex(table["step"]).reset_index(drop=True)
    return table.assign(text=forced["text"].fillna("").to_numpy(), kl=forced["kl"].to_numpy())


def worst_head(steps: pd.DataFrame, step: int) -> tuple[int, int, float]:
    """(layer, head, regret) of the head with the largest regret at `step`."""
    here = steps[steps["step"] == step]
    top = here.loc[here["regret"].fillna(0).idxmax()]
    return int(top["layer"]), int(top["head"]), float(top["regret"])


def dropped_tokens(lineage: Lineage, true_mass: np.ndarray, texts: list[str], step: int) -> pd.DataFrame:
    """Tokens dropped by `step`, those with the most true attention first: position, text, mass, drop step.

    `true_mass` is (tokens,) at the step.
    """
    mass = true_mass[: lineage.tokens].astype(np.float32)
    gone = np.flatnonzero(lineage.death <= step)
    shown = gone[np.argsort(-mass[gone], kind="stable")]
    words = [texts[position] for position in shown]
    columns = {"position": shown, "text": words, "true mass": mass[shown], "dropped at step": lineage.death[shown]}
    return pd.DataFrame(columns)


def budget_and_regret(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per layer and head: slots at the last step, their share of the tokens, and means over all steps.

    Columns: layer, head, live_slots, budget_slots, share, regret, output_error.
    """
    budgets = budgets_by_layer(steps).drop(columns=["regret", "tokens_seen"])
    means = steps.groupby(["layer", "head"])[["regret", "output_error"]].mean().reset_index()
    return budgets.merge(means, on=["layer", "head"])


def rank_correlation(first: pd.Series, second: pd.Series) -> float:
    """Spearman's rank correlation; NaN if one series is constant."""
    ranks = pd.concat([first, second], axis=1).dropna().rank()
    if len(ranks) < 3 or (ranks.nunique() < 2).any():
        return float("nan")
    return float(ranks.corr().iloc[0, 1])
