"""Training examples for LESS: a layer's output on a window of text, with and without eviction."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from kvlab.core.attention.pass_view import PassView
from kvlab.core.attention.queries import full_attention_config, num_key_value_heads
from kvlab.core.attention.slot_attention import slot_logits
from kvlab.core.cache import make_cache
from kvlab.core.cache.settings import Observer
from kvlab.core.contract.view import Slots
from kvlab.core.methods.merging.less import FeatureMaps
from kvlab.core.stores.quantized_states import dense_states
from kvlab.models.load import LoadedModel

ROWS = 96  # queries observed per window
BLOCK = 64  # scores are accumulated up to the last multiple of this many queries
BUDGETS = (0.05, 0.4)  # shares of the window, log-uniform
NEVER = -1e30


@dataclass(frozen=True)
class Observation:
    """Some queries of a window, with G query heads for each of H KV heads; `dropped` tokens go to the state.

    Sums over kept tokens are divided by exp(`top`), the largest kept logit.
    """

    query: Tensor  # (H, G, r, d)
    key: Tensor  # (H, T, d)
    value: Tensor  # (H, T, d)
    dropped: Tensor  # (H, r, T) bool
    top: Tensor  # (H, G, r, 1)
    numerator: Tensor  # (H, G, r, d)
    denominator: Tensor  # (H, G, r, 1)
    true: Tensor  # (H, G, r, d): output of the full cache
    evicted_error: float  # of the layer's output without state: squared, relative to its norm

    def error(self, maps: FeatureMaps, projection: Tensor | None) -> Tensor:
        phi = maps.of_queries(self.query[None])[0]  # (H, G, r, R)
        psi = maps.of_keys(self.key[None])[0]  # (H, T, R)
        kernel = (phi @ psi[:, None].transpose(-1, -2)) * self.dropped[:, None] * (-self.top).exp()
        total = self.denominator + kernel.sum(-1, keepdim=True)
        return relative_error((self.numerator + kernel @ self.value[:, None]) / total, self.true, projection)


@dataclass
class Watcher(Observer):
    """An `Observer` of a full cache that creates one observation per requested layer."""

    random: Random
    layers: Collection[int]
    found: dict[int, Observation] = field(default_factory=dict)
    compressed = Observer.compressed  # a full cache decides nothing

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        if layer_idx in self.layers:
            key = slots.keys[0].float()
            value = slots.values[0].float()
            tokens = key.shape[1]
            low, high = (math.log(share) for share in BUDGETS)
            budget = max(2, round(tokens * math.exp(self.random.uniform(low, high))))
            choices = range(min(budget + BLOCK, tokens - 1), tokens)
            rows = torch.tensor(sorted(self.random.sample(choices, min(ROWS, len(choices)))), device=key.device)
            # Logits (H, G, r, T) of the rows, and attention (H, r, T) to each token up to the last block before them.
            total = torch.zeros(layer_pass.key.shape[1:3], device=key.device)
            parts: list[tuple[Tensor, Tensor]] = []
            for first in range(0, layer_pass.num_new, BLOCK):
                found = slot_logits(
                    layer_pass.query[:, :, first : first + BLOCK],
                    dense_states(layer_pass.key),
                    first=first,
                    rows=layer_pass.num_new,
                    scaling=layer_pass.scaling,
                    softcap=layer_pass.softcap,
                )[0]
                mine = rows[(rows >= first) & (rows < first + BLOCK)] - first
                parts.append((found[:, :, mine], total[:, None].expand(-1, len(mine), -1)))
                total = total + torch.softmax(found, -1).mean(1).sum(1)
            logits = torch.cat([part for part, _ in parts], 2)
            scores = torch.cat([part for _, part in parts], 1)
            kept = heavy_and_recent(scores, rows, budget)  # (H, r, T)
            past = torch.arange(tokens, device=key.device) <= rows[:, None]
            left = logits.masked_fill(~kept[:, None], NEVER)
            top = left.amax(-1, keepdim=True)
            weight = (left - top).exp()
            numerator = weight @ value[:, None]
            denominator = weight.sum(-1, keepdim=True)
            true = torch.softmax(logits, -1) @ value[:, None]
            projection = None if layer_pass.module is None else output_projection(layer_pass.module)
            evicted = float(relative_error(numerator / denominator, true, projection))
            query = layer_pass.query[0, :, rows].float().unflatten(0, (key.shape[0], -1))
            self.found[layer_idx] = Observation(
                query, key, value, past & ~kept, top, numerator, denominator, true, evicted
            )


@torch.no_grad()
def observe(
    loaded: LoadedModel, ids: Tensor, random: Random, layers: Collection[int] | None = None
) -> list[Observation]:
    """Observations of `layers` (default: all compressible ones), in order, for token ids (1, T)."""
    watcher = Watcher(random, compressible_layers(loaded) if layers is None else layers)
    loaded.model(ids, past_key_values=make_cache(loaded, "full", observer=watcher), logits_to_keep=1)
    return [watcher.found[layer] for layer in sorted(watcher.found)]


def compressible_layers(loaded: LoadedModel) -> list[int]:
    """Indices of the layers that can be compressed."""
    return [layer.layer_idx for layer in make_cache(loaded, "full").compressed_layers()]


def observation_bytes(loaded: LoadedModel, tokens: int) -> int:
    """Bytes of one observation of one layer, for a window of `tokens`."""
    config = full_attention_config(loaded.model.config.get_text_config(decoder=True))
    heads = num_key_value_heads(config)
    d = getattr(config, "head_dim", 0)
    d = d or config.hidden_size // config.num_attention_heads
    group = config.num_attention_heads // heads
    rows = min(ROWS, tokens)
    floats = heads * (2 * tokens * d + group * rows * (3 * d + 2))  # keys and values; query, sums and true output
    return 4 * floats + heads * rows * tokens  # and evicted tokens, as bools


def projections(loaded: LoadedModel, layers: Sequence[int]) -> Iterator[Tensor | None]:
    """Output projections (hidden, Hq * d) of `layers`, so that errors count as the model sees them.

    None for unknown modules.
    """
    everything: Any = loaded.model.modules()
    modules = {
        module.layer_idx: module
        for module in everything
        if isinstance(getattr(module, "layer_idx", None), int) and _output_linear(module) is not None
    }
    for layer in layers:
        yield output_projection(modules[layer]) if layer in modules else None


def output_projection(module: nn.Module) -> Tensor | None:
    """Output projection (hidden, Hq * d) of an attention module; None if it is quantized or unknown."""
    linear = _output_linear(module)
    if linear is None:
        return None
    weight = linear.weight.detach()
    return (weight.to_dense() if weight.is_mkldnn else weight).float()


def _output_linear(module: nn.Module) -> nn.Linear | None:
    for name in ("o_proj", "dense"):
        linear = getattr(module, name, None)
        if isinstance(linear, nn.Linear) and linear.weight.shape == (linear.out_features, linear.in_features):
            return linear
    return None


def relative_error(approximate: Tensor, true: Tensor, projection: Tensor | None) -> Tensor:
    """||approximate - true||^2 / ||true||^2 of outputs (H, G, r, d), after the output projection if there is one."""
    joined = [states.flatten(0, 1).transpose(0, 1).flatten(1) for states in (approximate - true, true)]
    off, size = (states if projection is None else states @ projection.T for states in joined)
    return off.square().sum() / size.square().sum().clamp_min(1e-12)


def heavy_and_recent(scores: Tensor, rows: Tensor, budget: int) -> Tensor:
    """Slots (H, r, T) that H2O keeps for each row: half the budget of recent tokens, and the highest scores before."""
    recent = max(1, budget // 2)
    column = torch.arange(scores.shape[-1], device=scores.device)
    newest = (column > rows[:, None] - recent) & (column <= rows[:, None])
    older = scores.masked_fill(column > rows[:, None] - recent, -1.0)
    heavy = torch.zeros_like(older, dtype=torch.bool).scatter(-1, older.topk(budget - recent, -1).indices, True)
    return (heavy | newest) & (column <= rows[:, None])
