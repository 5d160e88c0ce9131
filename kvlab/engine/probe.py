"""Probe the full cache on prompt and continuation: attention statistics, and what some method samples of them.

An observer of the full cache while it decodes, once per comparison, at level `full`; its arrays are written into the
first run. It costs, per layer, the attention of `PROMPT_ROWS` + continuation + sampled queries, and on mini
(1,676 tokens, 48 more) 19 MB on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvlab.common.limits import MOST_FUTURE, PROMPT_ROWS
from kvlab.core.attention.layer_handoff import watch_hidden_states
from kvlab.core.attention.pass_view import PassSeen
from kvlab.core.attention.queries import num_key_value_heads
from kvlab.core.attention.slot_attention import probabilities
from kvlab.core.cache import make_cache
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import Slots, View
from kvlab.core.errors import UserError
from kvlab.core.methods import Method, registered
from kvlab.engine.hidden_gaussian import HiddenStatistics
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


@dataclass(eq=False)
class Probe:
    """Observer (`kvlab.core.cache.settings.Observer`) of the full cache, for any number of passes over the text.

    Once the text has `tokens`, its last queries (`rows` of the prompt and all later ones) are evaluated for `layers`;
    the attention of the last `history_rows` prompt queries and all later ones is written for `history_layers` and
    `heads`.
    """

    writer: RunWriter
    prompt_tokens: int
    tokens: int
    rows: int
    samples: Any  # see `Method.query_probe`
    layers: Sequence[int]
    heads: list[int]
    history_layers: Sequence[int]
    history_rows: int
    gathered: dict[int, Gathered] = field(default_factory=dict)  # by layer
    written: set[int] = field(default_factory=set)  # layers

    def waits_for(self, generated: int) -> bool:
        """Whether the token after `generated` ones is still to be read; it is the last of the text."""
        if self.prompt_tokens + generated >= self.tokens:
            return False
        self.tokens = self.prompt_tokens + generated + 1
        return True

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, output: Tensor) -> None:
        """Collect this layer's pass; write the results when the text is complete."""
        if layer_idx not in self.layers or layer_idx in self.written:
            return
        self.attended_part(layer_idx, seen)
        if seen.key.shape[2] == self.tokens:
            gathered = self.gathered.pop(layer_idx)
            self.written.add(layer_idx)
            assert gathered.query is not None
            self._write(layer_idx, slots, last_rows(slots, seen, gathered.query), gathered.hidden)

    def attended_part(self, layer_idx: int, seen: PassSeen) -> None:
        """Collect the hidden states and newest queries of a pass."""
        if layer_idx not in self.layers:
            return
        if layer_idx not in self.gathered:
            self.gathered[layer_idx] = Gathered(HiddenStatistics(self.prompt_tokens, self.samples.sinks))
        gathered = self.gathered[layer_idx]
        seen_tokens = seen.key.shape[2]
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
        if hidden.seen < self.prompt_tokens or self.prompt_tokens <= self.samples.sinks + 2:
            return
        dtype = hidden.kept[0].dtype
        self.writer.write_arrays("hidden", layer_idx, _host(hidden.statistics(seen.key.device)))
        try:
            inner = hidden.inner
            arrays = self.samples.arrays(slots, seen, self.prompt_tokens, (inner.mean, inner.deviation), dtype)
        except UserError:
            return  # unknown query projection of this model family: skip only these arrays
        self.writer.write_arrays("sampled", layer_idx, _host(arrays))

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Nothing to do: the full cache makes no decisions."""


def make_probe(
    loaded: LoadedModel,
    prompt_tokens: int,
    most: int,
    writer: RunWriter,
    methods: Sequence[Method],
    recording: Recording,
) -> Probe:
    """A probe that writes `history`, `hidden` and `sampled` (see `kvlab.trace.schema.ARRAYS`) of every full-attention
    layer, for up to `most` generated tokens.

    Samples are those of the first of `methods` that draws any, else of the first registered one, with the same seed as
    in a run. `recording` selects layers and, for `history`, KV heads;
    if that exceeds the limit, less is kept and the record says so.
    """
    watch_hidden_states(loaded.model)
    everyone = [*methods, *(kind() for kind in registered().values())]
    samples = next(probe for method in everyone if (probe := method.query_probe()) is not None)
    later = min(most, MOST_FUTURE)
    prompt_rows = min(PROMPT_ROWS, prompt_tokens)
    rows = min(max(prompt_rows, samples.rows), prompt_tokens)
    layers = recording.of_layers([layer.layer_idx for layer in make_cache(loaded, "full").compressed_layers()])
    heads = recording.of_heads(num_key_value_heads(loaded.model.config.get_text_config(decoder=True)))
    tokens = prompt_tokens + later
    kept, history_rows, sentence = history_that_fits(layers, len(heads), tokens, prompt_rows, later)
    if sentence:
        writer.update(left_out=writer.record.left_out | {"history": sentence})
    return Probe(writer, prompt_tokens, tokens, rows, samples, layers, heads, kept, history_rows)


def last_rows(slots: Slots, seen: PassSeen, query: Tensor) -> PassSeen:
    """`seen` with its queries replaced by the text's last queries `query` (1, Hq, r, d)."""
    alibi = seen.alibi
    if alibi is not None:
        alibi = replace(alibi, queries=slots.position[:, :, -query.shape[2] :])
    nothing: Any = dict.fromkeys(("row_valid", "hidden_states", "_last_logits", "_last_mass"))
    return replace(seen, query=query, alibi=alibi, **nothing)


def history(seen: PassSeen, rows: int) -> dict[str, np.ndarray]:
    """Attention of the last `rows` queries, by KV head: `mass` and `log_score`.

    Both (rows, H, tokens): the group's mean probability, and the log of its mean exp score,
    -inf at masked positions.
    """
    tokens = seen.key.shape[2]
    masses = []
    scores = []
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
