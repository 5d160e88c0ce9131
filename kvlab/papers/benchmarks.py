"""Exhibits and claims of `kvlab bench`: the newest file of a preset next to the paper's measurements.

A benchmark repeats one measurement, so n is the number of repeats, without an interval over prompts. Bytes are exact.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.bench.rows import Row
from kvlab.bench.tables import beside_the_paper, paper_numbers, statistic_name
from kvlab.papers.evidence import benchmark
from kvlab.papers.exhibit import Choice, Draw, Drawn, Needs, draws
from kvlab.papers.paper_tables import grey_table, paper_values
from kvlab.requests.measurement import Measurement
from kvlab.results.sources import Sources
from kvlab.results.verdict import FAILS, HOLDS, OPEN, Basis, Claim, Threshold, Verdict
from kvlab.views import speed
from kvlab.views.base.lines import hatch
from kvlab.views.base.palette import HUES, Theme, pick
from kvlab.views.base.provenance import Provenance, settings_of_rows
from kvlab.views.base.template import finish
from kvlab.views.base.words import byte_size, number, percent, sentence, some_of

SMALL = 16  # divides shapes and texts
NO_MODEL = "It times the paper's shapes with random weights, so that it is the same for every model in view."
PAPER_COLUMNS = ["method", "budget", "figure", "value", "unit", "batch", "context", "new_tokens", "model", "source"]


def draw_rates(
    preset: str,
    name: str,
    title: str,
    setting: str,
    judge: Callable[..., Claim],
    batches_differ: bool = False,
) -> Draw:
    """Draw a paper's table of rates relative to the full cache, with kvlab's.

    `setting` is the template by which each is described, `judge` the claim about them, as `judge_rows` calls it. With
    `batches_differ` the paper's full cache ran at another batch than what it is compared with; ours is of equal batch.
    """

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        rows = newest(sources, preset)
        if rows.empty:
            return needs(sources, preset)
        names = [field.name for field in fields(Row)]
        known = rows.reindex(columns=names).astype(object)  # older rows have fewer columns
        ours = [Row(**values) for values in known.where(known.notna(), None).to_dict("records")]
        numbers = beside_the_paper(ours, preset)
        rates = numbers[numbers["figure"].str.endswith(" rate") & (numbers["method"] != "full")].copy()
        if batches_differ:
            full = numbers.loc[numbers["method"] == "full", "value"]
            rates["paper_ratio"] = rates["paper_ratio"].fillna(rates["value"] / full.iloc[0])
        rates["setting"] = [
            setting.format(row=row, model=row.model.removeprefix("shape:"), budget=budget_text(row.budget))
            for row in rates.itertuples()
        ]
        columns = ["setting", "method", "budget", "our_ratio", "paper_ratio", "ours", "value", "why", "note"]
        frame = rates[columns].reset_index(drop=True)
        figure = speed.against_the_paper(frame, theme, title)
        claim = judge_rows(judge, frame, rows, sources, preset)
        caption = speed.caption_against_the_paper(frame)
        where = bench_origin(rows)
        return (Drawn(name, figure, frame, caption, where, claim, grey_numbers(preset), model=shapes_of(rows)),)

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


def needs(sources: Sources, preset: str) -> Needs:
    """What is missing while `newest` is empty: the preset at a sixteenth of its size, which any machine can run."""
    options = f"--set scale={SMALL} --set shorten={SMALL}"
    sentence = f"The benchmark {preset} was not measured (on a GPU of 80 GB leave {options} out). {NO_MODEL}"
    return Needs(sentence, benchmark(sources, preset, SMALL, SMALL))


def bench_origin(rows: pd.DataFrame) -> Provenance:
    """Which file, device, size and versions the rows came from."""
    first = rows.iloc[0]
    smaller = f"1/{first['scale']} of the layers and width, 1/{first['shorten']} of the tokens"
    size = smaller if (rows[["scale", "shorten"]] > 1).any(axis=None) else "full size"
    versions = ", ".join(f"{name} {version}" for name, version in json.loads(first["versions"] or "{}").items())
    over = statistic_name(rows["repeats"])
    details = (first["device"], first["dtype"], size, over, versions)
    return Provenance(f"benchmark {first['name']}", details, settings_of_rows(rows))


def shapes_of(rows: pd.DataFrame) -> str:
    """Name of the measured shapes in place of a model's: `the shapes llama2-7b, llama2-13b, scaled down by 16`."""
    names = [name.removeprefix("shape:") for name in rows["model"].unique()]
    size = f", scaled down by {rows['scale'].max()}" if rows["scale"].max() > 1 else ""
    return f"the {'shape' if len(names) == 1 else 'shapes'} {', '.join(names)}{size}"


