"""Scores of keys by what a model's queries have in common, fitted once (TriAttention, Q-Filters)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, Rotary, Slots
from kvlab.core.methods.scorers.wrapper import PromptScorer


@dataclass(frozen=True, eq=False)
class QueryStatistics:
    """Statistics of one layer's queries over some text.

    `mean` (Hq, d): mean query before rotation, without the factor of YaRN; `length` (Hq, f): mean length of each of its
    f rotated pairs of coordinates. `direction` (H, d): first right singular vector of the queries as they attend
    (rotated), mean over the group, of unit length; it points to the side on which most queries are.
    """

    mean: Tensor
    length: Tensor
    direction: Tensor

    @lru_cache(maxsize=512)  # noqa: B019  (a decode step waits for no copy)
    def to(self, device: torch.device) -> "QueryStatistics":
        """The statistics on a device, copied there once."""
        return QueryStatistics(*(tensor.to(device) for tensor in vars(self).values()))


@lru_cache(maxsize=512)
def random_statistics(query_heads: int, heads: int, width: int, pairs: int, layer: int) -> QueryStatistics:
    """Random statistics determined by the layer, for tests and timing."""
    source = torch.Generator().manual_seed(layer)
    mean = torch.randn(query_heads, width, generator=source)
    length = 1 + mean.abs().amax(-1, keepdim=True).expand(-1, pairs)  # no shorter than the mean
    direction = torch.nn.functional.normalize(torch.randn(heads, width, generator=source), dim=-1)
    return QueryStatistics(mean, 2 * length, direction)


UNTRAINED = "untrained"
OF_PROMPT = "of_prompt"
LEAST_SPREAD = 1e-6  # of scores that are scaled to unit variance


@dataclass(frozen=True)
class _Fitted(PromptScorer):
    """`queries` names a file of `kvlab fit` (`mini`: the shipped one; `untrained`: random); `known` holds statistics by
    model layer.
    """

    queries: str = "mini"
    known: Mapping[int, QueryStatistics] = field(default_factory=dict)

    def statistics(self, slots: Slots, layer_pass: AttentionPass) -> QueryStatistics:
        """This layer's statistics, with a leading batch dimension (1 or B), of the heads in `slots`."""
        layer = getattr(layer_pass.module, "layer_idx", None) or 0
        if self.queries == UNTRAINED:
            pairs = 0 if layer_pass.rotary is None else layer_pass.rotary.inverse_frequencies.numel()
            group = layer_pass.query.shape[1] // slots.keys.shape[1]
            found = random_statistics(
                layer_pass.layer_heads * group, layer_pass.layer_heads, slots.keys.shape[3], pairs, layer
            )
        else:
            found = self.known[layer]
        found = found.to(slots.score.device)
        grouped = (part.unflatten(0, (len(found.direction), -1)) for part in (found.mean, found.length))
        mean, length = (layer_pass.of_heads(part).flatten(1, 2) for part in grouped)
        return QueryStatistics(mean, length, layer_pass.of_heads(found.direction))


