"""Merges into one slot: the river of its tokens, and how much of each is left in it after further merges."""

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.lines import End, add_band, add_line, label_ends, labelled_height
from kvlab.views.base.palette import DASHES, HUES, STATE_COLOURS, SURFACES, Theme, mix, pick
from kvlab.views.base.template import HEIGHT, MANY_LINES, PALE, finish, log_axis
from kvlab.views.base.view import view
from kvlab.views.base.words import near, number, percent, plural, shown_of, token_label, token_text
from kvlab.views.frames.lineage import Lineage, head_history, keep_by_run, lineage_tree, members, merged_slots

MOST_RIBBONS = 60
REST = -1  # node of all tokens without a ribbon of their own
WIDTHS = {"flow": "weight x attention", "votes": "tokens carried"}  # of a ribbon
HAIR = 0.01  # minimum width relative to the widest ribbon
HUE_ORDER = ("blue", "orange", "green", "purple", "red", "gold", "sky", "grey")
MOST_LINES = 12
LEAST = 1e-6  # share of a value that is drawn


@view("river", title="Merges into a slot", needs="full", page="cache")
def river(run: Run, layer: int, head: int, step: int | None = None, slot: int | None = None) -> pd.DataFrame:
    """`lineage_tree` of the slot, else of that with the most votes, at the step, else at the last one.

    With `flow`, the source's value weight times its attention at the merge. Raises UserError if nothing was merged.
    """
    lineage, events, texts = head_history(run, layer, head)
    slot, step = _slot_in_view(lineage, slot, step)
    tree = lineage_tree(lineage, events, texts, slot, step)
    mass = events[["source", "target", "mass_source"]].drop_duplicates(["source", "target"])
    joined = tree.merge(mass, on=["source", "target"], how="left")
    return joined.assign(flow=joined["value_weight"] * joined["mass_source"])


def _slot_in_view(lineage: Lineage, slot: int | None, step: int | None) -> tuple[int, int]:
    if step is None:
        step = int(lineage.steps[-1])
    if slot is None:
        merged = merged_slots(lineage, step)
        if not merged:
            raise UserError(f"No slot of this head represents more than one token at step {step}: choose another head.")
        slot = next(iter(merged))
    return slot, step


@river.figure
def draw_river(
    frame: pd.DataFrame,
    theme: Theme = "light",
    run: Run | None = None,
    layer: int = 0,
    head: int = 0,
    step: int | None = None,
    slot: int | None = None,
    width: str = "votes",
) -> go.Figure:
    """Tokens merged into the slot in view, from `river`.

    Width is the number of tokens carried over, or with `width="flow"` value weight x attention.
    The `MOST_RIBBONS` widest and those they flow through have ribbons; the rest share one.
    """
    slot_text = ""
    if run is not None:
        lineage, _, token_texts = head_history(run, layer, head)
        slot = _slot_in_view(lineage, slot, step)[0]
        slot_text = token_texts[slot]
    assert slot is not None
    # A ribbon is as wide as its tokens, or as value weight times attention.
    frame = frame.assign(size=frame[width].astype(float).fillna(0.0))
    shown, others = _widest(frame)
    positions = list(dict.fromkeys([slot, *shown["target"], *shown["source"]]))
    texts = {slot: slot_text, **dict(zip(shown["target"], shown["target_text"], strict=True))}
    texts |= dict(zip(shown["source"], shown["source_text"], strict=True))
    labels = [token_label(position, texts[position], 16) for position in positions]
    words = [
        f"{row['kind']} at step {row['step']}, carrying {plural(row['votes'], 'token')}<br>"
        f"key cosine {number(row['similarity'])}, value weight {number(row['value_weight'])}"
        for row in shown.to_dict("records")
    ]
    links = shown[["source", "target"]].assign(width=shown["size"], words=words)
    if len(others):
        labels.append(plural(len(others), "other"))
        positions.append(REST)
        # Skip what flows through another of the others: it is already counted there.
        outer = others[~others["target"].isin(others["source"])]
        rest = f"{plural(len(others), 'token')} with narrower ribbons"
        links.loc[len(links)] = [REST, slot, float(outer["size"].sum()), rest]
    place = {position: index for index, position in enumerate(positions)}
    pivot = pick(STATE_COLOURS["pivot"], theme)
    absorbed = pick(STATE_COLOURS["absorbed"], theme)
    targets = {slot, *shown["target"]}
    river = go.Sankey(
        arrangement="snap",
        node={
            "label": labels,
            "color": [pivot if position in targets else absorbed for position in positions],
            "pad": 20,  # one line of text, as most sources are thinner than their label
            "thickness": 12,
            "line": {"width": 0},
            "hovertemplate": "%{label}<extra></extra>",
        },
        link={
            "source": links["source"].map(place).tolist(),
            "target": links["target"].map(place).tolist(),
            "value": links["width"].clip(lower=float(links["width"].max()) * HAIR or 1.0).tolist(),
            "color": mix(absorbed, SURFACES[theme], 0.45),
            "customdata": links["words"].tolist(),
            "hovertemplate": "%{source.label} → %{target.label}<br>%{customdata}<extra></extra>",
        },
    )
    figure = go.Figure(river)
    height = max(240, 90 + 28 * len(links))
    title = f"Merges into slot {slot} (width: {WIDTHS[width]})"
    finish(figure, title=title, x="", y="", theme=theme, height=min(1400, height), legend=False)
    return figure.update_layout(margin={"l": 12, "r": 12, "t": 46, "b": 16})


