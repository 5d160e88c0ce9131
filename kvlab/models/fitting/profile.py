"""A model's profile of head shares: the result of a model-wide cut, averaged over texts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch

from kvlab.core.cache import make_cache
from kvlab.core.fitted.profiles import write_profile
from kvlab.models.fitting.request import FitRequest
from kvlab.models.fitting.text import text_windows
from kvlab.models.load import LoadedModel, held_model

BUDGETS = (0.05, 0.1, 0.2, 0.5)


def make_profile(request: FitRequest, out: Path, say: Callable[[str], None] = lambda line: None) -> torch.Tensor:
    """Write the profile to `out` and return its shares (budgets, L, H), which sum to 1 per budget.

    Each window of text is read, and read again, as in `kvzip` with 16 recent tokens; a head's share is its part of all
    slots after the cut. Raises UserError as `load_model` and `text_windows`.
    """
    loaded = held_model(request)
    found = []
    windows = islice(text_windows(loaded, request.corpus, request.length, request.seed), request.windows)
    for number, ids in enumerate(windows):
        found.append(torch.stack([_counts(loaded, ids, budget) for budget in BUDGETS]))
        say(f"text {number + 1} of {request.windows}: {found[-1].shape[1]} layers, {found[-1].shape[2]} heads")
    counts = torch.stack(found).double().mean(0)
    shares = counts / counts.sum((1, 2), keepdim=True)
    about = {"texts": str(request.windows), "tokens": str(request.length), "seed": str(request.seed)}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_profile(out, list(BUDGETS), shares, loaded.model, about | {"model": loaded.name})
    for budget, by_layer in zip(BUDGETS, shares.sum(-1).tolist(), strict=True):
        parts = ", ".join(f"{100 * share:.0f}" for share in by_layer)
        say(f"at {100 * budget:g} % the layers get these percentages of all slots: {parts}")
    return shares


@torch.inference_mode()
def _counts(loaded: LoadedModel, ids: torch.Tensor, budget: float) -> torch.Tensor:
    """Slots (L, H) given to each head."""
    cache = make_cache(loaded, "kvzip", budget, recent=16)
    loaded.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return torch.stack([layer.budget[0].cpu() for layer in cache.compressed_layers() if layer.budget is not None])
