"""Fit LESS's feature maps layer by layer, so that slots and state together give the full cache's output."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from kvlab.common.atomic_write import replace_file
from kvlab.core.errors import UserError
from kvlab.core.fitted.kinds import refuse_unsupported, write_maps
from kvlab.core.methods.merging.less import FeatureMaps, new_maps
from kvlab.models.fitting.observations import Observation, compressible_layers, observation_bytes, observe, projections
from kvlab.models.fitting.request import FitRequest
from kvlab.models.fitting.text import text_windows
from kvlab.models.load import LoadedModel, held_model

WATCHING = 0.4  # largest share of the time spent running the model
MOST_WINDOWS = 64
MOST_BYTES = 4e9  # of observations held at once: those of an 8B model's 32 layers would take 30 GB
HELD_BACK = 8  # every n-th window is used for evaluation only
LEARNING_RATE = 0.01
CLIP = 1.0


@dataclass(frozen=True)
class Fitted:
    """Maps of one layer and their error on held-out windows: with eviction only, and with the state."""

    maps: FeatureMaps
    before: float
    after: float


def fit_less(request: FitRequest, out: Path, say: Callable[[str], None] = print) -> list[Fitted]:
    """Fit maps for every compressible layer, write them to `out` atomically, and return them.

    The model is frozen and reads windows of text with the full cache. For random queries and budgets, what H2O would
    evict goes to the state, and the maps are fitted to reproduce the layer's output (squared error after its output
    projection, relative to eviction only). Raises UserError for invalid input.
    """
    loaded = held_model(request)
    refuse_unsupported(loaded.model)
    deadline = time.process_time() + 60 * request.minutes
    fitted: list[Fitted] = []
    windows = []
    left = compressible_layers(loaded)
    for block in layer_blocks(loaded, left, request.length):
        share = (deadline - time.process_time()) * len(block) / len(left)
        until = time.process_time() + share
        watched = _watch(loaded, request, block, time.process_time() + WATCHING * share, say)
        windows.append(len(watched[0]))
        for projection in projections(loaded, block):
            layer = len(fitted)
            part = (until - time.process_time()) / len(watched)
            fitted.append(_fit_layer(watched.pop(0), projection, request, layer, time.process_time() + part))
            say(f"layer {layer}: error {fitted[-1].before:.4f} with eviction, {fitted[-1].after:.4f} with the state")
        left = left[len(block) :]
    recorded = ("model", "length", "seed", "rank", "hidden", "form", "minutes")
    about = {name: str(getattr(request, name)) for name in recorded} | {"windows": str(min(windows))}
    about |= {"error_before": f"{sum(f.before for f in fitted) / len(fitted):.4f}"}
    about |= {"error_after": f"{sum(f.after for f in fitted) / len(fitted):.4f}"}
    replace_file(out, lambda path: write_maps(path, [f.maps for f in fitted], loaded.model, about))
    say(f"mean over layers: {about['error_before']} before, {about['error_after']} after; written to {out}")
    return fitted


def layer_blocks(loaded: LoadedModel, layers: list[int], length: int) -> list[list[int]]:
    """Split layers into blocks whose observations of `MOST_WINDOWS` windows fit `MOST_BYTES`, at least one layer each.

    Each block observes the same windows again. Raises UserError for a model without layers to compress.
    """
    if not layers:
        raise UserError(
            "No layer of this model keeps keys and values of the whole text, so there is nothing to compress."
        )
    together = max(1, int(MOST_BYTES / (MOST_WINDOWS * observation_bytes(loaded, length))))
    return [layers[first : first + together] for first in range(0, len(layers), together)]


def _watch(
    loaded: LoadedModel, request: FitRequest, layers: list[int], until: float, say: Callable[[str], None]
) -> list[list[Observation]]:
    """Observations per layer, one per window; at least two windows, whatever the time."""
    windows = text_windows(loaded, request.corpus, request.length, request.seed)
    random = Random(request.seed)
    found: list[list[Observation]] = []
    while len(found) < 2 or (len(found) < MOST_WINDOWS and time.process_time() < until):
        found.append(observe(loaded, next(windows), random, layers))
        if len(found) % 8 == 0:
            say(f"{len(found)} windows of {request.length} tokens observed")
    return [list(layer) for layer in zip(*found, strict=True)]


def _fit_layer(
    observations: Sequence[Observation], projection: Tensor | None, request: FitRequest, layer: int, until: float
) -> Fitted:
    held = observations[::HELD_BACK]
    fitting = [s for index, s in enumerate(observations) if index % HELD_BACK]
    random = Random(request.seed + layer)
    # Start from random maps of the size that queries and keys have.
    first = observations[0]
    heads, group, _, head_dim = first.query.shape
    generator = torch.Generator().manual_seed(request.seed * 1_000_003 + layer)
    sizes = [max(float(states.square().mean().sqrt()), 1e-6) for states in (first.query, first.key)]
    form: Any = request.form  # checked by the request
    start = new_maps(form, heads, group, head_dim, request.hidden, request.rank, generator, *sizes)
    maps = start.map(lambda tensor: tensor.to(first.key.device).requires_grad_())
    parameters = list(maps.tensors().values())
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE)
    begun = time.process_time()
    now = time.process_time()
    while now < until:
        for part in optimizer.param_groups:
            part["lr"] = LEARNING_RATE * (until - now) / (until - begun)
        chosen = random.choice(fitting)
        (chosen.error(maps, projection) / max(chosen.evicted_error, 1e-9)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        now = time.process_time()
    maps = maps.map(Tensor.detach)
    with torch.no_grad():
        after = sum(float(observation.error(maps, projection)) for observation in held) / len(held)
    return Fitted(maps, sum(observation.evicted_error for observation in held) / len(held), after)
