"""Simple sentences about budgets and sizes: what is kept of a prompt, where, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from kvlab.views.base.amounts import NOT_RECORDED, are_known, comparison_words, contrast, near, part, sentence, some_of
from kvlab.views.base.words import plural, with_spaces


def usage_by_task(means: pd.DataFrame) -> str:
    """The tasks in which most and least is kept."""
    kept = means.assign(task=[with_spaces(task) for task in means["task"]]).set_index("task")["kept"]
    share = part(float(kept.iloc[0])) if len(kept) else ""
    return contrast(
        kept,
        "The largest part of a prompt is kept in {most}, the smallest in {least}.",
        f"In every task, {share} of a prompt is kept.",
        f"On average, {share} of a prompt is kept.",
    )


def option_sweep(means: pd.DataFrame, option: str) -> str:
    """How the score changes from the first to the last value."""
    if len(means) < 2:
        return f"Only one {with_spaces(option)} was measured."
    first, last = (float(means["score"].iloc[place]) for place in (0, -1))
    if not are_known(first, last):
        return NOT_RECORDED
    how = comparison_words(last, first, "higher", "lower", "about the same", 0.02)
    return f"From the first {with_spaces(option)} to the last, the score becomes {how}.".replace(
        "becomes about", "stays about"
    )


def budgets_by_layer(frame: pd.DataFrame) -> str:
    """Whether early layers get more."""
    first = float(frame["asked"].iloc[0])
    last = float(frame["asked"].iloc[-1])
    if not are_known(first, last):
        return NOT_RECORDED
    how = comparison_words(first, last, "more than", "less than", "as much as")
    return f"The first layer may keep {how} the last one."


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


def cache_share(frame: pd.DataFrame) -> str:
    """Whether the sizes are like the paper's."""
    both = frame.dropna(subset=["ours", "paper"])
    if both.empty:
        return "No size was measured both here and in the paper."
    close = int(np.isclose(both["ours"], both["paper"], rtol=0.1).sum())
    return sentence(f"the size is like the paper's (within a tenth) for {some_of(close, len(both), 'cache')}")


def kv_sizes(frame: pd.DataFrame) -> str:
    """The largest cache."""
    return contrast(
        frame.set_index("name")["bytes"],
        "The most memory is needed by {most}, the least by {least}.",
        "All caches need the same memory.",
        "Only {only} is shown.",
    )


def task_lengths(frame: pd.DataFrame) -> str:
    """The tasks with the longest and shortest prompts."""
    if len(frame) == 1:
        return "One task is shown."
    if frame["longest"].max() == frame["shortest"].min():
        return "All prompts of all tasks are equally long."
    return f"The longest prompt is in {with_spaces(str(frame.loc[frame['longest'].idxmax(), 'task']))}."


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
    dropped = pd.Series(
        {
            name: float(one["evicted"]) / float(one[["unseen", "own", "pivot", "absorbed", "evicted"]].sum())
            for name, one in last.items()
        }
    )
    return contrast(
        dropped,
        "The most text is dropped by {most}, the least by {least}.",
        "All drop equally much of the text.",
        "Only {only} is shown.",
    )


def shares_by_head(frame: pd.DataFrame) -> str:
    """The heads with most and fewest slots."""
    places = [f"layer {int(line.layer)} head {int(line.head)}" for line in frame.itertuples()]
    return contrast(
        frame.assign(place=places).set_index("place")["share"],
        "Most slots go to {most}, fewest to {least}.",
        "Every head has equally many slots.",
    )


def shares_by_layer(frame: pd.DataFrame) -> str:
    """The layers with most and fewest slots."""
    return contrast(
        frame.assign(layer=frame["layer"].astype(int)).set_index("layer")["share"],
        "Most slots go to layer {most}, fewest to layer {least}.",
        "Every layer has equally many slots.",
    )
