"""Edits of a method's decisions about tokens of a text: keep, drop or merge them. Torch-free."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.restore import Restore, RestoreKind, token_words

Edit = Literal["keep", "drop", "merge"]
KINDS: dict[Edit, RestoreKind] = {"keep": "tokens", "drop": "drop", "merge": "merge"}


def edit_tokens(
    choice: MethodChoice, edit: Edit, tokens: Collection[int], head: tuple[int, int] | None = None
) -> MethodChoice:
    """The choice with `tokens` kept, dropped or merged, in every head or in one (layer, head).

    Tokens kept in every head count in the budget; those kept in one head come on top of it. Edits add up; those of one
    head are of one kind. Raises UserError if an edit of one head would replace another one.
    """
    chosen = set(tokens)
    returned = choice.returned
    kept = set(choice.force_keep) - chosen
    if returned is not None and returned.tokens and returned.heads is None:
        left = set(returned.tokens) - chosen
        returned = returned.model_copy(update={"tokens": tuple(sorted(left))}) if left else None
    if edit == "keep" and head is None:
        kept |= chosen
    else:
        # beside those that are changed already
        heads = None if head is None else (head,)
        kind = KINDS[edit]
        if returned is None:
            returned = Restore(kind=kind, tokens=tuple(sorted(chosen)), heads=heads)
        elif (returned.kind, returned.heads) != (kind, heads):
            raise UserError(f"This lane already has the edit “{returned.description}”: undo it first.")
        else:
            returned = returned.model_copy(update={"tokens": tuple(sorted({*returned.tokens, *chosen}))})
    return choice.model_copy(update={"force_keep": tuple(sorted(kept)), "returned": returned})


def without_edits(choice: MethodChoice) -> MethodChoice:
    """The method alone."""
    return choice.model_copy(update={"force_keep": (), "returned": None})


def edit_words(choice: MethodChoice) -> str:
    """What was edited, such as `keeps tokens 738-742; without token 12`; empty without edits."""
    kept = [f"keeps {token_words(choice.force_keep)}"] if choice.force_keep else []
    return "; ".join([*kept, *([choice.returned.description] if choice.returned else [])])
