"""KVMerger, figures 2, 3a, 6, 7 and 8: similarity of keys, keys before rotation and values.

The claims: keys of neighbouring tokens are similar because of the rotation, values are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from kvlab.atlas.evidence import Evidence, basis_of, gather, interval_of, mean_text, over_prompts
from kvlab.atlas.exhibit import Choice, Draw, Drawn, Needs
from kvlab.atlas.figures import similarity_panels as panels
from kvlab.atlas.figures.simple import similarity as simple
from kvlab.atlas.kvmerger.recordings import run_with_keys, sample_sentence
from kvlab.common.formatting import model_title
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run
from kvlab.views import similarity as maps
from kvlab.views import similarity as walls
from kvlab.views.base.caption import FigureCaption
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import of_run
from kvlab.views.base.words import number, two_digits
from kvlab.views.frames.head_states import (
    BEFORE,
    KEYS,
    VALUES,
    head_states,
    heads_with_states,
    readable_heads,
    spread_heads,
)

OFFSETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
NEAR = 8
MOST_TOKENS = 4096  # longer texts are truncated
COLUMNS = ("kind", "offset", "cosine", "any_pair")


def cosine_by_offset(unit: np.ndarray, offsets: Sequence[int] = OFFSETS) -> np.ndarray:
    """(offsets,) mean cosine of all pairs of tokens at this distance; NaN if the text is too short."""
    units = unit.astype(np.float32)
    pairs = (np.einsum("td,td->t", units[offset:], units[:-offset]) for offset in offsets)
    return np.array([found.mean() if len(found) else np.nan for found in pairs], np.float32)


def cosine_of_any_pair(unit: np.ndarray) -> float:
    """Mean cosine over all pairs of different tokens."""
    tokens = len(unit)
    units = unit.astype(np.float32)
    total = units.sum(axis=0, dtype=np.float64)
    own = float(np.einsum("td,td->", units, units))
    return float((total @ total - own) / (tokens * (tokens - 1))) if tokens > 1 else float("nan")


def locality_of_heads(run: Run, heads: Iterable[tuple[int, int]]) -> pd.DataFrame:
    """As `locality_of_states` for every kind of `head_states`, with columns layer and head."""
    parts = [
        locality_of_states(head_states(run, layer, head, MOST_TOKENS)).assign(layer=layer, head=head)
        for layer, head in heads
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*COLUMNS, "layer", "head"])


def locality_of_states(states: Mapping[str, np.ndarray], offsets: Sequence[int] = OFFSETS) -> pd.DataFrame:
    """Columns kind, offset, cosine (mean of all pairs at this distance), any_pair (mean of any two tokens)."""
    parts = []
    for kind, unit in states.items():
        found = pd.DataFrame({"kind": kind, "offset": offsets, "cosine": cosine_by_offset(unit, offsets)})
        parts.append(found.assign(any_pair=cosine_of_any_pair(unit)).dropna(subset="cosine"))
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


def head_rows(run: Run) -> pd.DataFrame:
    """One row per head: `keys` and `keys_rise`, and the same for `before` (rotation, if recorded) and `values`.

    The mean cosine of tokens at most `NEAR` apart, and its excess over that of any two tokens.
    """
    rows = []
    for layer, head in readable_heads(run, spread_heads(run, tokens=MOST_TOKENS)):
        found = near_and_any(locality_of_states(head_states(run, layer, head, MOST_TOKENS), NEAR_OFFSETS))
        own = {SHORT[str(kind)]: line["near"] for kind, line in found.iterrows()}
        rises = {f"{SHORT[str(kind)]}_rise": line["rise"] for kind, line in found.iterrows()}
        rows.append({"layer": layer, "head": head, **own, **rises})
    return pd.DataFrame(rows)


EVIDENCE = Evidence("locality", head_rows)


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


def draw_maps(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: similarity maps of the current head by kind of vector, and similarity by distance over all heads."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    rows = gather(sources, EVIDENCE)
    return _maps(run, choice, local(rows), theme), _by_distance(run, rotation(rows), theme)


def _maps(run: Run, choice: Choice, claim: Claim, theme: Theme) -> Drawn:
    states = head_states(run, choice.layer, choice.head)
    whole = {kind: (0, len(unit)) for kind, unit in states.items()}
    tiles = {kind: maps.tile(unit, whole[kind], whole[kind], MAP_CELLS).frame() for kind, unit in states.items()}
    title = f"Token against token: layer {choice.layer}, head {choice.head}"
    figure = panels.maps_side_by_side(tiles, theme, title)
    found = near_and_any(locality_of_heads(run, [(choice.layer, choice.head)]))
    parts = [f"{kind} {number(row.near, 2)} against {number(row.any_pair, 2)}" for kind, row in found.iterrows()]
    told = f"Mean cosine of tokens at most {NEAR} apart and of any two: {'; '.join(parts)}."
    caption = FigureCaption(told, simple.maps_side_by_side(found))
    return Drawn("maps", figure, _long(tiles), caption, of_run(run), claim)


def _by_distance(run: Run, claim: Claim, theme: Theme) -> Drawn:
    heads = readable_heads(run, spread_heads(run, tokens=MOST_TOKENS))
    table = locality_of_heads(run, heads)
    groups = table.groupby(["kind", "offset"], sort=False)
    frame = groups[["cosine", "any_pair"]].mean()
    frame = frame.assign(low=groups["cosine"].quantile(0.1), high=groups["cosine"].quantile(0.9)).reset_index()
    figure = panels.cosine_by_distance(frame, theme)
    caption = panels.caption_cosine_by_distance(frame).within(after=sample_sentence(run, heads, MOST_TOKENS))
    return Drawn("by distance", figure, frame, caption, of_run(run), claim)


def wall_of(number_of_figure: str, model: str, tokens: int) -> Draw:
    """Figures 6, 7 and 8 on the current model: every layer and head, keys, keys before rotation and values."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        run = run_with_keys(sources)
        if isinstance(run, Needs):
            return run
        here = f"{model_title(run.record.model.name)}, {run.record.prompt_tokens:,} tokens"
        paper = f"{number_of_figure} shows {model} with {tokens:,} tokens; this is {here}. "
        claim = replace(local(gather(sources, EVIDENCE)), judged_at="kvmerger/fig-2")
        return _walls(run, choice.layer, paper, claim, theme)

    return draw


