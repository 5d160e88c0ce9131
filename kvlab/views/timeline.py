"""Token states of one head over time: the mosaic, and token counts by state."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import join_words
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.lines import add_area
from kvlab.views.base.palette import STATE_COLOURS, STATE_LABELS, STATE_NAMES, SURFACES, Theme, pick, stepped_scale
from kvlab.views.base.template import CLEAR, INK, along_text, finish, token_ticks
from kvlab.views.base.view import view
from kvlab.views.base.words import number, part, sentence, token_labels
from kvlab.views.frames.lineage import NEVER, STATES, Lineage, event_steps, head_history, mosaic, state_counts

Masses = tuple[np.ndarray, np.ndarray]  # true mass of each token and mass of each slot, both (tokens,)
MAX_HOVER_CELLS = 60_000
MOSAIC_ROWS = 300  # of the browser's view
VECTORS = ("birth", "leave", "death", "absorb")  # of `Lineage`


@view("timeline", title="Token states over the steps", needs="full", page="cache")
def timeline(run: Run, layer: int, head: int) -> pd.DataFrame:
    """The state of every token (rows) at every step (columns), as `frames.lineage.mosaic`."""
    return mosaic(head_history(run, layer, head)[0])


@timeline.figure
def draw_timeline(
    frame: pd.DataFrame, theme: Theme, run: Run, layer: int, head: int, step: int | None = None
) -> go.Figure:
    """A line marks `step`."""
    labels = token_labels(frame.index, head_history(run, layer, head)[2])
    codes = frame.to_numpy(np.uint8)
    names = np.array([STATE_NAMES[state] for state in STATES])
    hover = {"text": names[codes]} if codes.size <= MAX_HOVER_CELLS else {}
    heat = go.Heatmap(
        z=codes,
        x=frame.columns.to_numpy(),
        y=labels,
        zmin=-0.5,
        zmax=len(STATES) - 0.5,
        colorscale=stepped_scale(STATE_COLOURS.values(), theme),
        showscale=False,
        **hover,
        hovertemplate=f"step %{{x}}<br>token %{{y}}<br>{'%{text}' if hover else ''}<extra></extra>",
    )
    figure = go.Figure([heat, *state_legend(np.unique(codes), theme)])
    if step is not None and len(frame.columns) > 1:
        figure.add_vline(x=step, line={"width": 1.5, "dash": "dot", "color": pick(("#1F2430", "#F2F4F8"), theme)})
    title = "Token states over the steps"
    y = "token (position and text)"
    finish(figure, title=title, x="step", y=y, theme=theme, height=560)
    figure.update_yaxes(autorange="reversed", showgrid=False, **token_ticks(labels, 16))
    figure.update_xaxes(showgrid=False, **({"tickvals": [0]} if len(frame.columns) == 1 else {}))
    return along_text(figure, "y")


@timeline.live("tokenstrip")
def live_timeline(run: Run, theme: Theme, layer: int, head: int, step: int | None = None) -> dict[str, Any]:
    """The linked view of the head: its steps, slots and text."""
    lineage, _, texts = head_history(run, layer, head)
    step = int(lineage.steps[-1]) if step is None else step
    masses = masses_at(run, lineage, layer, head, step)
    place = {"identity": f"{run.path}/{layer}/{head}", "step": step, "why": "", "selected": None, "phases": None}
    return {
        **history_data(lineage),
        **state_looks(theme),
        **mass_data(masses, step),
        **place,
        "shared": {"texts": texts},
    }


@timeline.caption
def describe_timeline(frame: pd.DataFrame, run: Run, layer: int, head: int) -> str:
    lineage = head_history(run, layer, head)[0]
    return describe_states(state_counts(lineage)) + block_note(len(frame), lineage.tokens)


def block_note(rows: int, tokens: int) -> str:
    """A sentence on the size of a cell if it covers several tokens."""
    if tokens <= rows:
        return ""
    return (
        f" A cell is a block of about {number(tokens / rows, 2)} tokens, in their most common state; sinks always show."
    )


@view("states", title="Tokens by state", needs="full", page="cache")
def states(run: Run, layer: int, head: int) -> pd.DataFrame:
    """Tokens in each state after every step, as `frames.lineage.state_counts`."""
    return state_counts(head_history(run, layer, head)[0])


@states.figure
def draw_states(frame: pd.DataFrame, theme: Theme, run: Run) -> go.Figure:
    """Stacked, so that the top edge is the tokens read."""
    figure = go.Figure()
    for column, state in (("own", "kept"), ("pivot", "pivot"), ("absorbed", "absorbed"), ("evicted", "evicted")):
        if not frame[column].any():
            continue
        name = "own slot" if column == "own" else STATE_NAMES[state]
        hover = f"step %{{x}}: %{{y:,}} tokens {name}"
        add_area(figure, frame["step"], frame[column], name, pick(STATE_COLOURS[state], theme), hover)
    finish(figure, title="Tokens by state", x="step", y="tokens", theme=theme)
    return along_text(figure, offset=run.record.prompt_tokens - 1)


@states.caption
def describe_states(frame: pd.DataFrame) -> str:
    last = frame.iloc[-1]
    read = float(last[["own", "pivot", "absorbed", "evicted"]].sum())
    if not read:
        return "No token was read yet."
    shares = {
        "has slots of its own": last["own"],
        "shares slots with others": last["pivot"] + last["absorbed"],
        "was dropped": last["evicted"],
    }
    ordered = sorted((-float(count) / read, what) for what, count in shares.items() if count)
    parts = [
        f"{part(-share)} of the text {what}" if not place else f"{part(-share)} {what}"
        for place, (share, what) in enumerate(ordered)
    ]
    return sentence(f"after step {int(last['step'])}, {join_words(parts)}")


def state_legend(codes: np.ndarray, theme: Theme) -> list[go.Scatter]:
    """Empty traces for the legend, which heat maps do not have."""
    marker = {"size": 11, "symbol": "square", "line": {"width": 1, "color": pick(("#9AA1AC", "#5A6270"), theme)}}
    colours = {state: pick(STATE_COLOURS[state], theme) if state != "unseen" else CLEAR for state in STATES}
    return [
        go.Scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=STATE_NAMES[state],
            hoverinfo="skip",
            marker={**marker, "color": colours[state]},
        )
        for state in (STATES[code] for code in codes)
    ]


def history_data(lineage: Lineage) -> dict[str, Any]:
    """The lineage's vectors for the browser, with -1 for never."""
    picture = mosaic(lineage, MOSAIC_ROWS)
    rows, columns = picture.shape
    # Steps in the smallest integer type that holds them.
    vectors = {name: encode_never(getattr(lineage, name)) for name in VECTORS}
    for name, steps in vectors.items():
        kinds = (kind for kind in (np.int8, np.int16, np.int32) if steps.max(initial=0) <= np.iinfo(kind).max)
        vectors[name] = steps.astype(next(kinds))
    return {
        **vectors,
        "parent": lineage.parent.astype(np.int32),
        "steps": lineage.steps.tolist(),
        "eventSteps": event_steps(lineage).tolist(),
        "mosaic": {"rows": rows, "columns": columns},
        "codes": picture.to_numpy(np.uint8),
    }


