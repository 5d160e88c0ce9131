"""Table 2: cache size at 100, 50 and 35 %."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas import benchmarks
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import sizes as figures
from kvlab.atlas.measurements import benchmark
from kvlab.atlas.papers import grey_table, paper_values
from kvlab.results.sources import Sources
from kvlab.views.base.palette import Theme
from kvlab.views.base.words import percent

PRESET = "kvmerger-table2"
PAPER_MODELS = {"shape:llama2-7b": "Llama2-7B-chat", "shape:llama2-13b": "Llama2-13B-chat"}
FIGURES_READ = {"allocated bytes": "allocated", "allocator: peak with weights": "peak", "logical tokens": "tokens"}


def draw_memory(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Bytes relative to the full cache, measured and published."""
    rows = benchmarks.by_method(sources.benchmarks) if len(sources.benchmarks) else sources.benchmarks
    rows = rows[(rows["preset"] == PRESET) & (rows["status"] == "ok")] if len(rows) else rows
    frame = shares(rows) if len(rows) else pd.DataFrame()
    if frame.empty:
        return Needs(
            "No benchmark of the paper's memory table was found; this one is a small version for any machine, and on a "
            f"GPU the same without --device, scale and shorten is the paper's own size. {benchmarks.NO_MODEL}",
            benchmark(sources, PRESET, scale=16, shorten=8, device="cpu"),
        )
    figure = figures.cache_share(frame, theme)
    caption = figures.caption_cache_share(frame)
    grey = grey_table(paper_values("kvmerger", "tab-2"))
    newest = rows.sort_values("timestamp", ascending=False)
    where = benchmarks.bench_origin(newest)
    claim = benchmarks.shares(frame, int(rows["repeats"].max()))
    return (Drawn("share", figure, frame, caption, where, claim, grey, model=benchmarks.shapes_of(rows)),)


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per model and budget, from the latest benchmark of each model.

    Columns: row, model, budget, full, allocated, peak (bytes; NaN without an allocator), tokens, ours (share), paper.
    """
    parts = []
    for model, group in rows[rows["figure"].isin(FIGURES_READ)].groupby("model", sort=False):
        latest = group[group["name"] == group.sort_values("timestamp")["name"].iloc[-1]]
        full = latest[latest["is_full"] & (latest["figure"] == "allocated bytes")]
        if len(full):
            parts += _of_model(str(model), latest[latest["method"] == "kvmerger"], float(full["median"].iloc[0]))
    return pd.DataFrame(parts)


def _of_model(model: str, rows: pd.DataFrame, full: float) -> list[dict[str, object]]:
    found = []
    for budget, group in rows.groupby("budget", sort=False):
        values = {name: group.loc[group["figure"] == figure, "median"] for figure, name in FIGURES_READ.items()}
        read = {name: float(series.iloc[0]) if len(series) else float("nan") for name, series in values.items()}
        name = PAPER_MODELS.get(model, model)
        line = {"row": f"{name} {percent(budget)}", "model": model, "budget": budget, "full": full, **read}
        found.append(line | {"ours": read["allocated"] / full, "paper": paper_share(name, budget)})
    return found


def paper_share(model: str, budget: float) -> float:
    """The paper's cache at a budget relative to its full one; NaN if not printed."""
    values = paper_values("kvmerger", "tab-2")
    cache = values[(values["model"] == model) & (values["metric"] == "KV cache (GB)")].set_index("budget")["value"]
    named = percent(budget)
    return float(cache[named] / cache["100 %"]) if named in cache.index else float("nan")


DRAWINGS = {"tab-2": draw_memory}
