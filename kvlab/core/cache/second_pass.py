"""Second pass: read the context again over the full prompt, then roll back before any decision.

`make_cache` installs hooks that report the prompt's token ids to the cache and run the second pass at the end of the
prompt's last pass. So `model.generate(..., past_key_values=cache)` reads the prompt again without further code, and
prefill timings include it.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from kvlab.core.attention.inline_attention import find_cache
from kvlab.core.attention.queries import STARTS_ANEW
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.cache_copy import copy_with_settings
from kvlab.core.cache.fan_out_cache import FanOutCache, caches_in
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.layers.decisions import decide_pending, decide_pending_layer, note_statistic
from kvlab.core.cache.layers.second_pass_queries import roll_back, save_checkpoint
from kvlab.core.cache.second_pass_texts import Piece, context_pieces, read_ids, write_texts, written_lengths
from kvlab.core.cache.settings import SecondPass
from kvlab.core.contract.second_pass import STUDIES, SecondPassRequest
from kvlab.core.errors import UserError
from kvlab.core.validation import check_ids

_LISTENS = "_kvlab_listens_to_prompts"


def second_pass_state(plan: SecondPassRequest, model: PreTrainedModel, tokenizer: Any) -> SecondPass:
    """State of a second pass. Without a tokenizer there is no request: only the context is read again."""
    asks = [] if tokenizer is None else [plan.ask, *(STUDIES if plan.study else ())]
    ids = [list(tokenizer(ask, add_special_tokens=False)["input_ids"]) for ask in asks] or [[]]
    for ask in ids:
        check_ids(ask, model, tokenizer)
    start = getattr(tokenizer or model.config.get_text_config(decoder=True), "bos_token_id", None)
    return SecondPass(plan, ids[0], start, ids[1:])


def install_second_pass(model: PreTrainedModel) -> None:
    """Install hooks that report prompts to caches that read them again (idempotent).

    Raises UserError for a model that cannot continue from its prompt with several tokens.
    """
    if hasattr(model, STARTS_ANEW):
        raise UserError(
            f"This method reads the prompt a second time, but models of family {model.config.model_type!r} reset their "
            "recurrent state at every pass of several tokens: choose a method without a second pass."
        )
    if not getattr(model, _LISTENS, False):
        model.register_forward_pre_hook(_note, with_kwargs=True)
        model.register_forward_hook(_end, with_kwargs=True)
        setattr(model, _LISTENS, True)


@torch.no_grad()
def run_second_pass(model: PreTrainedModel, caches: Sequence[CompressedCache]) -> FanOutCache:
    """Read the context again, score with its queries, roll back, and let all layers decide.

    The caches have read one prompt in shared passes and read the same pieces again. Their `second_pass_seconds` are
    what each would take alone. Returns the cache that served them: its branches tell errors and the seconds of
    decisions.
    """
    states = [_state(cache) for cache in caches]
    settings = caches[0].settings
    state = states[0]
    for each in states:
        each.running = True
    fan_out = FanOutCache(caches, caches[0].compressed_layers()[0].device, settings.timed)
    begun = fan_out.now()
    window = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    room = window if isinstance(window, int) else 2**62
    pieces = list(context_pieces(state, room))
    left = room - sum(ids.shape[1] for ids in state.ids)
    try:
        _read_again(model, caches, fan_out if len(caches) > 1 else caches[0], pieces, left)
        common = fan_out.now() - begun - sum(branch.seconds for branch in fan_out.branches)
        for branch in fan_out.branches:
            branch.run(partial(_conclude, model, branch.cache, list(pieces), state.mask), fan_out.now)
    finally:
        for each in states:
            each.running = False
    for branch in fan_out.branches:
        branch.cache.settings.second_pass_seconds += common + branch.seconds + branch.charged
        branch.seconds = branch.charged = 0.0
        if branch.error is None:
            state = _state(branch.cache)
            state.done = True
            state.ids = []
            state.mask = state.next_logits = None
            if not branch.cache.settings.stays_pending:
                branch.run(partial(decide_pending, branch.cache.settings), fan_out.now)
    return fan_out


def _state(cache: CompressedCache) -> SecondPass:
    assert cache.settings.second_pass is not None
    return cache.settings.second_pass


def _conclude(model: PreTrainedModel, cache: CompressedCache, pieces: list[Piece], before: Tensor | None) -> None:
    """Note the allocator's statistics; with an on-policy second pass, decide layer by layer."""
    settings = cache.settings
    for layer in cache.compressed_layers():
        if settings.pending is not None:
            note_statistic(layer, settings.pending[layer.compressed_index].layer_pass)
    if _state(cache).plan.on_policy and not settings.stays_pending:
        # Decide layer by layer, with queries from a second pass through the layers compressed so far (on-policy).
        pending = settings.pending or {}
        references = settings.pipeline.references
        every = _every(pieces, [], references)
        for compressed_index in sorted(pending):
            waiting = pending.pop(compressed_index)  # what a decided layer held goes at once
            if compressed_index and references:
                waiting.layer.references = None
                for piece in pieces:
                    # Those of a piece that a copy of the cache reads; peaks include the copy.
                    held = settings.held
                    trial = copy_with_settings(cache, settings)
                    settings.held.peak = settings.held.total
                    trial_layer = trial.compressed_layers()[compressed_index]
                    trial_layer.checkpoint = save_checkpoint(trial_layer, every)
                    read_ids(model, trial, *piece, before)
                    held.peak = max(held.peak, held.total + settings.held.peak)
                    settings.held = held
                    waiting.layer.references = trial_layer.references
                    del trial, trial_layer  # the copy's memory goes before anything else is made
            decide_pending_layer(waiting)
        settings.pending = None