def _walls(run: Run, layer: int, paper: str, claim: Claim, theme: Theme) -> tuple[Drawn, ...]:
    heads = readable_heads(run, spread_heads(run, vectors=WALL_VECTORS))
    every = heads_with_states(run)
    thumbnails: dict[str, dict[tuple[int, int], np.ndarray]] = {}
    parts = []
    for place in heads:
        states = head_states(run, *place)
        parts.append(locality_of_states(states, NEAR_OFFSETS).assign(layer=place[0], head=place[1]))
        for kind, unit in states.items():
            thumbnails.setdefault(kind, {})[place] = maps.thumbnail(unit)
    near = pd.concat(parts, ignore_index=True)
    drawn = []
    for kind, small in thumbnails.items():
        frame = _wall_frame(near[near["kind"] == kind], small)
        layers = walls.layers_to_show(frame["layer"].unique().tolist(), layer, *walls.extreme_layers(frame))
        figure = walls.similarity_wall({place: one for place, one in small.items() if place[0] in layers}, theme, kind)
        caption = f"{paper} {walls.caption_similarity_wall(frame, layers, every)}".strip()
        drawn.append(Drawn(kind, figure, frame, caption, of_run(run), claim if kind == KEYS else None))
    return tuple(drawn)


def _wall_frame(near: pd.DataFrame, small: dict[tuple[int, int], np.ndarray]) -> pd.DataFrame:
    """One row per map: columns layer, head, near, far, mean."""
    frame = near.groupby(["layer", "head"]).agg(near=("cosine", "mean"), far=("any_pair", "first")).reset_index()
    means = [float(small[layer, head].mean()) for layer, head in frame[["layer", "head"]].itertuples(index=False)]
    return frame.assign(mean=means)


def draw_neighbours(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3a: chosen tokens against their neighbours in the current head and a few others."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    others = readable_heads(run, spread_heads(run, 3, 9 * run.record.prompt_tokens))
    heads = list(dict.fromkeys([(choice.layer, choice.head), *others[:: max(1, len(others) // 4)]]))[:5]
    tokens = chosen_tokens(run.record.prompt_tokens, choice.token)
    frame = pd.concat([_profiles(run, place, tokens) for place in heads], ignore_index=True)
    figure = panels.neighbours_of_heads(frame, theme)
    caption = panels.caption_neighbours_of_heads(frame, heads_with_states(run))
    return (Drawn("neighbours", figure, frame, caption, of_run(run), differs(gather(sources, EVIDENCE))),)


def chosen_tokens(length: int, token: int | None) -> list[int]:
    """The current token; else the paper's if the prompt is long enough, else three spread over it."""
    if token is not None:
        return [min(max(token, 0), length - 1)]
    if length > PAPER_TOKENS[-1]:
        return list(PAPER_TOKENS)
    return sorted({round(share * (length - 1)) for share in (0.25, 0.5, 0.75)})


def _profiles(run: Run, place: tuple[int, int], tokens: Sequence[int]) -> pd.DataFrame:
    unit = run.keys(*place)[0]
    parts = [maps.neighbour_profile(unit, token, REACH).assign(token=token) for token in tokens]
    names = ["token", "layer", "head", "offset", "position", "similarity"]
    return pd.concat(parts, ignore_index=True).assign(layer=place[0], head=place[1])[names]


def _long(tiles: dict[str, pd.DataFrame]) -> pd.DataFrame:
    parts = [
        frame.stack().rename("cosine").reset_index().assign(kind=kind)[["kind", "token", "other token", "cosine"]]
        for kind, frame in tiles.items()
    ]
    return pd.concat(parts, ignore_index=True)


DRAWINGS = {
    "fig-2": draw_maps,
    "fig-3a": draw_neighbours,
    "fig-6": wall_of("Fig 6", "Llama2-7B-chat", 3506),
    "fig-7": wall_of("Fig 7", "Llama2-13B-chat", 3776),
    "fig-8": wall_of("Fig 8", "Mistral-7B-Instruct", 5001),
}
