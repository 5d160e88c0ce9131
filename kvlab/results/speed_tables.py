"""Tables and the view of benchmark rows (`kvlab.bench.rows.SCHEMA`) at one batch and context."""

import json
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import join_words, model_title
from kvlab.core import UserError, quote_value
from kvlab.views import speed
from kvlab.views.base import Provenance, Theme, byte_unit, finish, number, run_styles
from kvlab.views.base.view import view
from kvlab.views.frames.speed import REFERENCE


class Measure(NamedTuple):
    """A measured figure: its name in the rows, and how it is drawn; `bound` is what the tick at a bar means.

    `cost` names what grows with the length: the figure, or for a rate the time that it stands for.
    """

    figure: str
    unit: str
    title: str
    more_is_better: bool
    bound: str
    cost: str


MEASURES = {
    "rate": Measure("decode rate", "tokens/s", "Decode rate", True, speed.DEVICE_BOUND, "the time of a step"),
    "prefill": Measure(
        "prefill", "s", "Seconds to read and compress the prompt", False, speed.DEVICE_BOUND, "the prompt's time"
    ),
    "memory": Measure(
        "allocated bytes", "bytes", "Memory footprint, compared with the budget", False, "the budget", "memory"
    ),
    "freed": Measure(
        "allocator: taken by the cache",
        "bytes",
        "Memory that the device's allocator gave to the cache",
        False,
        "the budget",
        "memory",
    ),
}
COLUMNS = [
    "method", "label", "value", "spread", "bound", "ratio", "limit", "reference", "own_ratio", "is_full", "status",
    "note", "repeats",
]  # fmt: skip


def loads(rows: pd.DataFrame) -> list[tuple[str, int, int]]:
    """(model, batch, context) of all measurements, each model's largest context first."""
    measured = rows[(rows["batch"] > 0) & rows["figure"].isin([one.figure for one in MEASURES.values()])]
    found = measured[["model", "batch", "context"]].drop_duplicates().sort_values("context", ascending=False)
    return [(str(model), int(batch), int(context)) for model, batch, context in found.itertuples(index=False)]


def rows_of_load(rows: pd.DataFrame, load: tuple[str, int, int]) -> pd.DataFrame:
    """The newest rows of one load."""
    model, batch, context = load
    found = rows[(rows["model"] == model) & (rows["batch"] == batch) & (rows["context"] == context)]
    again = ["mode", "figure", "method", "budget", "hyper_parameters", "compress_every"]
    return found.sort_values("timestamp", kind="stable").drop_duplicates(again, keep="last").sort_index()


def speed_table(rows: pd.DataFrame, figure: str) -> pd.DataFrame:
    """One row per method with columns `COLUMNS`.

    `ratio` is to `reference`, the best full cache by name, and `limit` the most that it can be by bytes, of decoding
    alone; `own_ratio` is to kvlab's own full cache, which comparisons use.
    """
    found = rows[rows["figure"] == figure]
    best = found.loc[found["is_full"].astype(bool), "method"]
    reference = found.loc[(found["method"] == REFERENCE) & (found["median"] > 0), "median"]
    full_bound = found.loc[found["is_full"].astype(bool), "bound"]
    limits_exist = figure.startswith("decode") and len(full_bound) > 0
    labels = [label(row) for _, row in found.iterrows()]
    return pd.DataFrame(
        {
            "method": found["method"].str.split(":").str[0].to_numpy(),
            "label": labels,
            "value": found["median"].to_numpy(float),
            "spread": found["iqr"].to_numpy(float),
            "bound": found["bound"].to_numpy(float),
            "ratio": found["ratio_to_full"].to_numpy(float),
            "limit": found["bound"].to_numpy(float) / (float(full_bound.iloc[0]) if limits_exist else float("nan")),
            "reference": str(best.iloc[0]) if len(best) else "",
            "own_ratio": found["median"].to_numpy(float)
            / (float(reference.iloc[0]) if len(reference) else float("nan")),
            "is_full": found["is_full"].to_numpy(bool),
            "status": found["status"].to_numpy(str),
            "note": found["note"].fillna("").to_numpy(str),
            "repeats": found["repeats"].to_numpy(int),
        },
        columns=COLUMNS,
    )


