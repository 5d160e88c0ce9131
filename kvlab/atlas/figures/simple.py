"""The simple sentences of the atlas's figures, each with the name and the parameters of its caption (`with_simple`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.merging_sets import Walkthrough
from kvlab.common.formatting import listed
from kvlab.figures.base.words import plural, spaced, token_text
from kvlab.figures.simple.amounts import NOT_RECORDED, alike, are_known, beside, contrast, near, part, sentence, some_of

FAR = 0.02  # a smaller difference of cosines is told as none
WIDE = 0.01  # a smaller relative change of attention is told as none


def usage_by_task(means: pd.DataFrame) -> str:
    """The tasks in which most and least is kept."""
    kept = means.assign(task=[spaced(task) for task in means["task"]]).set_index("task")["kept"]
    share = part(float(kept.iloc[0])) if len(kept) else ""
    return contrast(
        kept, "The largest part of a prompt is kept in {most}, the smallest in {least}.",
        f"In every task, {share} of a prompt is kept.", f"On average, {share} of a prompt is kept.",
    )  # fmt: skip


def option_sweep(means: pd.DataFrame, option: str) -> str:
    """How the score changes from the first to the last value."""
    if len(means) < 2:
        return f"Only one {spaced(option)} was measured."
    first, last = (float(means["score"].iloc[place]) for place in (0, -1))
    if not are_known(first, last):
        return NOT_RECORDED
    how = beside(last, first, "higher", "lower", "about the same", 0.02)
    return f"From the first {spaced(option)} to the last, the score becomes {how}.".replace(
        "becomes about", "stays about"
    )


def budgets_by_layer(frame: pd.DataFrame) -> str:
    """Whether early layers get more."""
    first, last = float(frame["asked"].iloc[0]), float(frame["asked"].iloc[-1])
    if not are_known(first, last):
        return NOT_RECORDED
    return f"The first layer may keep {beside(first, last, 'more than', 'less than', 'as much as')} the last one."


def three_axes(frame: pd.DataFrame) -> str:
    """Whether heads and layers keep equally much."""
    if frame["live_slots"].min() == frame["live_slots"].max():
        return "Every head of every layer keeps equally many tokens."
    layers = frame.groupby("layer")["live_slots"].mean()
    what = "heads" if near(float(layers.min()), float(layers.max())) else "layers"
    return f"Some {what} keep more tokens than others."


def windows(spans: Mapping[int, pd.DataFrame], most: int, steps: int) -> str:
    """How many slots hold pooled tokens at the end."""
    table = list(spans.values())[-1]
    return sentence(f"several tokens are held by {some_of(int((table['tokens'] > 1).sum()), len(table), 'slot')}")


def where_attention_goes(frame: pd.DataFrame) -> str:
    """The runs that lose least and most attention."""
    compressed = frame[frame["method"] != "full"]
    return contrast(
        compressed.set_index("label")[["sag", "regret"]].sum(axis=1),
        "The least attention is lost with {least}, the most with {most}.", "All runs lose the same attention.",
        "Only {only} is shown beside the full cache.", "There is no compressed run.",
    )  # fmt: skip


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
        frame.set_index("label")["total"], "Merging costs the least attention with {least}, the most with {most}.",
        "Merging costs the same attention in every run.", "Only the merges of {only} are shown.",
    )  # fmt: skip


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
    before, after = frame[frame["role"] != "merged slot"], frame[frame["role"] == "merged slot"].iloc[0]
    if not are_known(float(after["mass"])):
        return NOT_RECORDED
    how = beside(float(after["mass"]), float(before["mass"].sum()), "more than", "less than", "about", WIDE)
    return f"After the merge, the slot gets {how} the attention that its parts had."


def influence_over_steps(frame: pd.DataFrame) -> str:
    """Whether the slot keeps the attention of its tokens."""
    mass, true = float(frame["mass"].mean()), float(frame["true_mass"].mean())
    if not are_known(mass, true):
        return NOT_RECORDED
    how = beside(mass, true, "more than", "less than", "about", 0.05)
    return f"Over time, the slot gets {how} the attention that its tokens get in the full cache."


def cache_share(frame: pd.DataFrame) -> str:
    """Whether the sizes are like the paper's."""
    both = frame.dropna(subset=["ours", "paper"])
    if both.empty:
        return "No size was measured both here and in the paper."
    close = int(np.isclose(both["ours"], both["paper"], rtol=0.1).sum())
    return sentence(f"the size is like the paper's (within a tenth) for {some_of(close, len(both), 'cache')}")


