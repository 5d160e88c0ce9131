"""Heads by four features, as points and as groups by layer and head."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import add_points
from kvlab.views.base.palette import HUES, SURFACES, Theme, pick, stepped_scale
from kvlab.views.base.template import QUIET, finish
from kvlab.views.base.view import view
from kvlab.views.base.words import near, percent, plural
from kvlab.views.frames.head_states import recorded_layers
from kvlab.views.frames.lineage import keep_by_run
from kvlab.views.similarity import locality

SINKS = 4
NEAR = 32
FEATURES = ("sink", "local", "alike", "regret")
ROUNDS = 50
DESCRIPTIONS = {
    "sink": ("more on the first tokens", "less on the first tokens"),
    "local": ("more local", "looks further"),
    "alike": ("keys more alike", "keys less alike"),
    "regret": ("more regret", "less regret"),
}
LOOK = (
    ("blue", "circle"), ("orange", "diamond"), ("green", "square"), ("purple", "cross"), ("red", "x"),
    ("gold", "triangle-up"), ("sky", "star"), ("grey", "pentagon"),
)  # fmt: skip
HOVER = (
    "layer %{customdata[0]:.0f}, head %{customdata[1]:.0f}<br>sink %{customdata[2]:.3f}, local %{customdata[3]:.3f}<br>"
    "key cosine %{customdata[4]:.3f}, regret %{customdata[5]:.3f}"
)
FEATURE_NAMES = {"sink": "sink mass", "local": "local mass", "alike": "key similarity", "regret": "regret"}


@keep_by_run(2)
def fingerprints(run: Run, layers: tuple[int, ...] | None = None) -> pd.DataFrame:
    """One row per layer and KV head: attention shares, key similarity and regret, averaged over steps.

    Columns: layer, head; `sink`, true mass of the first `SINKS` tokens; `local`, of the last `NEAR` tokens read;
    `alike`, mean cosine of keys at most 8 apart; `regret`; `output_error`. Heads without recorded arrays are left out.
    Without `layers`, all are read.
    """
    means = run.select("steps", columns=["layer", "head", "regret", "output_error"]).groupby(["layer", "head"]).mean()
    rows = []
    for layer in recorded_layers(run) if layers is None else layers:
        for head in range(run.record.model.num_key_value_heads):
            try:
                true, _ = run.attention(layer, head, thinned=True)
                unit, _ = run.keys(layer, head)
            except UserError:
                continue
            sink = float(true[:, :SINKS].astype(np.float32).sum(1).mean())
            # The last `NEAR` tokens before each recorded step.
            ends = run.record.prompt_tokens + run.attention_every * np.arange(len(true))
            near_by = [
                row[max(SINKS, end - NEAR) : end].astype(np.float32).sum() for end, row in zip(ends, true, strict=True)
            ]
            features = {"sink": sink, "local": float(np.mean(near_by)), "alike": locality(unit)["near"]}
            rows.append({"layer": layer, "head": head, **features})
    if not rows:
        return pd.DataFrame(columns=["layer", "head", *FEATURES, "output_error"])
    return pd.DataFrame(rows).merge(means.reset_index(), on=["layer", "head"])


def standardize(table: pd.DataFrame) -> np.ndarray:
    """(heads, features) with mean 0 and standard deviation 1; constant or unrecorded features are 0."""
    values = table[list(FEATURES)].to_numpy(np.float64)
    centred = values - np.nanmean(values, axis=0) if len(values) else values
    deviation = np.nanstd(values, axis=0) if len(values) else np.ones(len(FEATURES))
    return np.nan_to_num(centred / np.where(deviation > 1e-12, deviation, 1))


def plane(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Principal component analysis: (scores (heads, 2), loadings (features, 2), explained variance shares (2,)).

    The sign of each axis is chosen so that its largest loading is positive.
    """
    values = standardize(table)
    _, lengths, directions = np.linalg.svd(values, full_matrices=False)
    directions = np.vstack([directions, np.zeros((2, len(FEATURES)))])[:2]
    signs = np.sign(directions[np.arange(2), np.abs(directions).argmax(1)])
    directions = directions * np.where(signs == 0, 1, signs)[:, None]
    lengths = np.append(lengths, [0, 0])
    shares = lengths[:2] ** 2 / max(float((lengths**2).sum()), 1e-12)
    return values @ directions.T, directions.T, shares


def cluster(table: pd.DataFrame, count: int) -> np.ndarray:
    """(heads,) group of each head, the largest first, by k-means that starts from the farthest points."""
    values = standardize(table)
    count = min(count, len(np.unique(values, axis=0)))
    if count < 2:
        return np.zeros(len(values), np.int64)
    starts = [values[(values**2).sum(1).argmax()]]
    for _ in range(count - 1):
        nearest = np.min([((values - start) ** 2).sum(1) for start in starts], axis=0)
        starts.append(values[nearest.argmax()])
    centres = np.array(starts)
    group = np.zeros(len(values), np.int64)
    for _ in range(ROUNDS):
        now = ((values[:, None] - centres) ** 2).sum(2).argmin(1)
        if (now == group).all() and _:
            break
        group = now
        centres = np.array([values[group == at].mean(0) if (group == at).any() else centres[at] for at in range(count)])
    order = np.argsort(-np.bincount(group, minlength=count), kind="stable")
    return np.argsort(order)[group]


