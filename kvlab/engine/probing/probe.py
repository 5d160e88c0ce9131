"""Probe the full cache on prompt and continuation: the attention statistics that GVote and KeepKV rely on.

Runs once per comparison, at level `full`, and is written into the first run. It costs one more prefill and, per layer,
the attention of `PROMPT_ROWS` + continuation + GVote's sampled queries: on mini (CPU, 1,676 tokens, 48 more) 3.0 to 4.2
times the prefill alone, and 19 MB on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.hidden_states import watch_hidden_states
from kvlab.attention.pass_view import PassSeen
from kvlab.attention.queries import num_key_value_heads
from kvlab.attention.slot_attention import probabilities
from kvlab.cache import make_cache
from kvlab.cache.chunked_prefill import chunk_sizes
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

    Once the text has all its `tokens`, its last `rows` queries are evaluated for `layers`; the attention of the last
    `history_rows` queries is written for `history_layers` and `heads`.
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

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, output: Tensor) -> None:
        """Collect this layer's pass; write the results when the text is complete."""
        if layer_idx not in self.wanted:
            return
        if layer_idx not in self.layers:
            self.layers[layer_idx] = Gathered(HiddenStatistics(self.prompt_tokens, self.sinks))
        gathered = self.layers[layer_idx]
        if seen.hidden_states is not None:
            gathered.hidden.add(seen.hidden_states[0, : self.prompt_tokens - gathered.hidden.seen])
        parts = [seen.query] if gathered.query is None else [gathered.query, seen.query]
        gathered.query = torch.cat([part[:, :, -self.rows :] for part in parts], 2)[:, :, -self.rows :]
        if seen.key.shape[2] == self.tokens:
            del self.layers[layer_idx]
            self._write(layer_idx, slots, last_rows(slots, seen, gathered.query), gathered.hidden)

    def _write(self, layer_idx: int, slots: Slots, seen: PassSeen, hidden: HiddenStatistics) -> None:
        self._write_states(layer_idx, slots, seen, hidden)
        if layer_idx in self.history_layers:
            rows = history(seen, self.history_rows)
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


@torch.inference_mode()
def probe(
    loaded: LoadedModel,
    prompt: Tensor,
    continuation: list[int],
    writer: RunWriter,
    gvote: GVote,
    seed: int,
    chunk: int | None = None,
    recording: Recording = EVERYTHING,
) -> None:
    """Write `history`, `hidden` and `sampled` (see `kvlab.trace.schema.ARRAYS`) of every full-attention layer.

    `prompt` is (1, T) ids, `continuation` the full cache's next tokens. `gvote` draws its samples as in a run with the
    same seed. No pass is longer than `chunk` tokens. `recording` selects layers and, for `history`, KV heads; if that
    exceeds the limit, less is kept and the record says so.
    """
    future = torch.tensor([continuation[:MOST_FUTURE]], dtype=prompt.dtype, device=prompt.device)
    ids = torch.cat([prompt, future], 1)
    watch_hidden_states(loaded.model)
    score = gvote.pipeline().score
    assert isinstance(score, Ballots)
    prompt_rows, later = min(PROMPT_ROWS, prompt.shape[1]), future.shape[1]
    rows = min(max(prompt_rows, score.step_queries), prompt.shape[1]) + later
    cache = make_cache(loaded, "full", seed=seed)
    layers = recording.of_layers([layer.layer_idx for layer in cache.compressed_layers()])
    heads = recording.of_heads(num_key_value_heads(loaded.model.config.get_text_config(decoder=True)))
    kept, prompt_rows, sentence = history_that_fits(layers, len(heads), ids.shape[1], prompt_rows, later)
    if sentence:
        writer.update(left_out=writer.record.left_out | {"history": sentence})
    text = prompt.shape[1], ids.shape[1]
    cache.settings.observer = Probe(writer, *text, rows, gvote, layers, heads, kept, prompt_rows + later)
    for part in ids.split(chunk_sizes(ids.shape[1], chunk or ids.shape[1]), 1):
        loaded.model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
        for layer in cache.compressed_layers():
            layer.tables[0].reserve(ids.shape[1])  # later passes then append in place


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
