"""A session fed with steps as vLLM makes them: however a prompt arrives, its slots are those of one pass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kvlab.core.attention.layer_handoff import AttentionCall, take_offered_layer
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.methods import make_method
from kvlab.extras.vllm.own_run import compare_caches
from kvlab.extras.vllm.page_states import PageStates
from kvlab.extras.vllm.session import REPLAY, UNSEEN, Choice, Session
from kvlab.models.load import LoadedModel

PAGE, PROMPT, END = 4, 40, 46
SCATTERED = torch.tensor([7, 2, 11, 0, 9, 4, 1, 8, 3, 10, 6, 5])  # pages of the request


class Steps:
    """An engine of one request whose states are random and the same in every trial."""

    def __init__(self, loaded: LoadedModel, method: str, **options: bool) -> None:
        config = loaded.model.config
        self.layers, draw = config.num_hidden_layers, torch.Generator().manual_seed(5)
        heads, dim = config.num_key_value_heads, config.head_dim
        self.states = [
            [torch.randn(END, count, dim, generator=draw) for count in (heads, heads, config.num_attention_heads)]
            for _ in range(self.layers)
        ]
        self.pages = [PageStates.empty(len(SCATTERED) * PAGE, key, value) for key, value, _ in self.states]
        self.session = Session(loaded, Choice(make_method(method), 0.25, **options))
        self.runner = SimpleNamespace(
            requests={"a": SimpleNamespace(prompt_token_ids=list(range(3, 3 + PROMPT)))},
            input_batch=SimpleNamespace(req_ids=["a"]),
        )

    @torch.inference_mode()  # as vLLM's workers run
    def step(self, start: int, end: int, *, resumed: bool = False) -> tuple[bool, list[Tensor]]:
        """Tokens `start` to `end`: whether kvlab covers all rows, and the output of each layer."""
        told = SimpleNamespace(resumed_req_ids={"a"} if resumed else set())
        self.session.begin_step(SimpleNamespace(finished_req_ids=set(), scheduled_cached_reqs=told), self.runner)
        metadata = SimpleNamespace(
            query_start_loc=torch.tensor([0, end - start]), seq_lens=torch.tensor([end]), block_table=SCATTERED[None]
        )
        (span,) = self.session.spans(metadata, PAGE)
        outputs = []
        for layer, (key, value, query) in enumerate(self.states):
            self.pages[layer].write(span.slots[start:], key[start:end], value[start:end])
            if self.session.choice.keep_queries:
                self.pages[layer].write_queries(span.slots[start:], query[start:end])
            out = torch.full_like(query[start:end], torch.nan)
            self.session.attend(layer, span, query[start:end], self.pages[layer], 0.25, None, out)
            outputs.append(out)
        return span.is_covered, outputs

    @property
    def cache(self) -> CompressedCache | None:
        """The request's cache."""
        return self.session.requests["a"].cache


def whole(loaded: LoadedModel, method: str) -> Steps:
    """The prompt in one step, then one token a step."""
    steps = Steps(loaded, method)
    for start, end in [(0, PROMPT), *((at, at + 1) for at in range(PROMPT, END))]:
        covered, outputs = steps.step(start, end)
        assert covered
        assert all(out.isfinite().all() for out in outputs)
    return steps


@pytest.mark.parametrize("method", ["streaming-llm", "keepkv"])
@torch.inference_mode()
def test_the_prompt_in_one_step_is_the_caches_own_pass(tiny: LoadedModel, method: str) -> None:
    steps = whole(tiny, method)
    own = make_cache(tiny, method, 0.25)
    for start, end in [(0, PROMPT), *((at, at + 1) for at in range(PROMPT, END))]:
        for layer, states in enumerate(steps.states):
            key, value, query = (part[start:end].transpose(0, 1)[None] for part in states)
            keys, values = own.update(key, value, layer)
            take_offered_layer(keys)
            own.layers[layer].attend(query, keys, values, AttentionCall(0.25))
    assert steps.cache is not None
    assert compare_caches(own, steps.cache).equal


@pytest.mark.parametrize("method", ["snapkv", "keepkv"])
@pytest.mark.parametrize("way", ["chunks", "pages of the prefix cache", "slots dropped", "slots held"])
def test_however_the_prompt_arrives_slots_and_outputs_are_the_same(tiny: LoadedModel, method: str, way: str) -> None:
    expected = whole(tiny, method)
    steps = Steps(tiny, method, hold_preempted=way == "slots held")
    if way == "chunks":
        assert not steps.step(0, 16)[0]
        assert not steps.step(16, 33)[0]
        assert steps.step(33, PROMPT)[0]
    elif way == "pages of the prefix cache":  # another request wrote them; the states are caught, not this request's
        for mine, theirs in zip(steps.pages, expected.pages, strict=True):
            mine.keys, mine.values, mine.queries = theirs.keys, theirs.values, theirs.queries
        assert steps.step(32, PROMPT)[0]
    else:
        steps.step(0, PROMPT)
        for at in range(PROMPT, PROMPT + 3):
            steps.step(at, at + 1)
        covered, outputs = steps.step(0, PROMPT + 4, resumed=True)
        assert covered == (way == "slots dropped"), "held slots have no output for what they have read before"
        for out, layer in zip(outputs, range(steps.layers), strict=True):
            assert out[-1].isfinite().all(), layer
    cache, other = steps.cache, expected.cache
    assert cache is not None and other is not None
    for at in range(cache.get_seq_length(), END):
        steps.step(at, at + 1)
    assert compare_caches(other, cache).equal


def test_without_queries_a_method_that_reads_them_is_left_to_vllm(tiny: LoadedModel) -> None:
    for method, kept in (("window", True), ("streaming-llm", True), ("h2o", False), ("snapkv", False)):
        steps = Steps(tiny, method, keep_queries=False)
        steps.step(0, 32)
        covered, _ = steps.step(32, PROMPT)
        assert covered == kept, method
        assert steps.session.requests["a"].reason == ("" if kept else UNSEEN)


def test_a_method_that_waits_for_all_layers_cannot_be_replayed(tiny: LoadedModel) -> None:
    for held, decoded in ((True, 1), (False, 1), (False, 0)):
        steps = Steps(tiny, "exactmerge2", hold_preempted=held)
        steps.step(0, PROMPT)
        steps.session.end_step()
        for at in range(PROMPT, PROMPT + decoded):
            steps.step(at, at + 1)
        steps.step(0, PROMPT + decoded + 1, resumed=True)
        assert (steps.cache is not None) == held
        assert steps.session.requests["a"].reason == ("" if held else REPLAY)
