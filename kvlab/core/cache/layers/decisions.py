"""Decide after attention: score, check whether a decision is due, plan, apply, free evicted slots."""

import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, cast

import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache.buckets.joined_layer import join_decisions
from kvlab.core.cache.buckets.regroup import compact_buckets
from kvlab.core.cache.layers.dispatch import decision_kernel, kernel_input, reusable_work, run_kernel
from kvlab.core.cache.layers.layer_state import LayerState
from kvlab.core.cache.settings import LayerSettings, PendingLayer, synchronize
from kvlab.core.contract import ASKED, Rotary, Slots, View
from kvlab.core.stores.code import query_squares
from kvlab.core.stores.store import QUERY_SQUARES


@dataclass(frozen=True)
class DecisionTiming:
    """When this pass is: `due` has for each bucket whether a decision follows."""

    due: list[bool]
    is_prompt: bool
    is_decode_step: bool
    phase: Literal["prefill", "decode"]


def decide(
    layer: LayerState,
    passes: Sequence[PassView],
    visible: Sequence[Slots],
    reported: PassView | None,
    completes_prompt: bool,
    idle: Sequence[bool] = (),
) -> None:
    """Score the slots and compress the layer if due; `completes_prompt`: this pass completes the prompt.

    `visible`: the visible slots of each table, with log mass; `idle`: buckets that this pass gives no token.
    """
    pipeline = layer.settings.pipeline
    timing = _timing(layer, passes[0].num_new, completes_prompt, idle)
    # Whether an in-place kernel has scored and decided, for each bucket; kernels make no plan for observers.
    compressed = [False] * len(layer.buckets)
    kernel = decision_kernel(layer.device)
    settings = layer.settings
    if (
        kernel is not None
        and pipeline.in_place is not None
        and settings.observer is None
        and not settings.store.packs
        and (timing.is_decode_step and all(timing.due) and layer.waiting == 1)
    ):
        of_buckets = zip(layer.buckets, passes, layer.head_index.by_row(layer.tokens_seen), strict=True)
        works = [reusable_work(*one) for one in of_buckets]
        if any(work is None for work in works):
            views = _views(layer, passes, timing, None)
            known = zip(works, views, layer.buckets, strict=True)
            works = [work or kernel_input(view, pipeline, bucket) for work, view, bucket in known]
        compressed = [run_kernel(work, bucket, kernel) for work, bucket in zip(works, layer.buckets, strict=True)]
    score = pipeline.can.score
    rescores = pipeline.decode and pipeline.buffer > 0 and score.recall is not None
    rescores = rescores and layer.settings.compresses and not timing.is_prompt
    parts = zip(layer.tables, visible, passes, timing.due, compressed, strict=True)
    for table, slots, part, due, whole in parts:
        if whole:
            continue
        if completes_prompt or part.num_new > 1 or score.note is None:
            table.store(_updated(layer, slots, part, completes_prompt))
        else:
            score.note(slots, part)
        if rescores and due:
            assert score.recall is not None
            table.store(score.recall(slots, part))
    if layer.buckets[0].table.columns.counts is not None:
        # Record which queries the scores include; of a prompt, the last ones that the scorer uses.
        for table, part, tokens in zip(layer.tables, passes, layer.head_index.by_row(layer.tokens_seen), strict=True):
            if completes_prompt:
                rows = part.rows_seen(score.prompt_rows(part.num_new))[:, 0, 0]
                asked = torch.stack([tokens - rows, tokens], -1).long()
                table.head_state[ASKED] = asked[:, None].repeat(1, table.slots.keys.shape[1], 1)
            else:
                table.head_state[ASKED].select(-1, 1).copy_(tokens[:, None])
    if all(compressed):
        layer.waiting = 0
        return
    if completes_prompt:
        note_statistic(layer, passes[0])
    elif timing.is_decode_step and not any(timing.due):
        return
    if not (completes_prompt and (settings.stays_pending or (pipeline.waits and settings.compresses))):
        compress_if_due(layer, passes, visible, reported, completes_prompt, compressed, idle)
        return
    # Defer the layer's decision; the last layer triggers it for all, unless a second pass follows.
    layer_pass = passes[0]
    if not (settings.stays_pending or pipeline.score.needs_hidden_states):
        layer_pass = layer_pass.newest(pipeline.prompt_rows(layer_pass.num_new))  # decisions use no other rows
    _detach(layer)
    settings.pending = {} if settings.pending is None else settings.pending
    settings.pending[layer.compressed_index] = PendingLayer(layer, layer.seen_again(layer_pass), reported is not None)
    last = len(settings.pending) == settings.num_layers
    if last and pipeline.second_pass is None and not settings.stays_pending:
        decide_pending(settings)


