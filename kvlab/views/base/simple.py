"""The simple sentence of every figure with two: short, true of its frame, and free of terms that only specialists know.

A function here has the name and the parameters of the figure's caption without `caption_`; `with_simple` joins the two.
"""

from __future__ import annotations

import pandas as pd
from pydantic import JsonValue

from kvlab.core.choice import FULL
from kvlab.core.method_spec import parse_spec
from kvlab.views.base.words import (
    EXACT,
    NOT_RECORDED,
    byte_size,
    comparison_words,
    contrast,
    join_names,
    memory,
    near,
    often,
    part,
    sentence,
    some_of,
)
from kvlab.views.frames.repeats import Batch
from kvlab.views.frames.trade_off import HELD, UNEQUAL, at_budget, measures_kl, with_axis


def arm_text(arm: str) -> str:
    """An arm as people say it: of a composition, whose selection and whose settling."""
    parts = composition(arm)
    return f"{parts['score']} settled by {parts['settle']}" if {"score", "settle"} <= parts.keys() else arm


def composition(arm: str) -> dict[str, JsonValue]:
    """The parts of an arm such as `compose:score=h2o:settle=keepkv`; empty for a method of its own."""
    return parse_spec(arm)[1] if arm.startswith("compose:") else {}


def row_names(frame: pd.DataFrame) -> list[str]:
    """The names of rows with columns method, arm and asked (the budget)."""
    return [
        "full cache" if method == FULL.method else f"{arm_text(arm)} {asked}"
        for method, arm, asked in zip(frame["method"], frame["arm"], frame["asked"], strict=True)
    ]


SLOTS_ALIKE = 1.02  # ratio of the most and the fewest slots of layers that are told as equal


def kl_along_text(frame: pd.DataFrame) -> str:
    """The runs that predict most and least like the full cache."""
    means = _compressed(frame, "kl").groupby("label", sort=False)["kl"].mean()
    exactly = len(means) > 0 and not means.any()
    return contrast(
        means,
        "The predictions are closest to the full cache's with {least}, and furthest with {most}.",
        f"All runs {'predict exactly like' if exactly else 'are equally close to'} the full cache.",
        f"{'{only} predicts exactly like' if exactly else 'Only {only} is compared with'} the full cache.",
        "How close the runs are to the full cache was not recorded.",
    )


def agreement_along_text(frame: pd.DataFrame) -> str:
    """The runs that agree most and least often."""
    means = _compressed(frame, "agree").groupby("label", sort=False)["agree"].mean().astype(float)
    how = often(float(means.iloc[0])) if len(means) else ""
    return contrast(
        means,
        "The full cache's next token is predicted most often with {most}, and least often with {least}.",
        f"All runs alike: the full cache's next token is {how} predicted.",
        f"With {{only}}, the full cache's next token is {how} predicted.",
        "Whether the runs agree was not recorded.",
    )


def extra_nll_along_text(frame: pd.DataFrame) -> str:
    """The runs that find the full cache's text least and most likely."""
    totals = _compressed(frame, "extra_nll").groupby("label", sort=False)["extra_nll"].last()
    first = float(totals.iloc[0]) if len(totals) else 0.0
    how = comparison_words(first, 0.0, "more surprising", "less surprising", "as likely", 1e-6)
    than = "as" if how == "as likely" else "than"
    return contrast(
        totals,
        "The full cache's text comes as the smallest surprise to {least}, and as the largest to {most}.",
        "The full cache's text is equally likely to all runs.",
        f"To {{only}} the full cache's text is {how} {than} to the full cache.",
        "The full cache's probabilities were not recorded.",
    )


