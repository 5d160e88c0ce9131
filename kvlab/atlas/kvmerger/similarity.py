"""Figures 2, 3a, 6, 7 and 8: how alike the keys of a text are, beside keys before rotation and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.analysis import similarity as maps
from kvlab.analysis.head_states import BEFORE, KEYS, VALUES, head_states, readable_heads, spread_heads
from kvlab.analysis.locality import MOST_TOKENS, NEAR, OFFSETS, locality_of_heads, locality_of_states, near_and_any
from kvlab.atlas.exhibit import Choice, Draw, Drawn, Exhibit, Needs
from kvlab.atlas.kvmerger.recorded import run_with_keys
from kvlab.atlas.sources import Sources, origin
from kvlab.atlas.verdict import Claim, Verdict
from kvlab.figures import similarity as walls
from kvlab.figures import similarity_panels as panels
from kvlab.figures.palette import Theme
from kvlab.figures.words import number
from kvlab.trace.reader import Run

MAP_CELLS = 200
WALL_LAYERS, WALL_VECTORS = 12, 800_000
REACH = 48
NEAR_OFFSETS = tuple(offset for offset in OFFSETS if offset <= NEAR)
PAPER_TOKENS = (2000, 3000, 4000)
# Neighbours count as more alike where their mean cosine is this much above that of any two tokens.
RISE = 0.1
LOCAL = "Keys of neighbouring tokens are alike, more so than those of distant ones; values are not."
ROTATION = "The rotary embedding, which keys go through and values do not, is the main reason for that locality."


def draw_maps(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: the map of the head in view for each kind of vector, and similarity by distance over all heads."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    return _maps(run, choice, theme), _by_distance(run, theme)


def _maps(run: Run, choice: Choice, theme: Theme) -> Drawn:
    states = head_states(run, choice.layer, choice.head)
    whole = {kind: (0, len(unit)) for kind, unit in states.items()}
    tiles = {kind: maps.tile(unit, whole[kind], whole[kind], MAP_CELLS).frame() for kind, unit in states.items()}
    title = f"Token against token: layer {choice.layer}, head {choice.head}"
    figure = panels.maps_side_by_side(tiles, theme, title)
    found = near_and_any(locality_of_heads(run, [(choice.layer, choice.head)]))
    return Drawn("maps", figure, _long(tiles), _near_words(found), origin(run), _is_local(found, "in this head"))


def _by_distance(run: Run, theme: Theme) -> Drawn:
    heads = readable_heads(run, spread_heads(run, tokens=MOST_TOKENS))
    table = locality_of_heads(run, heads)
    groups = table.groupby(["kind", "offset"], sort=False)
    frame = groups[["cosine", "any_pair"]].mean()
    frame = frame.assign(low=groups["cosine"].quantile(0.1), high=groups["cosine"].quantile(0.9)).reset_index()
    figure = panels.cosine_by_distance(frame, theme)
    claim = _made_by_rotation(near_and_any(table), len(heads))
    return Drawn("by distance", figure, frame, panels.read_cosine_by_distance(frame), origin(run), claim)


def wall_of(number_of_figure: str, model: str, tokens: int) -> Draw:
    """Figures 6, 7 and 8 on the model in view: every layer and head, keys, keys before rotation and values."""

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        run = run_with_keys(sources)
        if isinstance(run, Needs):
            return run
        here = f"{run.record.model.name}, {run.record.prompt_tokens:,} tokens"
        paper = f"{number_of_figure} shows {model} with {tokens:,} tokens; this is {here}. "
        return _walls(run, paper, theme)

    return draw


def _walls(run: Run, paper: str, theme: Theme) -> tuple[Drawn, ...]:
    heads = readable_heads(run, spread_heads(run, WALL_LAYERS, WALL_VECTORS))
    thumbnails: dict[str, dict[tuple[int, int], np.ndarray]] = {}
    parts = []
    for place in heads:
        states = head_states(run, *place)
        parts.append(locality_of_states(states, NEAR_OFFSETS).assign(layer=place[0], head=place[1]))
        for kind, unit in states.items():
            thumbnails.setdefault(kind, {})[place] = maps.thumbnail(unit)
    locality = pd.concat(parts, ignore_index=True)
    claim = _is_local(near_and_any(locality), f"over {len(heads)} heads")
    drawn = []
    for kind, small in thumbnails.items():
        frame = _wall_frame(locality[locality["kind"] == kind], small)
        figure, reading = walls.similarity_wall(small, theme, kind), paper + walls.read_similarity_wall(frame)
        drawn.append(Drawn(kind, figure, frame, reading, origin(run), claim if kind == KEYS else None))
    return tuple(drawn)


def _wall_frame(locality: pd.DataFrame, small: dict[tuple[int, int], np.ndarray]) -> pd.DataFrame:
    """A row a map: columns layer, head, near, far, mean."""
    frame = locality.groupby(["layer", "head"]).agg(near=("cosine", "mean"), far=("any_pair", "first")).reset_index()
    means = [float(small[layer, head].mean()) for layer, head in frame[["layer", "head"]].itertuples(index=False)]
    return frame.assign(mean=means)


def draw_neighbours(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3a: chosen tokens against their neighbours in the head in view and in a few others."""
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    heads = _few_heads(run, choice)
    tokens = chosen_tokens(run.record.prompt_tokens, choice.token)
    frame = pd.concat([_profiles(run, place, tokens) for place in heads], ignore_index=True)
    figure = panels.neighbours_of_heads(frame, theme)
    reading = panels.read_neighbours_of_heads(frame)
    return (Drawn("neighbours", figure, frame, reading, origin(run), _differs_by_head(frame)),)