def label(row: pd.Series) -> str:
    """A method with its budget and options, such as `h2o 20 %` or `full (sdpa)`."""
    method = str(row["method"])
    if pd.isna(row["budget"]):
        return method
    amount = f"{row['budget']:.0f} slots" if row["budget_unit"] == "slots" else f"{100 * row['budget']:g} %"
    return f"{method} {amount}" if amount not in method else method


def place(rows: pd.DataFrame, load: tuple[str, int, int]) -> str:
    """Device, dtype, model and load in one line, shown on every figure."""
    model, batch, context = load
    first = rows.iloc[0]
    smaller = f", 1/{first['scale']} of its layers and width" if first["scale"] > 1 else ""
    devices = ", ".join(sorted(rows["device"].dropna().unique()))
    return f"{devices} · {first['dtype']} · {model_title(model)}{smaller} · batch {batch} · {context:,} tokens"


def origin(rows: pd.DataFrame) -> Provenance:
    """Which file, device and versions the rows came from."""
    first = rows.iloc[0]
    versions = ", ".join(f"{name} {version}" for name, version in json.loads(first["versions"] or "{}").items())
    return Provenance(f"benchmark {first['name']}", (first["device"], first["dtype"], versions))


def bandwidth(rows: pd.DataFrame) -> float | None:
    """Measured copy bandwidth of the device in GB/s; None if not measured."""
    found = rows.loc[rows["figure"] == "copy bandwidth", "median"].dropna()
    return float(found.iloc[-1]) if len(found) else None


@view("speed", title="Speed", page="speed")
def speed_of(rows: pd.DataFrame, measure: str = "rate") -> pd.DataFrame:
    """`speed_table` of one of `MEASURES`; of rows of several loads, at the largest context.

    Raises UserError for another measure, and where it was not measured.
    """
    if measure not in MEASURES:
        raise UserError(f"There is no measure {quote_value(measure)} of speed: choose {join_words(list(MEASURES))}.")
    if "figure" not in rows:
        raise UserError("These rows are of an evaluation: speed is drawn of a benchmark's, measured by `kvlab bench`.")
    figure = MEASURES[measure].figure
    measured = loads(rows[(rows["figure"] == figure) & rows["median"].notna()])
    if not measured:
        raise UserError(f"These rows have no {figure}: measure it with `kvlab bench`.")
    here = rows_of_load(rows, measured[0])
    table = speed_table(here, figure)
    table.attrs["place"] = place(here, measured[0])
    return table


@speed_of.figure
def draw_speed(frame: pd.DataFrame, theme: Theme, measure: str = "rate") -> go.Figure:
    one = MEASURES[measure]
    return speed.measured(frame, one.unit, frame.attrs["place"], theme, one.title, one.bound)


@speed_of.caption
def describe_speed(frame: pd.DataFrame, measure: str = "rate") -> str:
    one = MEASURES[measure]
    return speed.caption_measured(frame, one.unit, one.more_is_better, one.bound)