def memory_over_steps(frame: pd.DataFrame, measure: str = "live_bytes") -> str:
    """The runs that take least and most memory at the end, or at once."""
    frame = frame.dropna(subset=[measure])
    of_run = frame.groupby("label")[measure if measure == "peak_bytes" else "step"]
    last = frame.loc[of_run.idxmax().sort_values()]
    at_end = "At once" if measure == "peak_bytes" else "At the end"
    names = last["label"].where(last["method"] != "full", "the full cache")
    shares = (last[measure] / last["full_bytes"]).set_axis(names)
    words = memory(float(shares.iloc[0])) if len(shares) else ""
    return contrast(
        shares,
        f"The least memory {at_end.lower()} is taken by {{least}}, the most by {{most}}.",
        f"{at_end}, all runs take {words}.",
        f"{at_end}, {{only}} takes {words}.",
        "The memory was not recorded.",
    )


def slots_by_layer(frame: pd.DataFrame) -> str:
    """Whether layers keep equally much."""
    spread = frame.groupby("label", sort=False)["live_slots"].agg(["min", "max"])
    uneven = spread.index[spread["max"] > SLOTS_ALIKE * spread["min"]]
    if not len(uneven):
        return "Every layer of a run keeps equally many tokens."
    if len(uneven) == len(spread):
        return "Some layers keep more tokens than others, in every run."
    return (
        f"Some layers keep more tokens than others with {join_names(list(uneven))}; with the others all keep as many."
    )


def board(frame: pd.DataFrame) -> str:
    """Which runs answer right, and which keep most and least of the fact in slots of its own."""
    cells = frame.drop_duplicates("run_id")
    if cells.empty:
        return "There is no compressed run yet."
    right = cells.loc[cells["verdict"] == "right", "label"].tolist()
    text = f"the answer is right in {some_of(len(right), len(cells), 'run')}"
    kept = frame.groupby("label", sort=False)["kept"].mean().astype(float).dropna()
    if kept.empty:
        return sentence(text)
    share = part(float(kept.iloc[0]))
    least = "nothing of it by {least}" if kept.min() <= EXACT else "the smallest by {least}"
    rest = contrast(
        kept,
        f"the largest part is kept unmerged by {{most}}, {least}",
        f"every run keeps {share} unmerged",
        f"{{only}} keeps {share} unmerged",
    )
    return sentence(f"{text}; of the text that the answer needs, {rest}")


def fact_by_head(frame: pd.DataFrame, reader: pd.Series | None, moment: str = "") -> str:
    """What is left of the fact in the head that reads it, or in all heads."""
    if reader is not None:
        here = frame[(frame["layer"] == int(reader["layer"])) & (frame["head"] == int(reader["head"]))]
        if len(here):
            share = part(1 - float(here["dropped"].iloc[0]))
            return f"The head that reads the needed text most still holds {share} of it."
    return sentence(f"over all heads, {part(1 - float(frame['dropped'].mean()))} of the needed text is still held")


def repeats_board(batch: Batch) -> str:
    """The runs that are right most and least often."""
    cells = batch.cells[batch.cells["n"] > 0]
    shares = cells.set_index("label")["share"] if len(cells) else pd.Series(dtype=float)
    how = often(float(shares.iloc[0])) if len(shares) else ""
    return contrast(
        shares,
        "The answer is right most often with {most}, and least often with {least}.",
        f"All runs alike: the answer is {how} right.",
        f"The answer is {how} right with {{only}}.",
        "No prompt with an answer has finished yet.",
    )


def quality_against_bytes(points: pd.DataFrame, budget: str = "", axis: str = HELD) -> str:
    """The right runs with the fewest bytes; without verdicts, the run of the best quality."""
    shown = at_budget(with_axis(points, axis), budget)
    compressed = shown[(shown["method"] != "full") & shown["quality"].notna() & shown["live_bytes"].notna()]
    if compressed.empty:
        return "No compressed run recorded both its memory and its quality."
    is_kl = measures_kl(points)
    size = compressed["live_bytes"]
    name = "row" if budget else "label"
    right = compressed["verdict"] == "right"
    if right.any():
        few = compressed[right & (size <= (1 + UNEQUAL) * size[right].min())]
        few = few.sort_values(["live_bytes", "quality"], ascending=[True, is_kl], kind="stable")
        return f"Right at the fewest bytes: {_sized_names(few, name)}."
    if not is_kl and compressed["quality"].max() <= 0:
        return "No run has a right answer."
    good = -compressed["quality"] if is_kl else compressed["quality"]
    best = compressed[[near(float(value), float(good.max())) for value in good]]
    if len(best) == len(compressed) > 1:
        return f"All runs are equally {'close to the full cache' if is_kl else 'often right'}."
    best = best.sort_values("live_bytes", kind="stable")
    judged = (
        "No run has a right answer; closest" if compressed["verdict"].isin(["nearly", "wrong"]).any() else "Closest"
    )
    what = f"{judged} to the full cache" if is_kl else "Most often right"
    return f"{what}: {_sized_names(best, name)}."


