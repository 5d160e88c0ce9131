"""Exhibits from `kvlab bench`: the newest file of a preset next to the paper's measurements."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace

import pandas as pd

from kvlab.atlas.exhibit import Choice, Draw, Drawn, Needs
from kvlab.atlas.measurements import benchmark
from kvlab.bench.rows import Row
from kvlab.bench.tables import beside_the_paper, paper_numbers, repeated
from kvlab.figures import throughput
from kvlab.figures.base.palette import Theme
from kvlab.requests.measurement import Benchmark
from kvlab.results.provenance import Provenance, settings_of_rows
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim

SMALL = 16  # divides shapes and texts
NO_MODEL = "It times the paper's shapes with random weights, so that it is the same for every model in view."
PAPER_COLUMNS = ["method", "budget", "figure", "value", "unit", "batch", "context", "new_tokens", "model", "source"]


def draw_rates(
    preset: str,
    name: str,
    title: str,
    rates: Callable[[pd.DataFrame], pd.DataFrame],
    judge: Callable[..., Claim],
) -> Draw:
    """Draw a paper's table of rates relative to the full cache, with kvlab's.

    `rates` selects the compressed caches from `with_paper_numbers` and describes each setting; `judge` is the claim
    about them and also takes the result of `measured`.
    """

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        rows = newest(sources, preset)
        if rows.empty:
            return needs(sources, preset)
        frame = rates(with_paper_numbers(sources, preset))
        figure = throughput.against_the_paper(frame, theme, title)
        claim = of_repeats(judge(frame, *measured(sources, rows, preset)), rows)
        reading, where = throughput.read_against_the_paper(frame), bench_origin(rows)
        return (Drawn(name, figure, frame, reading, where, claim, grey_numbers(preset), model=shapes_of(rows)),)

    return draw


def newest(sources: Sources, preset: str) -> pd.DataFrame:
    """The rows of a preset's newest benchmark (`kvlab.bench.rows.SCHEMA`); empty if there is none."""
    rows = sources.benchmarks
    if rows.empty or not (rows["preset"] == preset).any():
        return rows.iloc[:0]
    rows = rows[rows["preset"] == preset]
    rows = rows[rows["name"] == rows.loc[rows["timestamp"].idxmax(), "name"]].reset_index(drop=True)
    return by_method(rows)


def by_method(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the paper's preset removed from `method`."""
    return rows.assign(method=rows["method"].str.replace(r":preset=paper[\w-]*", "", regex=True))


def with_paper_numbers(sources: Sources, preset: str) -> pd.DataFrame:
    """The paper's numbers with kvlab's (`kvlab.bench.tables.beside_the_paper`)."""
    names = [field.name for field in fields(Row)]
    frame = newest(sources, preset)[names].astype(object)
    rows = [Row(**values) for values in frame.where(frame.notna(), None).to_dict("records")]
    return beside_the_paper(rows, preset)


def needs(sources: Sources, preset: str) -> Needs:
    """What is missing while `newest` is empty: the preset at a sixteenth of its size, which any machine can run."""
    options = f"--scale {SMALL} --shorten {SMALL}"
    sentence = f"The benchmark {preset} was not measured (on a GPU of 80 GB leave {options} out). {NO_MODEL}"
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


def shapes_of(rows: pd.DataFrame) -> str:
    """Name of the measured shapes in place of a model's: `the shapes llama2-7b, llama2-13b, scaled down by 16`."""
    names = [name.removeprefix("shape:") for name in rows["model"].unique()]
    size = f", scaled down by {rows['scale'].max()}" if rows["scale"].max() > 1 else ""
    return f"the {'shape' if len(names) == 1 else 'shapes'} {', '.join(names)}{size}"


def measured(sources: Sources, rows: pd.DataFrame, preset: str) -> tuple[bool, int, Benchmark]:
    """(smaller than the paper's, repeats, the measurement at the paper's own size), as the claims take them."""
    return is_small(rows), int(rows["repeats"].max()), benchmark(sources, preset)


def of_repeats(claim: Claim, rows: pd.DataFrame) -> Claim:
    """Prefix the claim's finding with the number of repeats."""
    return replace(claim, finding=f"{repeated(rows['repeats']).capitalize()}. {claim.finding}")


def is_small(rows: pd.DataFrame) -> bool:
    """Whether model or texts were smaller than the paper's."""
    return bool(((rows["scale"] > 1) | (rows["shorten"] > 1)).any())


def grey_numbers(preset: str) -> pd.DataFrame:
    """The numbers the paper prints for the preset, with a note where it ran out of memory."""
    numbers = paper_numbers(preset)[[*PAPER_COLUMNS, "note"]]
    told_apart = [name for name in numbers if name in PAPER_COLUMNS[:5] or numbers[name].nunique() > 1]
    shown = numbers[told_apart].assign(budget=numbers["budget"].map(budget_text))
    return shown.replace({"model": r"^shape:"}, {"model": ""}, regex=True)


def budget_text(budget: str) -> str:
    """A budget of the paper's table as text: `0.2` as `20 %`, `64` as `64 slots`, "" as ""."""
    if not budget:
        return ""
    amount = float(budget)
    return f"{100 * amount:g} %" if amount <= 1 else f"{amount:,.0f} slots"
