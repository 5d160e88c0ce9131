"""What a layer does after attention: score, see whether a decision is due, decide, free what was dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, cast

from kvlab.attention.pass_view import PassSeen
from kvlab.cache.buckets.bucket import Bucket
from kvlab.cache.buckets.regroup import settled
from kvlab.cache.buckets.whole_layer import whole_decision
from kvlab.cache.kernels.cpu import is_recorded, on_host
from kvlab.cache.layers.counts import counts_of
from kvlab.cache.layers.dispatch import carried_out, decides_whole, decision_kernel, new_work, work_again
from kvlab.cache.layers.layer_state import LayerState
from kvlab.cache.settings import Counter, Held, LayerSettings
from kvlab.cache.token_pruning import Passage
from kvlab.methods.core.inplace_work import Work
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots, View


@dataclass(frozen=True)
class Moment:
    """Whether a decision is due: `prompt`, the one about the prompt; `one`, after a decode step of one token."""

    due: bool
    prompt: bool
    one: bool

    @property
    def phase(self) -> Literal["prefill", "decode"]:
        """As methods are told."""
        return "prefill" if self.prompt else "decode"


def decide(
    layer: LayerState, seen: Sequence[PassSeen], visible: Sequence[Slots], shown: PassSeen | None, first: bool
) -> None:
    """Score the slots, and compress the layer if that is due. `first`: this pass completes the prompt.

    `visible` is what each table shows, its log mass worked out.
    """
    pipeline = layer.settings.pipeline
    moment = _moment(layer, seen[0].num_new, first)
    taken = _taken_whole(layer, seen, moment)
    for table, slots, part, whole in zip(layer.tables, visible, seen, taken, strict=True):
        if whole:
            continue
        if first or part.num_new > 1 or not pipeline.notes:
            table.store(pipeline.score.update(slots, part, first))
        else:
            pipeline.note(slots, part)
        if pipeline.judges_anew and layer.settings.compresses and moment.due and not moment.prompt:
            table.store(pipeline.judge_anew(slots, part))
    if layer.buckets[0].table.columns.counts is not None:
        _note_asked(layer, seen, first)
    if all(taken):
        layer.waiting = 0
        return
    if first:
        note_statistic(layer, seen[0])
    if first and (layer.settings.stays_held or (pipeline.waits and layer.settings.compresses)):
        _hold(layer, seen[0], shown)
    else:
        conclude(layer, seen, visible, shown, first, taken)


def _note_asked(layer: LayerState, seen: Sequence[PassSeen], first: bool) -> None:
    """The queries of this pass have entered the scores; of a prompt, the last that the scorer looks at."""
    for table, part, tokens in zip(layer.tables, seen, layer.streams.by_row(layer.tokens_seen), strict=True):
        rows = layer.settings.pipeline.scorer_rows(part.num_new) if first else None
        table.was_asked(tokens, None if rows is None else part.rows_seen(rows)[:, 0, 0])


def note_statistic(layer: LayerState, seen: PassSeen) -> None:
    """Keep what the allocator wants to know of this layer."""
    noted = layer.settings.pipeline.allocate.statistic(layer.buckets[0].table.rated(), seen)
    if noted is not None:
        layer.settings.statistics[layer.rank] = noted


def _hold(layer: LayerState, seen: PassSeen, shown: PassSeen | None) -> None:
    """Let the layer wait for its decision; the last one decides for all, unless a rehearsal is to come."""
    settings, pipeline = layer.settings, layer.settings.pipeline
    if not (settings.stays_held or pipeline.score.needs_hidden_states):
        seen = seen.newest(pipeline.prompt_rows(seen.num_new))  # a decision looks at no other rows
    layer.buckets[0].table.detach()
    settings.held = {} if settings.held is None else settings.held
    settings.held[layer.rank] = Held(layer, layer.seen_again(seen), shown is not None)
    last = len(settings.held) == settings.num_layers
    if last and pipeline.rehearsal is None and not settings.stays_held:
        conclude_all(settings)


def conclude_all(settings: LayerSettings) -> None:
    """Every layer decides about the prompt it holds."""
    held, settings.held = settings.held or {}, None
    for _, waiting in sorted(held.items()):
        conclude_held(waiting)


def conclude_held(waiting: Held) -> None:
    """One layer decides about the prompt it holds."""
    seen = waiting.layer.seen_again(waiting.seen)
    visible = [table.visible() for table in waiting.layer.tables]
    conclude(waiting.layer, [seen], visible, seen if waiting.shown else None, True)
    waiting.layer.references = None


def conclude(
    layer: LayerState,
    seen: Sequence[PassSeen],
    visible: Sequence[Slots],
    shown: PassSeen | None,
    first: bool,
    taken: Sequence[bool] = (),
) -> None:
    """Compress the layer if that is due, its slots scored; not the buckets that a kernel has `taken` already."""
    moment = _moment(layer, seen[0].num_new, first)
    if moment.prompt:
        assert layer.quota is not None
        layer.prompt_settled = True
        layer.quota.allocate_heads(layer.settings, _views(layer, seen, moment, _rated(layer, visible))[0])
    due = [bucket.is_over and not whole for bucket, whole in zip_longest(layer.buckets, taken)]
    over = moment.due and any(due)
    if first and not over and layer.settings.passage is not None:
        _pass_on(layer.settings.passage, visible[0])
    if over:
        with layer.settings.clock(moment.phase, layer.device):
            _compress(layer, _views(layer, seen, moment, _rated(layer, visible)), due, shown, moment)
    elif moment.prompt and layer.settings.holds_anew(layer.buckets[0].table.is_dense):
        layer.streams, layer.buckets = settled(layer.streams, layer.buckets, layer.settings)  # padding is freed
    elif first:
        layer.buckets[0].table.detach()
    if not moment.one:
        for table in layer.tables:
            table.pack_gathered()
    if moment.due:
        layer.waiting = 0


def _taken_whole(layer: LayerState, seen: Sequence[PassSeen], moment: Moment) -> list[bool]:
    """For each bucket whether a kernel has scored and decided already, all in one.

    Whoever watches slots is told plans, and so is who counts what a GPU's kernel leaves unsaid.
    """
    settings, none = layer.settings, [False] * len(layer.buckets)
    if not (moment.one and moment.due and layer.waiting == 1) or settings.watched_closely or settings.store.packs:
        return none
    kernel, counts = decision_kernel(layer.device), settings.observer is not None
    if kernel is None or (counts and not on_host(kernel)) or (is_recorded() and on_host(kernel)):
        return none
    parts = zip(layer.buckets, seen, layer.streams.by_row(layer.tokens_seen), strict=True)
    works = [work_again(*part) for part in parts]
    if any(work is None for work in works):
        if not decides_whole(settings.pipeline, kernel):
            return none
        views = _views(layer, seen, moment, [table.held() for table in layer.tables])
        known = zip(works, views, layer.buckets, strict=True)
        works = [work or new_work(view, settings.pipeline, bucket, kernel) for work, view, bucket in known]
        if counts and any(work is None for work in works):
            return none
    taken = [carried_out(work, bucket, kernel) for work, bucket in zip(works, layer.buckets, strict=True)]
    if settings.observer is not None:
        _tell_counts(layer, [work for work in works if work is not None])  # none is, where somebody counts
    return taken


def _tell_counts(layer: LayerState, works: Sequence[Work]) -> None:
    """Tell who only counts that one slot of each head has left, which of them merged, and what is there now."""
    cast(Counter, layer.settings.observer).counted(layer.layer_idx, counts_of(layer.streams, works))


def _rated(layer: LayerState, visible: Sequence[Slots]) -> list[Slots]:
    """What each table shows with every score; log mass stays as long as nothing is decided."""
    return [table.rate(slots) for table, slots in zip(layer.tables, visible, strict=True)]


def _moment(layer: LayerState, new: int, first: bool) -> Moment:
    pipeline = layer.settings.pipeline
    prompt = not layer.prompt_settled
    one = new == 1 and not prompt
    waited = not one or layer.waiting >= layer.settings.period
    return Moment(prompt or (pipeline.decode and not first and waited), prompt, one)


def _views(
    layer: LayerState,
    seen: Sequence[PassSeen],
    moment: Moment,
    slots: Sequence[Slots],
) -> list[View]:
    views, tokens = [], layer.streams.by_row(layer.tokens_seen)
    for bucket, part, own, seen_tokens in zip(layer.buckets, seen, slots, tokens, strict=True):
        table, quota = bucket.table, bucket.quota
        assert quota is not None
        excess = layer.waiting if moment.one else max(table.occupied - quota.smallest, 0)
        view = View(
            slots=own,
            seen=part,
            budget=quota.slots,
            tokens_seen=seen_tokens,
            phase=moment.phase,
            most_excess=min(excess, table.width),
            largest_budget=quota.largest,
            started=bucket.started,
            layer_idx=layer.rank,
            num_layers=layer.settings.num_layers,
            generator=layer.generator,
            statistics=layer.settings.statistics,
            head_state=table.head_state,
            references=layer.references,
            certain=moment.one and bucket.started and layer.settings.pipeline.fills_budget,
            in_lots=layer.settings.pipeline.buffer > 0,
            smallest_budget=quota.smallest,
            token_ids=layer.settings.token_ids(table.occupied) if moment.prompt else None,
            remembered=quota.remembered,
            store=layer.settings.store,
        )
        views.append(view)
    return views


def _compress(
    layer: LayerState, views: list[View], due: Sequence[bool], shown: PassSeen | None, moment: Moment
) -> None:
    settings, streams = layer.settings, layer.streams
    decisions = [
        bucket.decide(view, settings, layer.rotary.check) if over else None
        for bucket, view, over in zip(layer.buckets, views, due, strict=True)
    ]
    if settings.observer is not None and shown is not None:
        told = whole_decision(streams, shown, views, decisions, settings.watched_closely)
        settings.observer.compressed(layer.layer_idx, told.view, told.plan, told.before, told.after)
    if moment.prompt and settings.passage is not None and decisions[0] is not None:
        _pass_on(settings.passage, views[0].slots, decisions[0].plan)
    for bucket, decision, members in zip(layer.buckets, decisions, streams.members, strict=True):
        if decision is not None:
            lengths = [layer.lengths[streams.row(member)] for member in members]
            bucket.adopt(decision.after, lengths, _grown(layer, bucket, lengths, moment))
    if not moment.one:
        held = layer.table_bytes()
        layer.streams, layer.buckets = settled(streams, layer.buckets, settings)
        layer.note_peak(held)


def _grown(layer: LayerState, bucket: Bucket, lengths: list[int], moment: Moment) -> int | None:
    """What no head exceeds where a method lets generated tokens stay on top; None: its budget."""
    thinned_slots = layer.settings.pipeline.can.settle.thinned
    if thinned_slots is None or bucket.quota is None:
        return None
    if bucket.first is None:
        held = min(bucket.table.occupied, bucket.quota.largest) if moment.prompt else bucket.table.occupied
        bucket.first = held, max(lengths), layer.cumulative_length
    slots, before, end = bucket.first
    thinned = thinned_slots(before, min(lengths), max(lengths), layer.rank, layer.settings.num_layers)
    return slots + layer.cumulative_length - end - thinned


def _pass_on(passage: Passage, slots: Slots, plan: Plan | None = None) -> None:
    """With prefill saving: the next layer works on the tokens that stay in this one only, the same in every head."""
    keep = slots.valid if plan is None else plan.keep
    passage.leave(keep[:, 0], slots.position[:, 0])