def _sized_names(points: pd.DataFrame, name: str) -> str:
    """Names of points with their bytes."""
    sizes = zip(points[name], points["live_bytes"], strict=True)
    return join_names([f"{label} ({byte_size(size)})" for label, size in sizes])


def _compressed(frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    return frame[(frame["method"] != "full") & frame[measure].notna()]


def needle_map(frame: pd.DataFrame, means: pd.DataFrame) -> str:
    """Who finds the needle best and worst."""
    scores = means.set_index("row")["score"]
    how = often(float(scores.iloc[0])) if len(scores) else ""
    return contrast(
        scores,
        "On average, the hidden fact is found best with {most}, and worst with {least}.",
        f"All methods alike: the hidden fact is {how} found.",
        f"With {{only}}, the hidden fact is {how} found.",
    )


def needle_fates(frame: pd.DataFrame) -> str:
    """Who holds most and least of the needle."""
    held = frame.set_index("row")["held"]
    share = part(float(held.iloc[0])) if len(held) else ""
    return contrast(
        held,
        "The largest part of the hidden fact is still held by {most}, the smallest by {least}.",
        f"Every method still holds {share} of the hidden fact.",
        f"{{only}} still holds {share} of the hidden fact.",
    )


def rank_table(frame: pd.DataFrame) -> str:
    """Who is level with the best in every task."""
    if len(frame) and not frame["score"].fillna(1).any():
        return "Every method scores 0 in every task."
    level = frame.groupby("arm", sort=False)["level"].all()
    names = [arm_text(str(arm)) for arm in level.index[level]]
    if not names:
        return "No method is as good as the best in every task."
    if len(names) == len(level):
        return (
            "No method is clearly worse than the best in any task." if len(names) > 1 else "Only one method is shown."
        )
    return f"As good as the best in every task, as far as these prompts can tell: {join_names(names)}."


def score_against_bytes(frame: pd.DataFrame, axis: str = HELD) -> str:
    """Who is not beaten in both score and memory."""
    names = list(
        dict.fromkeys(
            "the full cache" if line.method == "full" else f"{arm_text(str(line.arm))} {line.asked}"
            for line in frame[frame["frontier"]].sort_values(axis).itertuples()
        )
    )
    if not names:
        return NOT_RECORDED
    if frame["frontier"].all():
        return "No one is beaten in both score and memory by another."
    return f"Not beaten in both score and memory by another: {join_names(names)}."


def risk_against_budget(table: pd.DataFrame, tolerance: float) -> str:
    """For whom a smaller cache was found safe."""
    safe = table.groupby("arm", sort=False)["certified"].any()
    names = list(safe.index[safe])
    if not names:
        return "No smaller cache was found safe."
    if len(names) == len(safe):
        return f"A smaller cache was found safe with {'every method' if len(safe) > 1 else names[0]}."
    return f"A smaller cache was found safe with {join_names(names)}, and not with the others."


def ours_beside_theirs(inside: int, values: int) -> str:
    """In how many of the measured cells the paper's value is within the interval."""
    if not values:
        return "Nothing was measured that the paper prints."
    return sentence(f"the measurement here agrees with {some_of(inside, values, 'published value')}")


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
    most = table.loc[values.idxmax()]
    return f"This token is looked at most in layer {int(most['layer'])}, head {int(most['head'])}."
