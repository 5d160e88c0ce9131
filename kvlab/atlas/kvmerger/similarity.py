"""Figures 2, 3a, 6, 7 and 8: similarity of keys, keys before rotation and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from kvlab.analysis.similarity import similarity as maps
from kvlab.analysis.similarity.head_states import KEYS, head_states, heads_with_states, readable_heads, spread_heads
from kvlab.atlas.analysis.locality import (
    MOST_TOKENS,
    NEAR,
    OFFSETS,
    locality_of_heads,
    locality_of_states,
    near_and_any,
)
from kvlab.atlas.claims import locality
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Draw, Drawn, Needs
from kvlab.atlas.figures import similarity_panels as panels
from kvlab.atlas.kvmerger.recordings import run_with_keys, sample_sentence
from kvlab.figures import similarity as walls
from kvlab.figures.base.palette import Theme
from kvlab.figures.base.words import number
from kvlab.results.provenance import of_run
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim
from kvlab.trace.reader import Run

MAP_CELLS = 200
WALL_VECTORS = 800_000
REACH = 48
NEAR_OFFSETS = tuple(offset for offset in OFFSETS if offset <= NEAR)
PAPER_TOKENS = (2000, 3000, 4000)


def draw_maps(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: similarity maps of the current head by kind of vector, and similarity by distance over all heads."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    rows = gather(sources, locality.EVIDENCE)
    return _maps(run, choice, locality.local(rows), theme), _by_distance(run, locality.rotation(rows), theme)


def _maps(run: Run, choice: Choice, claim: Claim, theme: Theme) -> Drawn:
    states = head_states(run, choice.layer, choice.head)
    whole = {kind: (0, len(unit)) for kind, unit in states.items()}
    tiles = {kind: maps.tile(unit, whole[kind], whole[kind], MAP_CELLS).frame() for kind, unit in states.items()}
    title = f"Token against token: layer {choice.layer}, head {choice.head}"
    figure = panels.maps_side_by_side(tiles, theme, title)
    found = near_and_any(locality_of_heads(run, [(choice.layer, choice.head)]))
    return Drawn("maps", figure, _long(tiles), _near_words(found), of_run(run), claim)


def _by_distance(run: Run, claim: Claim, theme: Theme) -> Drawn:
    heads = readable_heads(run, spread_heads(run, tokens=MOST_TOKENS))
    table = locality_of_heads(run, heads)
    groups = table.groupby(["kind", "offset"], sort=False)
    frame = groups[["cosine", "any_pair"]].mean()
    frame = frame.assign(low=groups["cosine"].quantile(0.1), high=groups["cosine"].quantile(0.9)).reset_index()
    figure = panels.cosine_by_distance(frame, theme)
    reading = panels.read_cosine_by_distance(frame) + sample_sentence(run, heads, MOST_TOKENS)
    return Drawn("by distance", figure, frame, reading, of_run(run), claim)


def wall_of(number_of_figure: str, model: str, tokens: int) -> Draw:
    """Figures 6, 7 and 8 on the current model: every layer and head, keys, keys before rotation and values."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        run = run_with_keys(sources)
        if isinstance(run, Needs):
            return run
        here = f"{run.record.model.name}, {run.record.prompt_tokens:,} tokens"
        paper = f"{number_of_figure} shows {model} with {tokens:,} tokens; this is {here}. "
        claim = replace(locality.local(gather(sources, locality.EVIDENCE)), judged_at="kvmerger/fig-2")
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
        reading = paper + walls.read_similarity_wall(frame, layers, every)
        drawn.append(Drawn(kind, figure, frame, reading, of_run(run), claim if kind == KEYS else None))
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
    heads = _few_heads(run, choice)
    tokens = chosen_tokens(run.record.prompt_tokens, choice.token)
    frame = pd.concat([_profiles(run, place, tokens) for place in heads], ignore_index=True)
    figure = panels.neighbours_of_heads(frame, theme)
    reading = panels.read_neighbours_of_heads(frame, heads_with_states(run))
    return (
        Drawn("neighbours", figure, frame, reading, of_run(run), locality.differs(gather(sources, locality.EVIDENCE))),
    )


def chosen_tokens(length: int, token: int | None) -> list[int]:
    """The current token; else the paper's if the prompt is long enough, else three spread over it."""
    if token is not None:
        return [min(max(token, 0), length - 1)]
    if length > PAPER_TOKENS[-1]:
        return list(PAPER_TOKENS)
    return sorted({round(share * (length - 1)) for share in (0.25, 0.5, 0.75)})


def _few_heads(run: Run, choice: Choice) -> list[tuple[int, int]]:
    others = readable_heads(run, spread_heads(run, 3, 9 * run.record.prompt_tokens))
    return list(dict.fromkeys([(choice.layer, choice.head), *others[:: max(1, len(others) // 4)]]))[:5]


def _profiles(run: Run, place: tuple[int, int], tokens: Sequence[int]) -> pd.DataFrame:
    unit = run.keys(*place)[0]
    parts = [maps.neighbour_profile(unit, token, REACH).assign(token=token) for token in tokens]
    names = ["token", "layer", "head", "offset", "position", "similarity"]
    return pd.concat(parts, ignore_index=True).assign(layer=place[0], head=place[1])[names]


def _near_words(found: pd.DataFrame) -> str:
    parts = [f"{kind} {number(row.near, 2)} against {number(row.any_pair, 2)}" for kind, row in found.iterrows()]
    return f"Mean cosine of tokens at most {NEAR} apart and of any two: {'; '.join(parts)}."


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
