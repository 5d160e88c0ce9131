"""A layer's part in following the residual stream: what it hands on, and the scores that its slots get."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kvlab.core.attention.layer_handoff import AttentionCall
from kvlab.core.cache.layers.layer_state import LayerState
from kvlab.core.contract.token_scores import TokenScores
from kvlab.core.errors import UserError

MISSING = (
    "This method needs the model's residual stream, which only the model that make_cache was given provides: pass the "
    "text to that model, not to an earlier copy of it."
)


def follow_stream(layer: LayerState, call: AttentionCall, row_valid: Tensor | None, in_prompt: bool) -> None:
    """Take the states that this layer's attention was called with. Raises UserError if a pass brought none."""
    stream = layer.settings.stream
    if stream is None or layer.settings.in_second_pass:
        return
    stream.follow(call.residuals, row_valid, layer.tokens_seen, layer.cumulative_length, in_prompt)
    is_last = layer.rank == layer.settings.num_layers - 1
    if is_last and call.module is not None and stream.scores_at(layer.cumulative_length) is None:
        raise UserError(MISSING)


def token_scores(layer: LayerState, end: int) -> Sequence[TokenScores | None]:
    """For each table, the scores of the tokens of the pass that ended at logical length `end`; None without."""
    stream = layer.settings.stream
    known = None if stream is None else stream.scores_at(end)
    if known is None:
        return [None] * len(layer.tables)
    parts = zip(layer.streams.by_row(known.score), layer.streams.by_row(known.first), strict=True)
    return [TokenScores(score, first, end) for score, first in parts]


def store_token_scores(layer: LayerState, end: int) -> None:
    """Store those scores in the layer's slots."""
    for table, scores in zip(layer.tables, token_scores(layer, end), strict=True):
        if scores is not None:
            table.store({"score": scores.placed(table.stored())})
