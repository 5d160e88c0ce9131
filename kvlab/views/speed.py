"""Speed of benchmarks: rates beside the full cache and the bound of the device, and by context length."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.views.base import HUES, INK, QUIET, SURFACES, Theme, finish, method_style, mix, pick, words
from kvlab.views.frames.speed import REFERENCE, SCATTERED


def doubt_of(line: Any, unit: str) -> str:
    """Why a time or rate is unreliable, or ""; bytes are exact."""
    if unit == "bytes" or pd.isna(line.value):
        return ""
    if line.repeats < 2:
        return "one reading"
    return "busy machine" if pd.notna(line.spread) and line.spread > SCATTERED * line.value else ""


DEVICE_BOUND = "device bound"
ROOM_FOR_RATIO = 1.5  # of the longest bar
PANELS = (("bytes", "weights and cache"), ("rate", "decode rate (tokens/s)"))


def measured(
    frame: pd.DataFrame, unit: str, place: str, theme: Theme = "light", title: str = "", bound: str = DEVICE_BOUND
) -> go.Figure:
    """A bar per method with the interquartile range, its bound as a tick, and the ratio to each full cache.

    Unreliable values (one repeat, or a wide spread) are hatched and show the reason instead of a ratio. From
    `kvlab.results.speed_tables.speed_table`; `place` names the device. Failed measurements show why.
    """
    factor, shown = words.byte_unit(float(frame["value"].max())) if unit == "bytes" else (1.0, unit)
    value = frame["value"] / factor
    figure = go.Figure()
    colours = [mix(method_style(method, theme).colour, SURFACES[theme], 0.15) for method in frame["method"]]
    labels = [_ratio(line, unit) for line in frame.itertuples(index=False)]
    hover = []
    for line, ratio in zip(frame.itertuples(index=False), labels, strict=True):
        amount = words.byte_size(line.value) if unit == "bytes" else f"{words.number(line.value)} {unit}"
        hover.append(f"{line.status}, {line.note}" if pd.isna(line.value) else f"{amount}, {ratio}")
    hatched = ["/" if doubt_of(line, unit) else "" for line in frame.itertuples(index=False)]
    figure.add_bar(
        y=frame["label"],
        x=value,
        orientation="h",
        name="measured",
        showlegend=False,
        marker={"color": colours, "pattern": {"shape": hatched, "solidity": 0.3}},
        error_x={
            "type": "data",
            "array": frame["spread"].fillna(0) / factor / 2,
            "thickness": 1.2,
            "width": 4,
            "color": INK[theme],
        },
        customdata=hover,
        hovertemplate="%{y}: %{customdata}<extra></extra>",
    )
    ends = (value + frame["spread"].fillna(0) / factor / 2).fillna(0)  # plotly's texts at bars cover their error bars
    figure.add_scatter(
        x=ends,
        y=frame["label"],
        mode="text",
        text=[f" {one}" for one in labels],
        textposition="middle right",
        textfont={"size": 12},
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
    )
    most = max(float(ends.max()) * ROOM_FOR_RATIO, float((frame["bound"] / factor).max()) * 1.07) or 1.0
    if frame["bound"].notna().any():
        figure.add_scatter(
            x=frame["bound"] / factor,
            y=frame["label"],
            mode="markers",
            name=bound,
            marker={
                "symbol": "line-ns-open",
                "size": 20,
                "color": pick(HUES["ink"], theme),
                "line": {"width": 3},
            },
            hovertemplate=f"%{{y}}: bound %{{x:.4g}} {shown}<extra></extra>",
        )
    height = 170 + 34 * len(frame)
    finish(figure, title=title, x=f"{shown}<br>{place}", y="method and budget", theme=theme, height=height)
    return figure.update_yaxes(autorange="reversed", type="category", showgrid=False).update_xaxes(range=[0, most])


def caption_measured(frame: pd.DataFrame, unit: str, more_is_better: bool, bound: str = DEVICE_BOUND) -> str:
    """The best compressed cache, and whether it is better than the full one."""
    ran = frame[~frame["method"].str.startswith("full")].dropna(subset=["value", "ratio"])
    sure = [not doubt_of(line, unit) for line in ran.itertuples(index=False)]
    ratios = ran[np.array(sure, bool)].set_index("label")["ratio"]
    if ratios.empty:
        return "Nothing here can be compared with the full cache."
    best = float(ratios.max() if more_is_better else ratios.min())
    leading = [name for name, value in ratios.items() if words.near(float(value), best)]
    names = "all alike" if len(leading) == len(ratios) > 1 else words.join_names(leading)
    better, worse = ("better", "worse") if more_is_better else ("worse", "better")
    how = words.comparison_words(best, 1.0, f"{better} than", f"{worse} than", "about as good as", 0.05)
    return f"Best of the compressed caches: {names}, {how} the full cache."


def _ratio(line: Any, unit: str) -> str:
    """Text next to a bar: the ratio to the best full cache by name, and to kvlab's own if that is another."""
    if pd.isna(line.value):
        return f"{line.status}: {line.note}"[:60]
    if doubt := doubt_of(line, unit):
        return f"– ({doubt})"
    if pd.isna(line.ratio):
        return ""
    ratio_to_kvlab = (
        f", {words.number(line.own_ratio)} x kvlab"
        if (bool(pd.notna(line.own_ratio)) and line.reference != REFERENCE)
        else ""
    )
    limit = "" if pd.isna(line.limit) or line.is_full else f", at most {words.number(line.limit)} by bytes"
    # The full cache used for the ratio, such as `transformers sdpa`, if it has a name.
    reference = str(line.reference).removeprefix("full").removeprefix(": ")
    return f"{words.number(line.ratio)} x {reference or 'full'}{ratio_to_kvlab}{limit}"


