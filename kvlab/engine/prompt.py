"""Encode a prompt into token ids that fit the model, and decode ids into the text of each token."""

from collections.abc import Set
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.models.chat import Chat, decode_answer, special_tokens
from kvlab.models.load import LoadedModel
from kvlab.trace.token_text import split_text


def encode_prompt(loaded: LoadedModel, prompt: str, max_new_tokens: int, chat: Chat | None = None) -> torch.Tensor:
    """Token ids (1, T) of the prompt, rendered with the chat template `chat` if given.

    Raises UserError for an empty prompt, or one that exceeds the model's context window.
    """
    if not prompt.strip():
        raise UserError("The prompt is empty: paste some text, choose a file, or take a sample prompt.")
    ids = loaded.encode(prompt) if chat is None else loaded.encode(chat.rendered(prompt), special=False)
    window = getattr(loaded.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if window is not None and ids.shape[1] + max_new_tokens > window:
        raise UserError(
            f"The prompt has {ids.shape[1]:,} tokens and {max_new_tokens:,} are to be generated, but the context "
            f"window of {loaded.name} is {window:,}: shorten the prompt to at most "
            f"{max(window - max_new_tokens, 0):,} tokens."
        )
    return ids


def prompt_pieces(
    tokenizer: PreTrainedTokenizerBase, prompt: str, ids: list[int], chat: Chat | None = None, special: bool = True
) -> list[str]:
    """The text of each prompt token, special tokens by name; the others joined are the prompt as rendered by `chat`.

    `special`: whether the tokenizer put special tokens such as BOS before a text without `chat`.
    """
    prompt = prompt if chat is None else chat.rendered(prompt)
    encoded = tokenizer(prompt, return_offsets_mapping=True, verbose=False, add_special_tokens=special and chat is None)
    named = set(tokenizer.all_special_ids)
    prompt_ids = ids[len(ids) - len(encoded["offset_mapping"]) :]
    end = 0
    pieces = [""] * (len(ids) - len(prompt_ids))
    for token, (start, stop) in zip(prompt_ids, encoded["offset_mapping"], strict=True):
        if token in named and start > end and pieces:
            pieces[-1] += prompt[end:start]  # as this token is shown by name
        # Tokens that share a character all claim it: it goes to the first one. What no token claims, such as a space
        # that offsets leave out, goes to the next.
        pieces.append(prompt[end:stop])
        end = max(end, stop)
    return [str(tokenizer.convert_ids_to_tokens(i)) if i in named else p for i, p in zip(ids, pieces, strict=True)]


@dataclass(frozen=True)
class Continuation:
    """Generated text, and what each token added to it."""

    text: str  # without special tokens and the end token
    pieces: list[str]  # the text each token added; joined they are `text`
    shown: list[str]  # the pieces with special and end tokens by name
    special: list[bool]  # whether each token is a special or the end token


def continuation(tokenizer: PreTrainedTokenizerBase, ids: list[int], ends: Set[int]) -> Continuation:
    """Decode generated tokens; `ends` are the ids that end a text (`kvlab.engine.forward.end_ids`)."""
    ended = bool(ids) and ids[-1] in ends
    written = ids[:-1] if ended else ids
    left_out = special_tokens(tokenizer)[1]
    special = [*(token in left_out for token in written), *[True] * ended]
    pieces = split_text(lambda part: decode_answer(tokenizer, part), written) + [""] * ended
    names = (str(tokenizer.convert_ids_to_tokens(token)) for token in ids)
    shown = [name if hidden else piece for hidden, piece, name in zip(special, pieces, names, strict=True)]
    return Continuation("".join(pieces), pieces, shown, special)


@dataclass
class Reference:
    """The full cache's greedy continuation: token ids and, on the host, the log-probabilities (V,) of each choice.

    It grows while the full cache decodes, with the same attention function as every method.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[Tensor] = field(default_factory=list)


def divergence(full: Tensor, compressed: Tensor) -> tuple[float, bool]:
    """(KL(full || compressed) in nats, whether the most likely tokens agree) of two log-probability rows (V,)."""
    compressed = compressed.to(full.device)
    gap = torch.where(torch.isneginf(full), 0.0, full.exp() * (full - compressed))
    return max(float(gap.sum()), 0.0), bool(full.argmax() == compressed.argmax())