def chosen_tokens(length: int, token: int | None) -> list[int]:
    """The token in view; else the paper's where the prompt is long enough, else three spread over it."""
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


def _differs_by_head(frame: pd.DataFrame) -> Claim:
    around = frame[(frame["offset"] != 0) & (frame["offset"].abs() <= NEAR)]
    heads = around.groupby(["layer", "head"])["similarity"].mean()
    verdict: Verdict = "holds" if heads.max() - heads.min() >= RISE else "does not hold"
    finding = (
        f"Over {len(heads)} heads the mean cosine of these tokens with those at most {NEAR} away runs from "
        f"{number(heads.min(), 2)} to {number(heads.max(), 2)}."
    )
    if len(heads) < 2:
        verdict, finding = "not enough to say", "The run recorded one head only."
    return Claim("How alike a key and its neighbours are differs from head to head.", verdict, finding)


def _near_words(found: pd.DataFrame) -> str:
    parts = [f"{kind} {number(row.near, 2)} against {number(row.any_pair, 2)}" for kind, row in found.iterrows()]
    return f"Mean cosine of tokens at most {NEAR} apart against that of any two: {'; '.join(parts)}."


def _is_local(found: pd.DataFrame, where: str) -> Claim:
    keys, values = found.loc[KEYS], found.loc[VALUES]
    verdict: Verdict = "holds" if keys.rise >= RISE and values.rise < RISE else "does not hold"
    return Claim(
        LOCAL,
        verdict,
        f"Tokens at most {NEAR} apart {where}: keys {number(keys.near, 2)} (any two {number(keys.any_pair, 2)}), "
        f"values {number(values.near, 2)} (any two {number(values.any_pair, 2)}); a rise of {RISE} counts.",
    )


def _made_by_rotation(found: pd.DataFrame, heads: int) -> Claim:
    """The rise of neighbours over any two, with the rotation and without it."""
    if BEFORE not in found.index:
        why = "This run did not record its rotary frequencies (record it again), or its model does not rotate its keys."
        return Claim(ROTATION, "not enough to say", why)
    after, before = found.loc[KEYS], found.loc[BEFORE]
    if after.rise < RISE:
        return Claim(ROTATION, "not enough to say", f"Neighbouring keys rise by {number(after.rise, 2)} only.")
    verdict: Verdict = "holds" if before.rise < after.rise / 2 else "does not hold"
    return Claim(
        ROTATION,
        verdict,
        f"Over {heads} heads keys of neighbours are {number(after.rise, 2)} more alike than any two with the rotation "
        f"and {number(before.rise, 2)} without it. Neighbours have {number(after.near, 2)} with it and "
        f"{number(before.near, 2)} without, any two {number(after.any_pair, 2)} and {number(before.any_pair, 2)}.",
    )


def _long(tiles: dict[str, pd.DataFrame]) -> pd.DataFrame:
    parts = [
        frame.stack().rename("cosine").reset_index().assign(kind=kind)[["kind", "token", "other token", "cosine"]]
        for kind, frame in tiles.items()
    ]
    return pd.concat(parts, ignore_index=True)


_WALL = {
    "title": "Similarity maps of all layers and heads",
    "shows": "Each small map is one head: the whole text against itself, from one direction (dark blue) to opposite.",
    "look_for": "Blue along the diagonal that fades away from it; the maps of values below show whether only keys do.",
    "source": "run",
}
FIGURES = (
    Exhibit(
        "kvmerger", "fig-2", "Fig 2", "Cosine similarity of keys, token against token",
        "Rows and columns are tokens, colour the cosine of their vectors; below, its mean by distance.",
        "A blue band along the diagonal for keys as cached, and none for values.",
        "run", draw_maps, ("layer", "head"),
    ),
    Exhibit(
        "kvmerger", "fig-3a", "Fig 3a", "One token's key against its neighbours'",
        "Distance to the token across, cosine of the two keys up; a line a head, a panel a token.",
        "How fast lines fall on both sides of the middle, and how far heads are apart.",
        "run", draw_neighbours, ("layer", "head", "token"),
    ),
)  # fmt: skip
WALLS = tuple(
    Exhibit("kvmerger", slug, name, drawing=wall_of(name, model, tokens), **_WALL)  # type: ignore[arg-type]
    for slug, name, model, tokens in (
        ("fig-6", "Fig 6", "Llama2-7B-chat", 3506),
        ("fig-7", "Fig 7", "Llama2-13B-chat", 3776),
        ("fig-8", "Fig 8", "Mistral-7B-Instruct", 5001),
    )
)
