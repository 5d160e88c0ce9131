"""One more pass of the full cache over the prompt and its continuation: what GVote and KeepKV say of attention itself.

Run once a comparison, at level `full`, and written into the comparison's first run. It costs one more prefill of the
prompt, and for each layer as much attention as `PROMPT_ROWS` + continuation + GVote's samples queries ask for: on mini
(CPU, 1,676 tokens, 48 more) 3.0 to 4.2 times the prefill alone, and 19 MB on disk.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.hidden import watch_hidden_states
from kvlab.attention.seen import PassSeen
from kvlab.attention.slot_attention import probabilities
from kvlab.cache import make_cache
from kvlab.engine.gaussian import hidden_statistics
from kvlab.engine.sampled import sampled_queries
from kvlab.errors import UserError
from kvlab.methods.gvote import GVote
from kvlab.methods.plan import Plan
from kvlab.methods.scorers.ballots import Ballots
from kvlab.methods.view import Slots, View
from kvlab.models.load import LoadedModel
from kvlab.planning.limits import MOST_FUTURE, MOST_HISTORY_BYTES, PROMPT_ROWS
from kvlab.trace import RunWriter

ROWS_AT_ONCE = 16


class Probe:
    """Watches one pass over prompt and continuation with nothing dropped (`kvlab.cache.settings.Observer`)."""

    def __init__(self, writer: RunWriter, prompt_tokens: int, gvote: GVote, keep_history: bool) -> None:
        self.writer, self.prompt_tokens, self.gvote, self.keep_history = writer, prompt_tokens, gvote, keep_history

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, value: Tensor, output: Tensor) -> None:
        """Write what this layer's pass shows."""
        if self.keep_history:
            self.writer.write_arrays("history", layer_idx, history(seen, self.prompt_tokens))
        score = self.gvote.pipeline().score
        assert isinstance(score, Ballots)
        if seen.hidden_states is None or self.prompt_tokens <= score.sinks + 2:
            return
        states = seen.hidden_states[0, : self.prompt_tokens]
        self.writer.write_arrays("hidden", layer_idx, _host(hidden_statistics(states, score.sinks)))
        try:
            arrays = sampled_queries(self.gvote, slots, seen, self.prompt_tokens)
        except UserError:
            return  # a family whose query projection kvlab does not know: everything else is still worth having
        self.writer.write_arrays("sampled", layer_idx, _host(arrays))

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """The full cache never drops anything."""


@torch.inference_mode()
def probe(
    loaded: LoadedModel, prompt: Tensor, continuation: list[int], writer: RunWriter, gvote: GVote, seed: int
) -> None:
    """Write `history`, `hidden` and `sampled` (see `kvlab.trace.schema.ARRAYS`) of every full-attention layer.

    `prompt` is (1, T) ids, `continuation` the full cache's own next tokens. The samples are those that `gvote` draws
    from the same prompt with the same seed.
    """
    future = torch.tensor([continuation[:MOST_FUTURE]], dtype=prompt.dtype, device=prompt.device)
    ids = torch.cat([prompt, future], 1)
    watch_hidden_states(loaded.model)
    config = loaded.model.config.get_text_config(decoder=True)
    rows = min(PROMPT_ROWS, prompt.shape[1]) + future.shape[1]
    size = 2 * 2 * rows * config.num_attention_heads * ids.shape[1] * config.num_hidden_layers
    watcher = Probe(writer, prompt.shape[1], gvote, keep_history=size <= MOST_HISTORY_BYTES)
    cache = make_cache(loaded, "full", observer=watcher, seed=seed)
    loaded.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)


def history(seen: PassSeen, prompt_tokens: int) -> dict[str, np.ndarray]:
    """Attention of the last prompt queries and of every later one, by KV head: `mass` and `log_score`.

    Both (rows, H, tokens): the group's mean probability, and the log of its mean exp score (KeepKV's s before any
    normalisation), -inf where a query cannot look.
    """
    tokens = seen.key.shape[2]
    masses, scores = [], []
    for first in range(max(prompt_tokens - PROMPT_ROWS, 0), tokens, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, tokens)
        logits = seen.up_to(last).last_logits(last - first)[0]  # (H, G, r, last)
        room = (0, tokens - last)
        mass = probabilities(logits[None], None, seen.sinks)[0]
        masses.append(torch.nn.functional.pad(mass.mean(1), room))
        score = torch.logsumexp(logits, 1) - torch.tensor(float(logits.shape[1])).log()
        scores.append(torch.nn.functional.pad(score, room, value=-torch.inf))
    return _host({"mass": torch.cat(masses, 1).transpose(0, 1), "log_score": torch.cat(scores, 1).transpose(0, 1)})


def _host(arrays: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.half().cpu().numpy() for name, tensor in arrays.items()}