def describe(table: pd.DataFrame, group: np.ndarray) -> pd.DataFrame:
    """One row per group: number of heads, mean of each feature, and a short description of what distinguishes it."""
    standard = pd.DataFrame(standardize(table), columns=list(FEATURES)).groupby(group).mean()
    means = table[[*FEATURES, "output_error"]].groupby(group).mean()
    sizes = table.groupby(group).size().rename("heads")
    names = []
    for _, row in standard.iterrows():
        strong = row[row.abs() >= 0.5].abs().sort_values(ascending=False).index[:2]
        names.append(", ".join(DESCRIPTIONS[feature][0 if row[feature] > 0 else 1] for feature in strong) or "average")
    return means.assign(heads=sizes, name=names).rename_axis("group").reset_index()


def grouped_heads(run: Run, layers: tuple[int, ...] | None = None, groups: int = 4) -> pd.DataFrame:
    """`fingerprints` with `group`, and the place of each head on the first two axes (x, y)."""
    table = fingerprints(run, layers)
    places = plane(table)[0] if len(table) else np.zeros((0, 2))
    return table.assign(group=cluster(table, groups), x=places[:, 0], y=places[:, 1])


plane_of_heads = view("heads_plane", title="Heads by their fingerprints", needs="full", page="attention")(grouped_heads)
map_of_groups = view("head_groups", title="Where the groups are", needs="full", page="attention")(grouped_heads)


@plane_of_heads.figure
def heads_plane(table: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Every head as a point, with arrows for the features; `table` is from `grouped_heads`."""
    places, directions, shares = plane(table)
    names = describe(table, table["group"].to_numpy())["name"].tolist()
    figure = go.Figure()
    for group in sorted(table["group"].unique()):
        inside = (table["group"] == group).to_numpy()
        hue, marker = LOOK[group % len(LOOK)]
        add_points(
            figure,
            places[inside, 0],
            places[inside, 1],
            f"{group + 1}: {names[group]}",
            pick(HUES[hue], theme),
            HOVER,
            size=10,
            marker_symbol=marker,
            customdata=table.loc[inside, ["layer", "head", *FEATURES]].to_numpy(),
        )
    reach = float(np.abs(places).max()) if places.size else 1.0
    for feature, (x, y) in zip(FEATURES, directions * reach * 0.9, strict=True):
        figure.add_annotation(
            x=x,
            y=y,
            ax=0,
            ay=0,
            xref="x",
            yref="y",
            axref="x",
            ayref="y",
            showarrow=True,
            arrowhead=3,
            arrowsize=1.2,
            arrowwidth=1.3,
            arrowcolor=QUIET[theme],
            text="",
        )
        figure.add_annotation(
            x=x,
            y=y,
            xref="x",
            yref="y",
            showarrow=False,
            text=FEATURE_NAMES[feature],
            xshift=10 if x >= 0 else -10,
            yshift=8 if y >= 0 else -8,
            xanchor="left" if x >= 0 else "right",
            bgcolor=SURFACES[theme],
            opacity=0.9,
            font={"size": 12, "color": QUIET[theme]},
        )
    x = f"first axis ({percent(float(shares[0]))} of the variance)"
    y = f"second axis ({percent(float(shares[1]))})"
    return finish(figure, title="Heads by their fingerprints", x=x, y=y, theme=theme, height=520)


@plane_of_heads.caption
def caption_heads_plane(table: pd.DataFrame) -> str:
    """How many kinds of heads there are."""
    count = table["group"].nunique()
    if count == 1:
        return "All heads attend in much the same way."
    return f"Heads that attend alike are near each other; colours are {count} groups, as many as chosen."


@map_of_groups.figure
def groups_by_head(table: pd.DataFrame, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """The group of every head by layer and KV head; the number is on the cell, or on the bar if cells are small."""
    wide = table.pivot(index="layer", columns="head", values="group")
    count = int(table["group"].max()) + 1
    colours = stepped_scale([HUES[LOOK[group % len(LOOK)][0]] for group in range(count)], theme)
    numbers = wide.map(lambda group: "" if pd.isna(group) else f"{group + 1:.0f}").to_numpy(object)
    key = {"tickvals": list(range(count)), "ticktext": [str(group + 1) for group in range(count)]}
    return head_map(
        wide,
        "Where the groups are",
        theme,
        bar="group",
        hover=": group %{text}",
        low=-0.5,
        high=count - 0.5,
        colours=colours,
        bar_options=key,
        text=numbers,
        words=numbers,
        focus=focus,
    )


@map_of_groups.caption
def caption_groups_by_head(table: pd.DataFrame) -> str:
    """Whether heads of one layer are of one group."""
    same = table.groupby("layer")["group"].agg(lambda groups: groups.value_counts(normalize=True).iloc[0]).mean()
    if table["group"].nunique() == 1:
        return "All heads are of one group."
    if near(float(same), 1.0):
        return "All heads of a layer are of one group."
    if same > 0.55:
        return "On average, most heads of a layer are of one group."
    return "The heads of a layer are of several groups."


def verdict(groups: pd.DataFrame, label: str) -> str:
    """Which group of heads, from `describe`, loses most and least attention to dropped tokens."""
    known = groups[groups["regret"].notna()]
    if len(known) < 2 or near(float(known["regret"].min()), float(known["regret"].max())):
        return f"With {label}, no kind of head loses more attention than another."
    most, least = (known.loc[place] for place in (known["regret"].idxmax(), known["regret"].idxmin()))
    worst, best = (f"group {row['group'] + 1} ({row['name']}; {plural(row['heads'], 'head')})" for row in (most, least))
    return (
        f"With {label}, {worst} loses most attention to dropped tokens, {percent(most['regret'])}; {best} loses least, "
        f"{percent(least['regret'])}."
    )
