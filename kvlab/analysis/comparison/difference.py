"""Difference of two runs over the same text: the tokens each still holds per head, and where outputs diverge."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.frames.compare import first_divergence

BOTH, ONLY_A, ONLY_B, NEITHER, UNREAD = range(5)
NAMES = ("in both", "only in A", "only in B", "in neither", "not yet read")
DepartureSteps: TypeAlias = np.ndarray  # see `departure_steps`


class Kept(NamedTuple):
    """(layers, heads, tokens) bool, whether the slot named by the token is alive; and how many tokens were read."""

    alive: np.ndarray
    seen: int


def departure_steps(run: Run) -> DepartureSteps:
    """(layers, heads, tokens) int: step at which each token's own slot ended; the dtype's maximum if it stayed.

    Tokens after the last departure are omitted.

    Raises:
        UserError: the run recorded no events.
    """
    if run.record.level != "full":
        raise UserError(f"{run.record.label} was recorded at level {run.record.level}, without events.")
    model = run.record.model
    events = run.select("events", columns=["step", "layer", "head", "source"])
    steps, *places = (events[name].to_numpy() for name in ("step", "layer", "head", "source"))
    kind = np.int16 if steps.max(initial=0) < np.iinfo(np.int16).max else np.int32
    size = int(places[-1].max(initial=-1)) + 1
    gone = np.full((model.num_hidden_layers, model.num_key_value_heads, size), np.iinfo(kind).max, kind)
    np.minimum.at(gone.reshape(-1), np.ravel_multi_index(places, gone.shape), steps.astype(kind))
    return gone


def kept_at(run: Run, step: int, gone: DepartureSteps | None = None) -> Kept:
    """Which tokens still have their own slot after `step`, in all layers and heads.

    `gone` is the result of `departure_steps`, for callers that need many steps.

    Raises:
        UserError: the run recorded no events.
    """
    gone = departure_steps(run) if gone is None else gone
    seen = run.record.prompt_tokens + step
    alive = np.ones((*gone.shape[:2], seen), bool)
    alive[..., : gone.shape[2]] = gone[..., :seen] > step
    return Kept(alive, seen)


def tokens_read(run: Run) -> int:
    """Number of tokens read by the last step."""
    return int(run.select("steps", columns=["tokens_seen"])["tokens_seen"].max())


def classes(a: Kept, b: Kept, layer: int, head: int, tokens: int) -> np.ndarray:
    """(tokens,) uint8 of one head: an index into `NAMES` for every token of the text."""
    seen = min(a.seen, b.seen)
    first = a.alive[layer, head, :seen]
    second = b.alive[layer, head, :seen]
    found = np.full(tokens, UNREAD, np.uint8)
    found[:seen] = np.select([first & second, first, second], [BOTH, ONLY_A, ONLY_B], NEITHER)
    return found


def kl_of_both(a: Run, b: Run) -> pd.DataFrame:
    """One row per token of the forced continuation: token (from 1), text, KL of `a` and `b` in nats."""
    parts = []
    for run in (a, b):
        forced = run.tokens[run.tokens["phase"] == "forced"].sort_values("position")
        parts.append(forced[["text", "kl"]].reset_index(drop=True))
    table = pd.DataFrame({"text": parts[0]["text"], "a": parts[0]["kl"], "b": parts[1]["kl"]})
    return table.assign(token=np.arange(1, len(table) + 1))[["token", "text", "a", "b"]]


def divergences(a: Run, b: Run) -> dict[str, int | None]:
    """First differing token (from 1) of the own continuations: `a` and `b` from the full cache, and `each_other`."""
    own = [run.tokens.loc[run.tokens["phase"] == "free", "id"].to_numpy() for run in (a, b)]
    common = min(map(len, own))
    different = np.flatnonzero(own[0][:common] != own[1][:common])
    between = int(different[0]) + 1 if len(different) else None if len(own[0]) == len(own[1]) else common + 1
    return {"a": first_divergence(a.tokens), "b": first_divergence(b.tokens), "each_other": between}
