"""Simple sentences on attention: what is lost by merging and dropping, chosen words, and restored answers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.common.intervals import correlation_interval
from kvlab.views.base.amounts import (
    EXACT,
    NOT_RECORDED,
    are_known,
    closeness,
    comparison_words,
    join_names,
    near,
    part,
    sentence,
    some_of,
)
from kvlab.views.base.words import token_text
from kvlab.views.frames.autopsy import step_of_most
from kvlab.views.frames.lineage import SINKS
from kvlab.views.frames.restore import most_read

MEASURES = {
    "sag": "attention lost by merging", "regret": "attention lost by dropping", "output_error": "change of the output",
    "guard_activations": "number of refused merges", "max_votes": "number of tokens in one slot",
}  # fmt: skip
BOUNDS = {
    "bounded": "share of steps for which the theorem promises something",
    "above": "share of steps that change by more than the bound",
}
HARDLY = 1e-4  # a share of attention that is told as hardly any
SLIGHT = 0.01  # a relative change that is told as almost none
CHANGED = 0.1  # a relative change of a token's attention that is told as one


def attention_along_text(frame: pd.DataFrame) -> str:
    """What the cache still holds of the attention with nothing dropped, and of the token that would be read most."""
    here = frame["slot"] > 0
    held = float(frame["true"].where(here, 0).sum())
    true = frame["true"]
    whole = float(true.sum())
    if whole <= 0:
        return "The attention with nothing dropped was not recorded here."
    among = "" if here[true.idxmax()] else "; the token that would get most is not among them"
    return sentence(
        f"with nothing dropped, {part(held / whole)} of the attention is on tokens that are read here{among}"
    )


def mass_over_steps(frame: pd.DataFrame) -> str:
    """Where the attention goes with nothing dropped."""
    if not frame["regret"].notna().any():
        return "The attention with nothing dropped was not recorded."
    return sentence(
        f"with nothing dropped, {part(1 - frame['regret'].mean())} of the attention would be on tokens still held here"
    )


def sag_over_steps(frame: pd.DataFrame) -> str:
    """Whether merged slots get the attention of their tokens."""
    apart = float(frame["merged_true_mass"].mean())
    if not frame["merged_true_mass"].fillna(0).any():
        return "Nothing was merged, so nothing was lost by merging."
    mean = float(frame["sag"].mean())
    if not np.isfinite(mean):
        return "What merging lost was not recorded."
    if abs(mean) <= SLIGHT * apart:
        return "Merged slots get about the attention that their tokens would get apart."
    way = "less" if mean > 0 else "more"
    return f"On average over the steps, merged slots get {way} attention than their tokens would get apart."


def errors_over_steps(frame: pd.DataFrame) -> str:
    """How far the output is from that with nothing dropped."""
    error = float(frame["output_error"].mean())
    if not np.isfinite(error):
        return "The change of the heads' output was not measured."
    return f"On average, the heads' output {closeness(error)} follows what it would be with nothing dropped."


def guard_over_steps(frame: pd.DataFrame) -> str:
    """Whether the safeguard intervened."""
    if not frame["guard_activations"].sum():
        return "No merge was refused as harmful."
    return "The method's safeguard stepped in where a merge would have been unstable."


def measure_by_head(frame: pd.DataFrame, measure: str) -> str:
    """The head with the largest value."""
    values = frame[measure].abs()
    what = MEASURES.get(measure, "value")
    if not values.notna().any():
        return sentence(f"the {what} was not measured")
    if not values.any():
        return sentence(f"the {what} is 0 in every head")
    if near(float(values.min()), float(values.max())):
        return sentence(f"the {what} is the same in every head")
    return sentence(f"the {what} differs by head; it is largest in {_place(frame.loc[values.idxmax()])}")


def sag_against_bound(frame: pd.DataFrame, predicts: bool) -> str:
    """Whether KeepKV's theorem applies, and whether its bound holds."""
    if not frame["gamma"].notna().any():
        return "KeepKV's bound on the change cannot be computed here."
    if not frame["bound"].notna().any():
        return "The condition of KeepKV's theorem is never met here, so it promises nothing."
    above = frame["above"].mean() > 0 if "above" in frame else bool((frame["flag"] != "").any())
    if above:
        return "Where KeepKV's theorem applies, some changes are larger than its bound."
    return "Where KeepKV's theorem applies, no change is larger than its bound."


