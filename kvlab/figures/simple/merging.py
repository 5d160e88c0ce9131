"""Simple sentences on what leaves a cache, what is merged, and what one slot stands for."""

from __future__ import annotations

import pandas as pd

from kvlab.views.base.amounts import alike, comparison_words, near, part, sentence
from kvlab.views.base.words import number, plural

GREW = 1.001  # smaller ratios are rounding errors


def events_over_steps(frame: pd.DataFrame) -> str:
    """When slots left the cache."""
    total = float(frame["count"].sum()) if len(frame) else 0.0
    if not total:
        return "Nothing left the cache."
    early = float(frame.loc[frame["step"] == 0, "count"].sum()) / total
    if early <= 0:
        return "All that left the cache left while text was written."
    if early >= 1:
        return "All that left the cache left when the prompt was compressed."
    return sentence(
        f"{part(early)} of what left the cache left when the prompt was compressed, the rest while text was written"
    )


def events_by_head(frame: pd.DataFrame) -> str:
    """How much was merged rather than dropped."""
    total = frame[["evict", "merge", "pool"]].sum()
    if not total.sum():
        return "Nothing left the cache."
    share = float((total["merge"] + total["pool"]) / total.sum())
    if share <= 0:
        return "All that left the cache was dropped; nothing was merged."
    if share >= 1:
        return "All that left the cache was merged into other slots; nothing was dropped."
    return sentence(f"{part(share)} of what left the cache was merged into other slots, the rest was dropped")


def similarity_distribution(frame: pd.DataFrame) -> str:
    """How much alike merged keys are."""
    total = float(frame["count"].sum())
    if not total:
        return "How much alike the merged keys are was not recorded."
    mean = float((frame["similarity"] * frame["count"]).sum()) / total
    return f"On average, keys that are merged are {alike(mean)}."


def votes_distribution(frame: pd.DataFrame) -> str:
    """How many tokens a merged slot stands for."""
    slots = float(frame["slots"].sum()) if len(frame) else 0.0
    if not slots:
        return "Every slot stands for a single token."
    mean = float((frame["votes"] * frame["slots"]).sum()) / slots
    most = float(frame["votes"].max())
    if near(mean, most):
        return f"Every merged slot stands for {plural(most, 'token')}."
    return f"A merged slot stands for {number(mean, 2)} tokens on average, the largest for {most:,.0f}."


def mass_balance(frame: pd.DataFrame) -> str:
    """Whether merged slots lost attention, all together."""
    whole = float(frame["mass_before"].sum())
    lost = float(frame["sag"].sum())
    if not whole:
        return "The merged slots had no attention that could be lost."
    how = comparison_words(
        whole - lost, whole, "more attention than", "less attention than", "about the attention that", 0.01
    )
    return f"Right after the merge, all merged slots together have {how} their parts had before it."


def growth_over_steps(frame: pd.DataFrame) -> str:
    """Whether merging made anything longer, or broke it."""
    if (frame["non_finite"] > 0).any():
        return "Some slots hold numbers that cannot be used any more."
    growths = frame[["key_growth", "value_growth"]]
    if growths.isna().all(axis=None):
        return "Whether merging makes keys or values longer was not recorded."
    longer = bool((growths > GREW).any(axis=None))
    return f"{'Some merges' if longer else 'No merge'} made a key or value longer than all of its parts."