def kv_sizes(frame: pd.DataFrame) -> str:
    """The largest cache."""
    return contrast(frame.set_index("name")["bytes"], "The most memory is needed by {most}, the least by {least}.",
                    "All caches need the same memory.", "Only {only} is shown.")  # fmt: skip


def task_lengths(frame: pd.DataFrame) -> str:
    """The tasks with the longest and shortest prompts."""
    if len(frame) == 1:
        return "One task is shown."
    if frame["longest"].max() == frame["shortest"].min():
        return "All prompts of all tasks are equally long."
    return f"The longest prompt is in {spaced(str(frame.loc[frame['longest'].idxmax(), 'task']))}."


def three_ways(walk: Walkthrough) -> str:
    """The three ways of saving memory, which are the same for every run."""
    return "Memory can be saved by rounding all keys, by dropping some, or by merging those that are alike."


def merging_pipeline(walk: Walkthrough) -> str:
    """How many groups the window's tokens form."""
    sets = walk.tokens["set"].nunique()
    if sets == len(walk.tokens):
        return "No neighbouring tokens are alike enough to be merged here."
    return f"Neighbouring tokens that are alike are merged: here, {len(walk.tokens)} become {sets}."


def card(frame: pd.DataFrame) -> str:
    """How to read a verdict card."""
    return "Marks in the shaded range speak for the paper's claim, marks outside it against the claim."


