"""StreamingLLM: attention sinks plus a recent window."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import Evict, LowestScore, NewKeys, Pipeline, Plan, Preset, View, gather
from kvlab.core.contract.method import Method, Sinks, register
from kvlab.core.contract.parts import NONE, Capabilities, Scorer, Selector, Settler, optional
from kvlab.core.errors import UserError
from kvlab.core.methods.scorers.recency import Recency

SINK_KEYS = "sink_keys"
SINK_POSITION = "sink_position"
SINK_TURN = "sink_turn"


@dataclass(frozen=True)
class EvictAndReposition:
    """Plain eviction for sinks and a window, with positions counted inside the cache.

    Rotary attention depends on distances only. Distances within the gapless window are the same in text and cache; only
    the sinks (and explicitly kept tokens) are too far away, by the number of missing tokens. After each decision their
    keys are rotated forward by that many positions, each time from keys kept in the head state (`sink_keys`, at their
    original positions), because stepwise rotation would accumulate rounding errors in half precision.
    """

    capabilities: ClassVar[Capabilities] = NONE

    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    def fitted_to(self, score: Scorer, select: Selector, method_score: Scorer) -> tuple[Scorer, Settler]:
        """Only with a window without gaps."""
        if score != method_score or optional(select, "sinks") is None:
            raise UserError(
                "Positions inside the cache need sinks and a window without gaps: use score 'recency' and selection "
                "'topk' or 'oldest', or positions 'original'."
            )
        return score, self

    def settle(self, view: View, select: Selector) -> Plan:
        """Evict everything over budget; raises UserError for a model without rotary positions."""
        slots = view.slots
        rotary = view.layer_pass.rotary
        leading = int(optional(select, "sinks") or 0)  # slots that may precede the window: also explicitly kept tokens
        if rotary is None:
            raise UserError("This model has no rotary positions to count inside the cache: use positions 'original'.")
        keep = select.victims(view, view.excess(), view.most_excess).keep(slots.valid)
        if leading == 0:
            return Plan(keep=keep)
        never = torch.iinfo(slots.position.dtype).max
        first = slots.position.masked_fill(~keep, never).argsort(stable=True, dim=-1)[..., :leading]
        position = gather(slots.position, first).int()
        # Missing tokens (B, H, E) between each of the first slots and the next token.
        behind = keep.sum(-1, keepdim=True) - torch.arange(first.shape[-1], device=first.device)
        missing = view.tokens_seen[:, None, None] - gather(slots.position, first) - behind
        turn = torch.where(gather(keep, first), missing, 0).to(torch.int32)
        # Original keys (B, H, E, d): those kept in the head state where the stored ones are turned.
        keys = gather(slots.keys, first)
        state = view.head_state
        if SINK_KEYS in state:
            same = position[..., :, None] == state[SINK_POSITION][..., None, :]
            same = same & (state[SINK_TURN] != 0)[..., None, :]
            before = same.to(torch.int8).argmax(-1)
            keys = torch.where(same.any(-1, keepdim=True), gather(state[SINK_KEYS], before), keys)
        return Plan(
            keep=keep,
            new_keys=NewKeys(first, torch.where(turn[..., None] == 0, keys, rotary.turn(keys, turn).to(keys.dtype))),
            head_state={SINK_KEYS: keys, SINK_POSITION: position, SINK_TURN: turn},
        )

    def head_bytes(self, keys: Tensor, values: Tensor, select: Selector) -> int:
        """Bytes of the first slots' original keys and two numbers each."""
        return int(optional(select, "sinks") or 0) * (keys[0, 0, 0].nbytes + 8)


@register
class StreamingLLM(Method):
    """Keeps the first few tokens (attention sinks) and the most recent ones.

    `positions="cache"`, as in the authors' code, counts positions inside the cache, so that a stream may exceed the
    model's context window: sinks come right before the recent tokens, wherever those are in the text. With `original`
    (default) every token keeps its position in the text, as with all other methods.
    """

    name = "streaming-llm"
    family = "eviction"
    title = "StreamingLLM"

    sinks: Sinks = 4
    positions: Literal["original", "cache"] = Field(
        "original", description="positions of tokens in the text, or of slots inside the cache (the authors' code)"
    )

    paper = "https://arxiv.org/abs/2309.17453"
    presets = {
        "paper": Preset(
            "the paper's streams",
            {
                "sinks": (4, "section 3.2 and table 2: four sinks are enough"),
                "positions": ("cache", "section 3.2: positions within the cache"),
            },
        ),
        "code": Preset(
            "the authors' chat example, with 2,000 recent slots",
            {
                "sinks": (4, "examples/run_streaming_llama.py, start_size"),
                "positions": ("cache", "streaming_llm/pos_shift/modify_llama.py"),
            },
            beyond=(
                "The original stores unrotated keys and rotates them at every step; here sinks are rotated as the "
                "window moves, which gives the same distances."
            ),
        ),
        "perplexity": Preset(
            "the authors' perplexity script with its defaults and 255 recent slots",
            {
                "sinks": (1, "streaming_llm/utils.py, start_size"),
                "positions": ("original", "streaming_llm/utils.py: enable_pos_shift is off by default"),
            },
        ),
    }
    reasons = {
        "sinks": "the paper's; the perplexity script's own default is 1",
        "positions": (
            "tokens keep their positions in the text, as with every other method, and models without rotary positions "
            "have no other choice; within the trained length both work"
        ),
    }

    def pipeline(self) -> Pipeline:
        settle = EvictAndReposition() if self.positions == "cache" else Evict()
        return Pipeline(Recency(), select=LowestScore(sinks=self.sinks), settle=settle)