def state_looks(theme: Theme) -> dict[str, Any]:
    """Colours and labels of states for the browser."""
    return {
        "colours": {state: pick(pair, theme) for state, pair in STATE_COLOURS.items()},
        "labels": list(STATE_NAMES.values()),
        "meanings": list(STATE_LABELS.values()),
        "paper": SURFACES[theme],
        "ink": INK[theme],
    }


def masses_at(run: Run, lineage: Lineage, layer: int, head: int, step: int) -> Masses | None:
    """The masses at a step; None if they were not recorded."""
    row, remainder = divmod(int(np.searchsorted(lineage.steps, step)), run.attention_every)
    if remainder:
        return None
    try:
        masses = run.attention_row(layer, head, row)
    except UserError:
        return None
    return None if masses is None else (masses[0][: lineage.tokens], masses[1][: lineage.tokens])


def mass_data(masses: Masses | None, step: int) -> dict[str, Any]:
    """The masses at a step for the browser, which knows no float16."""
    if masses is None:
        return {"massesStep": None}
    true, slot = (mass.astype(np.float16).view(np.uint16) for mass in masses)
    return {"massesStep": step, "trueMass": true, "slotMass": slot}


def encode_never(steps: np.ndarray) -> np.ndarray:
    """Steps with -1 for never."""
    return np.where(steps == NEVER, -1, steps)