@view("speed_by_length", title="Cost by length", page="speed")
def speed_by_length(rows: pd.DataFrame, measure: str = "rate") -> pd.DataFrame:
    """`speed_table` of one of `MEASURES` at every length of the model and batch that has most of them.

    Further columns: context (tokens), growth (the power of the length with which the measure's cost grows from the
    shortest to the longest: 1 is linear, 0 constant; NaN where an end was not measured or is 0).

    Raises:
        UserError: there is no such measure, or it was measured at fewer than two lengths.
    """
    speed_of(rows, measure)  # refuses other measures and rows
    figure = MEASURES[measure].figure
    measured = rows[(rows["figure"] == figure) & rows["median"].notna()]
    found = pd.DataFrame(loads(measured), columns=["model", "batch", "context"])
    model, batch = found.groupby(["model", "batch"], sort=False).size().idxmax()
    lengths = sorted(found.loc[(found["model"] == model) & (found["batch"] == batch), "context"].tolist())
    if len(lengths) < 2:
        raise UserError(f"{figure} was measured at one length only: measure several with `kvlab bench --contexts`.")
    at_lengths = {one: speed_table(rows_of_load(rows, (model, batch, one)), figure) for one in lengths}
    table = pd.concat([one.assign(context=length) for length, one in at_lengths.items()], ignore_index=True)
    ends = table.pivot_table(index="label", columns="context", values="value", aggfunc="first").reindex(columns=lengths)
    ends = ends.where(ends > 0)
    powers = np.log(ends[lengths[-1]] / ends[lengths[0]]) / np.log(lengths[-1] / lengths[0])
    table["growth"] = table["label"].map(-powers if MEASURES[measure].more_is_better else powers)
    load = (str(model), int(batch), lengths[-1])
    table.attrs["place"] = place(rows_of_load(rows, load), load).rpartition(" · ")[0]
    return table


@speed_by_length.figure
def draw_by_length(frame: pd.DataFrame, theme: Theme, measure: str = "rate") -> go.Figure:
    """A line per method over the tokens in the cache, both axes logarithmic, with interquartile ranges."""
    one = MEASURES[measure]
    factor, unit = byte_unit(float(frame["value"].max())) if one.unit == "bytes" else (1.0, one.unit)
    lines = frame[["label", "method"]].drop_duplicates()
    styles = run_styles(zip(lines["label"], lines["method"], strict=True), theme)
    figure = go.Figure()
    for name, line in frame.dropna(subset="value").groupby("label", sort=False):
        style = styles[str(name)]
        power = line["growth"].iloc[0]
        growth = "" if pd.isna(power) else f"; {one.cost} grows as length to the power of {number(power)}"
        figure.add_scatter(
            x=line["context"],
            y=line["value"] / factor,
            name=str(name),
            mode="lines+markers",
            line={"color": style.colour, "dash": style.dash, "width": 1.8},
            marker={"symbol": style.marker, "size": 8},
            error_y={"type": "data", "array": line["spread"].fillna(0) / 2 / factor, "thickness": 1, "width": 3},
            hovertemplate=f"{name}, %{{x:,}} tokens: %{{y:.4g}} {unit}{growth}<extra></extra>",
        )
    x = f"tokens in the cache<br>{frame.attrs['place']}"
    title = f"{one.title.partition(',')[0]} by length"
    finish(figure, title=title, x=x, y=unit, theme=theme, height=460)
    lengths = sorted(frame["context"].unique().tolist())
    figure.update_xaxes(type="log", tickvals=lengths, ticktext=[f"{length:,}" for length in lengths])
    return figure.update_yaxes(type="log")


@speed_by_length.caption
def describe_by_length(frame: pd.DataFrame, measure: str = "rate") -> str:
    """Between which powers of the length the values grow."""
    powers = frame.drop_duplicates("label").set_index("label")["growth"]
    without = powers[powers.isna()].index.tolist()
    not_measured = f"; not measured at both ends: {join_words(without)}" if without else ""
    powers = powers.dropna()
    lengths = f"From {frame['context'].min():,} to {frame['context'].max():,} tokens"
    if powers.empty:
        return f"{lengths}, no cache was measured at both ends."
    least = powers.idxmin()
    most = powers.idxmax()
    also = "" if least == most else f" and of {number(powers[least])} with {least}"
    return (
        f"{lengths}, {MEASURES[measure].cost} grows as the length to the power of {number(powers[most])} with {most}"
        f"{also}; 1 is linear, 0 constant{not_measured}."
    )
