"""Serving: what pages really free of what methods give up, and which pages stay."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.trace.reader import Run
from kvlab.views.base.lines import Line, add_lines
from kvlab.views.base.palette import HUES, SEQUENTIAL, Theme, pick
from kvlab.views.base.template import axis_height, colour_bar_below, finish, layer_axis
from kvlab.views.base.view import view
from kvlab.views.base.words import contrast, part, percent, sentence
from kvlab.views.frames import run_pages
from kvlab.views.wall import open_wall

BARS = (
    ("dropped", "given up by the method", "grey", ""),
    ("layer", "freed, a page table per layer", "blue", ""),
    ("model", "freed, one page table for all layers", "orange", "/"),
)
LINES = (
    Line("read", "full cache", "ink", "solid"),
    Line("model", "pages, one table for all layers", "orange", "dash"),
    Line("layer", "pages, a table per layer", "blue", "solid"),
    Line("slots", "slots the method keeps", "grey", "dot"),
)


# `size` is the number of tokens of a page.
paged_slots = view("pages_over_steps", title="Slots held in pages", needs="full", page="cost", by_step=True)(
    lambda run, size=16: run_pages.pages_over_steps(open_wall(run), size)
)
used_pages = view("pages", title="Pages that stay", needs="full", page="cost")(
    lambda run, size=16, step=0: run_pages.pages_map(open_wall(run), size, step)
)


@view("freed_pages", title="Memory that pages free", needs="full", page="cost")
def freed_pages(runs: Sequence[Run], size: int = 16) -> pd.DataFrame:
    """One row per run: shares of the prompt's slots that the method gives up, and that pages of `size` tokens free.

    `why` is the reason for the `level` of what an engine must hold.
    """
    rows = [run_pages.run_servability(run, open_wall(run)) for run in runs]
    return pd.DataFrame(
        {
            "label": f"{row.title} · level {row.level}",
            "method": row.method,
            "level": row.level,
            "why": row.held.why,
            "page": size,
            "dropped": 1 - row.kept,
            "layer": row.freed[size].layer,
            "model": row.freed[size].model,
        }
        for row in rows
    )


@freed_pages.figure
def freed_by_run(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Shares of the prompt's slots given up, by dropping or merging, and really freed, three bars a run.

    From `freed_pages`.
    """
    figure = go.Figure()
    for column, name, hue, pattern in BARS:
        figure.add_bar(
            y=frame["label"],
            x=100 * frame[column],
            orientation="h",
            name=name,
            marker={"color": pick(HUES[hue], theme), "pattern": {"shape": pattern, "solidity": 0.25}},
            hovertemplate=f"%{{y}}: %{{x:.1f}} % {name}<extra></extra>",
        )
    title = f"Memory that pages of {int(frame['page'].iloc[0])} tokens free"
    x = "share of the prompt's slots, once it was read (%), more is better"
    height = 180 + 62 * len(frame)
    finish(figure, title=title, x=x, y="run", theme=theme, height=height)
    figure.update_xaxes(range=[0, 100])
    return figure.update_layout(barmode="group").update_yaxes(autorange="reversed", type="category", showgrid=False)


@freed_pages.caption
def caption_freed_by_run(frame: pd.DataFrame) -> str:
    """Whether slots that are given up free memory of an engine."""
    runs = frame["label"].str.partition(" · ")[0]  # without the level
    dropped = frame.set_index(runs).query("dropped > 0")["layer"]
    if dropped.empty:
        return "No run gives up a slot, so no memory becomes free."
    if dropped.max() <= 0:
        return "Slots are given up, but an engine could free no memory for them."
    share = part(float(dropped.iloc[0]))
    return contrast(
        dropped,
        "An engine could free the most memory with {most}, the least with {least}.",
        f"With every run, an engine could free {share} of the prompt's memory.",
        f"With {{only}}, an engine could free {share} of the prompt's memory.",
    )


@paged_slots.figure
def pages_over_steps(frame: pd.DataFrame, theme: Theme = "light", size: int = 16) -> go.Figure:
    """Slots of a head that an engine holds over the steps, mean over heads; from `run_pages.pages_over_steps`."""
    wide = frame.pivot(index="step", columns="sharing", values="paged").reset_index()
    once = frame.drop_duplicates("step").set_index("step")
    wide = wide.assign(slots=wide["step"].map(once["slots"]), read=wide["step"].map(once["read"]))
    figure = go.Figure()
    mode = "lines" if len(wide) > 1 else "markers"
    add_lines(figure, wide["step"], wide, LINES, theme, "step %{x}: %{y:.1f} slots, {name}", mode=mode)
    finish(figure, title=f"Slots held in pages of {size}", x="step", y="slots of a head (mean)", theme=theme)
    return figure.update_yaxes(rangemode="tozero")


@paged_slots.caption
def caption_pages_over_steps(frame: pd.DataFrame) -> str:
    """How much of the pages that stay is empty at the end."""
    last = frame[frame["sharing"] == "layer"].iloc[-1]
    return sentence(
        f"at the end, {part(float(last['fragmentation']))} of the memory that an engine must hold is unused"
    )


@used_pages.figure
def pages_map(frame: pd.DataFrame, theme: Theme = "light", size: int = 16) -> go.Figure:
    """Used share of every page, layers down and pages across; free pages are blank. From `run_pages.pages_map`."""
    table = 100 * frame.pivot(index="layer", columns="page", values="share")
    used = table.to_numpy(np.float32)
    layers = table.index.tolist()
    pixels = axis_height(layers)
    heat = go.Heatmap(
        z=np.where(used > 0, used, np.nan),
        x=size * table.columns.to_numpy(),
        y=layers,
        ygap=1,
        zmin=0,
        zmax=100,
        colorscale=SEQUENTIAL[theme],
        hoverongaps=False,
        colorbar=colour_bar_below("used slots of a page (%)", theme),
        hovertemplate="layer %{y}, page from token %{x}: %{z:.0f} % of its slots are used<extra></extra>",
    )
    figure = go.Figure(heat)
    title = f"Pages of {size} that stay"
    x = "position in the text"
    height = pixels + 190
    finish(figure, title=title, x=x, y="layer", theme=theme, height=height, legend=False)
    figure.update_layout(margin_b=120)
    return figure.update_yaxes(showgrid=False, **layer_axis(layers, pixels)).update_xaxes(showgrid=False)


@used_pages.caption
def caption_pages_map(frame: pd.DataFrame) -> str:
    """How much memory can be given back."""
    return sentence(f"{part(float((frame['kept'] <= 0).mean()))} of the memory pages can be given back")


def verdict(frame: pd.DataFrame, label: str) -> str:
    """What pages free of what a run gives up, and the run of the comparison that frees most; from `freed_pages`."""
    names = frame["label"].str.partition(" · ")[0]  # without the level
    here = frame[names == label].iloc[0]
    text = (
        f"{label} gives up {percent(here['dropped'])} of the prompt's slots; an engine could free the memory of "
        f"{percent(here['layer'])}"
    )
    best = frame["layer"].idxmax()
    if names[best] == label or frame.loc[best, "layer"] <= here["layer"]:
        return f"{text}: no run of this comparison frees more." if len(frame) > 1 else f"{text}."
    return f"{text}; most is freed by {names[best]}, {percent(frame.loc[best, 'layer'])}."
