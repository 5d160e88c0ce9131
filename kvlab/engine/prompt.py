"""From a prompt's text to token ids that fit the model, and from ids back to the pieces of text they stand for."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerBase

from kvlab.errors import UserError
from kvlab.models.chat import Chat
from kvlab.models.load import LoadedModel

CONTEXT_PIECES = 8


def encode_prompt(loaded: LoadedModel, prompt: str, max_new_tokens: int, chat: Chat | None = None) -> torch.Tensor:
    """Token ids (1, T) of the prompt, in `chat` where one is given.

    Raises UserError for an empty prompt, or one that exceeds the trained context.
    """
    if not prompt.strip():
        raise UserError("The prompt is empty: paste some text, choose a file, or take a sample prompt.")
    ids = loaded.encode(prompt) if chat is None else loaded.encode(chat.rendered(prompt), special=False)
    room = getattr(loaded.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if room is not None and ids.shape[1] + max_new_tokens > room:
        raise UserError(
            f"The prompt has {ids.shape[1]:,} tokens and {max_new_tokens:,} are to be generated, but {loaded.name} was "
            f"trained on {room:,}: shorten the prompt to at most {max(room - max_new_tokens, 0):,} tokens."
        )
    return ids


def prompt_pieces(
    tokenizer: PreTrainedTokenizerBase, prompt: str, ids: list[int], chat: Chat | None = None
) -> list[str]:
    """The text of each prompt token; joined, special tokens left out, they give back the prompt, or what `chat` made
    of it. Special tokens are shown by their names.
    """
    prompt = prompt if chat is None else chat.rendered(prompt)
    encoded = tokenizer(prompt, return_offsets_mapping=True, verbose=False, add_special_tokens=chat is None)
    offsets, end, pieces = encoded["offset_mapping"], 0, []
    for start, stop in offsets:
        # Tokens that share one character all claim it: the first one gets it.
        pieces.append(prompt[max(start, end) : stop])
        end = max(end, stop)
    special = set(tokenizer.all_special_ids)
    pieces = [""] * (len(ids) - len(pieces)) + pieces
    return [str(tokenizer.convert_ids_to_tokens(i)) if i in special else p for i, p in zip(ids, pieces, strict=True)]


def continuation_pieces(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """The text each generated token added, in order; decoded with a little context so that spaces come out right."""
    pieces = []
    for index in range(len(ids)):
        before = ids[max(0, index - CONTEXT_PIECES) : index]
        known = tokenizer.decode(before) if before else ""
        pieces.append(str(tokenizer.decode([*before, ids[index]]))[len(known) :])
    return pieces
