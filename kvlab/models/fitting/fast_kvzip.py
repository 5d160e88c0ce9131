"""Fit Fast KVzip's gates: hidden states in, the scores of a second pass out, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from kvlab.core.methods.learned.score_networks import SinkGate, new_gate
from kvlab.models.fitting.request import FitRequest

# As in the authors' optim.py and utils.py; the rate rises for a hundredth of the steps, and is halved after a half and
# again after three quarters.
RATE = 0.2
MOMENTUM = 0.9
GATE_BATCH = 1000


def fit_gate(states: Tensor, scores: Tensor, request: FitRequest, layer: int, group: int) -> SinkGate:
    """Fit the gate of one layer to states (n, D) and log scores (n, H) of a second pass, both float32.

    Minimises the binary cross-entropy of gates and scores, mean over tokens, sum over KV heads, each with `group` query
    heads (Fast KVzip, section 3; stochastic gradient descent as in the authors' optim.py).
    """
    source = torch.Generator().manual_seed(request.seed + layer)
    gate = new_gate(states.shape[1], scores.shape[1], group, request.rank, request.sink_keys, source)
    parts = [tensor.requires_grad_() for tensor in gate.tensors().values()]
    optimizer = torch.optim.SGD(parts, RATE, MOMENTUM)
    wanted = scores.exp().clamp(0, 1)
    order = torch.empty(0, dtype=torch.int64)
    place = 0
    for step in range(request.steps):
        if place + GATE_BATCH > len(order):
            order = torch.randperm(len(states), generator=source)
            place = 0
        rows = order[place : place + GATE_BATCH]
        place = place + GATE_BATCH
        optimizer.param_groups[0]["lr"] = RATE * rate_at(step, request.steps)
        given = gate.predict(states[None, rows])[0].T.exp()
        loss = binary_cross_entropy(given, wanted[rows], reduction="none").mean(0).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return SinkGate(**{name: tensor.detach() for name, tensor in gate.tensors().items()})


def rate_at(step: int, steps: int) -> float:
    """Learning rate of a step, relative to its maximum."""
    if step < 0.01 * steps:
        return step / (0.01 * steps)
    return 1.0 if step < 0.5 * steps else 0.5 if step < 0.75 * steps else 0.25
