"""Simple sentences on memory, serving and speed."""

from __future__ import annotations

import pandas as pd

from kvlab.views.base import amounts
from kvlab.views.base.amounts import comparison_words, contrast, join_names, near, part, sentence, some_of
from kvlab.views.base.doubts import drop_doubtful

DEVICE_BOUND = "device bound"


def memory_over_steps(frame: pd.DataFrame) -> str:
    """What the cache takes at the end."""
    last = frame.iloc[-1]
    return f"At the end, the cache takes {amounts.memory(last['allocated_bytes'] / last['full_bytes'])}."


def memory_stack(frame: pd.DataFrame) -> str:
    """What the cache takes at the end."""
    return memory_over_steps(frame)


def slots_by_head(frame: pd.DataFrame) -> str:
    """Whether heads hold equally much, and how much of the text."""
    slots = frame["live_slots"]
    share = part(float(frame["share"].mean()))
    if slots.min() == slots.max():
        return f"Every head has equally many slots, enough for {share} of the tokens read."
    return f"Some heads have more slots than others; on average, they are enough for {share} of the tokens read."


def layer_bytes(frame: pd.DataFrame) -> str:
    """The layers that take most."""
    sizes = frame.assign(whole=frame[["live", "slack"]].sum(axis=1)).set_index("layer")["whole"]
    return contrast(
        sizes,
        "The most memory is taken by layer {most}, the least by layer {least}.",
        "All layers take the same memory.",
        "Only one layer was recorded.",
    )


def instrument_cost(frame: pd.DataFrame) -> str:
    """Whether recording slows runs down."""
    known = frame.dropna(subset=["overhead"])
    if known.empty:
        return "How much recording slows a run down was not measured."
    sure = known.loc[known["doubt"] == "", "overhead"]
    if sure.empty:
        return "How much recording slows a run down cannot be said from these timings."
    slow = int((sure > 1.05).sum())
    which = some_of(slow, len(sure), "run" if len(sure) == len(known) else "well-timed run")
    return sentence(f"recording slows down {which}; speeds are measured without it")


def freed_by_run(frame: pd.DataFrame) -> str:
    """Whether slots that are given up free memory of an engine."""
    runs = frame["label"].str.partition(" · ")[0]  # without the level
    dropped = frame.set_index(runs).query("dropped > 0")["layer"]
    if dropped.empty:
        return "No run gives up a slot, so no memory becomes free."
    if dropped.max() <= 0:
        return "Slots are given up, but an engine could free no memory for them."
    share = part(float(dropped.iloc[0]))
    return contrast(
        dropped,
        "An engine could free the most memory with {most}, the least with {least}.",
        f"With every run, an engine could free {share} of the prompt's memory.",
        f"With {{only}}, an engine could free {share} of the prompt's memory.",
    )


def pages_over_steps(frame: pd.DataFrame) -> str:
    """How much of the pages that stay is empty at the end."""
    last = frame[frame["sharing"] == "layer"].iloc[-1]
    return sentence(
        f"at the end, {part(float(last['fragmentation']))} of the memory that an engine must hold is unused"
    )


def pages_map(frame: pd.DataFrame) -> str:
    """How much memory can be given back."""
    return sentence(f"{part(float((frame['kept'] <= 0).mean()))} of the memory pages can be given back")


def measured(frame: pd.DataFrame, unit: str, more_is_better: bool, bound: str = DEVICE_BOUND) -> str:
    """The best compressed cache, and whether it is better than the full one."""
    ran = frame[~frame["method"].str.startswith("full")].dropna(subset=["value", "ratio"])
    ratios = drop_doubtful(ran, unit).set_index("label")["ratio"]
    if ratios.empty:
        return "Nothing here can be compared with the full cache."
    best = float(ratios.max() if more_is_better else ratios.min())
    leading = [name for name, value in ratios.items() if near(float(value), best)]
    names = "all alike" if len(leading) == len(ratios) > 1 else join_names(leading)
    better, worse = ("better", "worse") if more_is_better else ("worse", "better")
    how = comparison_words(best, 1.0, f"{better} than", f"{worse} than", "about as good as", 0.05)
    return f"Best of the compressed caches: {names}, {how} the full cache."


def step_split(frame: pd.DataFrame) -> str:
    """Who spends most and least of a step on deciding."""
    shares = frame.set_index("label")["deciding"] / frame.set_index("label")[["attention", "deciding", "rest"]].sum(
        axis=1
    )
    share = part(float(shares.iloc[0])) if len(shares) else ""
    return contrast(
        shares,
        "Deciding what to keep takes the largest part of a step with {most}, the smallest with {least}.",
        f"Deciding what to keep takes {share} of a step with every method.",
        f"Deciding what to keep takes {share} of a step with {{only}}.",
    )


def recording(frame: pd.DataFrame) -> str:
    """Whether recording slows steps down."""
    if not frame["value"].notna().any():
        return "How much recording slows a step down was not measured."
    slower = bool(frame["value"].max() > 1.05)
    return "A recorded step can take longer." if slower else "Recording slows no step down by more than a twentieth."


def over_length(frame: pd.DataFrame) -> str:
    """Whose memory grows with the text."""
    sizes = frame[(frame["status"] == "ok") & (frame["measure"] == "bytes")].sort_values("context")
    ends = sizes.groupby("name", sort=False)["value"].agg(["first", "last", "size"])
    ends = ends[ends["size"] > 1]
    if ends.empty:
        return "No cache was measured at two lengths."
    grows = list(ends.index[ends["last"] > 1.05 * ends["first"]])
    if not grows:
        return "A longer text needs no more memory with any cache."
    if len(grows) == len(ends):
        return "A longer text needs more memory with every cache."
    return f"A longer text needs more memory with {join_names(grows)}; with the others it does not."


def against_the_paper(frame: pd.DataFrame) -> str:
    """How many ratios are like the paper's."""
    both = frame.dropna(subset=["our_ratio", "paper_ratio"])
    if both.empty:
        return "No setting was measured both here and in the paper."
    close = int(((both["our_ratio"] / both["paper_ratio"] - 1).abs() <= 0.1).sum())
    return sentence(f"the gain is like the paper's (within a tenth) in {some_of(close, len(both), 'setting')}")
