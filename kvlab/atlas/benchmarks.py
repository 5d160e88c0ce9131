"""Exhibits drawn from `kvlab bench`: the newest file of a preset, beside what the paper measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace

import pandas as pd

from kvlab.atlas.exhibit import Choice, Draw, Drawn, Needs
from kvlab.atlas.measurements import benchmark
from kvlab.bench.rows import Row
from kvlab.bench.tables.cells import repeated
from kvlab.bench.tables.paper import beside_the_paper, paper_numbers
from kvlab.figures import throughput
from kvlab.figures.base.palette import Theme
from kvlab.requests.measurement import Benchmark
from kvlab.results.provenance import Provenance, settings_of_rows
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim

SMALL = 16  # divides shapes and texts
PAPER_COLUMNS = ["method", "budget", "figure", "value", "unit", "batch", "context", "new_tokens", "model", "source"]


def draw_rates(
    preset: str,
    name: str,
    title: str,
    rates: Callable[[pd.DataFrame], pd.DataFrame],
    judge: Callable[..., Claim],
) -> Draw:
    """A paper's table of rates over the full cache's, kvlab's beside them.

    `rates` are those of the compressed caches out of `beside`, each with its setting in words; `judge` is the claim
    about them, which takes what `measured` gives as well.
    """

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        rows = newest(sources, preset)
        if rows.empty:
            return needs(sources, preset)
        frame = rates(beside(sources, preset))
        figure = throughput.against_the_paper(frame, theme, title)
        claim = of_repeats(judge(frame, *measured(sources, rows, preset)), rows)
        reading, where = throughput.read_against_the_paper(frame), bench_origin(rows)
        return (Drawn(name, figure, frame, reading, where, claim, grey_numbers(preset)),)

    return draw


def newest(sources: Sources, preset: str) -> pd.DataFrame:
    """The rows of the newest benchmark of a preset, columns as `kvlab.bench.rows.SCHEMA`; empty where there is none."""
    rows = sources.benchmarks
    if rows.empty or not (rows["preset"] == preset).any():
        return rows.iloc[:0]
    rows = rows[rows["preset"] == preset]
    rows = rows[rows["name"] == rows.loc[rows["timestamp"].idxmax(), "name"]].reset_index(drop=True)
    return by_method(rows)


def by_method(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `method` without its paper's preset, which all rows of a paper's benchmark have."""
    return rows.assign(method=rows["method"].str.replace(r":preset=paper[\w-]*", "", regex=True))


def beside(sources: Sources, preset: str) -> pd.DataFrame:
    """The paper's numbers with kvlab's beside them (`kvlab.bench.tables.paper.beside_the_paper`)."""
    names = [field.name for field in fields(Row)]
    frame = newest(sources, preset)[names].astype(object)
    rows = [Row(**values) for values in frame.where(frame.notna(), None).to_dict("records")]
    return beside_the_paper(rows, preset)


def needs(sources: Sources, preset: str) -> Needs:
    """What is missing while `newest` is empty: the preset at a sixteenth of its size, which any machine can run."""
    options = f"--scale {SMALL} --shorten {SMALL}"
    sentence = f"The benchmark {preset} was not measured (on a GPU of 80 GB leave {options} out)."
    return Needs(sentence, benchmark(sources, preset, SMALL, SMALL))


def bench_origin(rows: pd.DataFrame) -> Provenance:
    """Which file, device, size and versions the rows came from."""
    first = rows.iloc[0]
    smaller = f"1/{first['scale']} of the layers and width, 1/{first['shorten']} of the tokens"
    size = smaller if is_small(rows) else "full size"
    versions = ", ".join(f"{name} {version}" for name, version in json.loads(first["versions"] or "{}").items())
    over = repeated(rows["repeats"])
    details = (first["device"], first["dtype"], size, over, versions)
    return Provenance(f"benchmark {first['name']}", details, settings_of_rows(rows))


def measured(sources: Sources, rows: pd.DataFrame, preset: str) -> tuple[bool, int, Benchmark]:
    """(smaller than the paper's, repeats, the measurement at the paper's own size), as the claims take them."""
    return is_small(rows), int(rows["repeats"].max()), benchmark(sources, preset)


def of_repeats(claim: Claim, rows: pd.DataFrame) -> Claim:
    """The claim with what its numbers are over said before them."""
    return replace(claim, finding=f"{repeated(rows['repeats']).capitalize()}. {claim.finding}")


def is_small(rows: pd.DataFrame) -> bool:
    """Whether the model or its texts were made smaller than the paper's."""
    return bool(((rows["scale"] > 1) | (rows["shorten"] > 1)).any())


def grey_numbers(preset: str) -> pd.DataFrame:
    """The numbers the paper prints for the preset's experiment, and a note where it ran out of memory."""
    numbers = paper_numbers(preset)[[*PAPER_COLUMNS, "note"]]
    told_apart = [name for name in numbers if name in PAPER_COLUMNS[:5] or numbers[name].nunique() > 1]
    shown = numbers[told_apart].assign(budget=numbers["budget"].map(budget_words))
    return shown.replace({"model": r"^shape:"}, {"model": ""}, regex=True)


def budget_words(budget: str) -> str:
    """A budget as the paper's table has it, in words: `0.2` as `20 %`, `64` as `64 slots`, nothing as nothing."""
    if not budget:
        return ""
    amount = float(budget)
    return f"{100 * amount:g} %" if amount <= 1 else f"{amount:,.0f} slots"
