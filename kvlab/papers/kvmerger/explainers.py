"""KVMerger, figures 1 and 4: the schematics, drawn from a dozen tokens of a recorded run, with the claims."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.core.errors import UserError
from kvlab.papers.attention_rows import heads_with_attention
from kvlab.papers.evidence import Evidence, basis_of, comparison, gather, interval_of, mean_text
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.papers.kvmerger import merging_sets
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge, judge_universal
from kvlab.trace.reader import Run
from kvlab.views.base.palette import DIVERGING, STATE_COLOURS, SURFACES, Theme, mix, pick
from kvlab.views.base.provenance import of_run
from kvlab.views.base.template import GRID, INK, QUIET, colour_bar, finish
from kvlab.views.base.words import number, percent, plural, token_labels

WIDE = 0.01  # smaller relative changes of attention count as none


KEPT = 3  # the paper's schematic keeps three states
BITS = 2
STAGES = ("1 similarity", "2 sets", "3 pivots", "4 weights", "5 merged")
SAYS = (
    "cosine of every two keys",
    "similar consecutive keys form a set, from the last token back",
    "the most attended token of each set is its pivot",
    "weights are a Gaussian of the distance to the pivot",
    "one slot per set: the weighted mean of its keys and values",
)


def evict_least_attended(walk: merging_sets.Walkthrough, kept: int = KEPT) -> np.ndarray:
    """(tokens, head_dim) keys of the `kept` most attended tokens, NaN elsewhere."""
    gone = walk.tokens["attention"].rank(method="first", ascending=False).to_numpy() > kept
    return np.where(gone[:, None], np.nan, walk.keys)


def _outlines(walk: merging_sets.Walkthrough, stage: int, theme: Theme) -> dict:
    """A square on the map for each set of more than one token, from the second stage on."""
    place = walk.tokens["position"].to_numpy() - walk.tokens["position"].iloc[0]
    corners_x: list[float | None] = []
    corners_y: list[float | None] = []
    for _, members in walk.tokens.groupby("set"):
        first = place[members.index[0]] - 0.5
        last = place[members.index[-1]] + 0.5
        if stage and len(members) > 1:
            corners_x += [first, last, last, first, first, None]
            corners_y += [first, first, last, last, first, None]
    line = {"color": pick(STATE_COLOURS["pivot"], theme), "width": 2.5}
    x = corners_x or [None]
    y = corners_y or [None]
    return {"type": "scatter", "x": x, "y": y, "mode": "lines", "line": line, "hoverinfo": "skip"}


def _bars(walk: merging_sets.Walkthrough, stage: int, theme: Theme) -> dict:
    """Bars next to each token: none, its attention, its weight, or its slot."""
    tokens = walk.tokens
    is_pivot = tokens["pivot"] == tokens["position"]
    size = tokens.groupby("set")["position"].transform("size")
    share = tokens["attention"] / tokens["attention"].sum()
    if stage == 1:
        texts = [f"in a set of {count}" if count > 1 else "alone" for count in size]
    elif stage == 2:
        pivots = [", pivot" if pivot else "" for pivot in is_pivot]
        texts = [f"{percent(one)} of attention{pivot}" for one, pivot in zip(share, pivots, strict=True)]
    elif stage == 3:
        texts = [f"weight {number(weight, 2)}" for weight in tokens["weight"]]
    else:
        slots = [f"slot of {count}" if count > 1 else "its own slot" for count in size]
        texts = [slot if stage == 4 and pivot else "" for slot, pivot in zip(slots, is_pivot, strict=True)]
    lengths = {
        2: tokens["attention"] / tokens["attention"].max(),
        3: tokens["weight"],
        4: (size / size.max()).where(is_pivot, 0),
    }.get(stage, 0 * share)
    pivot_colour = pick(STATE_COLOURS["pivot"], theme)
    other = pick(STATE_COLOURS["absorbed"], theme)
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(tokens))),
        "x": lengths.round(4).tolist(),
        "text": texts,
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [pivot_colour if pivot and stage > 1 else other for pivot in is_pivot]},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _says(stage: int, theme: Theme) -> dict:
    return {
        "text": f"{STAGES[stage]}: {SAYS[stage]}",
        "x": 0,
        "xref": "paper",
        "y": 1.01,
        "yref": "paper",
        "yanchor": "bottom",
        "xanchor": "left",
        "showarrow": False,
        "font": {"size": 13, "color": QUIET[theme]},
    }


KEEPS_MORE = "Eviction loses the evicted tokens for good; merging keeps them in fewer states."
LEADS = "The pivot of a set is its most attended token, and the others are weighted by their distance to it."
NEARER = Threshold(0.0, "at as many slots, a key that is nearer to the original keeps more of it")


def window_rows(run: Run) -> pd.DataFrame:
    """One row per head: `window_errors` of the window with most sets of its prompt."""
    rows = []
    for layer, head in heads_with_attention(run):
        try:
            rows.append({"layer": layer, "head": head, **window_errors(merging_sets.walkthrough(run, layer, head))})
        except UserError:
            continue  # no similar neighbours in this head
    return pd.DataFrame(rows)


def window_errors(walk: merging_sets.Walkthrough) -> dict[str, float]:
    """`merging` and `evicting` (mean relative error of the keys at the same number of slots), number of `sets`, and
    how many of them have the most `attended` and the `heaviest` token as pivot."""
    slots = int(walk.tokens["set"].nunique())
    # Mean over tokens of the distance to the key that is left, relative to the key's norm: 1 where none is.
    norms = np.linalg.norm(walk.keys, axis=1)
    merging, evicting = (
        float((np.linalg.norm(np.nan_to_num(left) - walk.keys, axis=1) / norms).mean())
        for left in (merging_sets.representing_keys(walk), evict_least_attended(walk, slots))
    )
    sets = [group for _, group in walk.tokens.groupby("set") if len(group) > 1]
    pivots = [group[group["position"] == group["pivot"]].iloc[0] for group in sets]
    attended = sum(bool(p["attention"] >= g["attention"].max()) for p, g in zip(pivots, sets, strict=True))
    heaviest = sum(bool(p["weight"] >= g["weight"].max()) for p, g in zip(pivots, sets, strict=True))
    return {
        "merging": merging,
        "evicting": evicting,
        "sets": len(sets),
        "attended": attended,
        "heaviest": heaviest,
    }


WINDOWS = Evidence("merging-sets", window_rows)


def keeps_more(rows: pd.DataFrame) -> Claim:
    """How much larger the key error is after evicting than after merging to as many slots; a dropped key has 1."""
    if rows.empty:
        return judge(KEEPS_MORE, None, NEARER, Basis(), "No head has two neighbouring keys that are alike.")
    by_prompt = rows.groupby("prompt", sort=False)[["merging", "evicting"]].mean()
    gap = interval_of((by_prompt["evicting"] - by_prompt["merging"]).tolist())
    merging, evicting = (interval_of(by_prompt[name].tolist()) for name in ("merging", "evicting"))
    finding = (
        f"At as many slots keys are {mean_text(merging, percent)} off after merging and {mean_text(evicting, percent)} "
        f"after evicting (a dropped key is 100 % off), a gap of {mean_text(gap, percent)}; mean over heads, a dozen "
        "tokens of each."
    )
    return judge(KEEPS_MORE, gap, NEARER, basis_of(rows), finding)


def pivot_leads(rows: pd.DataFrame) -> Claim:
    """All sets of several tokens count; a single one whose pivot does not lead refutes the claim."""
    if rows.empty:
        return Claim(LEADS, OPEN, "No head has two neighbouring keys that are alike.")
    sets, attended, heaviest = (int(rows[name].sum()) for name in ("sets", "attended", "heaviest"))
    basis = basis_of(rows)
    set_count = plural(sets, "set")
    finding = f"In {attended:,} of {set_count} the pivot is the most attended token, in {heaviest:,} it weighs most."
    return Claim(LEADS, judge_universal(2 * sets - attended - heaviest, basis), finding, basis)


@draws("kvmerger/fig-1")
def draw_three_ways(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 1: the keys of a window (token x coordinate) as cached, quantised, evicted down to three, and merged."""
    found = _window(sources, choice)
    if isinstance(found, Needs):
        return found
    run, walk = found
    # Each channel rounded to evenly spaced levels of its range.
    low = walk.keys.min(axis=0)
    high = walk.keys.max(axis=0)
    step = np.where(high > low, (high - low) / (2**BITS - 1), 1)
    panels = {
        "as cached": walk.keys,
        f"quantised to {BITS} bits": low + np.rint((walk.keys - low) / step) * step,
        f"evicted: {KEPT} kept": evict_least_attended(walk),
        f"merged: {walk.tokens['set'].nunique()} slots": walk.merged,
    }
    labels = token_labels(walk.tokens["position"], _texts(run))
    figure = make_subplots(1, 4, shared_yaxes=True, column_titles=list(panels), horizontal_spacing=0.02)
    for column, (name, keys) in enumerate(panels.items(), start=1):
        figure.add_heatmap(
            z=keys.astype(np.float32),
            y=labels,
            coloraxis="coloraxis",
            row=1,
            col=column,
            hovertemplate=f"{name}<br>%{{y}}<br>coordinate %{{x}}: %{{z:.2f}}<extra></extra>",
        )
    limit = float(np.quantile(np.abs(walk.keys), 0.98))
    title = "Three ways to compress the keys of a few tokens"
    finish(figure, title=title, x="key coordinate", y="", theme=theme, height=430, legend=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category").update_xaxes(showgrid=False)
    figure.update_coloraxes(
        cmin=-limit, cmax=limit, colorscale=DIVERGING[theme], colorbar=colour_bar("key value", theme)
    )
    figure.update_annotations(font={"size": 12, "color": QUIET[theme]})
    figure.update_layout(plot_bgcolor=mix(SURFACES[theme], GRID[theme], 0.5), margin={"t": 76})
    # The same for every run.
    caption = "Memory can be saved by rounding all keys, by dropping some, or by merging those that are alike."
    kept = ~np.isnan(evict_least_attended(walk)).all(axis=1)
    off = np.linalg.norm(merging_sets.representing_keys(walk) - walk.keys, axis=1) / np.linalg.norm(walk.keys, axis=1)
    frame = _named(run, walk).assign(kept_by_eviction=kept, key_error_of_merging=off)
    return (Drawn("three ways", figure, frame, caption, of_run(run), keeps_more(gather(sources, WINDOWS))),)


@draws("kvmerger/fig-4")
def draw_pipeline(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 4: similarity, sets, pivots, weights and merged slots, as frames under a slider; the last comes first."""
    found = _window(sources, choice)
    if isinstance(found, Needs):
        return found
    run, walk = found
    labels = token_labels(walk.tokens["position"], _texts(run))
    figure = make_subplots(1, 2, shared_yaxes=True, column_widths=[0.52, 0.48], horizontal_spacing=0.03)
    heat = {
        "type": "heatmap",
        "z": walk.similarity.astype(np.float32),
        "zmin": -1,
        "zmax": 1,
        "showscale": False,
        "colorscale": DIVERGING[theme],
        "hovertemplate": "%{customdata}<br>cosine %{z:.3f}<extra></extra>",
        "customdata": [[f"{row}<br>{column}" for column in labels] for row in labels],
    }
    stages = [[heat, _outlines(walk, stage, theme), _bars(walk, stage, theme)] for stage in range(len(STAGES))]
    for column, trace in zip((1, 1, 2), stages[-1], strict=True):
        figure.add_trace(trace, 1, column)
    finish(figure, title="Merging by stage", x="", y="", theme=theme, height=600, legend=False)
    ticks = {"tickvals": list(range(len(labels))), "ticktext": labels, "showgrid": False, "zeroline": False}
    figure.update_xaxes(**ticks, tickangle=-45, constrain="domain", constraintoward="right", col=1)
    figure.update_xaxes(visible=False, range=[0, 1.45], col=2)
    figure.update_yaxes(**ticks, range=[len(labels) - 0.5, -0.5])
    figure.update_yaxes(scaleanchor="x", constrain="domain", col=1)
    figure.add_annotation(_says(len(STAGES) - 1, theme))
    figure.frames = [
        go.Frame(data=traces, traces=[0, 1, 2], name=name, layout={"annotations": [_says(stage, theme)]})
        for stage, (name, traces) in enumerate(zip(STAGES, stages, strict=True))
    ]
    quick = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    slider = {
        "active": len(STAGES) - 1,
        "steps": [{"label": name, "method": "animate", "args": [[name], quick]} for name in STAGES],
        "x": 0,
        "len": 0.97,
        "y": 0,
        "yanchor": "top",
        "pad": {"t": 96, "b": 8},
        "currentvalue": {"visible": False},
        "font": {"size": 12, "color": INK[theme]},
        "bordercolor": GRID[theme],
    }
    figure.update_layout(sliders=[slider], margin={"t": 84, "r": 24})
    sets = walk.tokens["set"].nunique()
    caption = f"Neighbouring tokens that are alike are merged: here, {len(walk.tokens)} become {sets}."
    if sets == len(walk.tokens):
        caption = "No neighbouring tokens are alike enough to be merged here."
    caption = f"{caption} {merging_sets.eviction_sentence(run)}".strip()
    return (Drawn("pipeline", figure, _named(run, walk), caption, of_run(run), pivot_leads(gather(sources, WINDOWS))),)


def _window(sources: Sources, choice: Choice) -> tuple[Run, merging_sets.Walkthrough] | Needs:
    run = merging_sets.run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    try:
        return run, merging_sets.walkthrough(run, choice.layer, choice.head)
    except UserError as error:
        return Needs(str(error), comparison(sources, merging_sets.METHODS, merging_sets.BUDGETS))


def _named(run: Run, walk: merging_sets.Walkthrough) -> pd.DataFrame:
    texts = _texts(run)
    return walk.tokens.assign(text=[texts[position] for position in walk.tokens["position"]], threshold=walk.threshold)


def _texts(run: Run) -> list[str]:
    tokens = run.tokens
    return [str(text) for text in tokens.loc[tokens["phase"] != "free", "text"]]