def attention_map(frame: pd.DataFrame) -> str:
    """How concentrated the attention is."""
    values = np.sort(frame.to_numpy(float), axis=1)[:, ::-1]
    values = values[values.sum(axis=1) > 0]
    if not len(values):
        return "There is no attention here."
    top = values[:, : max(1, values.shape[1] // 20)].sum(axis=1) / values.sum(axis=1)
    return sentence(f"{part(float(top.mean()))} of the attention is on the twentieth of the text that is read most")


def distance_by_layer(frame: pd.DataFrame, queries: int, most: int) -> str:
    """Whether the last layer looks further back than the first."""
    first, last = float(frame["distance"].iloc[0]), float(frame["distance"].iloc[-1])
    if len(frame) == 1:
        return "Only one layer is shown."
    if not are_known(first, last):
        return NOT_RECORDED
    how = beside(last, first, "further back than", "less far back than", "about as far back as", 0.05)
    return f"On average, the last layer looks {how} the first."


def cumulative_mass(frame: pd.DataFrame, layer: int, head: int, top: float) -> str:
    """How much attention the most attended tokens hold."""
    at = frame[np.isclose(frame["share"], top)]["mass"]
    return sentence(f"in a typical head, {part(float(at.median()))} of the attention is on the few tokens read most")


def returning_over_steps(frame: pd.DataFrame) -> str:
    """Whether tokens that would be dropped come back."""
    last = frame[frame["step"] == frame["step"].max()]["ever"].mean()
    return sentence(f"{part(float(last))} of what could be dropped becomes important again later")


def returning_by_head(frame: pd.DataFrame) -> str:
    """How many tokens come back, and whether heads differ."""
    told = f"{part(float(frame['ever'].mean()))} of what could be dropped becomes important again later"
    if not frame["ever"].notna().any():
        return NOT_RECORDED
    same = near(float(frame["ever"].min()), float(frame["ever"].max()))
    return sentence(told if same else f"{told}, in some heads more than in others")


def variance_by_token(frame: pd.DataFrame, ratio: float, shuffled: float) -> str:
    """Whether attention changes less within a short time."""
    if not math.isfinite(ratio):
        return "How much attention changes was not recorded."
    how = beside(ratio, shuffled, "more", "less", "no less", 0.05)
    return f"Within a short time, a token's attention changes {how} than over steps in random order."


def error_by_step(frame: pd.DataFrame, kind: str) -> str:
    """The best and the worst predictor."""
    medians = frame[frame["kind"] == kind].groupby("predictor", sort=False)["error"].median()
    return contrast(
        medians, "The next attention is predicted best by {least}, and worst by {most}.", "All predict equally well.",
        "Only {only} is shown.", "There was nothing to predict.",
    )  # fmt: skip


def histograms(frame: pd.DataFrame, layer: int) -> str:
    """Whether the channels are nearly normal."""
    off = frame[frame["channel"] == frame["channel"].iloc[0]]
    step = float(off["deviation"].iloc[1] - off["deviation"].iloc[0])
    overlap = 1 - float((off["density"] - off["normal"]).abs().sum()) * step / 2
    return f"All channels together {_how_well(overlap)} follow a bell curve."


def quantile_pairs(frame: pd.DataFrame, layer: int) -> str:
    """The channels nearest to and furthest from a bell curve."""
    off = (frame["quantile"] - frame["normal"]).abs().groupby(frame["channel"], sort=False).max()
    return contrast(
        off,
        "Nearest to a bell curve: {least}; furthest from it: {most}.",
        "All channels are equally near to a bell curve.",
    )


def moments_by_layer(frame: pd.DataFrame) -> str:
    """How many channels are nearly normal."""
    return sentence(f"{_plural_part(float(frame['close'].mean()))} channels are shaped nearly like a bell curve")


def overlap_and_usage(frame: pd.DataFrame, prefix: str = "") -> str:
    """How much of the next query's attention a sample finds."""
    share = part(float(frame[f"{prefix}overlap"].mean()))
    return sentence(f"on average, a guessed query finds {share} of the next query's attention")


def growth_by_samples(frame: pd.DataFrame) -> str:
    """Tokens kept and attention covered as samples are added."""
    first, last = frame.iloc[min(1, len(frame) - 1)], frame.iloc[-1]
    if not are_known(float(first["covered"]), float(last["covered"])):
        return NOT_RECORDED
    if near(float(first["covered"]), float(last["covered"])):
        return "More guessed queries find no more of the next query's attention."
    how = "more" if last["covered"] > first["covered"] else "less"
    return f"With more guessed queries, {how} of the next query's attention is found."


def coverage_ahead(frame: pd.DataFrame) -> str:
    """How much of later queries' attention is kept."""
    return sentence(f"on average, {part(float(frame['covered'].mean()))} of later attention is on what was kept")


def attention_strips(frame: pd.DataFrame, texts: list[str]) -> str:
    """Whether samples and the true query read the same token most."""
    true, guessed = (texts[int(frame.loc[frame[name].idxmax(), "position"])] for name in ("true", "synthetic"))
    same = int(frame["true"].idxmax()) == int(frame["synthetic"].idxmax())
    if same:
        return f"The true query and the guessed ones look at the same token most: “{token_text(true.strip())}”."
    read, sampled = token_text(true.strip()), token_text(guessed.strip())
    return f"The true query looks most at “{read}”, the guessed ones look most at “{sampled}”."


def scatter_of_rows(correlation: float, inner: float, tokens: int) -> str:
    """How well samples agree with the true query."""
    if not math.isfinite(correlation):
        return "Guessed and true attention cannot be compared."
    bounds = ((0.2, "hardly"), (0.5, "loosely"), (0.8, "roughly"))
    how = next((words for bound, words in bounds if correlation < bound), "closely")
    return f"Guessed attention {how} follows the true attention."


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
    return contrast(ratios, "Layer {least} can be shrunk most by merging, layer {most} least.",
                    "All layers shrink equally by merging.", "Only layer {only} is shown.")  # fmt: skip


def ratio_by_threshold(frame: pd.DataFrame, chosen: float) -> str:
    """Share of tokens left after merging at the paper's threshold."""
    mean = frame.groupby("threshold")["ratio"].mean()
    return sentence(f"at the paper's threshold, merging leaves {part(float(mean[chosen]))} of the tokens")


def cache_contents(frame: pd.DataFrame) -> str:
    """Number of tokens that residual slots stand for at the end."""
    last = frame[frame["step"] == frame["step"].max()]
    held = last.loc[last["region"] == "residual", "votes"].sum()
    if not held:
        return "No slot collects dropped tokens here."
    return f"At the end, the slots that collect dropped tokens stand for {plural(float(held), 'token')}."


def regions_over_steps(frame: pd.DataFrame) -> str:
    """How much of the text has slots at the end."""
    last = frame.iloc[-1]
    return sentence(
        f"at the end, the cache has slots for {part(float(last['slots'] / last['tokens']))} of the tokens read"
    )


def fates(mosaics: Mapping[str, pd.DataFrame], counts: Mapping[str, pd.DataFrame]) -> str:
    """Who drops most and least."""
    last = {name: states.iloc[-1] for name, states in counts.items()}
    dropped = pd.Series({
        name: float(one["evicted"]) / float(one[["unseen", "own", "pivot", "absorbed", "evicted"]].sum())
        for name, one in last.items()
    })  # fmt: skip
    return contrast(dropped, "The most text is dropped by {most}, the least by {least}.",
                    "All drop equally much of the text.", "Only {only} is shown.")  # fmt: skip


def maps_side_by_side(found: pd.DataFrame) -> str:
    """Whether near tokens are more alike, by kind of vector; columns near and any_pair, indexed by kind."""
    return _closer([str(kind) for kind, one in found.iterrows() if one["near"] > one["any_pair"] + FAR], len(found))


def shares_by_head(frame: pd.DataFrame) -> str:
    """The heads with most and fewest slots."""
    places = [f"layer {int(line.layer)} head {int(line.head)}" for line in frame.itertuples()]
    return contrast(frame.assign(place=places).set_index("place")["share"],
                    "Most slots go to {most}, fewest to {least}.", "Every head has equally many slots.")  # fmt: skip


def shares_by_layer(frame: pd.DataFrame) -> str:
    """The layers with most and fewest slots."""
    return contrast(frame.assign(layer=frame["layer"].astype(int)).set_index("layer")["share"],
                    "Most slots go to layer {most}, fewest to layer {least}.",
                    "Every layer has equally many slots.")  # fmt: skip


def cosine_by_distance(frame: pd.DataFrame) -> str:
    """Whether adjacent tokens are more alike than others, by kind."""
    first = frame.groupby("kind", sort=False)[["cosine", "any_pair"]].first()
    kinds = [str(kind) for kind, one in first.iterrows() if one["cosine"] > one["any_pair"] + FAR]
    return _closer(kinds, len(first))


def neighbours_of_heads(frame: pd.DataFrame, every: int) -> str:
    """How much alike adjacent tokens are, and whether heads differ."""
    beside_it = frame[frame["offset"].abs() == 1].groupby(["layer", "head"])["similarity"].mean()
    if not beside_it.notna().any():
        return "The text has no other token."
    told = f"on average, adjacent tokens are {alike(float(beside_it.mean()))}"
    same = near(float(beside_it.min()), float(beside_it.max()))
    return sentence(told if same or len(beside_it) == 1 else f"{told}, in some heads more than in others")


def _closer(kinds: list[str], every: int) -> str:
    if not kinds:
        return "Neighbouring tokens are no more alike than any two."
    if len(kinds) == every:
        return "Neighbouring tokens are more alike than any two."
    return f"Neighbouring tokens are more alike than any two only in their {listed(kinds)}."


def _how_well(overlap: float) -> str:
    bounds = ((0.8, "hardly"), (0.9, "roughly"), (0.97, "closely"))
    return next((words for bound, words in bounds if overlap < bound), "very closely")


def _plural_part(share: float) -> str:
    return {"none": "no", "all": "all"}.get(part(share), f"{part(share)} of the")
