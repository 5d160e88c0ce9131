"""Serving: what pages really free of what methods give up, and which pages stay."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import memory as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import Line, add_lines
from kvlab.views.base.palette import HUES, SEQUENTIAL, Theme, pick
from kvlab.views.base.template import axis_height, colour_bar_below, finish, layer_axis
from kvlab.views.base.words import percent, plural

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


def freed_by_run(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Shares of the prompt's slots given up, by dropping or merging, and really freed, three bars a run.

    From `run_pages.freed_by_run`.
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


@with_simple(simple.freed_by_run)
def caption_freed_by_run(frame: pd.DataFrame) -> str:
    """What the best and the worst run free of what they give up."""
    compressed = frame[frame["dropped"] > 0]
    if compressed.empty:
        return "No run gives up a slot, so no page becomes free."
    compressed = compressed.assign(label=compressed["label"].str.partition(" · ")[0])  # without the level
    best, worst = (compressed.loc[place] for place in (compressed["layer"].idxmax(), compressed["layer"].idxmin()))
    told = (
        f"{best['label']} gives up {percent(best['dropped'])} of the prompt's slots, and pages of {int(best['page'])} "
        f"free {percent(best['layer'])} where a layer has a page table ({percent(best['model'])} where all layers "
        "share one)"
    )
    if len(compressed) == 1:
        return f"{told}."
    return f"{told}; {worst['label']} gives up {percent(worst['dropped'])} and frees {percent(worst['layer'])}."


def pages_over_steps(frame: pd.DataFrame, page: int, theme: Theme = "light") -> go.Figure:
    """Slots of a head that an engine holds over the steps, mean over heads; from `run_pages.pages_over_steps`."""
    wide = _by_sharing(frame)
    figure = go.Figure()
    mode = "lines" if len(wide) > 1 else "markers"
    add_lines(figure, wide["step"], wide, LINES, theme, "step %{x}: %{y:.1f} slots, {name}", mode=mode)
    finish(figure, title=f"Slots held in pages of {page}", x="step", y="slots of a head (mean)", theme=theme)
    return figure.update_yaxes(rangemode="tozero")


@with_simple(simple.pages_over_steps)
def caption_pages_over_steps(frame: pd.DataFrame) -> str:
    """Fragmentation after the prompt and at the end."""
    own = frame[frame["sharing"] == "layer"]
    first = own.iloc[0]
    last = own.iloc[-1]
    return (
        f"After the prompt {percent(first['fragmentation'])} of the slots in the pages that stay hold nothing, at "
        f"step {int(last['step'])} {percent(last['fragmentation'])} (a page table per layer): {last['paged']:,.0f} "
        f"slots of a head are held for {last['slots']:,.0f} that are used."
    )


def _by_sharing(frame: pd.DataFrame) -> pd.DataFrame:
    wide = frame.pivot(index="step", columns="sharing", values="paged").reset_index()
    once = frame.drop_duplicates("step").set_index("step")
    return wide.assign(slots=wide["step"].map(once["slots"]), read=wide["step"].map(once["read"]))


def pages_map(frame: pd.DataFrame, page: int, theme: Theme = "light") -> go.Figure:
    """Used share of every page, layers down and pages across; free pages are blank. From `run_pages.pages_map`."""
    table = 100 * frame.pivot(index="layer", columns="page", values="share")
    used = table.to_numpy(np.float32)
    layers = table.index.tolist()
    pixels = axis_height(layers)
    heat = go.Heatmap(
        z=np.where(used > 0, used, np.nan),
        x=page * table.columns.to_numpy(),
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
    title = f"Pages of {page} that stay"
    x = "position in the text"
    height = pixels + 190
    finish(figure, title=title, x=x, y="layer", theme=theme, height=height, legend=False)
    figure.update_layout(margin_b=120)
    return figure.update_yaxes(showgrid=False, **layer_axis(layers, pixels)).update_xaxes(showgrid=False)


@with_simple(simple.pages_map)
def caption_pages_map(frame: pd.DataFrame) -> str:
    """How many pages stay, and how much of them is used."""
    stays = frame[frame["kept"] > 0]
    free = 1 - len(stays) / len(frame)
    used = stays["kept"].sum() / stays["slots"].sum()
    nowhere = frame.groupby("page")["kept"].sum().eq(0).mean()
    return (
        f"{percent(free)} of {plural(len(frame), 'page')} (each holds all heads of a layer) are free, and blank; of "
        f"the slots in the others {percent(used)} are used. {percent(nowhere)} of the pages are free in every layer."
    )