def _widest(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows with their own ribbon, and the others; a row comes with all rows it flows through."""
    if len(frame) <= MOST_RIBBONS:
        return frame, frame.iloc[:0]
    sizes = dict(zip(frame["source"], frame["size"], strict=True))
    # From the leaves inward, so that each source counts for the widest ribbon through it.
    for row in frame.sort_values("depth", ascending=False, kind="stable").itertuples():
        if row.target in sizes:
            sizes[row.target] = max(sizes[row.target], sizes[row.source])
    ranked = frame.assign(size=frame["source"].map(sizes))
    order = ranked.sort_values(["size", "depth"], ascending=[False, True], kind="stable").index
    return frame.loc[sorted(order[:MOST_RIBBONS])], frame.loc[sorted(order[MOST_RIBBONS:])]


@river.caption
def describe_river(frame: pd.DataFrame) -> str:
    if frame.empty:
        return "This slot stands for its own token only."
    drawn = shown_of(MOST_RIBBONS, len(frame), "token", "the widest; the last ribbon is the rest")
    return f"This slot stands for {len(frame) + 1:,} tokens: its own and {len(frame):,} merged into it.{drawn}"


@view("half_life", title="What is left of a token in its slot", needs="full", page="cache")
def decay(run: Run, layer: int, head: int) -> pd.DataFrame:
    """Share of a token left in its slot: columns merges, low (quartile), share (median), high, tokens.

    Covers every (step, token) of one head still alive. Raises UserError if no slot was merged twice.
    """
    share, merges = influence(run, layer, head)
    merged = (np.nan_to_num(share) > 0) & (merges > 0)
    groups = pd.Series(share[merged]).groupby(merges[merged])
    quarters = groups.quantile([0.25, 0.5, 0.75]).unstack()
    if len(quarters) < 2:
        raise UserError("No slot of this head was merged more than once, so nothing fades step by step here.")
    quarters.columns = ["low", "share", "high"]
    return quarters.assign(tokens=groups.size()).rename_axis("merges").reset_index()


@decay.figure
def draw_decay(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Share of a token left in its slot by number of merges; its half-life is marked."""
    half = half_life(frame)
    colour = pick(HUES["purple"], theme)
    figure = go.Figure()
    add_band(figure, frame["merges"], frame["low"], frame["high"], mix(colour, SURFACES[theme], 0.75))
    figure.add_scatter(
        x=frame["merges"],
        y=frame["share"],
        name="median token (band: middle 50 %)",
        mode="lines+markers",
        line={"color": colour, "width": 2},
        customdata=frame["tokens"],
        hovertemplate="after %{x} merges: %{y:.3g} of the token left<br>%{customdata:,} cases<extra></extra>",
    )
    ink = pick(HUES["ink"], theme)
    ends = [frame["merges"].min(), frame["merges"].max()]
    figure.add_scatter(
        x=ends, y=[0.5, 0.5], name="half", mode="lines", line={"color": ink, "dash": "dot", "width": 1.2}
    )
    if math.isfinite(half):
        figure.add_vline(x=half, line={"color": ink, "dash": "dash", "width": 1.2})
    title = "What is left of a token in its slot"
    x = "merges its slot went through"
    finish(figure, title=title, x=x, y="share of the slot's value (log)", theme=theme)
    if ends[1] <= 20:
        figure.update_xaxes(dtick=1)
    return figure.update_yaxes(**log_axis(pd.concat([frame["low"], pd.Series([1.0, 0.4])]).clip(lower=1e-6)))


@decay.caption
def describe_decay(frame: pd.DataFrame) -> str:
    if not frame["share"].notna().any():
        return "How much of a token further merges leave was not recorded."
    half = half_life(frame)
    if math.isinf(half):
        return "However often a slot was merged here, a token in it kept more than half of its part."
    if half < 1:
        return "The first merge already takes half of a token's part in its slot."
    return f"Half of a token's part in its slot is gone after {number(half, 2)} merges."


@view("members", title="Tokens represented by a slot", needs="full", page="cache")
def members_of_slot(run: Run, layer: int, head: int, step: int | None = None, slot: int | None = None) -> pd.DataFrame:
    """Share of each token that the slot holds after the step, per step, largest first: token, text, step, share."""
    lineage, _, texts = head_history(run, layer, head)
    share = influence(run, layer, head)[0]
    slot, step = _slot_in_view(lineage, slot, step)
    inside = members(lineage, slot, step)
    row = int(np.searchsorted(lineage.steps, step))
    shown = inside[np.argsort(-share[row, inside], kind="stable")]
    rows = slice(0, row + 1)
    return pd.DataFrame(
        {
            "token": np.repeat(shown, row + 1),
            "text": np.repeat([texts[token] for token in shown], row + 1),
            "step": np.tile(lineage.steps[rows], len(shown)),
            "share": share[rows][:, shown].T.ravel(),
        }
    ).dropna()


@members_of_slot.figure
def draw_members(
    frame: pd.DataFrame,
    theme: Theme,
    run: Run | None = None,
    layer: int = 0,
    head: int = 0,
    step: int | None = None,
    slot: int | None = None,
) -> go.Figure:
    """Share of each token of a slot over the steps.

    The first `MOST_LINES` tokens are drawn; among many, the token with the largest final share is in focus.
    """
    if run is not None:
        slot = _slot_in_view(head_history(run, layer, head)[0], slot, step)[0]
    frame = frame[frame["token"].isin(frame["token"].unique()[:MOST_LINES])]
    figure = go.Figure()
    last = frame[frame["step"] == frame["step"].max()]
    ends = []
    focus = last.loc[last["share"].idxmax(), "token"] if len(last) else slot
    for index, (token, part) in enumerate(frame.groupby("token", sort=False)):
        name = token_label(int(token), part["text"].iloc[0], 14)
        pale = frame["token"].nunique() > MANY_LINES and token != focus
        colour = pick(HUES[HUE_ORDER[index % len(HUE_ORDER)]], theme)
        dash = DASHES[index % len(DASHES)]
        add_line(
            figure,
            part["step"],
            part["share"],
            name,
            colour,
            dash,
            f"{name}<br>step %{{x}}: %{{y:.3g}}",
            width=1.2 if pale else 2.4,
            line_shape="hv",
            opacity=PALE if pale else 1.0,
            mode="lines+markers" if len(part) < 3 else "lines",
        )
        end = f"{token} “{token_text(part['text'].iloc[0], 14)}”"  # escaped where it is drawn
        ends.append(End(end, float(part["step"].iloc[-1]), max(float(part["share"].iloc[-1]), LEAST), colour))
    title = f"Tokens represented by slot {slot}"
    height = labelled_height(len(ends), HEIGHT)
    finish(figure, title=title, x="step", y="share of the value (log)", theme=theme, height=height, legend=False)
    shares = frame["share"].clip(lower=LEAST)
    span = (math.log10(float(shares.min())) - 0.05, math.log10(float(shares.max())) + 0.05)
    return label_ends(figure.update_yaxes(**log_axis(shares)), ends, span, theme)


@members_of_slot.caption
def describe_members(frame: pd.DataFrame) -> str:
    last = frame[frame["step"] == frame["step"].max()]
    if len(last) == 1:
        return "This slot holds one token."
    if not last["share"].notna().any():
        return "What each token has in this slot was not recorded."
    drawn = shown_of(MOST_LINES, len(last), "token", f"which make up {percent(last['share'].iloc[:MOST_LINES].sum())}")
    if near(float(last["share"].min()), float(last["share"].max())):
        return f"All {len(last):,} tokens have an equal part in this slot's value.{drawn}"
    top = last.loc[last["share"].idxmax()]
    text = token_text(str(top["text"]).strip())
    return f"By weight alone, without attention, “{text}” has the largest part in this slot's value.{drawn}"


@keep_by_run(4)  # 18 MB each at 128k tokens and 17 steps
def influence(run: Run, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """(share, merges) of one layer and KV head: both (steps, tokens), float32 and int32, after each recorded step.

    `share` is the weight of each token's value in the value of its slot: 1 on its own, multiplied by the value weight
    of every merge its slot goes through as source, and by one minus the sources' weights as target; 0 once evicted, NaN
    before it was read. `merges` counts the merges of the slot it was in.
    """
    lineage, events, _ = head_history(run, layer, head)
    count = len(lineage.steps)
    tokens = lineage.tokens
    shares = np.ones((count, tokens), np.float32)
    merges = np.zeros((count, tokens), np.int32)
    share = np.ones(tokens)
    passed = np.zeros(tokens, np.int32)
    owner = np.arange(tokens)
    by_step = {int(step): group for step, group in events.groupby("step")}
    for row, step in enumerate(lineage.steps.tolist()):
        if (group := by_step.get(step)) is not None:
            # As in the lineage, of several targets follow the one with the largest weight.
            main = group.sort_values("value_weight", kind="stable").drop_duplicates("source", keep="last")
            source = main["source"].to_numpy(np.int64)
            target = main["target"].to_numpy(np.int64)
            # What the sources leave of each target, and what of each source goes over to its target.
            joined = group[group["target"] >= 0]
            factor = np.ones(tokens)
            np.subtract.at(factor, joined["target"].to_numpy(np.int64), joined["value_weight"].to_numpy(np.float64))
            factor = factor.clip(0, 1)
            factor[source] = np.where(target >= 0, main["value_weight"].to_numpy(np.float64).clip(0, 1), 0)
            moved = np.zeros(tokens, bool)
            moved[joined["target"].to_numpy(np.int64)] = True
            moved[source] = target >= 0
            goes = np.arange(tokens)
            goes[source] = target
            held = owner >= 0
            at = owner.clip(0)
            share = np.where(held, share * factor[at], 0.0)
            passed = passed + (held & moved[at])
            owner = np.where(held, goes[at], -1)
        shares[row] = np.where(lineage.birth <= step, share, np.nan)
        merges[row] = passed
    return shares, merges


def half_life(decay: pd.DataFrame) -> float:
    """Number of merges after which half of a token remains, interpolated on the log of the share.

    Infinite if more than half remains at the end, NaN if nothing was merged.
    """
    if decay.empty:
        return float("nan")
    merges = np.concatenate([[0.0], decay["merges"].to_numpy(float)])
    share = np.concatenate([[1.0], decay["share"].to_numpy(float)])
    below = np.flatnonzero(share <= 0.5)
    if not len(below):
        return float("inf")
    after = below[0]
    if share[after] == 0:  # log of 0: no interpolation
        return float(merges[after - 1])
    fall = np.log(share[after - 1]) - np.log(share[after])
    return float(merges[after - 1] + (merges[after] - merges[after - 1]) * np.log(share[after - 1] / 0.5) / fall)
