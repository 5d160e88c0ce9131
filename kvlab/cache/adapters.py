"""PEFT adapters: unwrap the model, and report fitted files that do not match adapted weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvlab.common.errors import UserError

MERGE = "merge the adapter (merge_and_unload().save_pretrained(FOLDER), the tokenizer too)"


def unwrap_adapter(model: Any) -> Any:
    """Return the transformers model inside a PEFT model, whose `generate` bypasses the wrapper; other models unchanged.

    Raises UserError for prompt-learning adapters, which put their own states before the prompt.
    """
    if not hasattr(model, "peft_config") or not hasattr(model, "get_base_model"):
        return model
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UserError(
            "This adapter puts learned states before the prompt, which a compressed cache does not support: use an "
            "adapter of weights such as LoRA, or the model without the adapter."
        )
    return model.get_base_model()


@contextmanager
def explain_adapter_mismatch(model: Any) -> Iterator[None]:
    """Explain that an adapter must be merged when a fitted file does not match the weights."""
    try:
        yield
    except UserError as error:
        if not hasattr(model, "peft_config"):
            raise
        raise UserError(
            f"This method reads a file fitted to a model's weights, which an adapter changes: {MERGE}, load FOLDER "
            "with kvlab.load_model, and fit the method to it."
        ) from error