def _updated(layer: LayerState, slots: Slots, layer_pass: PassView, first: bool) -> Mapping[str, Tensor]:
    """`Scorer.update`; in a shared pass, computed once for all caches with equal scorers."""
    score = layer.settings.pipeline.score
    results = layer_pass.results
    if results is None:
        return score.update(slots, layer_pass, first)
    changed, state = results.of_part(
        "update",
        (score, layer.settings.seed, first),
        lambda: (score.update(slots, layer_pass, first), layer.generator.get_state()),
    )
    layer.generator.set_state(state)  # as if this layer had drawn the samples
    return changed


def note_statistic(layer: LayerState, layer_pass: PassView) -> None:
    """Store the allocator's statistic of this layer."""
    table = layer.buckets[0].table
    noted = layer.settings.pipeline.allocate.statistic(table.add_scores(table.visible()), layer_pass)
    if noted is not None:
        layer.settings.statistics[layer.compressed_index] = noted


def decide_pending(settings: LayerSettings) -> None:
    """Run the deferred decisions of all layers."""
    pending = settings.pending or {}
    settings.pending = None
    for _, waiting in sorted(pending.items()):
        decide_pending_layer(waiting)


def decide_pending_layer(waiting: PendingLayer) -> None:
    """Run the deferred decision of one layer."""
    layer_pass = waiting.layer.seen_again(waiting.layer_pass)
    visible = [table.visible() for table in waiting.layer.tables]
    compress_if_due(waiting.layer, [layer_pass], visible, layer_pass if waiting.reported else None, True)
    waiting.layer.references = None


def compress_if_due(
    layer: LayerState,
    passes: Sequence[PassView],
    visible: Sequence[Slots],
    reported: PassView | None,
    completes_prompt: bool,
    compressed: Sequence[bool] = (),
    idle: Sequence[bool] = (),
) -> None:
    """Compress the layer if due, except buckets that a kernel has compressed already (`compressed`)."""
    settings = layer.settings
    timing = _timing(layer, passes[0].num_new, completes_prompt, idle)
    if timing.is_prompt:
        assert layer.head_budgets is not None
        layer.prompt_compressed = True
        # Keep what the store wants to know of the prompt's last queries.
        layer_pass = passes[0]
        if rows := layer.settings.store.queries:
            heads = layer_pass.key.shape[1]
            squares = query_squares(layer_pass.query, layer_pass.row_valid, heads, rows)
            layer.buckets[0].table.store_head_state({QUERY_SQUARES: squares})
        # Assigned once, from the prompt; the view's scores are freed before anything is compressed.
        unequal = settings.pipeline.allocate.head_budgets(_views(layer, passes, timing, visible)[0])
        if unequal is not None:
            layer.head_budgets.put(unequal.long())
    known = zip_longest(layer.buckets, timing.due, compressed)
    due = []  # whether some head of the bucket may exceed its budget, where a decision is due
    for bucket, is_due, whole in known:
        budgets = bucket.head_budgets
        is_over = budgets is not None and bucket.table.occupied > budgets.smallest
        due.append(is_due and is_over and not whole)
    over = any(due)
    if over:
        timed = settings.timed and timing.is_prompt
        if timed:
            synchronize(layer.device)
        begun = time.perf_counter()
        _compress(layer, _views(layer, passes, timing, visible), due, reported, timing)
        if timed:
            synchronize(layer.device)
            settings.prefill_compress_seconds += time.perf_counter() - begun
    elif timing.is_prompt and (
        settings.store.packs
        or ((settings.compresses or settings.sparse_attention is not None) and not layer.buckets[0].table.is_dense)
    ):
        _compact(layer, passes[0].rotary)  # frees padding
    elif completes_prompt:
        _detach(layer)
    if not timing.is_decode_step:
        if not over and not timing.is_prompt:
            _close_turn(layer, passes, [False] * len(due))
        for table in layer.tables:
            table.pack_gathered()
    if all(timing.due):  # of the only bucket, the decision may have made several
        layer.waiting = 0
        for bucket in layer.buckets:
            if bucket.ahead:
                bucket.ahead = 0
    elif any(timing.due):
        clocks = [
            0 if is_due else layer.waiting + bucket.ahead
            for bucket, is_due in zip(layer.buckets, timing.due, strict=True)
        ]
        layer.waiting = clocks[0]
        for bucket, tokens in zip(layer.buckets, clocks, strict=True):
            bucket.ahead = tokens - layer.waiting


