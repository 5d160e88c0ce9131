"""Simple sentences about merges: one merge, its steps and its sets."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.merging_sets import Walkthrough
from kvlab.views.base.amounts import NOT_RECORDED, are_known, comparison_words, contrast, near, part, sentence, some_of

WIDE = 0.01  # smaller relative changes of attention count as none


def where_attention_goes(frame: pd.DataFrame) -> str:
    """The runs that lose least and most attention."""
    compressed = frame[frame["method"] != "full"]
    return contrast(
        compressed.set_index("label")[["sag", "regret"]].sum(axis=1),
        "The least attention is lost with {least}, the most with {most}.",
        "All runs lose the same attention.",
        "Only {only} is shown beside the full cache.",
        "There is no compressed run.",
    )


def slot_before_and_after(frame: pd.DataFrame, step: int) -> str:
    """Who loses attention with the merge."""
    known = frame[np.isfinite(frame["lost"])]
    if known.empty:
        return "The merged slots had no attention that could be lost."
    less = int((known["lost"] > WIDE).sum())
    return sentence(f"the merge costs the slot attention in {some_of(less, len(known), 'run')}")


def change_by_rule(frame: pd.DataFrame) -> str:
    """The runs whose merges lose least and most."""
    return contrast(
        frame.set_index("label")["total"],
        "Merging costs the least attention with {least}, the most with {most}.",
        "Merging costs the same attention in every run.",
        "Only the merges of {only} are shown.",
    )


def candidate_similarity(frame: pd.DataFrame, source: int, threshold: float | None) -> str:
    """Whether the most similar slot was chosen."""
    chosen = frame[frame["chosen"]]
    if chosen.empty:
        return "No slot was similar enough, so the token was not merged."
    best = near(float(chosen["similarity"].max()), float(frame["similarity"].max()))
    which = "the slot most similar to it" if best else "a slot that is not the most similar one"
    return f"The token was merged into {which}."


def parts_of_merge(frame: pd.DataFrame) -> str:
    """Whether the merged slot gets the attention of its parts."""
    before = frame[frame["role"] != "merged slot"]
    after = frame[frame["role"] == "merged slot"].iloc[0]
    if not are_known(float(after["mass"])):
        return NOT_RECORDED
    how = comparison_words(float(after["mass"]), float(before["mass"].sum()), "more than", "less than", "about", WIDE)
    return f"After the merge, the slot gets {how} the attention that its parts had."


def influence_over_steps(frame: pd.DataFrame) -> str:
    """Whether the slot keeps the attention of its tokens."""
    mass = float(frame["mass"].mean())
    true = float(frame["true_mass"].mean())
    if not are_known(mass, true):
        return NOT_RECORDED
    how = comparison_words(mass, true, "more than", "less than", "about", 0.05)
    return f"Over time, the slot gets {how} the attention that its tokens would have with nothing dropped."


def three_ways(walk: Walkthrough) -> str:
    """The three ways of saving memory, which are the same for every run."""
    return "Memory can be saved by rounding all keys, by dropping some, or by merging those that are alike."


def merging_pipeline(walk: Walkthrough) -> str:
    """How many groups the window's tokens form."""
    sets = walk.tokens["set"].nunique()
    if sets == len(walk.tokens):
        return "No neighbouring tokens are alike enough to be merged here."
    return f"Neighbouring tokens that are alike are merged: here, {len(walk.tokens)} become {sets}."


def kernel_in_sigmas(points: pd.DataFrame) -> str:
    """Whether weights follow the rule."""
    off = float((points["relative_weight"] - points["kernel"]).abs().max())
    if not are_known(off):
        return NOT_RECORDED
    return f"The weights of merged tokens {'follow' if off < 0.05 else 'do not all follow'} the paper's curve."


def kernel_curves(points: pd.DataFrame) -> str:
    """Weight of a merged key against its distance from the pivot."""
    return "The further a merged key is from the key it joins, the less it counts, by this curve."


def ratio_by_layer(means: pd.DataFrame) -> str:
    """The layers that shrink most and least."""
    ratios = means.assign(layer=means["layer"].astype(int)).set_index("layer")["ratio"]
    return contrast(
        ratios,
        "Layer {least} can be shrunk most by merging, layer {most} least.",
        "All layers shrink equally by merging.",
        "Only layer {only} is shown.",
    )


def ratio_by_threshold(frame: pd.DataFrame, chosen: float) -> str:
    """Share of tokens left after merging at the paper's threshold."""
    mean = frame.groupby("threshold")["ratio"].mean()
    return sentence(f"at the paper's threshold, merging leaves {part(float(mean[chosen]))} of the tokens")