@dataclass(frozen=True)
class QueryCentres(_Fitted):
    """Score of a key by the mean query of each query head before rotation (TriAttention).

    With rotated pairs f of frequency w_f, mean query q, and a key k that is `age` tokens old, both before rotation:

        mean over offsets 1, 2, 4, .. `furthest` of sum_f |q_f| |k_f| cos((age + offset) w_f + angle(q_f) - angle(k_f))
        + sum_f (E|q_f| - |q_f|) |k_f|

    The first term is the mean dot product of the stored key with q rotated to these future positions, so no key is
    rotated back. Scores of each query head are scaled to mean 0 and variance 1 over the slots that compete; a slot's
    score is the largest over the group, or with `heads` "shared" over all heads of the layer. With `prompt` "keep" the
    prompt's slots score above all others. Coordinates that the model does not rotate have the first term only.
    """

    furthest: int = 65_536
    heads: Literal["each", "shared"] = "each"
    prompt: Literal["compete", "keep"] = "compete"
    state: Mapping[str, float] = field(default_factory=lambda: {OF_PROMPT: False}, hash=False, kw_only=True)

    @property
    def capabilities(self) -> Capabilities:
        """Decisions while decoding need no query, only the slots; heads that keep the same tokens decide together."""
        return Capabilities(recall=self.recall, across_heads=self.heads == "shared")

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 of the prompt; later slots are scored at decisions."""
        return {**self.recall(slots, layer_pass), OF_PROMPT: torch.ones_like(slots.extra[OF_PROMPT])} if first else {}

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 of the current slots."""
        kept = slots.valid & slots.extra[OF_PROMPT] if self.prompt == "keep" else torch.zeros_like(slots.valid)
        kept, competing = kept & slots.valid, slots.valid & ~kept
        # The formula's score (B, H, G, S) for each query head.
        known = self.statistics(slots, layer_pass)
        heads = slots.keys.shape[1]
        key = slots.keys.float()
        now = slots.position.masked_fill(~slots.valid, -1).amax((1, 2)) + 1  # (B,): tokens so far
        centre = known.mean[:, :, None]
        if layer_pass.rotary is not None:
            # by the mean rotation of the positions now + 1, 2, 4, .. furthest
            rotary = layer_pass.rotary
            offset = 2 ** torch.arange(self.furthest.bit_length(), device=now.device)
            # float64: frequencies times 65,536 positions
            angle = (now[:, None] + offset).double()[..., None] * rotary.inverse_frequencies.to(now.device).double()
            cosine, sine = (part.mean(1).float()[:, None, None] for part in (angle.cos(), angle.sin()))
            centre = rotary.rotated(rotary.lengthened(centre).expand(len(now), -1, -1, -1), cosine, sine)
        score = centre.squeeze(2).unflatten(1, (heads, -1)) @ key.mT  # (B, H, G, S)
        if layer_pass.rotary is not None:
            pairs = _pair_lengths(key, layer_pass.rotary)  # (B, H, S, f)
            longer = (known.length - _pair_lengths(known.mean, layer_pass.rotary)) * layer_pass.rotary.scaling
            score = score + longer.unflatten(1, (heads, -1)) @ pairs.mT
        # scaled to mean 0 and variance 1 over the slots that compete
        among = competing[:, :, None]
        count = among.sum(-1, keepdim=True).clamp_min(1)
        mean = (score * among).sum(-1, keepdim=True) / count
        spread = ((score - mean).square() * among).sum(-1, keepdim=True) / count
        score = ((score - mean) / spread.sqrt().clamp_min(LEAST_SPREAD)).amax(2)  # (B, H, S)
        if self.heads == "shared":
            score = score.amax(1, keepdim=True).expand_as(score)
        highest = score.masked_fill(~competing, -torch.inf).amax(-1, keepdim=True)
        newness = slots.position / (slots.position.amax(-1, keepdim=True) + 1)  # below 1
        # ties among kept ones by age: where not all of them fit, the newest stay
        above = torch.where(highest.isfinite(), highest, 0.0) + 1 + newness
        return {"score": torch.where(kept, above, score).contiguous()}


@dataclass(frozen=True)
class QueryFilter(_Fitted):
    """Score = k . u, with u the main direction of the head's queries (Q-Filters).

    The expected attention logit of a key grows with its part along u, because queries hardly leave one side of it.
    """

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 of the current slots."""
        direction = self.statistics(slots, layer_pass).direction
        return {"score": (slots.keys.float() @ direction[..., None]).squeeze(-1)}


def _pair_lengths(states: Tensor, rotary: Rotary) -> Tensor:
    """Length (..., f) of each rotated pair of `states` (..., d)."""
    turning = states[..., : 2 * rotary.inverse_frequencies.numel()]
    pairs = turning.unflatten(-1, (-1, 2) if rotary.interleaved else (2, -1))
    return torch.linalg.vector_norm(pairs, dim=-1 if rotary.interleaved else -2)
