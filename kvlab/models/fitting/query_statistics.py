"""Measure what a model's queries have in common: for TriAttention and Q-Filters."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from kvlab.common.atomic_write import replace_file
from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache import make_cache
from kvlab.core.cache.settings import Observer
from kvlab.core.contract.view import Slots
from kvlab.core.fitted.kinds import write_query_statistics
from kvlab.core.methods.scorers.query_statistics import QueryStatistics
from kvlab.models.fitting.request import FitRequest
from kvlab.models.load import LoadedModel


def fit_query_statistics(
    request: FitRequest,
    loaded: LoadedModel,
    out: Path,
    windows: Iterable[Tensor],
    report: Callable[[str], None] = print,
) -> dict[int, QueryStatistics]:
    """Write the statistics of windows (1, T), each read once, to `out` atomically; return them by model layer."""
    watcher = Watcher()
    for ids in windows:
        with torch.inference_mode():
            loaded.model(ids, past_key_values=make_cache(loaded, "full", observer=watcher), logits_to_keep=1)
    found = {layer: sums.statistics() for layer, sums in sorted(watcher.layers.items())}
    for layer, sums in sorted(watcher.layers.items()):
        report(f"layer {layer}: {sums.concentration():.2f} of the queries' length is their mean's")
    about = {name: str(getattr(request, name)) for name in ("windows", "length", "seed")} | {"model": loaded.name}
    replace_file(out, lambda path: write_query_statistics(path, found, loaded.model, about))
    return found


@dataclass
class Sums:
    """Sums over the queries of one layer so far, float64."""

    heads: int  # KV heads
    count: int = 0
    total: Tensor | float = 0.0  # (Hq, d) before rotation
    length: Tensor | float = 0.0  # (Hq, f)
    turned: Tensor | float = 0.0  # (Hq, d), as they attend
    squares: Tensor | float = 0.0  # (Hq, d, d), as they attend

    def add(self, query: Tensor, layer_pass: PassView) -> None:
        """Add queries (Hq, T, d) of a text from position 0 on, as they attend."""
        plain = query
        asked = query.double()
        if layer_pass.rotary is not None:
            position = torch.arange(query.shape[1], device=query.device)
            plain = layer_pass.rotary.turn(query, -position.expand(query.shape[:2])) / layer_pass.rotary.scaling
            width = 2 * layer_pass.rotary.inverse_frequencies.numel()
            plain = torch.cat([plain[..., :width], query[..., width:].float()], -1)
            pairs = plain[..., :width].unflatten(-1, (-1, 2) if layer_pass.rotary.interleaved else (2, -1))
            self.length = self.length + pairs.double().norm(dim=-1 if layer_pass.rotary.interleaved else -2).sum(1)
        else:
            self.length = asked.new_zeros(len(asked), 0)
        self.count += query.shape[1]
        self.total = self.total + plain.double().sum(1)
        self.turned = self.turned + asked.sum(1)
        self.squares = self.squares + asked.mT @ asked

    def statistics(self) -> QueryStatistics:
        """The statistics of all queries."""
        assert isinstance(self.total, Tensor) and isinstance(self.length, Tensor)
        assert isinstance(self.squares, Tensor) and isinstance(self.turned, Tensor)
        direction = torch.linalg.eigh(self.squares).eigenvectors[..., -1]  # (Hq, d)
        direction = direction * torch.where((direction * self.turned).sum(-1, keepdim=True) < 0, -1.0, 1.0)
        of_heads = direction.unflatten(0, (self.heads, -1)).mean(1)
        of_heads = torch.nn.functional.normalize(of_heads, dim=-1)
        parts = self.total / self.count, self.length / self.count, of_heads
        return QueryStatistics(*(part.float().cpu() for part in parts))

    def concentration(self) -> float:
        """Length of the mean query over the root mean square length of queries, mean over query heads."""
        assert isinstance(self.total, Tensor) and isinstance(self.squares, Tensor)
        rms = (self.squares.diagonal(dim1=-2, dim2=-1).sum(-1) / self.count).sqrt()
        return float(((self.total / self.count).norm(dim=-1) / rms).mean())


@dataclass
class Watcher(Observer):
    """An `Observer` of a full cache that sums up each layer's queries."""

    layers: dict[int, Sums] = field(default_factory=dict)
    compressed = Observer.compressed  # a full cache decides nothing

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        self.layers.setdefault(layer_idx, Sums(slots.keys.shape[1])).add(layer_pass.query[0], layer_pass)
