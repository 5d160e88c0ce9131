"""The caches of an engine's requests: which rows of a step they attend for, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvlab.core.attention.layer_handoff import AttentionCall, take_offered_layer
from kvlab.core.budget import Amount
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.second_pass import run_second_pass
from kvlab.core.contract.parts import optional
from kvlab.core.methods import Method
from kvlab.engine.prefix import Prefix
from kvlab.extras.vllm.page_states import PageStates
from kvlab.extras.vllm.requirements import check_method, check_model
from kvlab.models.load import LoadedModel

REPLAY = (
    "the method decides when all layers have read the prompt, so generated tokens cannot be replayed in the pass that "
    "computes them again"
)
UNSEEN = "the decision reads queries of tokens before its pass, which are not kept"


@dataclass(frozen=True)
class Choice:
    """A method at a budget, and what the backend keeps besides keys and values.

    keep_queries: hold the query of every page slot; without it a prompt's decision sees the queries of its last pass.
    hold_preempted: a preempted request keeps its slots; without it they are made again while vLLM computes it again.
    prefix: requests that begin with its tokens continue from its slots.
    """

    method: Method
    budget: Amount
    keep_queries: bool = True
    hold_preempted: bool = True
    prefix: Prefix | None = None


@dataclass
class Request:
    """A request: its prompt's token ids, and its cache; None where vLLM's full cache serves it, for `reason`."""

    ids: list[int]
    cache: CompressedCache | None
    reason: str = ""
    preemptions: int = 0

    @property
    def tokens_seen(self) -> int:
        """Tokens that the cache has read."""
        return 0 if self.cache is None else self.cache.get_seq_length()


@dataclass(frozen=True)
class Span:
    """Tokens `start` to `end` of a request, which are rows `row` and following of this step."""

    request: Request
    start: int
    end: int
    row: int
    slots: Tensor  # (end,) page slots
    is_covered: bool  # whether the request's cache gives the output of every row


@dataclass
class Session:
    """All requests of an engine under one choice; `loaded` has the engine's weights and reads prompts a second time.

    keep_finished: keep the caches of finished requests in `finished`, to look at them.
    current: the session that holds the slots of all requests in this process; None: vLLM attends by itself.
    """

    current: ClassVar[Session | None] = None

    loaded: LoadedModel
    choice: Choice
    keep_finished: bool = False
    requests: dict[str, Request] = field(default_factory=dict)
    finished: dict[str, Request] = field(default_factory=dict)
    _runner: Any = None
    _spans: list[Span] | None = None

    def __post_init__(self) -> None:
        check_model(self.loaded.name, self.loaded.model)
        check_method(self.choice.method.name, self.choice.method.paged_pipeline())

    def begin_step(self, scheduled: Any, runner: Any) -> None:
        """Note what the scheduler says of finished and resumed requests."""
        self._runner = runner
        self._spans = None
        for name in scheduled.finished_req_ids:
            request = self.requests.pop(name, None)
            if request is not None and self.keep_finished:
                self.finished[name] = request
        for name in scheduled.scheduled_cached_reqs.resumed_req_ids:
            request = self.requests[name]
            request.preemptions += 1
            if request.cache is None or self.choice.hold_preempted:
                continue
            if request.cache.settings.pipeline.waits and request.tokens_seen >= len(request.ids):
                request.cache = None
                request.reason = REPLAY
            else:
                request.cache = self._new_cache(request.ids)

    def end_step(self) -> None:
        """Read the prompts again that this step completed, where the method asks for it.

        vLLM's scheduler has no passes whose tokens belong to no request, so kvlab's own copy of the model makes them.
        """
        with torch.inference_mode():
            for request in self.requests.values():
                cache = request.cache
                if cache is None or (state := cache.settings.second_pass) is None or state.done:
                    continue
                if len(cache.settings.pending or {}) == cache.settings.num_layers:
                    run_second_pass(self.loaded.model, [cache]).check()

    def spans(self, metadata: Any, page: int) -> list[Span]:
        """The requests of this step in the order of its rows; none in a trial run of the engine."""
        if self._spans is not None:
            return self._spans
        spans = list[Span]()
        starts = metadata.query_start_loc.tolist()
        ends = metadata.seq_lens.tolist()
        for place, name in enumerate(self._runner.input_batch.req_ids[: len(ends)]):
            if name not in self.requests:
                ids = list(self._runner.requests[name].prompt_token_ids)
                self.requests[name] = Request(ids, self._new_cache(ids))
            request = self.requests[name]
            row = starts[place]
            end = ends[place]
            start = end - (starts[place + 1] - row)
            pages = metadata.block_table[place][: -(-end // page)].long()
            slots = (pages[:, None] * page + torch.arange(page)).flatten()[:end]
            tokens_seen = request.tokens_seen
            prompt = len(request.ids)
            # A request is left to vLLM if its prompt is complete but the method needs queries that were not kept.
            cache = request.cache
            if cache is not None and not self.choice.keep_queries and not tokens_seen and start > 0 and prompt <= end:
                pipeline = cache.settings.pipeline
                needed = prompt if optional(pipeline.score, "accumulate") is not None else pipeline.prompt_rows(prompt)
                if needed > prompt - start:
                    request.cache = None
                    request.reason = UNSEEN
            covered = request.cache is not None and (start >= tokens_seen if tokens_seen else end >= prompt)
            spans.append(Span(request, start, end, row, slots, covered))
        self._spans = spans
        return spans

    def attend(
        self,
        index: int,
        span: Span,
        query: Tensor,
        pages: PageStates,
        scaling: float,
        softcap: float | None,
        out: Tensor,
    ) -> None:
        """Put the output of a span's rows into `out` (tokens, Hq, d): of those that its cache has not read before.

        A prompt is read in one pass once its last token is here, so that the decision does not depend on chunks. Rows
        after it, generated tokens that vLLM computes again, are read one by one, as they were decoded.
        """
        request = span.request
        prompt = len(span.request.ids)
        if request.cache is None:
            return
        layer = request.cache.layers[index]
        assert isinstance(layer, CompressedLayer)
        module = self.loaded.model.get_decoder().layers[index].self_attn
        call = AttentionCall(scaling, softcap, module=module)
        span_queries = query[span.row : span.row + span.end - span.start]
        while (first := layer.get_seq_length()) < span.end and not (first == 0 and span.end < prompt):
            last = min(prompt, span.end) if first < prompt else first + 1
            slots = span.slots[first:last]
            queries = pages.read_queries(slots, span_queries[max(first - span.start, 0) : max(last - span.start, 0)])
            keys, values = request.cache.update(*pages.read(slots), index)
            take_offered_layer(keys)
            output = layer.attend(queries, keys, values, call)[0].transpose(0, 1)
            rows = range(max(first, span.start), last)
            at = span.row + rows.start - span.start
            out[at : at + len(rows)] = output[len(output) - len(rows) :].reshape(-1, *out.shape[1:])

    def _new_cache(self, ids: list[int]) -> CompressedCache:
        prefix = self.choice.prefix
        if prefix is not None and 0 < prefix.header.tokens < len(ids) and len(prefix.texts) == 1:
            # The prefix has read its context and nothing else.
            context = list(prefix.turns.context_ids(prefix.model, prefix.texts[0].text))
            if context and ids[: len(context)] == context:
                return copy_cache(prefix.cache)
        cache = make_cache(self.loaded, self.choice.method, self.choice.budget)
        given = torch.tensor([ids])
        if cache.settings.second_pass is not None:
            cache.settings.second_pass.ids = [given]
        if cache.settings.pipeline.reads_text:
            cache.settings.prompt_ids = [given]
        return cache
