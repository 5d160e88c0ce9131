"""Models that peft wrapped or changed: the transformers model inside, and what cannot be known of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvlab.common.errors import UserError

MERGE = "merge the adapter (merge_and_unload().save_pretrained(FOLDER), the tokenizer too)"


def without_adapter_wrapper(model: Any) -> Any:
    """The transformers model inside a PEFT model, whose `generate` calls it past the wrapper; any other as it is.

    Raises UserError for an adapter that puts states of its own before the prompt's.
    """
    if not hasattr(model, "peft_config") or not hasattr(model, "get_base_model"):
        return model
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UserError(
            "This adapter learned states that stand before the prompt, which a compressed cache has no place for: use "
            "an adapter of weights, such as LoRA, or the model without it."
        )
    return model.get_base_model()


@contextmanager
def fitted_to_whole_weights(model: Any) -> Iterator[None]:
    """A fitted file that does not belong to the weights is said to need merged weights, where an adapter is in them."""
    try:
        yield
    except UserError as error:
        if not hasattr(model, "peft_config"):
            raise
        raise UserError(
            f"This method reads a file that was fitted to a model's weights, and an adapter changes these: {MERGE}, "
            "load FOLDER with kvlab.load_model, and fit the method to it."
        ) from error
