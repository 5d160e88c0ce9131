"""Probe the full cache on prompt and continuation: the attention statistics that GVote and KeepKV rely on.

An observer of the full cache while it decodes, once per comparison, at level `full`; its arrays are written into the
first run. It costs, per layer, the attention of `PROMPT_ROWS` + continuation + GVote's sampled queries, and on mini
(1,676 tokens, 48 more) 19 MB on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.layer_handoff import watch_hidden_states
from kvlab.attention.pass_view import PassSeen
from kvlab.attention.queries import num_key_value_heads
from kvlab.attention.slot_attention import probabilities
from kvlab.cache import make_cache
from kvlab.common.errors import UserError
from kvlab.common.limits import MOST_FUTURE, PROMPT_ROWS
from kvlab.engine.probing.gvote_probe import sampled_queries
from kvlab.engine.probing.hidden_gaussian import HiddenStatistics
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots, View
from kvlab.methods.eviction.gvote import GVote
from kvlab.methods.scorers.lookahead.gvote import Ballots
from kvlab.models.load import LoadedModel
from kvlab.requests.recording import Recording, history_that_fits
from kvlab.trace import RunWriter

EVERYTHING = Recording()
ROWS_AT_ONCE = 16


@dataclass
class Gathered:
    """One layer so far: statistics of hidden states, and the newest queries."""

    hidden: HiddenStatistics
    query: Tensor | None = None  # (1, Hq, r, d), the newest


class Probe:
    """Observer (`kvlab.cache.settings.Observer`) of the full cache, for any number of passes over the text.

    Once the text has `tokens`, its last queries (`rows` of the prompt and all later ones) are evaluated for `layers`;
    the attention of the last `history_rows` prompt queries and all later ones is written for `history_layers` and
    `heads`.
    """

    def __init__(
        self,
        writer: RunWriter,
        prompt_tokens: int,
        tokens: int,
        rows: int,
        gvote: GVote,
        layers: Sequence[int],
        heads: Sequence[int],
        history_layers: Sequence[int],
        history_rows: int,
    ) -> None:
        self.writer, self.prompt_tokens, self.tokens, self.rows = writer, prompt_tokens, tokens, rows
        self.gvote, self.wanted, self.heads = gvote, layers, list(heads)
        self.history_layers, self.history_rows = history_layers, history_rows
        score = gvote.pipeline().score
        assert isinstance(score, Ballots)
        self.sinks = score.sinks
        self.layers: dict[int, Gathered] = {}
        self.written: set[int] = set()

    def waits_for(self, generated: int) -> bool:
        """Whether the token after `generated` ones is still to be read; it is the last of the text."""
        if self.prompt_tokens + generated >= self.tokens:
            return False
        self.tokens = self.prompt_tokens + generated + 1
        return True

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, output: Tensor) -> None:
        """Collect this layer's pass; write the results when the text is complete."""
        if layer_idx not in self.wanted or layer_idx in self.written:
            return
        self.attended_part(layer_idx, seen)
        if seen.key.shape[2] == self.tokens:
            gathered = self.layers.pop(layer_idx)
            self.written.add(layer_idx)
            assert gathered.query is not None
            self._write(layer_idx, slots, last_rows(slots, seen, gathered.query), gathered.hidden)

    def attended_part(self, layer_idx: int, seen: PassSeen) -> None:
        """Collect the hidden states and newest queries of a pass."""
        if layer_idx not in self.wanted:
            return
        if layer_idx not in self.layers:
            self.layers[layer_idx] = Gathered(HiddenStatistics(self.prompt_tokens, self.sinks))
        gathered, seen_tokens = self.layers[layer_idx], seen.key.shape[2]
        if seen.hidden_states is not None:
            gathered.hidden.add(seen.hidden_states[0, : self.prompt_tokens - gathered.hidden.seen])
        parts = [seen.query] if gathered.query is None else [gathered.query, seen.query]
        rows = self.rows + max(seen_tokens - self.prompt_tokens, 0)
        gathered.query = torch.cat([part[:, :, -rows:] for part in parts], 2)[:, :, -rows:]

    def _write(self, layer_idx: int, slots: Slots, seen: PassSeen, hidden: HiddenStatistics) -> None:
        self._write_states(layer_idx, slots, seen, hidden)
        if layer_idx in self.history_layers:
            rows = history(seen, self.history_rows + self.tokens - self.prompt_tokens)
            self.writer.write_arrays("history", layer_idx, {name: of[:, self.heads] for name, of in rows.items()})

    def _write_states(self, layer_idx: int, slots: Slots, seen: PassSeen, hidden: HiddenStatistics) -> None:
        if hidden.seen < self.prompt_tokens or self.prompt_tokens <= self.sinks + 2:
            return
        dtype = hidden.kept[0].dtype
        self.writer.write_arrays("hidden", layer_idx, _host(hidden.statistics(seen.key.device)))
        try:
            arrays = sampled_queries(self.gvote, slots, seen, self.prompt_tokens, hidden.inner, dtype)
        except UserError:
            return  # unknown query projection of this model family: skip only these arrays
        self.writer.write_arrays("sampled", layer_idx, _host(arrays))

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Nothing to do: the full cache makes no decisions."""


def make_probe(
    loaded: LoadedModel, prompt_tokens: int, most: int, writer: RunWriter, gvote: GVote, recording: Recording
) -> Probe:
    """A probe that writes `history`, `hidden` and `sampled` (see `kvlab.trace.schema.ARRAYS`) of every full-attention
    layer, for up to `most` generated tokens.

    `gvote` draws its samples as in a run with the same seed. `recording` selects layers and, for `history`, KV heads;
    if that exceeds the limit, less is kept and the record says so.
    """
    watch_hidden_states(loaded.model)
    score, later = gvote.pipeline().score, min(most, MOST_FUTURE)
    assert isinstance(score, Ballots)
    prompt_rows = min(PROMPT_ROWS, prompt_tokens)
    rows = min(max(prompt_rows, score.step_queries), prompt_tokens)
    layers = recording.of_layers([layer.layer_idx for layer in make_cache(loaded, "full").compressed_layers()])
    heads = recording.of_heads(num_key_value_heads(loaded.model.config.get_text_config(decoder=True)))
    tokens = prompt_tokens + later
    kept, history_rows, sentence = history_that_fits(layers, len(heads), tokens, prompt_rows, later)
    if sentence:
        writer.update(left_out=writer.record.left_out | {"history": sentence})
    return Probe(writer, prompt_tokens, tokens, rows, gvote, layers, heads, kept, history_rows)


def last_rows(slots: Slots, seen: PassSeen, query: Tensor) -> PassSeen:
    """`seen` with its queries replaced by the text's last queries `query` (1, Hq, r, d)."""
    alibi = seen.alibi
    if alibi is not None:
        alibi = replace(alibi, queries=slots.position[:, :, -query.shape[2] :])
    return replace(
        seen, query=query, alibi=alibi, row_valid=None, hidden_states=None, _last_logits=None, _last_mass=None
    )


def history(seen: PassSeen, rows: int) -> dict[str, np.ndarray]:
    """Attention of the last `rows` queries, by KV head: `mass` and `log_score`.

    Both (rows, H, tokens): the group's mean probability, and the log of its mean exp score (KeepKV's unnormalised s),
    -inf at masked positions.
    """
    tokens = seen.key.shape[2]
    masses, scores = [], []
    for first in range(tokens - rows, tokens, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, tokens)
        logits = seen.up_to(last).last_logits(last - first)[0]  # (H, G, r, last)
        padding = (0, tokens - last)
        mass = probabilities(logits[None], None, seen.sinks)[0]
        masses.append(torch.nn.functional.pad(mass.mean(1), padding))
        score = torch.logsumexp(logits, 1) - torch.tensor(float(logits.shape[1])).log()
        scores.append(torch.nn.functional.pad(score, padding, value=-torch.inf))
    return _host({"mass": torch.cat(masses, 1).transpose(0, 1), "log_score": torch.cat(scores, 1).transpose(0, 1)})


def _host(arrays: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.half().cpu().numpy() for name, tensor in arrays.items()}
