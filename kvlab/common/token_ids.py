"""Token ids without a row in the model's embedding, which a tokenizer may have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvlab.common.errors import UserError


def check_ids(ids: Iterable[int], model: Any, tokenizer: Any) -> None:
    """Raises UserError for the first id without a row in the model's embedding."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    beyond = next((index for index in ids if index >= rows), None)
    if beyond is not None:
        raise UserError(
            f"The text holds the token {tokenizer.convert_ids_to_tokens(beyond)!r} (id {beyond:,}), but the model's "
            f"embedding has {rows:,} rows: leave the token out, or give a model whose embedding was resized for it "
            "(resize_token_embeddings)."
        )


def padding_id(model: Any, tokenizer: Any) -> int | None:
    """A token to pad finished rows with: the tokenizer's own if the model can read it."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((index for index in known if index is not None and index < rows), None)