def bound_by_head(frame: pd.DataFrame, measure: str) -> str:
    """In which heads the theorem applies, or the head with the largest share."""
    if measure == "epsilon":
        count = int((frame["epsilon"] < 1).sum())
        return sentence(f"the condition of KeepKV's theorem is met in {some_of(count, len(frame), 'head')}")
    if not frame[measure].notna().any():
        return NOT_RECORDED
    values = frame[measure].fillna(0)
    if near(float(values.min()), float(values.max())):
        return sentence(f"the {BOUNDS[measure]} is the same in every head")
    return sentence(f"the {BOUNDS[measure]} is largest in {_place(frame.loc[values.idxmax()])}")


def survival_by_head(frame: pd.DataFrame, moment: str = "") -> str:
    """What is left of the chosen tokens over all heads."""
    return sentence(f"over all heads, {part(1 - frame['dropped'].mean())} of the chosen text is still held")


def fates_over_steps(frame: pd.DataFrame) -> str:
    """What is left after the prompt and at the end."""
    first, last = (1 - float(frame["dropped"].iloc[place]) for place in (0, -1))
    if not are_known(first, last):
        return "What became of the chosen text was not recorded."
    if max(first, last) <= EXACT:
        return "Nothing of the chosen text is held after the prompt, or later."
    if near(first, last):
        return sentence(f"{part(first)} of the chosen text is held after the prompt, and as much at the end")
    told = f"{part(first)} of the chosen text is held after the prompt"
    end = part(last)
    if end == part(first):
        end = f"slightly {'less' if last < first else 'more'}"
    return sentence(f"{told}, and {end} at the end")


def reading_map(frame: pd.DataFrame) -> str:
    """How much of the slots this head's steps read, and how much of the attention they miss."""
    if frame.empty:
        return "Every step of this head reads all that it holds."
    steps = frame.groupby("step")[["held", "read", "missed"]].sum(min_count=1)
    read = min(1.0, float((steps["read"] / steps["held"].where(steps["held"] > 0)).mean()))
    missed = part(float(steps["missed"].mean()))
    return sentence(f"a step reads {part(read)} of the slots, and misses {missed} of the attention")


def needle_mass(frame: pd.DataFrame) -> str:
    """Whether the chosen tokens get the attention they would get."""
    column = "full" if frame["full"].notna().any() else "true"
    whose = "the full cache looks" if column == "full" else "this run, with nothing dropped, would look"
    top = step_of_most(frame, column) if frame[column].notna().any() else None
    if top is None or top[column] < HARDLY:
        return "This head hardly looks at the chosen text."
    received = float(top["received"])
    if not np.isfinite(received):
        return f"When {whose} at the chosen text most, this run's attention was not recorded."
    if received < HARDLY:
        return f"When {whose} at the chosen text most, this run does not look at it."
    less = "less than half as much" if received < top[column] / 2 else "less"
    how = comparison_words(received, float(top[column]), "more", less, "about as much", 0.1)
    return f"When {whose} at the chosen text most, this run gives it {how} attention."


def regret_map(frame: pd.DataFrame) -> str:
    """How much attention goes to dropped tokens, and where most."""
    values = frame.to_numpy(np.float64)
    if not np.isfinite(values).any():
        return "The attention to dropped tokens was not measured."
    if np.nanmax(values) <= 0:
        return "No attention is lost to dropped tokens."
    share = part(float(np.nanmean(values)))
    told = f"on average, {share} of the attention would be on tokens dropped here"
    if near(float(np.nanmin(values)), float(np.nanmax(values))):
        return sentence(told)
    row, _ = np.unravel_index(np.nanargmax(values), values.shape)
    return sentence(f"{told}; most is lost in layer {frame.index[row]}")