def _close_turn(layer: LayerState, passes: Sequence[PassView], decided: Sequence[bool]) -> None:
    """After a later turn, leave slots in the tables without a decision as each row alone would have them.

    Their order matters to packing stores and to sparse attention.
    """
    if layer.settings.store.packs or layer.settings.sparse_attention is not None:
        for table, part, over in zip(layer.tables, passes, decided, strict=True):
            if not over:
                table.close_turn(part.row_valid)


def _timing(layer: LayerState, new: int, completes_prompt: bool, idle: Sequence[bool]) -> DecisionTiming:
    is_prompt = not layer.prompt_compressed
    is_decode_step = new == 1 and not is_prompt
    decides = layer.settings.pipeline.decode and not completes_prompt
    period = layer.settings.period
    due = [
        is_prompt or (decides and (layer.waiting + bucket.ahead >= period if is_decode_step else not is_idle))
        for bucket, is_idle in zip(layer.buckets, idle or [False] * len(layer.buckets), strict=True)
    ]
    return DecisionTiming(due, is_prompt, is_decode_step, "prefill" if is_prompt else "decode")


def _views(
    layer: LayerState, passes: Sequence[PassView], timing: DecisionTiming, visible: Sequence[Slots] | None
) -> list[View]:
    """What a decision sees of each bucket: its visible slots, here with scores, or as they are stored (None)."""
    views = []
    settings = layer.settings
    tokens = layer.head_index.by_row(layer.tokens_seen)
    token_ids = torch.cat(settings.prompt_ids, 1) if timing.is_prompt and settings.prompt_ids else None
    for number, (bucket, part, seen_tokens) in enumerate(zip(layer.buckets, passes, tokens, strict=True)):
        table = bucket.table
        head_budgets = bucket.head_budgets
        assert head_budgets is not None
        excess = (
            layer.waiting + bucket.ahead if timing.is_decode_step else max(table.occupied - head_budgets.smallest, 0)
        )
        view = View(
            slots=table.stored() if visible is None else table.add_scores(visible[number]),
            layer_pass=part,
            tokens_seen=seen_tokens,
            phase=timing.phase,
            started=bucket.started,
            layer_idx=layer.compressed_index,
            num_layers=settings.num_layers,
            generator=layer.generator,
            budget=head_budgets.slots,
            smallest_budget=head_budgets.smallest,
            largest_budget=head_budgets.largest,
            most_excess=min(excess, table.width),
            in_lots=settings.pipeline.buffer > 0,
            certain=timing.is_decode_step and bucket.started and settings.pipeline.fills_budget,
            statistics=settings.statistics,
            head_state=table.head_state,
            references=layer.references,
            token_ids=None if token_ids is None or token_ids.shape[1] != table.occupied else token_ids,
            remembered=head_budgets.remembered,
            store=settings.store,
        )
        views.append(view)
    return views


def _compress(
    layer: LayerState, views: list[View], due: Sequence[bool], reported: PassView | None, timing: DecisionTiming
) -> None:
    settings = layer.settings
    head_index = layer.head_index
    decisions = [
        bucket.plan_and_apply(view, settings, layer.rotary.check) if over else None
        for bucket, view, over in zip(layer.buckets, views, due, strict=True)
    ]
    if settings.observer is not None and reported is not None:
        joined = join_decisions(head_index, reported, views, decisions, settings.observes_slots)
        settings.observer.compressed(layer.layer_idx, joined.view, joined.plan, joined.before, joined.after)
    for bucket, decision, members in zip(layer.buckets, decisions, head_index.members, strict=True):
        if decision is not None:
            lengths = [layer.lengths[head_index.row(member)] for member in members]
            bucket.install(decision.after, lengths)
    if not timing.is_decode_step:
        _close_turn(layer, [cast(PassView, view.layer_pass) for view in views], due)
        decided = {
            head_index.row(member)
            for members, over in zip(head_index.members, due, strict=True)
            if over
            for member in members
        }
        _compact(layer, views[0].layer_pass.rotary, decided)


def _compact(layer: LayerState, rotary: Rotary | None, decided: Set[int] | None = None) -> None:
    """Move valid slots into compact tables; the old ones exist until all are moved."""
    layer.head_index, layer.buckets = compact_buckets(layer.head_index, layer.buckets, layer.settings, rotary, decided)
    layer.note_peak(layer.settings.held.layers[layer.compressed_index] + layer.table_bytes())


def _detach(layer: LayerState) -> None:
    """Copy states that are views of the model's; both exist for a timing."""
    table = layer.buckets[0].table
    copied = table.detach()
    layer.note_peak(layer.settings.held.layers[layer.compressed_index] + copied)