def judge_rows(
    judge: Callable[..., Claim], frame: pd.DataFrame, rows: pd.DataFrame, sources: Sources, preset: str
) -> Claim:
    """The claim of `judge` about the frame; it also takes whether the rows are smaller than the paper's, the repeats,
    which the finding begins with, and the measurement at the paper's own size."""
    is_small = bool((rows[["scale", "shorten"]] > 1).any(axis=None))
    claim = judge(frame, is_small, int(rows["repeats"].max()), benchmark(sources, preset))
    return replace(claim, finding=f"{statistic_name(rows['repeats']).capitalize()}. {claim.finding}")


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


STEADY = "ZSMerge's memory stays constant (43 GB) and its decode rate steady (9 tokens/s) from 20k to 54k tokens."
FASTER = "ZSMerge has a higher throughput than the full cache in every setting, 1.23 to 2.24 times where both ran."
TWICE = "KeepKV decodes over twice as fast as the full cache, faster than D2O and slower than H2O."
SHARES = "At 50 and 35 % the cache takes 51 and 33 % (7B) of the full one, after 3,900 + 1,024 tokens."
LEVEL = Threshold(0.8, "at least four fifths of its start: the paper says steady and prints one rate")
ABOVE = Threshold(1.0, "as fast as the full cache of equal batch")
DOUBLE = Threshold(2.0, "twice the full cache, as the paper says")
CLOSE = Threshold(0.05, "the paper's own two models differ by six points at 35 %", at_most=True)
GROWN = 1.02
PAPERS_RATE = 2.20
SMALLER_SHAPE = " A smaller shape was measured, where fixed costs weigh more."


def steady(frame: pd.DataFrame, small: bool, repeats: int = 0, settle: Measurement | None = None) -> Claim:
    """Rate and bytes at the longest context over those at the shortest; `frame`: context, measure, value, method."""
    ours = frame[(frame["method"] == "zsmerge") & (frame["status"] == "ok")].sort_values("context")
    rate, size = (ours.loc[ours["measure"] == measure, "value"] for measure in ("rate", "bytes"))
    if len(rate) < 2 or len(size) < 2:
        return Claim(STEADY, OPEN, "Fewer than two lengths were measured.", Basis(repeats=repeats), settle=settle)
    kept = rate.iloc[-1] / rate.iloc[0]
    grown = size.iloc[-1] / size.iloc[0]
    finding = (
        f"From {ours['context'].min():,} to {ours['context'].max():,} tokens its rate goes from "
        f"{number(rate.iloc[0])} to {number(rate.iloc[-1])} tokens/s ({kept:.2f} times), its bytes from "
        f"{byte_size(size.iloc[0])} to {byte_size(size.iloc[-1])} ({grown:.2f} times)."
    )
    holds = kept >= LEVEL.value and grown <= GROWN
    return _measured(STEADY, holds, finding, LEVEL, small, repeats, settle, [kept], [1.0])


def faster(frame: pd.DataFrame, small: bool, repeats: int = 0, settle: Measurement | None = None) -> Claim:
    """Every setting's ratio to the full cache of equal batch; `frame`: method, our_ratio."""
    ours = frame[frame["method"] == "zsmerge"].dropna(subset=["our_ratio"])
    if ours.empty:
        return Claim(FASTER, OPEN, "No setting of ZSMerge was measured.", Basis(repeats=repeats), settle=settle)
    ahead = int((ours["our_ratio"] > ABOVE.value).sum())
    ratios = f"{ours['our_ratio'].min():.2f} to {ours['our_ratio'].max():.2f} times the full cache of equal batch"
    finding = f"Faster in {ahead} of {len(ours)} settings: {ratios}."
    values = (ours[name].dropna().tolist() if name in ours else [] for name in ("our_ratio", "paper_ratio"))
    return _measured(FASTER, ahead == len(ours), finding, ABOVE, small, repeats, settle, *values)