def regret_over_steps(frame: pd.DataFrame) -> str:
    """Where most is lost."""
    mean = frame["mean"]
    if not mean.notna().any():
        return "The attention to dropped tokens was not measured."
    if not mean.fillna(0).any():
        return "No attention is lost to dropped tokens at any step."
    if near(float(mean.min()), float(mean.max())):
        return "The same attention is lost to dropped tokens at every step."
    top = frame.loc[mean.idxmax()]
    word = f"when the model predicts “{token_text(top['text'].strip())}”" if top["text"].strip() else ""
    return f"Most attention is lost to dropped tokens {word or 'at step ' + str(int(top['step']))}."


def budget_against_regret(frame: pd.DataFrame, correlation: float) -> str:
    """Whether heads with more slots lose less."""
    if not frame["regret"].notna().any():
        return "The attention to dropped tokens was not measured."
    if not np.isfinite(correlation):
        return "All heads hold or lose the same, so the two cannot be compared."
    low, high = correlation_interval(correlation, len(frame))
    if low <= 0 <= high:
        return "Whether heads that hold more lose less attention cannot be told from these heads."
    return f"Heads that hold more lose {'less' if correlation < 0 else 'more'} attention."


def heads_that_hold(table: pd.DataFrame) -> str:
    """How many heads hold the token."""
    held = int((table["state"] > 0).sum())
    return sentence(f"this token is still held by {some_of(held, len(table), 'head')}")


def attention_to_token(table: pd.DataFrame) -> str:
    """The head that reads the token most."""
    values = table["attention"].fillna(0)
    if values.max() <= 0:
        return "No head looks at this token."
    if near(float(values.min()), float(values.max())):
        return "Every head looks at this token equally much."
    return f"This token is looked at most in {_place(table.loc[values.idxmax()])}."


def kl_before_after(frame: pd.DataFrame) -> str:
    """Whether the predictions come closer to the full cache's."""
    means = frame.groupby("series", sort=False)["kl"].mean().dropna()
    if len(means) < 2:
        return "Only one run is shown, without anything restored."
    first = float(means.iloc[0])
    best = float(means.iloc[1:].min())
    if near(first, best):
        return "What was restored changes the predictions hardly at all."
    way = "closer to" if best < first else "further from"
    return f"With what was restored, the predictions are {way} the full cache's."


def attention_before_after(frame: pd.DataFrame) -> str:
    """What the token that the full cache reads most, attention sinks aside, gets in the other runs."""
    full = frame[frame["series"] == "full cache"]
    if full.empty or not full["mass"].notna().any() or full["mass"].max() <= 0:
        return "The attention of the answer was not recorded."
    top = most_read(full)
    others = frame[(frame["token"] == top["token"]) & (frame["series"] != "full cache")]
    word = f"The full cache looks most at “{token_text(top['text'].strip())}”"
    if top["token"] < SINKS:
        word += ", an attention sink, which says nothing about the text"
    elif full.loc[full["mass"].idxmax(), "token"] < SINKS:
        word = f"Apart from the attention sink, the{word.removeprefix('The')}"
    if others.empty:
        return f"{word}."
    masses = others.set_index("series")["mass"]
    less = masses.index[masses < (1 - CHANGED) * top["mass"]].tolist()
    if less:
        return f"{word}; it gets less attention with {join_names(less)}."
    more = masses.index[masses > (1 + CHANGED) * top["mass"]].tolist()
    return f"{word}; it gets more attention with {join_names(more)}." if more else f"{word}, the others about as much."


def _place(row: pd.Series) -> str:
    return f"layer {int(row['layer'])}, head {int(row['head'])}"
