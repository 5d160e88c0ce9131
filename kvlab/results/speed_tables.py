"""Tables behind the Speed page, from benchmark rows (`kvlab.bench.rows.SCHEMA`) at one batch and context."""

from __future__ import annotations

import json

import pandas as pd

from kvlab.common.formatting import model_title
from kvlab.views.base.provenance import Provenance
from kvlab.views.frames.speed import REFERENCE

# measure: (name of the figure in the rows, unit)
MEASURES = {
    "rate": ("decode rate", "tokens/s"),
    "prefill": ("prefill", "s"),
    "memory": ("allocated bytes", "bytes"),
    "freed": ("allocator: taken by the cache", "bytes"),
}
DECIDING = "scoring and deciding"
RECORDING = "recording {} / off"
LEVELS = ("light", "full")
COLUMNS = [
    "method", "label", "value", "spread", "bound", "ratio", "limit", "reference", "own_ratio", "is_full", "status",
    "note", "repeats",
]  # fmt: skip


def loads(rows: pd.DataFrame) -> list[tuple[str, int, int]]:
    """(model, batch, context) of all measurements, each model's largest context first."""
    drawn = {figure for figure, _ in MEASURES.values()} | {RECORDING.format(level) for level in LEVELS} | {DECIDING}
    measured = rows[(rows["batch"] > 0) & rows["figure"].isin(drawn)]
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


def split(rows: pd.DataFrame) -> pd.DataFrame:
    """Decode step time per method split into attention, deciding, rest, whole (ms), with columns label, method.

    Deciding is the attention step minus the same over as many slots without decisions, round by round; rest is the
    whole step minus attention. Empty unless modes decode and compress were both measured.
    """
    figures = {"whole": "decode step", "attending": "attention step", "deciding": DECIDING}
    parts = {name: speed_table(rows, figure).set_index("label")["value"] for name, figure in figures.items()}
    both = pd.DataFrame({name: part[~part.index.duplicated()] for name, part in parts.items()})
    both = both.dropna(subset=["whole", "attending", "deciding"])
    deciding = both["deciding"].clip(lower=0)
    attention = (both["attending"] - deciding).clip(lower=0)
    rest = (both["whole"] - both["attending"]).clip(lower=0)
    table = pd.DataFrame({"attention": attention, "deciding": deciding, "rest": rest, "whole": both["whole"]})
    return table.rename_axis("label").reset_index()


def recording(rows: pd.DataFrame) -> pd.DataFrame:
    """Step time relative to no recording, one row per method and level (value, spread, label, level)."""
    frames = [speed_table(rows, RECORDING.format(level)).assign(level=level) for level in LEVELS]
    return pd.concat(frames, ignore_index=True).dropna(subset="value")


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
