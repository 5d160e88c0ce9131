"""Print the tables of comparisons and evaluations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvlab.common.atomic_write import replace_text
from kvlab.common.formatting import KIB, ONE_PROMPT, in_range
from kvlab.common.terminal import print_wide
from kvlab.core import FULL, UserError, format_spec
from kvlab.tasks.sample import current_difficulty
from kvlab.views.frames.speed import limit_text, ratio_text

Kind = Literal["scores", "parts", "order", "places", "deaths", "reach", "reasoning", "phase", "survival"]
BY: dict[str, tuple[str, ...]] = {"parts": ("kind",), "order": ("order",), "places": ("kind", "third")}


def frame_of(rows: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """The table as a frame; raises UserError if the rows have nothing for it."""
    from kvlab.results.part_tables import deaths, part_table, reachability, reasoning_table
    from kvlab.results.phase import phase
    from kvlab.results.survival import survival_table

    if kind == "reach":
        frame = reachability(rows)
    elif kind == "reasoning":
        frame = reasoning_table(rows)
    elif kind == "phase":
        frame = phase(rows)
    elif kind == "survival":
        frame = survival_table(rows)
    else:
        table = part_table(rows, BY.get(kind, ("kind",)))
        frame = deaths(table) if kind == "deaths" else table
    if frame.empty:
        what = {
            "reach": "prompt has tracked evidence",
            "reasoning": "answer was generated and scored",
            "survival": "hidden statement had its evictions counted (before December 2026 none had)",
        }.get(kind, "prompt has rules, questions or steps")
        raise UserError(f"No {what} in these results: evaluate a task such as instructions, or take another --of.")
    return frame


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame to FILE.csv; raises UserError for another ending."""
    if path.suffix != ".csv":
        raise UserError(f"{path} cannot be written: name a FILE.csv.")
    replace_text(path, frame.to_csv(index=False))


def as_table(frame: pd.DataFrame, kind: Kind) -> Table:
    """A frame of `frame_of` for a terminal."""
    if kind == "deaths":
        table = Table("task", "part", "method", "full cache", "dies at", "score there", box=SIMPLE_HEAD)
        for line in frame.assign(task=task_names(frame)).to_dict("records"):
            there = "" if pd.isna(line["score"]) else f"{line['score']:.2f}"
            table.add_row(
                line["task"], line["kind"], line["arm"], f"{line['full']:.2f}", line["dies_at"] or "lives", there
            )
        table.caption = "dies at: the largest budget from which on the score is below half of the full cache's"
        return table
    if kind == "reasoning":
        return _lines(frame, ["task", "length"], kind)
    if kind == "phase":
        return _phases(frame)
    if kind == "survival":
        return _survival(frame)
    if kind == "reach":
        return _lines(frame, ["task", "difficulty", "length", "arm"], kind)
    return _parts(frame, BY[kind])


def task_names(frame: pd.DataFrame) -> list[str]:
    """Each line's task with the parameters that differ between lines of that task, such as `instructions:place=end`."""
    known = {text: current_difficulty(text) for text in frame["difficulty"].unique()}
    tasks = frame.groupby("task")["difficulty"].unique()
    names = []
    for task, text in zip(frame["task"], frame["difficulty"], strict=True):
        others = [known[other] for other in tasks[task]]
        differing = {
            name: value for name, value in known[text].items() if any(one.get(name) != value for one in others)
        }
        names.append(format_spec(str(task), differing))
    return names


def _parts(frame: pd.DataFrame, by: tuple[str, ...]) -> Table:
    table = Table("task", *by, "method", "budget", "n", "score (95 %)", "held", "unreachable", "", box=SIMPLE_HEAD)
    frame = frame.assign(task=task_names(frame)).sort_values(by[0], kind="stable")
    for _, group in frame.groupby([*by[:1], "task", "difficulty", "length", *by[1:]], sort=False, dropna=False):
        for line in group.to_dict("records"):
            note = "" if line["informative"] else "not informative"
            if line["method"] == FULL.method and pd.notna(line["unasked"]):
                note = "; ".join(filter(None, [note, f"unasked {line['unasked']:.2f}"]))
            shown = [_mean(line, "score", 2), _shown(line["held"]), _shown(line["unreachable"])]
            names = [str(line[name]) for name in ("task", *by, "arm", "asked", "parts")]
            table.add_row(*names, *shown, note)
        table.add_section()
    table.caption = (
        "score: share of parts obeyed or right; held: share of layers and KV heads with a slot of a token, mean; "
        "unreachable: tokens with no slot in any; unasked: obeyed by answers that had no such rule"
    )
    return table


