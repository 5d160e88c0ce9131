"""Two runs over the same text: which tokens each of them still has, head by head, and where the outputs part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from kvlab.analysis.blocks import block_edges
from kvlab.analysis.compare import first_divergence
from kvlab.errors import UserError
from kvlab.trace.reader import Run

BOTH, ONLY_A, ONLY_B, NEITHER, UNREAD = range(5)
NAMES = ("in both", "only in A", "only in B", "in neither", "not yet read")


class Kept(NamedTuple):
    """(layers, heads, tokens) bool: whether the token still has a slot named by it; and how many tokens were read."""

    alive: np.ndarray
    seen: int


def kept_at(run: Run, step: int) -> Kept:
    """Which tokens have a slot of their own name after `step`, for all layers and heads at once.

    Raises:
        UserError: the run did not record its events.
    """
    if run.record.level != "full":
        raise UserError(f"{run.record.label} was recorded at level {run.record.level}, without events.")
    model = run.record.model
    seen = run.record.prompt_tokens + step
    gone = np.zeros((model.num_hidden_layers, model.num_key_value_heads, seen), bool)
    events = run.select("events", columns=["step", "layer", "head", "source"])
    events = events[(events["step"] <= step) & (events["source"] < seen)]
    gone[events["layer"], events["head"], events["source"]] = True
    return Kept(~gone, seen)


def tokens_read(run: Run) -> int:
    """How many tokens the run had read after its last step."""
    return int(run.select("steps", columns=["tokens_seen"])["tokens_seen"].max())


def recorded_layers(*runs: Run) -> list[int]:
    """Layers of which every one of these runs recorded something."""
    skipped = {layer for run in runs for layer in run.record.sliding_layers}
    return [layer for layer in range(runs[0].record.model.num_hidden_layers) if layer not in skipped]


def jaccard(a: Kept, b: Kept, layers: list[int]) -> pd.DataFrame:
    """One row a layer and head: tokens in both, only in A, only in B, and the Jaccard index of the two sets."""
    seen = min(a.seen, b.seen)
    first, second = a.alive[layers, :, :seen], b.alive[layers, :, :seen]
    both, either = (first & second).sum(2), (first | second).sum(2)
    layer, head = np.meshgrid(layers, np.arange(first.shape[1]), indexing="ij")
    table = {
        "layer": layer.ravel(),
        "head": head.ravel(),
        "both": both.ravel(),
        "only_a": (first & ~second).sum(2).ravel(),
        "only_b": (second & ~first).sum(2).ravel(),
        "jaccard": (both / np.maximum(either, 1)).ravel(),
    }
    return pd.DataFrame(table)


def classes(a: Kept, b: Kept, layer: int, head: int, tokens: int) -> np.ndarray:
    """(tokens,) uint8 of one head: an index into `NAMES` for every token of the text."""
    seen = min(a.seen, b.seen)
    first, second = a.alive[layer, head, :seen], b.alive[layer, head, :seen]
    found = np.full(tokens, UNREAD, np.uint8)
    found[:seen] = np.select([first & second, first, second], [BOTH, ONLY_A, ONLY_B], NEITHER)
    return found


def along_positions(a: Kept, b: Kept, layers: list[int], blocks: int = 96) -> pd.DataFrame:
    """Share of (layer, head, token) in each class along the text: columns position, then `NAMES` without the last."""
    seen = min(a.seen, b.seen)
    first, second = a.alive[layers, :, :seen], b.alive[layers, :, :seen]
    edges = block_edges(0, seen, blocks)
    parts = [first & second, first & ~second, second & ~first, ~first & ~second]
    counts = [np.add.reduceat(part.mean((0, 1)), edges[:-1]) / np.diff(edges) for part in parts]
    return pd.DataFrame({"position": edges[:-1], **dict(zip(NAMES[:4], counts, strict=True))})


def kl_of_both(a: Run, b: Run) -> pd.DataFrame:
    """One row a token of the forced continuation: token (from 1), text, KL of A and of B from the full cache, nats."""
    parts = []
    for run in (a, b):
        forced = run.tokens[run.tokens["phase"] == "forced"].sort_values("position")
        parts.append(forced[["text", "kl"]].reset_index(drop=True))
    table = pd.DataFrame({"text": parts[0]["text"], "a": parts[0]["kl"], "b": parts[1]["kl"]})
    return table.assign(token=np.arange(1, len(table) + 1))[["token", "text", "a", "b"]]


def where_they_part(a: Run, b: Run) -> dict[str, int | None]:
    """First token (from 1) of the own continuations that differs: `a` and `b` from the full cache, `each_other`."""
    own = [run.tokens.loc[run.tokens["phase"] == "free", "id"].to_numpy() for run in (a, b)]
    common = min(map(len, own))
    different = np.flatnonzero(own[0][:common] != own[1][:common])
    between = int(different[0]) + 1 if len(different) else None if len(own[0]) == len(own[1]) else common + 1
    return {"a": first_divergence(a.tokens), "b": first_divergence(b.tokens), "each_other": between}
