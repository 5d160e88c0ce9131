"""Hybrids: layers with attention and layers with a recurrent state, which kvlab leaves unchanged.

Jamba and Bamba reset their state at every pass of more than one token (transformers 5.23), so a prompt in chunks or a
second turn would silently lose earlier text.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from kvlab.attention.queries import STARTS_ANEW
from kvlab.common.errors import UserError


def refuse_later_passes(model: nn.Module) -> None:
    """Make such passes raise UserError (idempotent)."""
    if not hasattr(model, STARTS_ANEW):
        model.register_forward_pre_hook(_check, with_kwargs=True)
        setattr(model, STARTS_ANEW, True)


def _check(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    cache, ids = named.get("past_key_values"), given[0] if given else named.get("input_ids")
    if cache is not None and ids is not None and ids.shape[1] > 1 and cache.get_seq_length() > 0:
        raise UserError(
            f"Models of family {module.config.model_type!r} reset their recurrent state at every pass of several "  # type: ignore[union-attr]
            "tokens, so the whole text must come in one pass: do not use prefill chunks or second turns."
        )


def compressed_only(kinds: list[str], compressed: list[int]) -> str:
    """Note for a model of which only some layers are compressed because others keep a state; else empty."""
    stateful = [index for index, kind in enumerate(kinds) if kind in ("linear_attention", "conv")]
    if any(kind.startswith("hybrid") for kind in kinds):
        return "Each layer's recurrent state is unchanged: only its attention is compressed."
    if not stateful:
        return ""
    return (
        f"{len(stateful)} of {len(kinds)} layers keep a recurrent state, which does not grow with the text and is "
        f"unchanged: kvlab compresses the attention of {len(compressed)} layers ({', '.join(map(str, compressed))})."
    )
