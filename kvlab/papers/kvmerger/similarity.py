"""KVMerger, figures 2, 3a, 6, 7 and 8: similarity of keys, keys before rotation and values.

The claims: keys of neighbouring tokens are similar because of the rotation, values are not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.formatting import join_words, model_title
from kvlab.papers.evidence import Evidence, basis_of, gather, interval_of, mean_text, over_prompts
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.papers.kvmerger.merging_sets import run_with_keys, sample_sentence
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run
from kvlab.views import similarity as maps
from kvlab.views.base.lines import add_band, add_line
from kvlab.views.base.palette import DIVERGING, HUES, Theme, pick
from kvlab.views.base.provenance import Provenance, of_run
from kvlab.views.base.template import QUIET, colour_bar, finish, log_axis
from kvlab.views.base.words import alike, near, sentence, two_digits
from kvlab.views.frames.head_states import (
    BEFORE,
    KEYS,
    VALUES,
    head_states,
    heads_with_states,
    readable_heads,
    spread_heads,
)

LINES = (("blue", "solid", "circle"), ("orange", "dash", "square"), ("grey", "dot", "diamond"))
HEAD_LINES = (("blue", "solid"), ("orange", "dash"), ("green", "dot"), ("purple", "dashdot"), ("ink", "solid"))


def cosine_by_distance(frame: pd.DataFrame, note: str, origin: Provenance, claim: Claim | None, theme: Theme) -> Drawn:
    """Mean cosine by distance and kind, mean over heads with the middle 80 %; dotted: any two tokens.

    `frame` has columns kind, offset, cosine, low, high, any_pair; `note` ends the caption.
    """
    figure = go.Figure()
    ends = frame.groupby("kind", sort=False)["any_pair"].first()
    for (kind, group), (hue, dash, marker) in zip(frame.groupby("kind", sort=False), LINES, strict=False):
        colour = pick(HUES[hue], theme)
        red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
        add_band(figure, group["offset"], group["low"], group["high"], f"rgba({red},{green},{blue},0.14)")
        hover = f"{kind}<br>%{{x}} tokens apart: %{{y:.3f}}"
        add_line(figure, group["offset"], group["cosine"], str(kind), colour, dash, hover, marker=marker, width=2)
        figure.add_hline(
            y=float(group["any_pair"].iloc[0]),
            line={"color": colour, "width": 1, "dash": "dot"},
            annotation={"text": "any two", "font": {"size": 11, "color": colour}, "xanchor": "right"}
            | {"yanchor": "top" if ends[kind] == ends.min() else "bottom"},
        )
    finish(figure, title="Similarity by distance", x="distance (tokens, log)", y="mean cosine", theme=theme)
    figure.update_xaxes(**log_axis(frame["offset"]))
    # The kinds of which adjacent tokens are more alike than others.
    first = frame.groupby("kind", sort=False)[["cosine", "any_pair"]].first()
    kinds = [str(kind) for kind, one in first.iterrows() if one["cosine"] > one["any_pair"] + maps.FAR]
    return Drawn("by distance", figure, frame, f"{closer_sentence(kinds, len(first))}{note}", origin, claim)


def closer_sentence(kinds: list[str], every: int) -> str:
    """Of which of `every` kinds of vectors neighbours are more alike than any two tokens."""
    if not kinds:
        return "Neighbouring tokens are no more alike than any two."
    if len(kinds) == every:
        return "Neighbouring tokens are more alike than any two."
    return f"Neighbouring tokens are more alike than any two only in their {join_words(kinds)}."


OFFSETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
NEAR = 8
MOST_TOKENS = 4096  # longer texts are truncated
COLUMNS = ("kind", "offset", "cosine", "any_pair")


def locality_of_heads(run: Run, heads: Iterable[tuple[int, int]]) -> pd.DataFrame:
    """As `locality_of_states` for every kind of `head_states`, with columns layer and head."""
    parts = [
        locality_of_states(head_states(run, layer, head, MOST_TOKENS)).assign(layer=layer, head=head)
        for layer, head in heads
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*COLUMNS, "layer", "head"])


def locality_of_states(states: Mapping[str, np.ndarray], offsets: Sequence[int] = OFFSETS) -> pd.DataFrame:
    """Columns kind, offset, cosine (mean of all pairs at this distance), any_pair (mean of any two tokens).

    Distances that the text is too short for are left out.
    """
    parts = []
    for kind, unit in states.items():
        units = unit.astype(np.float32)
        tokens = len(units)
        pairs = (np.einsum("td,td->t", units[offset:], units[:-offset]) for offset in offsets)
        cosines = np.array([found.mean() if len(found) else np.nan for found in pairs], np.float32)
        # All pairs of different tokens: those of the sum with itself, less each token's with itself.
        total = units.sum(axis=0, dtype=np.float64)
        diagonal = float(np.einsum("td,td->", units, units))
        any_pair = float((total @ total - diagonal) / (tokens * (tokens - 1))) if tokens > 1 else float("nan")
        columns = {"kind": kind, "offset": offsets, "cosine": cosines, "any_pair": any_pair}
        parts.append(pd.DataFrame(columns).dropna(subset="cosine"))
    return pd.concat(parts, ignore_index=True)


def near_and_any(locality: pd.DataFrame) -> pd.DataFrame:
    """Mean over heads by kind: columns near (at most `NEAR` apart), any_pair, rise (near - any_pair)."""
    near = locality[locality["offset"] <= NEAR].groupby("kind", sort=False)[["cosine", "any_pair"]].mean()
    return near.rename(columns={"cosine": "near"}).assign(rise=near["cosine"] - near["any_pair"])


LOCAL = "Keys of neighbouring tokens are alike, more so than those of distant ones; values are not."
ROTATION = "The rotary embedding, which keys go through and values do not, is the main reason for that locality."
DIFFERS = "How alike a key and its neighbours are differs from head to head."
NO_NUMBER = "the paper shows maps and no number; a tenth of what equal vectors have can be seen in a map"
RISES = Threshold(0.1, f"for keys; {NO_NUMBER}")
FLAT = Threshold(0.1, f"for values; {NO_NUMBER}", at_most=True)
LEFT = Threshold(0.5, "a main reason takes more than half of the effect with it", at_most=True)
SPREAD = Threshold(0.1, f"between the most alike tenth of the heads and the least; {NO_NUMBER}")
NEAR_OFFSETS = tuple(offset for offset in OFFSETS if offset <= NEAR)
SHORT = {KEYS: "keys", BEFORE: "before", VALUES: "values"}


def locality_rows(run: Run) -> pd.DataFrame:
    """One row per head: `keys` and `keys_rise`, and the same for `before` (rotation, if recorded) and `values`.

    The mean cosine of tokens at most `NEAR` apart, and its excess over that of any two tokens.
    """
    rows = []
    for layer, head in readable_heads(run, spread_heads(run, tokens=MOST_TOKENS)):
        found = near_and_any(locality_of_states(head_states(run, layer, head, MOST_TOKENS), NEAR_OFFSETS))
        near = {SHORT[str(kind)]: line["near"] for kind, line in found.iterrows()}
        rises = {f"{SHORT[str(kind)]}_rise": line["rise"] for kind, line in found.iterrows()}
        rows.append({"layer": layer, "head": head, **near, **rises})
    return pd.DataFrame(rows)


LOCALITY = Evidence("locality", locality_rows)


def local(rows: pd.DataFrame) -> Claim:
    """Neighbouring keys are more similar than any two; neighbouring values are not."""
    keys, values = (over_prompts(rows, name) if name in rows else None for name in ("keys_rise", "values_rise"))
    finding = (
        f"Tokens at most {NEAR} apart are more alike than any two by {mean_text(keys, two_digits)} for keys and "
        f"{mean_text(values, two_digits)} for values, mean over heads."
    )
    verdict, decider, held = decisive([(keys, RISES), (values, FLAT)])
    return Claim(LOCAL, verdict, finding, basis_of(rows), decider, held)


def rotation(rows: pd.DataFrame) -> Claim:
    """Share of the rise that remains in keys before rotation."""
    known = rows.dropna(subset="before_rise") if "before_rise" in rows else rows.iloc[:0]
    if known.empty:
        why = "No run recorded its rotary frequencies (record one again), or the model does not rotate its keys."
        return Claim(ROTATION, OPEN, why)
    after = over_prompts(known, "keys_rise")
    before = over_prompts(known, "before_rise")
    means = known.groupby("prompt", sort=False)[["keys_rise", "before_rise"]].mean()
    left = interval_of((means["before_rise"] / means["keys_rise"]).tolist())
    finding = (
        f"Keys of neighbours are {mean_text(after, two_digits)} more alike than any two with the rotation and "
        f"{mean_text(before, two_digits)} without it: {mean_text(left, two_digits)} of it is left, mean over heads."
    )
    if RISES.side(after) != "holds":
        return Claim(ROTATION, OPEN, f"{finding} There is no clear rise to explain.", basis_of(known))
    return judge(ROTATION, left, LEFT, basis_of(known), finding)


def differs(rows: pd.DataFrame) -> Claim:
    """Spread of the neighbours' cosine over the heads of a prompt."""
    found = rows.groupby("prompt", sort=False)["keys"] if "keys" in rows else None
    spread = None if found is None else found.quantile(0.9) - found.quantile(0.1)
    one = None if spread is None else interval_of(spread.tolist())
    finding = (
        f"The mean cosine of tokens at most {NEAR} apart differs by {mean_text(one, two_digits)} between the most and "
        "the least similar tenth of the heads."
    )
    return judge(DIFFERS, one, SPREAD, basis_of(rows), finding)


