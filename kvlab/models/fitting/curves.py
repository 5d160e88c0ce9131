"""Measure LU-KV's curves: how many slots of each head later text needs, at every budget of the model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from kvlab.common.atomic_write import replace_file
from kvlab.core.attention.pass_view import PassView
from kvlab.core.attention.slot_attention import probabilities
from kvlab.core.cache import make_cache
from kvlab.core.cache.settings import Observer
from kvlab.core.contract.view import Slots
from kvlab.core.fitted.kinds import write_profile
from kvlab.core.methods.composition.composed import compose
from kvlab.core.methods.scorers.value_norm import output_norms
from kvlab.models.fitting.request import FitRequest
from kvlab.models.load import LoadedModel

BUDGETS = tuple(percent / 100 for percent in range(1, 100))
LATER = 128  # last tokens of a window, which are the later text
# ranked first in every head, as in kvpress's lukv_press.py
SINKS = 4
RECENT = 1


def fit_curves(
    request: FitRequest,
    loaded: LoadedModel,
    out: Path,
    windows: Iterable[Tensor],
    report: Callable[[str], None] = print,
) -> Tensor:
    """Write heads' shares of the slots, mean over windows (1, T), to `out` atomically and return them (budgets, L, H).

    Raises UserError as `make_cache`.
    """
    found = []
    for ids in windows:
        gains = falling(ranked_importance(loaded, ids, request.score))
        found.append(
            torch.stack([split(gains, round(budget * gains[..., 0].numel() * gains.shape[-1])) for budget in BUDGETS])
        )
    counts = torch.stack(found).double().mean(0)
    shares = counts / counts.sum((1, 2), keepdim=True)
    fifth = shares[BUDGETS.index(0.2)] * shares[0].numel()
    report(f"at 20 % heads get {float(fifth.min()):.2f} to {float(fifth.max()):.2f} times the average")
    about = {name: str(getattr(request, name)) for name in ("score", "windows", "length", "seed")}
    replace_file(
        out, lambda path: write_profile(path, list(BUDGETS), shares, loaded.model, about | {"model": loaded.name})
    )
    return shares


@torch.inference_mode()
def ranked_importance(loaded: LoadedModel, ids: Tensor, score: str) -> Tensor:
    """Importance (L, H, T) of the first T tokens of a window (1, T + LATER) to the others, in the order of a score.

    Importance is max_k ||A_kj v_j W_o|| over later queries k (LU-KV's oracle), here also over a group's query heads.
    First in each head are sinks and recent tokens, then the highest scores of the method `score`, which reads the first
    T tokens alone.
    """
    tokens = ids.shape[1] - LATER
    oracle = Oracle(tokens)
    loaded.model(ids, past_key_values=make_cache(loaded, "full", observer=oracle), logits_to_keep=1)
    cache = make_cache(loaded, compose(score, "global"), 0.5)
    loaded.model(ids[:, :tokens], past_key_values=cache, use_cache=True, logits_to_keep=1)
    layers = cache.compressed_layers()
    scores = torch.stack([cache.settings.statistics[layer.compressed_index][0].float().cpu() for layer in layers])
    scores[..., :SINKS] = scores[..., tokens - RECENT :] = torch.inf
    order = scores.argsort(dim=-1, descending=True, stable=True)
    return torch.stack([oracle.found[layer.layer_idx] for layer in layers]).gather(-1, order)


@dataclass
class Oracle(Observer):
    """An `Observer` of a full cache: importance (H, T) of each layer's first `tokens` to the queries after them."""

    tokens: int
    found: dict[int, Tensor] = field(default_factory=dict)
    compressed = Observer.compressed  # a full cache decides nothing

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        mass = probabilities(layer_pass.last_logits(layer_pass.num_new - self.tokens), None, layer_pass.sinks)[
            ..., : self.tokens
        ]
        norms = output_norms(slots.values[:, :, : self.tokens], layer_pass.output_weight(), 2)
        self.found[layer_idx] = (mass.amax(3) * norms).amax(2)[0].cpu()


def falling(gains: Tensor) -> Tensor:
    """The closest non-increasing sequences to `gains` (..., T), by least squares: pool adjacent violators.

    What keeping one more slot gains then falls, so that giving slots one by one to the highest gain is optimal.
    """
    fitted = []
    for row in gains.double().flatten(0, -2).tolist():
        blocks: list[tuple[float, int]] = []  # (sum, length), with falling means
        for gain in row:
            total = gain
            length = 1
            while blocks and blocks[-1][0] * length < total * blocks[-1][1]:
                before = blocks.pop()
                total = total + before[0]
                length = length + before[1]
            blocks.append((total, length))
        fitted.append([total / length for total, length in blocks for _ in range(length)])
    return torch.tensor(fitted, dtype=torch.float64).view_as(gains)


def split(gains: Tensor, total: int) -> Tensor:
    """Slots (L, H) of heads with falling `gains` (L, H, T): the `total` highest gains of the model win."""
    won = torch.zeros(gains.numel(), dtype=torch.bool)
    won[gains.flatten().argsort(descending=True, stable=True)[:total]] = True
    return won.view_as(gains).sum(-1)
