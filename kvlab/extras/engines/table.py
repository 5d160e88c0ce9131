"""The comparison as a table: answers with intervals, differences to kvlab's nearest method, speed and memory."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from kvlab.common.atomic_write import replace_text
from kvlab.common.formatting import format_bytes
from kvlab.common.intervals import Interval, mean_interval, mean_over_groups
from kvlab.core.choice import FULL
from kvlab.extras.engines.comparison import KVLAB, OPENVINO, SAME_NLL, Answer, Comparison, FullCaches
from kvlab.extras.engines.modes import BLOCK, RECENT, START, Mode
from kvlab.planning.serving_table import replace_between

SPEED = ("speed of decoding", "time to the first token", "peak of the process", "cache held")  # three are ratios
BEGIN = "<!-- kvlab openvino -->"


def score_lines(answers: Sequence[Answer], modes: Sequence[Mode]) -> pd.DataFrame:
    """A row per cache: engine, method, an `Interval` per task, and over all tasks (or None) `own`: minus the engine's
    own full cache, and `less`: minus kvlab's nearest.

    Prompts are paired; those that one side lacks are left out.
    """
    frame = pd.DataFrame([asdict(one) for one in answers])
    nearest = {mode.name: mode.beside for mode in modes}
    lines = []
    for (engine, method), rows in frame.groupby(["engine", "method"], sort=False):
        tasks = {task: mean_interval(one["score"].tolist(), kind="score") for task, one in rows.groupby("task")}
        beside = frame[(frame["engine"] == KVLAB) & (frame["method"] == nearest.get(method))]
        less = None if engine == KVLAB or beside.empty else _difference(rows, beside)
        full = frame[(frame["engine"] == engine) & (frame["method"] == FULL.method)]
        from_full = None if method == FULL.method else _difference(rows, full)
        lines.append({"engine": engine, "method": method, **tasks, "own": from_full, "less": less})
    return pd.DataFrame(lines)


def equal_texts(answers: Sequence[Answer]) -> Interval:
    """Share of prompts to which both full caches write the same text."""
    full = [one for one in answers if one.method == FULL.method]
    mine = {(one.task, one.index): one.prediction for one in full if one.engine == KVLAB}
    theirs = [one for one in full if one.engine != KVLAB]
    same = [float(mine[key] == one.prediction) for one in theirs if (key := (one.task, one.index)) in mine]
    return mean_interval(same, kind="score")


def markdown(comparison: Comparison, answers: Sequence[Answer], times: pd.DataFrame | None, full: FullCaches) -> str:
    """The table of the documentation, with what it holds for below it.

    Differences to the own full cache always; to kvlab's nearest only if both full caches are of the same model.
    """
    lines = score_lines(answers, comparison.modes)
    tasks = [choice.task for choice in comparison.request.tasks]
    speed = list(SPEED) if times is not None else []
    is_same_model = abs(full.kvlab - full.engine) <= SAME_NLL  # else the engine runs other weights
    nearest = ["less kvlab's nearest"] if is_same_model else []
    header = ["engine", "cache", *tasks, "less its own full cache", *nearest, *speed]
    rows = [header, ["---"] * len(header)]
    beside = {mode.name: mode.beside for mode in comparison.modes}
    timed = [] if times is None else times.to_dict("records")
    speeds = {(one["engine"], one["method"]): one for one in timed}
    for line in lines.to_dict("records"):
        cells = [line["engine"], f"`{line['method']}`", *(_words(line[task]) for task in tasks)]
        cells.append("" if line["own"] is None else _words(line["own"]))
        if nearest:
            less = line["less"]
            cells.append("" if less is None else f"`{beside[line['method']]}`: {_words(less)}")
        if times is not None:
            # Ratios to the engine's own full cache, and the bytes held.
            one, full_cache = (speeds[line["engine"], method] for method in (line["method"], FULL.method))
            cells += [
                f"{one[key] / full_cache[key]:.2f}" for key in ("tokens_per_second", "first_seconds", "peak_bytes")
            ]
            cells.append(format_bytes(int(one["held_bytes"])))
        rows.append(cells)
    request = comparison.request
    both = f"{full.kvlab:.3f} (kvlab) and {full.engine:.3f}"
    scores = f"The full caches' negative log-likelihood of a prompt's tokens is {both}"
    judged = f"{scores}: the same model, and they write the same text to {_words(equal_texts(answers))} of the prompts."
    if not is_same_model:
        judged = (
            f"{scores}, more than {SAME_NLL} apart: the engine's weights are others, so no column compares the two, "
            "and each is to be held against its own full cache."
        )
    if times is not None:
        # How speeds were measured, and those of the full caches that the ratios refer to.
        judged += (
            f" Speed: {comparison.timed} prompt(s), each read alone in a process of its own on {comparison.threads} "
            f"thread(s), as ratios to the engine's own full cache; seconds are of processor time. The full caches: "
        )
        judged += "; ".join(
            f"{engine}'s {one['tokens_per_second']:.1f} tokens/s, {one['first_seconds']:.1f} s to the first token, "
            f"{format_bytes(int(one['peak_bytes']))} at most"
            for engine, one in ((engine, speeds[engine, FULL.method]) for engine in (KVLAB, OPENVINO))
        )
        judged += "."
    (length,), asked = request.lengths or (0,), len({one.index for one in answers})
    below = (
        f"{request.model}, {asked} prompts a task of {length} tokens, seed {request.seed}, question seen, "
        f"{comparison.kept} tokens kept (`full` and `packed`: all); OpenVINO in blocks of {BLOCK}, of which the first "
        f"{START} and the last {RECENT} tokens stay. 95 % intervals, differences paired. {judged}"
    )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n\n" + below


def write_engine_table(file: Path, table: str) -> None:
    """Put the table between its two marks in a Markdown file. Raises UserError without marks."""
    replace_text(file, replace_between(file.read_text(encoding="utf-8"), BEGIN, table))


def _difference(rows: pd.DataFrame, beside: pd.DataFrame) -> Interval | None:
    pairs = rows.merge(beside, on=["task", "index"], suffixes=("", "_beside"))
    if pairs.empty:
        return None
    difference = (pairs["score"] - pairs["score_beside"]).tolist()
    return mean_over_groups(difference, pairs["task"].tolist(), kind="difference")


def _words(found: Interval) -> str:
    mean, low, high = (f"{round(value, 2) + 0.0:.2f}" for value in (found.mean, found.low, found.high))  # no -0.00
    return f"{mean} ({low} to {high}), n {found.n}"
