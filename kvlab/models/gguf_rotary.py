"""Rotary positions and head width of a GGUF file, which transformers reads in part: what its config lacks.

llama.cpp divides the frequency of pair i by `rope_freqs[i]` and by `rope.scaling.factor`, and YaRN mixes both by pair.
transformers' reader drops all of it, so that a scaled model would run with unscaled positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kvlab.core.errors import UserError

FREQS = "rope_freqs.weight"
LONG = "rope_factors_long.weight"
SHORT = "rope_factors_short.weight"
PARTIAL = ("phi3", "stablelm", "nemotron")  # families whose attention rotates a part of each head, if so configured
FITTED = 1e-5  # relative error of the factors of Llama 3 that were found again

Read = Callable[[str], Any]  # the value of a key of the architecture, None if the file lacks it


def complete_config(config: Any, read: Read, tensors: dict[str, np.ndarray]) -> None:
    """Put head width and rotary positions of a file into its config. Raises UserError for what has no counterpart."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:  # no rotary positions
        return
    # Families with sliding windows scale their full-attention layers alone, as llama.cpp does.
    layered = "full_attention" in parameters
    rope = dict(parameters["full_attention"] if layered else parameters)
    if not layered:
        rope |= _widths(config, read, rope)
    if rope.get("rope_type") != "proportional":  # Gemma 4's own, whose factors the file holds too
        rope |= _theta(read) | _scaling(config, read, tensors, rope | _theta(read))
    config.rope_parameters = {**parameters, "full_attention": rope} if layered else rope
    if "original_max_position_embeddings" in rope and hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = rope["original_max_position_embeddings"]  # Phi-3 reads it there


def _theta(read: Read) -> dict[str, float]:
    return {} if (base := read("rope.freq_base")) is None else {"rope_theta": float(base)}


def _widths(config: Any, read: Read, rope: dict[str, Any]) -> dict[str, Any]:
    """Set the head width, and return the share of a head that rotates."""
    known = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = int(read("attention.key_length") or known)
    if width != known:
        config.head_dim = width
    rotated = read("rope.dimension_count")
    share = 1.0 if rotated is None else int(rotated) / width
    if rotated is None or share == rope.get("partial_rotary_factor", 1.0):
        return {}
    if config.model_type not in PARTIAL:
        raise UserError(
            f"it rotates {int(rotated)} of the {width} numbers of a head, which transformers does not for a "
            f"{config.model_type} model"
        )
    return {"partial_rotary_factor": share}


def _scaling(config: Any, read: Read, tensors: dict[str, np.ndarray], rope: dict[str, Any]) -> dict[str, Any]:
    """transformers' parameters of the file's scaling; empty if it has none."""
    kind = read("rope.scaling.type") or "linear"  # llama.cpp's default, as is the older name of the factor
    factor = float(read("rope.scaling.factor") or read("rope.scale_linear") or 1.0)
    attention = float(read("rope.scaling.attn_factor") or 1.0)
    before = int(read("rope.scaling.original_context_length") or config.max_position_embeddings)
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UserError(f"its rotary positions are scaled by {kind!r}, which transformers does not know")
    if kind == "yarn":
        names = {"ext_factor": 1.0, "attn_factor": 1.0, "log_multiplier": 0.0}
        changed = [name for name, usual in names.items() if read(f"rope.scaling.yarn_{name}") not in (None, usual)]
        if changed or tensors:
            raise UserError(
                f"its YaRN positions have {'factors of their own' if tensors else f'a {changed[0]}'}, for which "
                "transformers has no setting"
            )
        betas = {name: read(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": before,
            "attention_factor": attention * (0.1 * math.log(max(factor, 1.0)) + 1.0),
            **{name: float(beta) for name, beta in betas.items() if beta is not None},
        }
    factor = 1.0 if kind == "none" else factor
    if LONG in tensors and SHORT in tensors:
        return _longrope(tensors[SHORT] * factor, tensors[LONG] * factor, attention, before)
    factors = factor * tensors.get(FREQS, np.ones(1, np.float32))
    if attention != 1.0:
        raise UserError("its rotary positions have an attention factor without YaRN or two sets of frequencies")
    if np.all(factors == factors[0]):
        return {} if factors[0] == 1.0 else {"rope_type": "linear", "factor": float(factors[0])}
    longest = config.max_position_embeddings  # the same frequencies before and after it
    return _llama3(factors, rope) or _longrope(factors, factors, 1.0, longest)


def _longrope(short: np.ndarray, long: np.ndarray, attention: float, before: int) -> dict[str, Any]:
    """A set of frequencies up to `before` tokens and one beyond."""
    return {
        "rope_type": "longrope",
        "short_factor": short.tolist(),
        "long_factor": long.tolist(),
        "attention_factor": attention,
        "original_max_position_embeddings": before,
    }


def _llama3(factors: np.ndarray, rope: dict[str, Any]) -> dict[str, Any]:
    """The parameters of Llama 3.1 that give these factors; empty if none do.

    1 / factor is 1 for short waves, 1 / `factor` for long ones, and linear in the frequency between them. Its line
    there determines the two bounds, of which one scale is free: Llama's `low_freq_factor` is 1.
    """
    frequency = rope["rope_theta"] ** (-np.arange(len(factors)) / len(factors)) / (2 * math.pi)
    factor = float(factors.max())
    kept = (1 / factors.astype(np.float64) - 1 / factor) / (1 - 1 / factor)  # the share of the unscaled frequency
    between = (kept > FITTED) & (kept < 1 - FITTED)
    if between.sum() < 2:
        return {}
    slope, start = np.polyfit(frequency[between], kept[between], 1)
    high = round(1 - 1 / start, 4)
    before = round(slope * (high - 1))
    smooth = np.clip((before * frequency - 1) / (high - 1), 0, 1)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=FITTED, atol=0):
        return {}
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": before,
    }