MAP_CELLS = 200
WALL_VECTORS = 800_000
REACH = 48
PAPER_TOKENS = (2000, 3000, 4000)


@draws("kvmerger/fig-2")
def draw_maps(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: similarity maps of the current head by kind of vector, and similarity by distance over all heads."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    rows = gather(sources, LOCALITY)
    # One map per kind of vector of the head, on one colour scale.
    states = head_states(run, choice.layer, choice.head)
    tiles = {kind: maps.tile(unit, (0, len(unit)), (0, len(unit)), MAP_CELLS).frame() for kind, unit in states.items()}
    figure = make_subplots(1, len(tiles), column_titles=list(tiles), horizontal_spacing=0.05)
    for column, (kind, frame) in enumerate(tiles.items(), start=1):
        cells = np.clip(np.rint(100 * frame.to_numpy()), -100, 100).astype(np.int8)
        figure.add_heatmap(
            z=cells,
            x=frame.columns.to_numpy(),
            y=frame.index.to_numpy(),
            coloraxis="coloraxis",
            row=1,
            col=column,
            hovertemplate=f"{kind}<br>token %{{y}} with %{{x}}<br>cosine %{{z}} / 100<extra></extra>",
        )
    title = f"Token against token: layer {choice.layer}, head {choice.head}"
    finish(figure, title=title, x="token position", y="", theme=theme, height=400, legend=False)
    figure.update_yaxes(autorange="reversed", showgrid=False).update_xaxes(showgrid=False, nticks=5)
    for column in range(1, len(tiles) + 1):
        anchor = "x" if column == 1 else f"x{column}"
        figure.update_yaxes(scaleanchor=anchor, constraintoward="top", showticklabels=column == 1, col=column)
    figure.update_xaxes(constrain="domain").update_yaxes(constrain="domain")
    figure.update_yaxes(title_text="token position", col=1)
    bar = colour_bar("mean cosine of a block", theme, tickvals=[-100, 0, 100], ticktext=["-1", "0", "1"])
    figure.update_coloraxes(cmin=-100, cmax=100, colorscale=DIVERGING[theme], colorbar=bar)
    figure.update_annotations(font={"size": 13, "color": QUIET[theme]})
    figure.update_layout(margin={"t": 76, "r": 96})
    found = near_and_any(locality_of_heads(run, [(choice.layer, choice.head)]))
    closer = [str(kind) for kind, row in found.iterrows() if row["near"] > row["any_pair"] + maps.FAR]
    parts = [
        frame.stack().rename("cosine").reset_index().assign(kind=kind)[["kind", "token", "other token", "cosine"]]
        for kind, frame in tiles.items()
    ]
    drawn = Drawn(
        "maps",
        figure,
        pd.concat(parts, ignore_index=True),
        closer_sentence(closer, len(found)),
        of_run(run),
        local(rows),
    )
    # Mean over all heads, with the middle 80 %.
    heads = readable_heads(run, spread_heads(run, tokens=MOST_TOKENS))
    groups = locality_of_heads(run, heads).groupby(["kind", "offset"], sort=False)
    by_distance = groups[["cosine", "any_pair"]].mean()
    by_distance = by_distance.assign(
        low=groups["cosine"].quantile(0.1), high=groups["cosine"].quantile(0.9)
    ).reset_index()
    note = sample_sentence(run, heads, MOST_TOKENS)
    return drawn, cosine_by_distance(by_distance, note, of_run(run), rotation(rows), theme)


PAPERS_WALLS = "Figures 6, 7 and 8 show Llama2-7B-chat, Llama2-13B-chat and Mistral-7B-Instruct"


@draws("kvmerger/fig-6")
def draw_walls(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figures 6, 7 and 8 on the current model: every layer and head, keys, keys before rotation and values."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    heads = readable_heads(run, spread_heads(run, vectors=WALL_VECTORS))
    thumbnails: dict[str, dict[tuple[int, int], np.ndarray]] = {}
    parts = []
    for place in heads:
        states = head_states(run, *place)
        parts.append(locality_of_states(states, NEAR_OFFSETS).assign(layer=place[0], head=place[1]))
        for kind, unit in states.items():
            thumbnails.setdefault(kind, {})[place] = maps.thumbnail(unit)
    locality = pd.concat(parts, ignore_index=True)
    claim = replace(local(gather(sources, LOCALITY)), judged_at="kvmerger/fig-2")
    here = f"{model_title(run.record.model.name)}, {run.record.prompt_tokens:,} tokens"
    drawn = []
    for kind, small in thumbnails.items():
        # One row per map: columns layer, head, near, far, mean.
        groups = locality[locality["kind"] == kind].groupby(["layer", "head"])
        frame = groups.agg(near=("cosine", "mean"), far=("any_pair", "first")).reset_index()
        places = frame[["layer", "head"]].itertuples(index=False)
        frame = frame.assign(mean=[float(small[layer, head].mean()) for layer, head in places])
        layers = maps.drawn_layers(frame, (choice.layer, 0))
        figure = maps.similarity_wall({place: one for place, one in small.items() if place[0] in layers}, theme, kind)
        caption = maps.caption_similarity_wall(frame, layers, heads_with_states(run))
        words = f"{PAPERS_WALLS}; this is {here}. {caption}"
        drawn.append(Drawn(kind, figure, frame, words, of_run(run), claim if kind == KEYS else None))
    return tuple(drawn)


@draws("kvmerger/fig-3a")
def draw_neighbours(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3a: chosen tokens against their neighbours in the current head and a few others."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    others = readable_heads(run, spread_heads(run, 3, 9 * run.record.prompt_tokens))
    heads = list(dict.fromkeys([(choice.layer, choice.head), *others[:: max(1, len(others) // 4)]]))[:5]
    # The current token; else the paper's if the prompt is long enough, else three spread over it.
    length = run.record.prompt_tokens
    spread = sorted({round(share * (length - 1)) for share in (0.25, 0.5, 0.75)})
    tokens = list(PAPER_TOKENS) if length > PAPER_TOKENS[-1] else spread
    if choice.token is not None:
        tokens = [min(max(choice.token, 0), length - 1)]
    parts = []
    for layer, head in heads:
        unit = run.keys(layer, head)[0]
        for token in tokens:
            parts.append(maps.neighbour_profile(unit, token, REACH).assign(token=token, layer=layer, head=head))
    names = ["token", "layer", "head", "offset", "position", "similarity"]
    frame = pd.concat(parts, ignore_index=True)[names]
    # One panel per token and one line per head.
    figure = make_subplots(1, len(tokens), shared_yaxes=True, column_titles=[f"token {token}" for token in tokens])
    for rank, (layer, head) in enumerate(heads):
        hue, dash = HEAD_LINES[rank % len(HEAD_LINES)]
        group = frame[(frame["layer"] == layer) & (frame["head"] == head)]
        for column, token in enumerate(tokens, start=1):
            line = group[group["token"] == token]
            name = f"layer {layer}, head {head}"
            add_line(
                figure,
                line["offset"],
                line["similarity"],
                name,
                pick(HUES[hue], theme),
                dash,
                f"{name}<br>%{{x:+d}} tokens: %{{y:.3f}}",
                width=1.7,
                legendgroup=f"{layer}-{head}",
                showlegend=column == 1,
                row=1,
                col=column,
            )
    title = "Similarity of a token's key to its neighbours'"
    finish(figure, title=title, x="distance (tokens)", y="", theme=theme, height=400)
    figure.update_yaxes(title_text="cosine", col=1)
    # A token's cosine with itself is 1: the panel title goes above that peak.
    figure.update_annotations(font={"size": 13, "color": QUIET[theme]}, yshift=-16)
    figure.update_yaxes(range=[min(-0.05, 1.08 * float(frame["similarity"].min())), 1.22])
    # How much alike adjacent tokens are, and whether heads differ.
    beside_it = frame[frame["offset"].abs() == 1].groupby(["layer", "head"])["similarity"].mean()
    caption = "The text has no other token."
    if beside_it.notna().any():
        text = f"on average, adjacent tokens are {alike(float(beside_it.mean()))}"
        same = len(beside_it) == 1 or near(float(beside_it.min()), float(beside_it.max()))
        every = heads_with_states(run)
        drawn = f" Showing {len(beside_it)} of {every} heads." if len(beside_it) < every else ""
        caption = sentence(text if same else f"{text}, in some heads more than in others") + drawn
    claim = differs(gather(sources, LOCALITY))
    return (Drawn("neighbours", figure, frame, caption, of_run(run), claim),)
