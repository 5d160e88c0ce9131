"""When a slot last had attention, and how long it has ever waited for it (RaaS, LazyEviction)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, Slots
from kvlab.core.methods.scorers.window import query_mass

STAMP = "stamp"  # position of the last query that gave the slot attention; negative: none since it was read
GAP = "gap"  # most positions between two such queries
OF_PROMPT = "of_prompt"
# Less than unequal silences, or their ratios, differ from 0.
TIES = {"stamp": 0.5, "recurrence": 1e-6}


@dataclass(frozen=True)
class TimeStamps:
    """A slot is active at a query whose attention to it, mean over the group, is at least `threshold`.

    Its stamp is the position of the last such query, at first its own; silence = newest position - stamp.

    - `rank` "stamp": score = -silence, so the slot longest without attention goes first (RaaS);
    - `rank` "recurrence": score = -silence / largest gap between two active queries so far, at least 1: a slot that
      used to wait long may wait again (LazyEviction).

    Of equal scores the older goes first. Of the prompt the last `window` queries count. With `prompt` "keep" the
    prompt's slots score above all others.
    """

    threshold: float = 1e-4
    window: int = 32
    rank: Literal["stamp", "recurrence"] = "stamp"
    prompt: Literal["compete", "keep"] = "compete"
    every_step: bool = True
    needs_hidden_states: bool = False

    @property
    def state(self) -> Mapping[str, float]:
        """Slot state: stamps, gaps if ranked by them, and which slots are the prompt's if those are kept."""
        columns: dict[str, float] = {STAMP: -1}
        if self.rank == "recurrence":
            columns[GAP] = 1
        return columns | {OF_PROMPT: False} if self.prompt == "keep" else columns

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=lambda tokens: self.window)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, stamps and gaps after this pass."""
        rows = min(self.window, layer_pass.num_new) if first else layer_pass.num_new
        newest = slots.position.masked_fill(~slots.valid, -1).amax((1, 2))  # (B,)
        mass = layer_pass.last_mass()[:, :, None] if rows == 1 else query_mass(slots, layer_pass, rows).mean(2)
        age = torch.arange(rows - 1, -1, -1, device=newest.device)
        time = (newest[:, None] - age)[:, None, :, None]  # (B, 1, r, 1)
        known = slots.extra[STAMP]
        stamp = torch.where(known < 0, slots.position, known)
        # attention to itself is not attention since it was read
        active = (mass >= self.threshold) & (time > slots.position[:, :, None])
        stamps = torch.cat([stamp[:, :, None], torch.where(active, time, -1)], 2).cummax(2).values
        changed = {STAMP: stamps[:, :, -1].to(known.dtype)}
        if self.rank == "recurrence":
            gaps = torch.where(active, time - stamps[:, :, :-1], 1).amax(2)
            changed[GAP] = torch.maximum(slots.extra[GAP], gaps.to(known.dtype))
        if first and self.prompt == "keep":
            changed[OF_PROMPT] = torch.ones_like(slots.valid)
        silence = (newest[:, None, None] - changed[STAMP]).float()
        if self.rank == "recurrence":
            silence = silence / changed[GAP]
        # ties are the rule among the slots that the newest query looks at
        newness = (slots.position + 1) / (newest[:, None, None] + 2)  # below 1
        score = newness * TIES[self.rank] - silence
        if self.prompt == "keep":
            score = torch.where(changed.get(OF_PROMPT, slots.extra[OF_PROMPT]), 1 + newness, score)
        return changed | {"score": score}
