"""The moment a prompt is compressed, as it is recorded: every token's score, and which of them stayed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots
from kvlab.requests.recording import decision_that_fits
from kvlab.trace import RunWriter

ARRAY = "decision"


def write_decision(writer: RunWriter, layer_idx: int, before: Slots, plan: Plan, tokens: int) -> None:
    """Write what a layer of a batch of one decided about the `tokens` read so far, if that was asked for and fits."""
    record, heads = writer.record, before.score.shape[1]
    layers = [layer for layer in range(record.model.num_hidden_layers) if layer not in record.sliding_layers]
    wanted = record.recording.of_layers(layers)
    recorded = record.recording.of_heads(heads)
    kept, sentence = decision_that_fits(wanted, len(recorded), tokens)
    if sentence and ARRAY not in record.left_out:
        writer.update(left_out=record.left_out | {ARRAY: sentence})
    if layer_idx in kept:
        here = before.valid[0]
        score = by_position(before, before.score, here, tokens, torch.nan)
        stayed = by_position(before, plan.keep.float(), here, tokens, 0.0)
        writer.write_arrays(ARRAY, layer_idx, {"score": _host(score, recorded), "kept": _host(stayed, recorded) > 0})


def by_position(slots: Slots, of_slots: Tensor, here: Tensor, tokens: int, absent: float) -> Tensor:
    """(H, `tokens`): (1, H, S) numbers of the slots `here` (H, S) at the positions they are named by."""
    row = torch.full((here.shape[0], tokens + 1), absent, device=here.device)
    place = torch.where(here, slots.position[0].long(), tokens)  # one more column takes what is not there
    return row.scatter(1, place, of_slots[0].float())[:, :tokens]


def _host(numbers: Tensor, heads: list[int]) -> np.ndarray:
    return numbers[heads].cpu().numpy()