def _second_pass_key(cache: CompressedCache) -> tuple[object, ...]:
    """Caches with the same prompt for which this is equal read the same pieces again."""
    state = _state(cache)
    seed = cache.settings.seed if state.plan.continuations else 0
    return state.plan.piece, state.plan.study, state.plan.continuations, seed, state.ask, state.studies, state.context


def _read_again(
    model: PreTrainedModel, caches: Sequence[CompressedCache], served: Cache, pieces: list[Piece], room: int
) -> None:
    """Run each piece through all layers of `caches`, which `served` serves; texts that the model writes are generated
    first and appended to `pieces`. `room`: tokens left in the model's context window.
    """
    layers = [layer for one in caches for layer in one.compressed_layers()]
    state = _state(caches[0])
    written = written_lengths(state, room)
    most = max([ids.shape[1] for ids, _ in pieces] + written, default=0)
    others = {at: layer for at, layer in enumerate(caches[0].layers) if not isinstance(layer, CompressedLayer)}
    checkpoints = [
        save_checkpoint(layer, _every(pieces, written, one.settings.pipeline.references))
        for one in caches
        for layer in one.compressed_layers()
    ]
    for one in caches:
        pending = one.settings.pending
        assert pending is not None
        for layer, first in zip(one.compressed_layers(), caches[0].compressed_layers(), strict=True):
            table = layer.buckets[0].table
            table.make_room(most)
            layer.note_peak(layer.table_bytes() + table.left_bytes)
            if layer is not first:
                table.share_states(first.buckets[0].table)
            pending[layer.compressed_index] = replace(
                pending[layer.compressed_index], layer_pass=layer.seen_again(pending[layer.compressed_index].layer_pass)
            )

    def replace_others(change: Callable[[Any], Any]) -> None:
        for at, layer in others.items():
            changed = change(layer)
            for one in (served, *caches):
                one.layers[at] = changed

    def take_back() -> None:
        replace_others(copy.deepcopy)
        for layer, checkpoint in zip(layers, checkpoints, strict=True):
            roll_back(layer, checkpoint)
        if isinstance(served, FanOutCache):
            served.follow_first()

    replace_others(copy.deepcopy)  # the layers themselves may serve other caches too
    pieces += write_texts(model, served, state, room, caches[0].settings.seed, take_back)
    for layer, checkpoint in zip(layers, checkpoints, strict=True):
        layer.checkpoint = checkpoint
    for ids, mask in pieces:
        read_ids(model, served, ids, mask, state.mask)
        take_back()
    for layer, checkpoint in zip(layers, checkpoints, strict=True):
        table = layer.buckets[0].table
        table.slots = table.stored()  # without free space, whose memory is freed by `detach`
        table.set_integers(checkpoint.position_dtype)
        layer.checkpoint = None
    replace_others(lambda layer: layer)


def _every(pieces: list[Piece], more: list[int], references: int) -> list[int]:
    """Stride per row that keeps about `references` queries; `more`: lengths of further pieces."""
    rows = len(pieces[0][0]) if pieces else 1
    total = sum(
        (torch.full((rows,), ids.shape[1]) if mask is None else mask.sum(-1).cpu() for ids, mask in pieces),
        torch.full((rows,), sum(more)),
    )
    return [max(1, math.ceil(count / max(references, 1))) for count in total.tolist()]


def _waiting(given: Any) -> list[CompressedCache]:
    """The caches of a pass whose second pass is still to come."""
    states = [(cache, cache.settings.second_pass) for cache in caches_in(given)]
    return [cache for cache, state in states if state is not None and not state.done and not state.running]


def _note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for cache in _waiting(find_cache(args, kwargs)):
        ids = args[0] if args else kwargs.get("input_ids")
        if not isinstance(ids, Tensor):
            raise UserError("This method reads the prompt a second time: pass input_ids to the model, not embeddings.")
        state = _state(cache)
        mask = kwargs.get("attention_mask")
        state.ids.append(ids)
        state.counts_padding = kwargs.get("position_ids") is None
        tokens_read = sum(part.shape[1] for part in state.ids)
        state.mask = None
        if isinstance(mask, Tensor) and mask.dim() == 2 and not mask[:, :tokens_read].all():
            state.mask = mask[:, :tokens_read]


def _end(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    served = find_cache(args, kwargs)
    if isinstance(served, FanOutCache) and not served.is_split:
        served.copy_recurrent_states()
    complete = [one for one in _waiting(served) if len(one.settings.pending or {}) == one.settings.num_layers]
    for cache in complete:
        if _state(cache).plan.continuations:
            logits = output[0] if isinstance(output, tuple) else output.logits
            _state(cache).next_logits = logits[:, -1].detach().clone()
    while complete:
        alike = [cache for cache in complete if _second_pass_key(cache) == _second_pass_key(complete[0])]
        complete = [cache for cache in complete if cache not in alike]
        begun = time.perf_counter()
        again = run_second_pass(module, alike)  # type: ignore[arg-type]  # the hook is installed on a model only
        if isinstance(served, FanOutCache):
            # Take over errors and decision times of branches that read the prompt again.
            by_cache = {id(branch.cache): branch for branch in served.branches}
            for branch in again.branches:
                mine = by_cache[id(branch.cache)]
                mine.error = branch.error
                mine.charged += branch.seconds
            served.second_pass_seconds += time.perf_counter() - begun
            served.check()
        else:
            again.check()