def twice(frame: pd.DataFrame, small: bool, repeats: int = 0, settle: Measurement | None = None) -> Claim:
    """Twice the full cache, above D2O, below H2O; `frame`: method, our_ratio."""
    ratio = frame.set_index("method")["our_ratio"].dropna()
    if not {"keepkv", "d2o", "h2o"} <= set(ratio.index):
        why = "KeepKV, D2O and H2O were not all measured."
        return Claim(TWICE, OPEN, why, Basis(repeats=repeats), settle=settle)
    shown = ", ".join(f"{name} {value:.2f}" for name, value in ratio.items())
    finding = (
        f"Times the full cache at equal batch: {shown}; in the paper, at batch 8 against 2, KeepKV {PAPERS_RATE:.2f}."
    )
    holds = ratio["keepkv"] >= DOUBLE.value and ratio["d2o"] < ratio["keepkv"] < ratio["h2o"]
    return _measured(TWICE, bool(holds), finding, DOUBLE, small, repeats, settle, [ratio["keepkv"]], [PAPERS_RATE])


def shares(frame: pd.DataFrame, repeats: int = 0) -> Claim:
    """Bytes relative to the full cache at every budget, compared with the paper's; `frame`: row, ours, paper."""
    known = frame.dropna(subset="paper")
    if known.empty:
        return Claim(SHARES, OPEN, "Neither of the paper's models was measured.", Basis(repeats=repeats))
    gap = (known["ours"] - known["paper"]).abs()
    verdict: Verdict = HOLDS if gap.max() <= CLOSE.value else FAILS
    parts = [f"{row.row}: {percent(row.ours)}, the paper {percent(row.paper)}" for row in known.itertuples()]
    why = (
        ""
        if verdict == HOLDS
        else (
            " As published the prompt alone is compressed and generated tokens come on top; the paper's shares are "
            "those of the prompt."
        )
    )
    finding = f"{'; '.join(parts)}.{why}"
    return Claim(SHARES, verdict, finding, Basis(repeats=repeats), threshold=CLOSE, units=tuple(gap))


def _measured(
    says: str,
    holds: bool,
    finding: str,
    threshold: Threshold,
    small: bool,
    repeats: int,
    settle: Measurement | None,
    ours: Sequence[float],
    printed: Sequence[float],
) -> Claim:
    """The claim judged by measured values, `ours`; a smaller model cannot decide it, because fixed costs dominate."""
    decided = Claim(
        says,
        HOLDS if holds else FAILS,
        finding,
        Basis(repeats=repeats),
        threshold=threshold,
        units=tuple(map(float, ours)),
        printed=tuple(map(float, printed)),
    )
    return replace(decided, verdict=OPEN, finding=finding + SMALLER_SHAPE, settle=settle) if small else decided


BARS = (("ours", "this benchmark", "blue", ""), ("paper", "the paper", "grey", "/"))


PRESET = "kvmerger-table2"
PAPER_MODELS = {"shape:llama2-7b": "Llama2-7B-chat", "shape:llama2-13b": "Llama2-13B-chat"}
FIGURES_READ = {"allocated bytes": "allocated", "allocator: peak with weights": "peak", "logical tokens": "tokens"}


