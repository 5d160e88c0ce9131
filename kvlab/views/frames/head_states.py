"""Recorded key and value vectors of a head, and which heads to read if a run has too many."""

from collections.abc import Sequence

import numpy as np

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run

KEYS = "keys as cached"
BEFORE = "keys before rotation"
VALUES = "values"
MOST_VECTORS = 400_000  # unit vectors per figure, for an acceptable page load time


def head_states(run: Run, layer: int, head: int, tokens: int | None = None) -> dict[str, np.ndarray]:
    """Unit vectors (tokens, head_dim) by kind, of the first `tokens` or all.

    `BEFORE` is missing if no rotary frequencies were recorded; in a layer without rotation it equals the keys.

    Raises:
        UserError: the run has no such layer or head, or did not record its keys.
    """
    keys = run.keys(layer, head)[0][:tokens]
    model = run.record.model
    states = {KEYS: keys}
    if model.rotary_inverse_frequencies is not None:
        rotary = (model.rotary_inverse_frequencies, model.rotary_interleaved, model.rotary_scaling)
        states[BEFORE] = keys if layer in model.unrotated_layers else undo_rotation(keys, *rotary)
    return states | {VALUES: run.values(layer, head)[0][:tokens]}


def recorded_layers(run: Run) -> list[int]:
    """Layers with a compressed cache; sliding-window layers record nothing."""
    return [layer for layer in range(run.record.model.num_hidden_layers) if layer not in run.record.sliding_layers]


def spread_heads(
    run: Run, most_layers: int = 64, vectors: int = MOST_VECTORS, tokens: int | None = None
) -> list[tuple[int, int]]:
    """Evenly spread (layer, KV head) pairs whose first `tokens` (or all) add up to about `vectors` at most."""
    length = run.record.prompt_tokens
    layers = run.record.recorded_states.of_layers(recorded_layers(run))
    most = max(1, vectors // max(1, length if tokens is None else min(length, tokens)))
    layers = _spread(layers, min(most_layers, most))
    recorded = run.record.recording.of_heads(run.record.model.num_key_value_heads)
    heads = _spread(recorded, max(1, most // max(1, len(layers))))
    return [(layer, head) for layer in layers for head in heads]


def heads_with_states(run: Run) -> int:
    """Number of heads whose vectors were recorded."""
    layers = run.record.recorded_states.of_layers(recorded_layers(run))
    return len(layers) * len(run.record.recording.of_heads(run.record.model.num_key_value_heads))


def readable_heads(run: Run, heads: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of `heads` whose keys were recorded; a cancelled run may lack some.

    Raises:
        UserError: none were recorded, or their files are damaged.
    """
    there = set()
    reason = None
    for layer, head in dict(heads).items():
        try:
            run.keys(layer, head)  # all heads of a layer are in one file
            there.add(layer)
        except UserError as error:
            reason = reason or error
    if reason is not None and not there:
        raise reason
    return [(layer, head) for layer, head in heads if layer in there]


def _spread(values: list[int], most: int) -> list[int]:
    if len(values) <= most:
        return values
    return [values[place] for place in np.linspace(0, len(values) - 1, most).round().astype(int)]


def undo_rotation(
    unit: np.ndarray, inverse_frequencies: Sequence[float], interleaved: bool = False, scaling: float = 1.0
) -> np.ndarray:
    """Undo the rotary embedding of unit keys (tokens, head_dim), renormalised, float32; row t is position t.

    `inverse_frequencies` in radians per position: coordinate i is rotated with i + n (n frequencies), or 2 i with 2 i +
    1 if `interleaved`; the remaining coordinates are not rotated. `scaling` is the factor applied to the rotated
    coordinates, which changes a key's direction if only some are rotated.
    """
    frequencies = np.asarray(inverse_frequencies, np.float64)
    width = 2 * len(frequencies)
    keys = unit.astype(np.float32)
    angle = np.arange(len(unit))[:, None] * frequencies
    cosine = np.cos(angle).astype(np.float32)
    sine = np.sin(angle).astype(np.float32)
    turned = keys[:, :width]
    rest = keys[:, width:]
    pairs = turned.reshape(len(keys), *((-1, 2) if interleaved else (2, -1)))
    apart = 2 if interleaved else 1
    first, second = np.moveaxis(pairs, apart, 0)
    back = np.stack([first * cosine + second * sine, second * cosine - first * sine], apart)
    before = np.concatenate([back.reshape(turned.shape) / np.float32(scaling), rest], axis=1)
    return before / np.maximum(np.linalg.norm(before, axis=1, keepdims=True), np.finfo(np.float32).tiny)