def over_length(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Bytes (top) and decode rate (bottom) against the tokens in the cache.

    Columns of `frame`: name, method, context, measure (bytes or rate), value, spread (interquartile range), status.
    Points that ran out of memory are crosses on the axis.
    """
    factor, unit = words.byte_unit(float(frame.loc[frame["measure"] == "bytes", "value"].max() or 1))
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.08)
    for row, (measure, title) in enumerate(PANELS, start=1):
        scale = factor if measure == "bytes" else 1.0
        for (name, method), group in frame[frame["measure"] == measure].groupby(["name", "method"], sort=False):
            group = group.sort_values("context")
            style = method_style(str(method), theme)
            failed = group["status"] == "oom"
            shared = {"showlegend": row == 1, "row": row, "col": 1}
            figure.add_scatter(
                x=group["context"],
                y=group["value"].where(~failed) / scale,
                name=name,
                legendgroup=name,
                mode="lines+markers",
                line={"color": style.colour, "dash": style.dash, "width": 1.8},
                marker={"symbol": style.marker, "size": 8},
                error_y={"type": "data", "array": group["spread"].fillna(0) / 2 / scale, "thickness": 1, "width": 3},
                hovertemplate=f"{name}, %{{x:,}} tokens: %{{y:.4g}}<extra></extra>",
                **shared,
            )
            if failed.any():
                figure.add_scatter(
                    x=group.loc[failed, "context"],
                    y=[0] * int(failed.sum()),
                    name=f"{name}: out of memory",
                    mode="markers",
                    marker={"symbol": "x", "size": 13, "color": style.colour},
                    hovertemplate=f"{name}, %{{x:,}} tokens: out of memory<extra></extra>",
                    **shared,
                )
        figure.update_yaxes(title_text=f"{title} ({unit})" if measure == "bytes" else title, row=row)
    axes = figure.layout.yaxis.title.text, figure.layout.yaxis2.title.text
    finish(figure, title="Memory and speed by context length", x="", y="", theme=theme, height=560)
    for row, text in enumerate(axes, start=1):
        figure.update_yaxes(title_text=text, rangemode="tozero", row=row)
    return figure.update_xaxes(title_text="tokens in the cache", row=2)


def caption_over_length(frame: pd.DataFrame) -> str:
    """Whose memory grows with the text."""
    sizes = frame[(frame["status"] == "ok") & (frame["measure"] == "bytes")].sort_values("context")
    ends = sizes.groupby("name", sort=False)["value"].agg(["first", "last", "size"])
    ends = ends[ends["size"] > 1]
    if ends.empty:
        return "No cache was measured at two lengths."
    lengths = f"{frame['context'].min():,} to {frame['context'].max():,} tokens"
    grows = list(ends.index[ends["last"] > 1.05 * ends["first"]])
    if not grows:
        return f"From {lengths}, no cache needs more memory."
    if len(grows) == len(ends):
        return f"From {lengths}, every cache needs more memory."
    return f"From {lengths}, more memory is needed with {words.join_names(grows)}, and not with the others."


def against_the_paper(frame: pd.DataFrame, theme: Theme = "light", title: str = "") -> go.Figure:
    """Bars of the ratio to the full cache, measured and published, one row per method and setting.

    Columns of `frame`: setting, method, our_ratio, paper_ratio; a missing ratio has no bar.
    """
    names = frame["method"] + " · " + frame["setting"]
    ours = pick(HUES["blue"], theme)
    theirs = pick(HUES["grey"], theme)
    figure = go.Figure()
    for column, name, colour, pattern in (("our_ratio", "kvlab", ours, ""), ("paper_ratio", "paper", theirs, "/")):
        figure.add_bar(
            y=names,
            x=frame[column],
            name=name,
            orientation="h",
            marker={"color": colour, "pattern": {"shape": pattern}},
            text=[f"{value:.2f}" if pd.notna(value) else "" for value in frame[column]],
            textposition="outside",
            hovertemplate=f"%{{y}}<br>{name}: %{{x:.3g}} times the full cache<extra></extra>",
        )
    for column, reason, shift in (("our_ratio", "why", 9), ("paper_ratio", "note", -9)):
        # The reason in place of a missing bar.
        for place, why in frame[frame[column].isna()][reason].items() if reason in frame else ():
            if isinstance(why, str) and why:
                figure.add_annotation(
                    x=0,
                    y=names[place],
                    text=why,
                    showarrow=False,
                    xanchor="left",
                    yshift=shift,
                    xshift=4,
                    font={"size": 11, "color": QUIET[theme]},
                )
    height = 130 + 44 * len(frame)
    finish(figure, title=title, x="times the full cache", y="method and setting", theme=theme, height=height)
    figure.add_vline(1, line={"color": QUIET[theme], "width": 1, "dash": "dot"})
    return figure.update_yaxes(autorange="reversed").update_xaxes(rangemode="tozero")


def caption_against_the_paper(frame: pd.DataFrame) -> str:
    """How many ratios are like the paper's."""
    both = frame.dropna(subset=["our_ratio", "paper_ratio"])
    if both.empty:
        return "No setting was measured both here and in the paper."
    close = int(((both["our_ratio"] / both["paper_ratio"] - 1).abs() <= 0.1).sum())
    return words.sentence(
        f"the gain is like the paper's (within a tenth) in {words.some_of(close, len(both), 'setting')}"
    )