@draws("kvmerger/tab-2")
def draw_memory(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Bytes relative to the full cache, measured and published."""
    rows = by_method(sources.benchmarks) if len(sources.benchmarks) else sources.benchmarks
    rows = rows[(rows["preset"] == PRESET) & (rows["status"] == "ok")] if len(rows) else rows
    frame = memory_shares(rows) if len(rows) else pd.DataFrame()
    if frame.empty:
        return Needs(
            "No benchmark of the paper's memory table was found; this one is a small version for any machine, and on a "
            f"GPU the same without --device, scale and shorten is the paper's own size. {NO_MODEL}",
            benchmark(sources, PRESET, scale=16, shorten=8, device="cpu"),
        )
    figure = go.Figure()
    for column, name, hue, pattern in BARS:
        colour = pick(HUES[hue], theme)
        figure.add_bar(
            x=frame["row"],
            y=frame[column],
            name=name,
            textposition="outside",
            text=[percent(value) if value == value else "" for value in frame[column]],
            marker={"color": colour, "pattern": hatch(pattern, colour, theme, pale=0.6)},
            hovertemplate=f"%{{x}}<br>{name}: %{{y:.1%}} of the full cache<extra></extra>",
        )
    title = "Compressed cache relative to the full one"
    finish(figure, title=title, x="model and budget", y="bytes / bytes of the full cache", theme=theme, height=400)
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_yaxes(range=[0, 1.08], tickformat=".0%").update_xaxes(showgrid=False)
    # Whether the sizes are like the paper's.
    both = frame.dropna(subset=["ours", "paper"])
    close = int(np.isclose(both["ours"], both["paper"], rtol=0.1).sum())
    caption = sentence(f"the size is like the paper's (within a tenth) for {some_of(close, len(both), 'cache')}")
    if both.empty:
        caption = "No size was measured both here and in the paper."
    grey = grey_table(paper_values("kvmerger", "tab-2"))
    where = bench_origin(rows.sort_values("timestamp", ascending=False))
    claim = shares(frame, int(rows["repeats"].max()))
    return (Drawn("share", figure, frame, caption, where, claim, grey, model=shapes_of(rows)),)


def memory_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per model and budget, from the latest benchmark of each model.

    Columns: row, model, budget, full, allocated, peak (bytes; NaN without an allocator), tokens, ours (share), paper.
    """
    # The paper's cache at a budget relative to its full one, if it prints both.
    values = paper_values("kvmerger", "tab-2")
    gigabytes = values[values["metric"] == "KV cache (GB)"].set_index(["model", "budget"])["value"]
    found = []
    for model, group in rows[rows["figure"].isin(FIGURES_READ)].groupby("model", sort=False):
        latest = group[group["name"] == group.sort_values("timestamp")["name"].iloc[-1]]
        of_full = latest[latest["is_full"] & (latest["figure"] == "allocated bytes")]
        if of_full.empty:
            continue
        full = float(of_full["median"].iloc[0])
        name = PAPER_MODELS.get(str(model), str(model))
        for budget, cells in latest[latest["method"] == "kvmerger"].groupby("budget", sort=False):
            line: dict[str, Any] = {"row": f"{name} {percent(budget)}", "model": model, "budget": budget, "full": full}
            for figure, column in FIGURES_READ.items():
                measured = cells.loc[cells["figure"] == figure, "median"]
                line[column] = float(measured.iloc[0]) if len(measured) else float("nan")
            printed = gigabytes.get((name, percent(budget)), float("nan"))
            paper = float(printed / gigabytes.get((name, "100 %"), float("nan")))
            found.append(line | {"ours": line["allocated"] / full, "paper": paper})
    return pd.DataFrame(found)


FIGURE_3 = "zsmerge-fig3"
MEASURES = {"decode rate": "rate", "weights and cache": "bytes"}


@draws("zsmerge/fig-3")
def draw_lengths(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3: bytes and decode rate by context length."""
    rows = newest(sources, FIGURE_3)
    if rows.empty:
        return needs(sources, FIGURE_3)
    # The rows of the best full cache per length and of ZSMerge.
    chosen = rows[rows["figure"].isin(MEASURES) & (rows["is_full"] | (rows["method"] == "zsmerge"))]
    frame = pd.DataFrame(
        {
            "name": np.where(chosen["is_full"], "full cache", "ZSMerge"),
            "method": np.where(chosen["is_full"], "full", "zsmerge"),
            "context": chosen["context"],
            "measure": chosen["figure"].map(MEASURES),
            "value": chosen["median"],
            "spread": chosen["iqr"],
            "status": chosen["status"],
        }
    ).reset_index(drop=True)
    figure = speed.over_length(frame, theme)
    caption = speed.caption_over_length(frame)
    where = bench_origin(rows)
    grey = grey_numbers(FIGURE_3)
    shapes = shapes_of(rows)
    claim = judge_rows(steady, frame, rows, sources, FIGURE_3)
    return (Drawn("lengths", figure, frame, caption, where, claim, grey, model=shapes),)


# Tokens per second of whole requests, relative to the full cache at the same batch.
draws("zsmerge/tab-1")(
    draw_rates(
        "zsmerge-table1",
        "throughput",
        "Throughput against the full cache",
        "{model}, {row.context:,}+{row.new_tokens:,}, batch {row.batch}",
        faster,
    )
)
# Tokens per second at batch 8 relative to the full cache at the same batch; in the paper at batch 2.
draws("keepkv/tab-1")(
    draw_rates(
        "keepkv-table1",
        "rate",
        "Decode rate against the full cache",
        "batch {row.batch}, {row.context:,} tokens, {budget}",
        twice,
        batches_differ=True,
    )
)
