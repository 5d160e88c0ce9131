"""Hybrids: layers with attention beside layers with a recurrent state, which kvlab leaves as it is.

Jamba and Bamba start their state anew at every pass of more than one token (transformers 5.23), so that a
prompt in chunks or a second turn would silently forget what came before.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from kvlab.attention.text_config import STARTS_ANEW
from kvlab.common.errors import UserError


def refuse_later_passes(model: nn.Module) -> None:
    """From now on such a pass raises UserError (again does no harm)."""
    if not hasattr(model, STARTS_ANEW):
        model.register_forward_pre_hook(_check, with_kwargs=True)
        setattr(model, STARTS_ANEW, True)


def _check(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    cache, ids = named.get("past_key_values"), given[0] if given else named.get("input_ids")
    if cache is not None and ids is not None and ids.shape[1] > 1 and cache.get_seq_length() > 0:
        raise UserError(
            f"Models of family {module.config.model_type!r} start their recurrent state anew at every pass of several "  # type: ignore[union-attr]
            "tokens, so the whole text must come in one: leave prefill chunks and second turns out."
        )


def compressed_only(kinds: list[str], compressed: list[int]) -> str:
    """The sentence for a model of which only some layers are compressed because others keep a state; else empty."""
    stateful = [index for index, kind in enumerate(kinds) if kind in ("linear_attention", "conv")]
    if any(kind.startswith("hybrid") for kind in kinds):
        return "Each layer's recurrent state is left as it is: only its attention is compressed."
    if not stateful:
        return ""
    return (
        f"{len(stateful)} of {len(kinds)} layers keep a recurrent state, which does not grow with the text and is left "
        f"as it is: compressed is the attention of {len(compressed)} layers ({', '.join(map(str, compressed))})."
    )
