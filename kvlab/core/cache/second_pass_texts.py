"""Texts that a second pass reads: pieces of the context, answers to requests, and sampled continuations."""

import inspect
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from kvlab.core.cache.fan_out_cache import caches_in
from kvlab.core.cache.settings import SecondPass
from kvlab.core.contract.second_pass import CONTINUATION, OVERLAP

LEAST_PIECE = 128  # lower bound of tokens per piece, even if the model's trained length is smaller
Piece = tuple[Tensor, Tensor | None]  # ids (B, n) and mask (B, n)


def context_pieces(state: SecondPass, room: int) -> Iterator[Piece]:
    """(ids (B, n), mask (B, n) or None) of each pass, right-padded so that windows are contiguous.

    `room` is the model's context window. Each row is cut as it would be alone; rows with fewer pieces are empty in the
    last passes.
    """
    ids = torch.cat(state.ids, 1)
    real = None if state.mask is None else state.mask[:, -ids.shape[1] :].bool().tolist()
    rows = []  # tokens that are read again: without padding, question and BOS token
    for place, row in enumerate(ids.tolist()):
        context = row[: state.context]
        if real is not None:
            context = [token for token, is_real in zip(context, real[place], strict=False) if is_real]
        rows.append(context[1:] if context and context[0] == state.start else context)
    prompts = [ids.shape[1]] * len(rows) if real is None else [sum(row) for row in real]
    counts = []  # pieces of each row
    for row, prompt in zip(rows, prompts, strict=True):
        longest = max(room - prompt - len(state.ask) - OVERLAP, LEAST_PIECE)
        counts.append(math.ceil(len(row) / min(state.plan.piece, longest)))
    for place in range(max(counts)):
        cuts = zip(rows, counts, strict=True)
        parts: list[list[int]] = []
        for row, count in cuts:
            if place < count:
                begin = max(len(row) * place // count - (OVERLAP if place else 0), 0)
                parts.append(state.ask + row[begin : len(row) * (place + 1) // count])
            else:
                parts.append([])
        width = max(len(part) for part in parts)
        if width == 0:
            continue
        padded = [part + [0] * (width - len(part)) for part in parts]
        mask = [[1] * len(part) + [0] * (width - len(part)) for part in parts]
        as_mask = torch.tensor(mask, device=ids.device)
        yield torch.tensor(padded, device=ids.device), as_mask if real is not None or not as_mask.all() else None


def written_lengths(state: SecondPass, room: int) -> list[int]:
    """Tokens of each text that the model writes: requests with answers, then continuations.

    `room`: tokens left in the model's context window after the prompt. Continuations that do not fit are left out.
    """
    asked = [len(ask) + state.plan.study for ask in state.studies]
    continued = [CONTINUATION] * state.plan.continuations if room >= CONTINUATION else []
    return asked + continued


def write_texts(
    model: PreTrainedModel, served: Cache, state: SecondPass, room: int, seed: int, take_back: Callable[[], None]
) -> list[Piece]:
    """Let the model write the texts of `written_lengths`, each after the full prompt, with `take_back` after each.

    Continuations are sampled at temperature 1 from `seed`, a row alone as in a batch.
    """
    texts = []
    batch = caches_in(served)[0].compressed_layers()[0].head_index.batch
    for ask in state.studies:
        first = torch.tensor([ask] * batch)
        texts.append(_write(model, served, first, len(ask), state.plan.study, None, state.mask))
        take_back()
    for number in range(len(written_lengths(state, room)) - len(state.studies)):
        assert state.next_logits is not None
        draws = torch.rand(CONTINUATION, generator=torch.Generator().manual_seed(seed + number))
        first = _choose(state.next_logits, draws[0])
        texts.append(_write(model, served, first, 0, CONTINUATION - 1, draws, state.mask))
        take_back()
    return texts


def _choose(logits: Tensor, draw: Tensor | None) -> Tensor:
    """Token ids (B, 1): the likeliest, or the inverse of the cumulative distribution at a `draw` that rows share."""
    if draw is None:
        return logits.argmax(-1, keepdim=True)
    total = logits.float().softmax(-1).cumsum(-1)
    wanted = draw.to(total.device) * total[:, -1:]
    return torch.searchsorted(total, wanted, right=True).clamp_max(total.shape[-1] - 1)


def _write(
    model: PreTrainedModel,
    cache: Cache,
    first: Tensor,
    asked: int,
    tokens: int,
    draws: Tensor | None,
    before: Tensor | None,
) -> Piece:
    """The ids `first` (B, n) and `tokens` that the model generates after them; tokens after EOS are masked.

    `asked`: leading ids that are a request and stay, whatever they are. `before`: mask (B, T) of the prompt.
    `draws` (1 + tokens,) are uniform numbers of sampled tokens; None: the likeliest ones.
    """
    layer = caches_in(cache)[0].compressed_layers()[0]
    output = model.get_output_embeddings()
    new = written = first.to(layer.device)
    for step in range(1, tokens + 1):
        hidden = read_ids(model, cache, new, None if before is None else torch.ones_like(new), before)
        before = None if before is None else torch.cat([before, torch.ones_like(new).to(before)], 1)
        new = _choose(output(hidden[:, -1]), None if draws is None else draws[step])
        written = torch.cat([written, new], 1)
    ends = torch.as_tensor(getattr(model.generation_config, "eos_token_id", None) or [], device=written.device)
    over = torch.isin(written[:, asked:], ends).cumsum(1) > 0
    mask = torch.cat([torch.ones_like(written[:, :asked]), (~over).long()], 1)
    return written, None if before is None and bool(mask.all()) else mask


def read_ids(model: PreTrainedModel, cache: Cache, ids: Tensor, mask: Tensor | None, before: Tensor | None) -> Tensor:
    """Hidden states (B, n, hidden) of `ids` after the tokens the cache has seen."""
    # without the output layer
    decoder = model.base_model
    given = {}
    if mask is not None:
        tokens = caches_in(cache)[0].compressed_layers()[0].cumulative_length
        past_mask = torch.ones_like(mask[:, :1]).expand(-1, tokens) if before is None else before.to(mask)
        given["attention_mask"] = torch.cat([past_mask, mask], 1)
        # Queries of the second pass stand where the first pass, by its position ids or without them, put the keys.
        first_pass = caches_in(cache)[0].settings.second_pass
        counts_padding = first_pass is not None and first_pass.counts_padding
        if not counts_padding and "position_ids" in inspect.signature(decoder.forward).parameters:
            given["position_ids"] = (given["attention_mask"].cumsum(-1) - 1)[:, -ids.shape[1] :].clamp_min(0)
    return decoder(ids, past_key_values=cache, use_cache=True, **given)[0]