def _phases(frame: pd.DataFrame) -> Table:
    """One line a method: its lowest and highest phase."""
    columns = (
        "task",
        "method",
        "budget",
        "chunk",
        "n",
        "n a phase",
        "all phases",
        "lowest (95 %)",
        "highest (95 %)",
        "",
    )
    table = Table(*columns, box=SIMPLE_HEAD)
    for (task, arm, asked), group in frame.groupby(["task", "arm", "asked"], sort=False):
        ends = [group.loc[index] for index in (group["score"].idxmin(), group["score"].idxmax())]
        extremes = [f"{_mean(dict(line), 'score', 2)} at {line['phase']}" for line in ends]
        counts = sorted(group["samples"])
        size = int(group["chunk"].iloc[0])
        n = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        mean = (group["score"] * group["samples"]).sum() / group["samples"].sum()
        note = f"keeps or reads {size} tokens together" if group["chunked"].all() else "token by token"
        table.add_row(str(task), str(arm), str(asked), str(size), str(sum(counts)), n, f"{mean:.2f}", *extremes, note)
    table.caption = (
        "share found by the needle's place modulo the chunk, with 95 % intervals; methods without chunks by the "
        "largest chunk of the others, for comparison; --out FILE.csv has every phase"
    )
    return table


def _survival(frame: pd.DataFrame) -> Table:
    """One line a method, budget and depth: in one head, then in any."""
    columns = ("task", "depth", "method", "budget", "n", "E", "K", "W", *("in a head", "random"), *("in any", "random"))
    table = Table(*columns, box=SIMPLE_HEAD)
    for (task, _, depth, arm, asked), pair in frame.assign(task=task_names(frame)).groupby(
        ["task", "difficulty", "depth", "arm", "asked"], sort=False, dropna=False
    ):
        line = pair.iloc[0]
        cells = []
        for one in pair.to_dict("records"):
            bounds = f"[{one['binomial_low']:.2f}, {one['binomial_high']:.2f}]"
            cells += [f"{one['survived']:.3f} {bounds}", f"{one['expected']:.3f}{'=' if one['within'] else ''}"]
        place = "" if pd.isna(depth) else f"{depth:g}"
        sizes = [f"{line[name]:.0f}" for name in ("evictions", "kept", "dropped")]
        table.add_row(str(task), place, str(arm), str(asked), str(line["samples"]), *sizes, *cells)
    table.caption = (
        "share of the hidden tokens with a slot, in a head and in any, with the 95 % interval of as many independent "
        "trials (prompts x tokens, in a head x heads), which only random draws are; random: closed form of even draws "
        "at the method's own E decisions, of K out of K + W slots (=: within the interval); --out FILE.csv has more"
    )
    return table


def _lines(frame: pd.DataFrame, groups: list[str], kind: Literal["reach", "reasoning"]) -> Table:
    """One row a line, with a section a group."""
    columns, caption = OF_LINES[kind]
    table = Table(*columns, box=SIMPLE_HEAD, caption=caption)
    for _, group in frame.assign(task=task_names(frame)).groupby(groups, sort=False, dropna=False):
        for line in group.to_dict("records"):
            table.add_row(*(show(line) for show in columns.values()))
        table.add_section()
    return table


def _shown(value: Any, digits: int = 2) -> str:
    return "–" if pd.isna(value) else f"{value:.{digits}f}"


# Columns of a row by their titles, and the caption.
OF_LINES: dict[str, tuple[dict[str, Callable[[dict[Any, Any]], str]], str]] = {
    "reach": (
        {
            "task": lambda line: line["task"],
            "method": lambda line: line["arm"],
            "budget": lambda line: str(line["asked"]),
            "n": lambda line: str(line["samples"]),
            "score (95 %)": lambda line: _mean(line, "score", 2),
            "own slot": lambda line: _shown(line["hidden_own"]),
            "unreachable": lambda line: _shown(line["unreachable"]),
            "consensus": lambda line: _shown(line["consensus"]),
            "loss": lambda line: "" if pd.isna(line["loss"]) else f"{line['loss']:+.3f}",
            "": lambda line: "cliff" if line["cliff"] else "",
        },
        "own slot: share of layers and KV heads in which an evidence token has a slot of its own; unreachable: tokens "
        "with no slot in any, also none that they share; consensus: share of heads that hold a reachable token; cliff: "
        "the budget step with the largest loss",
    ),
    "reasoning": (
        {
            "task": lambda line: line["task"],
            "method": lambda line: line["arm"],
            "slots at most": lambda line: line["asked"] if pd.isna(line["most_slots"]) else f"{line['most_slots']:.0f}",
            "n": lambda line: str(line["samples"]),
            "score (95 %)": lambda line: _mean(line, "score", 2),
            "tokens": lambda line: _shown(line["tokens"], 0),
            "x full": lambda line: _shown(line["longer"]),
            "loops": lambda line: _shown(line["loops"]),
            "right": lambda line: str(line["right"]),
            "tokens if right": lambda line: _shown(line["tokens_right"], 0),
            "if wrong": lambda line: _shown(line["tokens_wrong"], 0),
            "loops if wrong": lambda line: _shown(line["loops_wrong"]),
            "": lambda line: "" if line["informative"] else "not informative",
        },
        "slots at most: budget and the buffer of generated tokens beside it; x full: tokens of the answer over the "
        "full cache's on the same prompt; loops: answers that end in a loop; right: answers with a score of 1; not "
        "informative: the full cache scores below 0.5",
    ),
}
SUMMARY_WIDTH = 120  # a pipe reports 80, which would wrap the intervals

COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "label": ("run", str),
    "verdict": ("answer", str),
    "live_bytes": ("live KiB", lambda value: f"{value / KIB:,.0f}"),
    "bytes_read": ("read KiB a step", lambda value: f"{value / KIB:,.0f}"),
    "unread_mass": ("mass not read", lambda value: f"{100 * value:.1f} %"),
    "live_ratio": ("of full", lambda value: f"{100 * value:.0f} %"),
    "allocated_bytes": ("allocated KiB", lambda value: f"{value / KIB:,.0f}"),
    "mean_kl": ("KL to full, nats/token", lambda value: f"{value:.4f}"),
    "top1_agreement": ("top-1 agreement", lambda value: f"{100 * value:.0f} %"),
    "first_divergence": ("own text differs at token", lambda value: f"{value:.0f}"),
    "status": ("status", str),
}


OF_SPARSE_ATTENTION = ("bytes_read", "unread_mass")


def print_batch(cells: pd.DataFrame) -> None:
    """Print a batch (`kvlab.views.frames.repeats.cells`): one line per method and budget."""
    columns: tuple[str, ...]
    means: tuple[str, ...]
    if cells["n"].any():
        columns = ("n", "right", "share (95 %)", "live KiB", "KL on answer, nats/token", "KL on all", "agreement")
        means = ("kl_answer", "mean_kl", "top1_agreement")
        note = "share: prompts with a right answer (Wilson)"
    else:
        cells = cells.assign(n=cells["ended"])
        columns = ("n", "live KiB", "KL to full, nats/token", "agreement")
        means = ("mean_kl", "top1_agreement")
        note = "no answer was given, so none is marked right"
    table = Table("run", *columns)
    for row in cells.to_dict("records"):
        right = [str(row["right"]), _mean(row, "share", 2)] if "right" in columns else []
        size = "–" if pd.isna(row["live_bytes"]) else f"{row['live_bytes'] / KIB:,.0f}"
        table.add_row(row["label"], str(row["n"]), *right, size, *(_mean(row, name) for name in means))
    table.caption = f"means over prompts with 95 % intervals; {note}"
    print_wide(table)


def _mean(row: dict[Any, Any], name: str, digits: int = 3) -> str:
    """The mean with its 95 % interval, which one prompt (`n`) does not have."""
    if pd.isna(row[name]):
        return "–"
    bounds = row[name], row[f"{name}_low"], row[f"{name}_high"]
    mean, low, high = in_range(*bounds, f"{{:.{digits}f}}".format)
    return mean if row.get("n", 2) < 2 else f"{mean} [{low}, {high}]"


def print_headline(frame: pd.DataFrame) -> None:
    """Print one line per run: bytes and closeness to the full cache."""
    reads = "reading" in frame and frame["reading"].ne("").any()
    shown = (name for name in COLUMNS if name in frame and (reads or name not in OF_SPARSE_ATTENTION))
    columns = {name: COLUMNS[name] for name in shown}  # without an answer there is no verdict
    tokens = int(frame["mean_tokens"].max()) if len(frame) else 0
    means = f"; KL and agreement: means over {tokens} tokens of its continuation" if tokens else ""
    device = ", ".join(frame["device"].unique()) if len(frame) else ""
    caption = f"on {device}; {ONE_PROMPT}{means}; for means over prompts with intervals: kvlab eval"
    table = Table(*[title for title, _ in columns.values()], caption=caption, caption_justify="left")
    for _, row in frame.iterrows():
        cells = [(row[name], show) for name, (_, show) in columns.items()]
        table.add_row(*["–" if pd.isna(value) else show(value) for value, show in cells])
    print_wide(table)


def print_speeds(frame: pd.DataFrame) -> None:
    """Print one line per run: decode speed, as a multiple of the full cache's, and the limit by bytes of that."""
    table = Table("run", "tokens/s", "of full cache's", "limit by bytes", "of limit", caption_justify="left")
    for _, row in frame.iterrows():
        ratio = ratio_text(row["speed_ratio"], row["speed_ratio_doubt"])
        share = "–" if pd.isna(row["limit_reached"]) else f"{100 * row['limit_reached']:.0f} %"
        limit = "–" if row["method"] == FULL.method else limit_text(row["speed_limit"])
        table.add_row(row["label"], row["speed"], ratio, limit, share)
    table.caption = "limit by bytes: a step moves the weights and what it reads of the cache once (docs/limit.md)"
    print_wide(table)


def print_summary(
    rows: pd.DataFrame, notes: list[str], out: Path | None, as_json: bool, by_depth: bool = False
) -> None:
    """Print an evaluation's summary by task, difficulty and length, as a table or as JSON."""
    from kvlab.evaluation.results.summary import summarize
    from kvlab.evaluation.results.table import summary_json, summary_table

    summary = summarize(rows, ["task", "difficulty", "length", *["depth"] * by_depth])
    if as_json:
        typer.echo(summary_json(summary, notes, str(out)))
    else:
        print_wide(summary_table(summary, rows["device"].dropna()), SUMMARY_WIDTH)
        if rows["parts"].notna().any():
            print_wide(as_table(frame_of(rows, "parts"), "parts"), SUMMARY_WIDTH)
