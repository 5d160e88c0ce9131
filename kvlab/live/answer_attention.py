"""Attention of an answer to the context: the answer is read once more by a copy of the lane, and watched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassSeen
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import Slots, View
from kvlab.core.errors import UserError
from kvlab.live.merges import presence
from kvlab.live.passes import next_logits
from kvlab.live.session import LiveSession
from kvlab.views.frames.token_heads import MERGED, NO_SLOT, OWN, TokenHeads

MOST_HEAD_TOKENS = 50_000_000  # heads of all layers x tokens


@dataclass
class AnswerAttention:
    """Observer (`kvlab.core.cache.settings.Observer`) that sums attention of single queries to the context's slots.

    `sums` is by layer (H, tokens + 1) float32 by the position of the slot; the last column is of later tokens.
    """

    tokens: int
    sums: dict[int, Tensor] = field(default_factory=dict)

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, output: Tensor) -> None:
        """Add the attention of a pass over one token."""
        if seen.num_new != 1:
            return
        mass = torch.where(slots.valid[0], seen.last_mass()[0].float(), 0)
        if layer_idx not in self.sums:
            self.sums[layer_idx] = mass.new_zeros(mass.shape[0], self.tokens + 1)
        self.sums[layer_idx].scatter_add_(1, slots.position[0].long().clamp(0, self.tokens), mass)

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Nothing to do."""


@torch.inference_mode()
def token_heads(session: LiveSession, number: int) -> TokenHeads:
    """Which heads of lane `number` hold each token of the context, with the attention that its last answer gave it.

    The last question and answer are read once more by a copy of the lane. Raises UserError for a lane that failed or
    that there is not, or a context and model too large to show.
    """
    if not 0 <= number < len(session.lanes) or session.lanes[number].failure:
        raise UserError("Choose a lane that has not failed.")
    lane = session.lanes[number]
    attention = AnswerAttention(len(session.ids))
    layers = lane.cache.compressed_layers()
    held = [presence(layer, len(session.ids)) for layer in layers]
    if sum(present.numel() for present in held) > MOST_HEAD_TOKENS:
        raise UserError("The tokens of the context times all heads are too many to show: use a shorter context.")
    answered = _watch(session, number, attention) if session.history else 0
    heads = max((len(present) for present in held), default=0)
    states = np.full((len(layers), heads, len(session.ids)), NO_SLOT, np.uint8)
    received = np.zeros(states.shape, np.float32)
    for place, (layer, present) in enumerate(zip(layers, held, strict=True)):
        state, mass = _of_layer(present, lane.merges.owners.get(layer.layer_idx), attention.sums.get(layer.layer_idx))
        states[place, : len(present)] = state.cpu().numpy()
        received[place, : len(present)] = (mass / max(answered, 1)).cpu().numpy()
    return TokenHeads(session.turn, np.array([layer.layer_idx for layer in layers], np.int64), states, received)


def _of_layer(present: Tensor, owners: Tensor | None, sums: Tensor | None) -> tuple[Tensor, Tensor]:
    """States and summed attention (H, tokens) of one layer."""
    state = torch.where(present, OWN, NO_SLOT)
    mass = torch.zeros(present.shape, device=present.device) if sums is None else sums[:, :-1]
    if owners is not None:
        state = torch.where(~present & present.gather(1, owners), MERGED, state)
        mass = torch.where(state == MERGED, mass.gather(1, owners), mass)
    return state, mass


def _watch(session: LiveSession, number: int, attention: AnswerAttention) -> int:
    """Let `attention` see how lane `number` answered the last question; returns the number of tokens read."""
    lane = session.lanes[number]
    exchange = session.history[-1]
    turn = session.turn - 1
    if turn not in lane.checkpoints:
        raise UserError("The state before the last question is no longer in memory: answer it again first.")
    before = lane.checkpoints[turn]
    watched = replace(lane, cache=copy_cache(before.cache, attention), tokens_seen=before.tokens_seen)
    ids = session.turns.question_ids(session.loaded, exchange.question, is_first=turn == 0)
    next_logits(session.loaded, [watched], [ids])
    answer = [token for token in exchange.answers.get(number, []) if token not in session.end_ids]
    for token in answer:
        next_logits(session.loaded, [watched], [[token]])
    return len(answer)
