"""Contents of a comparison's report, independent of the output format."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from kvlab.common.formatting import ONE_PROMPT, join_words, model_title
from kvlab.core import FULL, UserError
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import Labels
from kvlab.views import board as board_figures
from kvlab.views import compare as figures
from kvlab.views import regret, trade_off
from kvlab.views.base import Theme, byte_size, number, percent
from kvlab.views.base.export import Section
from kvlab.views.frames import board, compare
from kvlab.views.frames.labels import differing_settings
from kvlab.views.frames.lineage import token_texts
from kvlab.views.frames.textdiff import Segment, diff
from kvlab.views.frames.trade_off import run_points
from kvlab.views.frames.verdict import NO_REFERENCE

MOST_CHARACTERS = 70
MOST_RUNS = 6
MOST_WORDS = 60
MOST_NAMED = 3  # runs in a title
THIS_HEAD = ", this head"
CHOSEN = "the chosen tokens"
THE_FACT = "the fact"
ABOUT_HEADS = re.compile(r"\b(?:heads?|layers?)\b", re.IGNORECASE)
SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def subject_of(runs: Sequence[Run], address: Mapping[str, str], without: Sequence[str] = ()) -> str:
    """Subject: methods with budgets, model, prompt, layer, head and searched words, as in the URL parameters `address`.

    `without` names parameters that a figure shows all of, such as `head` for a head map.
    """
    if not runs:
        return ""
    record = runs[0].record
    labels = _named(runs)
    more = f" and {len(labels) - MOST_RUNS} more" if len(labels) > MOST_RUNS else ""
    prompt = f"{ONE_PROMPT} of {record.prompt_tokens:,} tokens"
    named = ", ".join(labels[:MOST_RUNS]) + more
    parts = (named, record.model.title, prompt, place_of(runs, address, without))
    return " · ".join(filter(None, parts))


def slide_title(title: str, runs: Sequence[Run], address: Mapping[str, str], without: Sequence[str] = ()) -> str:
    """A title that stands alone: `keepkv 20 %: attention on the fact, layer 3 head 3`.

    The run is named first, of several their labels or number, unless the title names it; then the figure's title, with
    the chosen tokens by name; then layer and head, unless the figure shows all of them (`without`) or the title says
    which. Without runs the title is unchanged.
    """
    if not runs:
        return title
    labels = _named(runs)
    who = f"{len(labels)} runs" if len(labels) > MOST_NAMED else join_words(labels)
    text = title.replace(THIS_HEAD, "").replace(CHOSEN, _words(runs[0], address).removeprefix("words ") or THE_FACT)
    numbers = [address.get(name, "") for name in ("layer", "head")]
    is_named = ABOUT_HEADS.search(text) is not None or without or not all(numbers)
    place = "" if is_named else f", layer {numbers[0]} head {numbers[1]}"
    if any(label in title for label in labels):
        return f"{text}{place}"
    rest = text.partition(" ")[0][1:]
    is_name = rest and not rest.islower()  # such as KL, H2O and KeepKV
    return f"{who}: {text if is_name else text[:1].lower() + text[1:]}{place}"


def _named(runs: Sequence[Run]) -> list[str]:
    """Each run as `keepkv 30 %`, longer where names would collide."""
    labels = [run.record.label for run in runs]
    return labels if len(set(labels)) == len(runs) else compare.unique_labels(runs)


def place_of(runs: Sequence[Run], address: Mapping[str, str], without: Sequence[str] = ()) -> str:
    """The prompt, layer, head and searched words of `subject_of`."""
    if not runs:
        return ""
    place = [f"{name} {address[name]}" for name in ("layer", "head") if address.get(name) and name not in without]
    record = runs[0].record
    # The prompt's title, else its end, where questions usually are.
    excerpt = _cut(record.title) if record.title else last_words(record.prompt[-4 * MOST_CHARACTERS :], MOST_CHARACTERS)
    return " · ".join(filter(None, (f"“{excerpt}”", ", ".join(place), _words(runs[0], address))))


def last_words(text: str, most: int) -> str:
    """The end of a text on one line, at most so many characters, after "…" if there is more."""
    words = " ".join(text.split())
    return words if len(words) <= most else f"… {words[-most:].partition(' ')[2]}"


def provenance(runs: Sequence[Run]) -> str:
    """One line per run with id and settings, then device, seed and versions."""
    if not runs:
        return ""
    lines = []
    for run, label in zip(runs, _named(runs), strict=True):
        settings = ", ".join(f"{name} {value}" for name, value in run.record.hyper_parameters.items())
        lines.append(f"{label}: run {run.record.run_id}" + (f"; {settings}" if settings else ""))
    record = runs[0].record
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    created = record.created[:16].replace("T", " ")
    made = f"{model_title(record.model.name)} on {record.device}, seed {record.seed}, {created}"
    return "\n".join((*lines, f"{made}; {versions}"))


def _words(run: Run, address: Mapping[str, str]) -> str:
    """The words that were searched or selected by position."""
    if typed := address.get("words", "").strip():
        return f"words “{_cut(' '.join(typed.split()))}”"
    asked = SPAN.fullmatch(address.get("span", "") or address.get("token", ""))
    if asked is None:
        return ""
    first = int(asked[1])
    last = int(asked[2] or asked[1])
    texts = token_texts(run.tokens, last + 1)[first:] if first <= last < len(run.tokens) else []
    place = f"token {first}" if first == last else f"tokens {first} to {last}"
    return f"{place} “{_cut(' '.join(''.join(texts).split()))}”" if texts else ""


def _cut(text: str) -> str:
    return text if len(text) <= MOST_WORDS else f"{text[: MOST_WORDS - 1]}…"


QUESTION_CHARACTERS = 400


@dataclass(frozen=True)
class Report:
    """Everything in a report, in order.

    Attributes:
        title: of the comparison; `name` becomes the file name.
        question: the end of the prompt, where questions usually are; `prompt` is all of it.
        lines: results, one sentence each, most important first.
        table: one row per run, as text.
        settings: those that differ between runs, one column per run.
        figures: the most informative ones, with caption and origin.
        texts: each run's own continuation, diffed against the full cache's.
        distrust: caveats.
        origin: comparison, model, device and versions.
        of: methods, model and prompt, on one line.
        provenance: run ids, settings and versions, for speaker notes.
    """

    title: str
    name: str
    question: str
    prompt: str
    lines: tuple[str, ...]
    table: pd.DataFrame
    settings: pd.DataFrame
    figures: tuple[Section, ...]
    texts: tuple[tuple[str, tuple[Segment, ...]], ...]
    distrust: tuple[str, ...]
    origin: str
    subject: str
    provenance: str


def report(runs: Sequence[Run], labels: Labels, theme: Theme = "light") -> Report:
    """Build the report of a comparison's runs.

    Raises:
        UserError: there is no run, or none was compressed.
    """
    if not any(run.record.method != FULL.method for run in runs):
        raise UserError("There is nothing to report: this comparison has no compressed run that can be read.")
    record = runs[0].record
    wanted = board.expected_answer(runs, labels)
    asked = None if wanted is None else board.check_answer(runs, wanted)
    table = compare.headline(runs) if asked is None else board.verdicts(runs, asked)
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    parts = (
        f"comparison {record.comparison_id}",
        record.created[:16].replace("T", " "),
        record.model.title,
        f"{ONE_PROMPT} of {record.prompt_tokens:,} tokens",
        record.device,
        versions,
    )
    origin = " · ".join(parts)
    full = next((run.record.forced_text for run in runs if run.record.forced_text), "")
    written = [(label, run.record.free_text) for label, run in zip(compare.unique_labels(runs), runs, strict=True)]
    return Report(
        title=labels.name or record.title or f"Comparison {record.comparison_id}",
        name=record.comparison_id,
        question=last_words(record.prompt, QUESTION_CHARACTERS),
        prompt=record.prompt,
        lines=tuple(_lines(table, asked)),
        table=text_table(table),
        # Method and budget are in every run's name.
        settings=differing_settings([run.record for run in runs]).drop(index=["method", "budget"], errors="ignore"),
        figures=tuple(_figures(runs, asked, table, origin, theme)),
        texts=tuple((label, tuple(diff(text, full))) for label, text in written if text),
        distrust=tuple(_distrust(runs, asked, table)),
        origin=origin,
        subject=subject_of(runs, {}),
        provenance=f"{origin}\n{provenance(runs)}",
    )


def _lines(table: pd.DataFrame, check: board.AnswerCheck | None) -> Iterator[str]:
    if check is not None:
        yield f"Expected answer: {check.expected.words}."
        if check.reference.kind in ("nearly", "wrong"):
            yield f"Warning: {NO_REFERENCE}."
        right = [f"{row.label} ({byte_size(row.live_bytes)})" for row in board.correct_runs(table).itertuples()]
        count = int((table["method"] != FULL.method).sum())
        yield f"{len(right)} of {count} compressed runs get it right" + (f": {', '.join(right)}." if right else ".")
    ranking, _ = board.rank_runs(table)
    for kind, groups in ranking:
        for group in groups:
            runs = ", ".join(f"{row.label} {number(row.mean_kl)}" for row in group.itertuples())
            at = f"At about {byte_size(float(group['live_bytes'].median()))}"
            among = f"{at}, among those with the {kind} answer," if kind else f"{at},"
            yield f"{among} closest to the full cache first (mean KL, nats per token): {runs}."


def _figures(
    runs: Sequence[Run], asked: board.AnswerCheck | None, table: pd.DataFrame, origin: str, theme: Theme
) -> Iterator[Section]:
    if asked is not None and len(cells := board.board(runs, asked, table)):
        yield Section(board_figures.board(cells, theme, slide=True), board_figures.caption_board(cells), origin)
    if table.loc[table["method"] != FULL.method, "mean_kl"].notna().any():
        points = run_points(table, board.places(runs))
        trade = trade_off.quality_against_bytes(points, theme)
        yield Section(trade, trade_off.caption_quality_against_bytes(points), origin)
        text = compare.along_text(runs)
        yield Section(figures.kl_along_text(text, theme), figures.caption_kl_along_text(text), origin)
    memory = compare.memory_over_steps(runs)
    if len(memory):
        drawn = figures.memory_over_steps(memory, theme)
        yield Section(drawn, figures.caption_memory_over_steps(memory, "live_bytes"), origin)
    known = table[(table["method"] != FULL.method) & table["mean_kl"].notna()]
    if known.empty:
        return
    name = known.loc[known["mean_kl"].astype(float).idxmax(), "run_id"]
    worst = next(run for run in runs if run.record.run_id == name)
    lost = regret.regret_over_steps_frame(worst.steps, worst.tokens) if len(worst.steps) else pd.DataFrame()
    if len(lost) and lost["mean"].notna().any():  # level light records no regret
        sentence = f"{worst.record.label}, the run furthest from the full cache."
        yield Section(
            regret.regret_over_steps(lost, theme), f"{sentence} {regret.caption_regret_over_steps(lost)}", origin
        )


def text_table(table: pd.DataFrame) -> pd.DataFrame:
    """The headline table of a comparison as a person reads it, a row a run."""
    reads = "reading" in table and table["reading"].ne("").any()
    columns = {
        "run": table["label"],
        "answer": [board_figures.verdict_text(row) for row in table.itertuples()] if "verdict" in table else None,
        "mean KL": [number(value) for value in table["mean_kl"]],
        "agrees": [percent(value) for value in table["top1_agreement"]],
        "live": [byte_size(value) if value == value else "not recorded" for value in table["live_bytes"].astype(float)],
        "read a step": [byte_size(value) for value in table["bytes_read"].astype(float)] if reads else None,
        "of full": [percent(value) for value in table["live_ratio"]],
        "over budget": [board_figures.excess_text(value) if value == value else "–" for value in above]
        if (above := table["over_budget"].astype(float)).notna().any()
        else None,
        "tokens/s": table["speed"],
        "status": None if (table["status"] == "complete").all() else table["status"],
    }
    return pd.DataFrame({name: list(values) for name, values in columns.items() if values is not None})


def _distrust(runs: Sequence[Run], check: board.AnswerCheck | None, table: pd.DataFrame) -> Iterator[str]:
    tokens = int(table["mean_tokens"].max())
    yield f"All results are from {ONE_PROMPT}: means are over {tokens} tokens of one continuation only."
    if check is None:
        yield "No expected answer was given, so it is unknown which run is right."
    elif check.expected.assumed and len(check.positions):
        yield "No fact was marked; it is assumed to be where the prompt contains the answer."
    if check is not None and check.problem:
        yield check.problem
    beyond = figures.caption_beyond_budget(compare.beyond_budget(runs))
    if beyond:
        yield beyond
    eager = table.loc[table["readings"].astype(str).str.contains("eager"), "label"] if "readings" in table else []
    if len(eager):
        yield "Decode rates are from eager steps, which include launch overhead. Use `kvlab bench` to measure speed."
    for run, label in zip(runs, compare.unique_labels(runs), strict=True):
        if run.record.status != "complete":
            why = run.record.message or "no reason recorded"
            yield f"{label} did not finish ({run.record.status}): {why}."
        for problem in run.problems:
            yield f"{label}: {problem}"
        if run.record.departures:
            changed = ", ".join(f"{name} {value}" for name, value in run.record.departures.items())
            yield f"{label} differs from its paper, which has {changed}."
        for remark in run.record.remarks:
            yield f"{label}: {remark}"
