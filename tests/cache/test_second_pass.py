"""A second reading of the context: what it shows a scorer, what it leaves behind, and one cut over the model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.contract.second_pass import CONTINUATION
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.engine.forward import prefill
from kvlab.models.load import LoadedModel, prepare
from tests.families import tiny_model

TOKENS, BOS, ASK = 24, 1, [5, 6]
WINDOWS = ["gemma3", "gemma2", "gpt-oss", "gemma3n-shared"]
STATES = ["lfm2", "qwen3-next", "falcon-h1", "granitemoe-hybrid", "zamba2"]
SOME = ["llama", "llama-dynamic", "phi3-longrope", "bloom", "falcon-alibi-grouped", *WINDOWS, *STATES]


class Asks:
    """As much of a tokenizer as a second pass asks for."""

    bos_token_id = BOS

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": ASK}


def lab(family: str = "llama") -> LoadedModel:
    return LoadedModel(prepare(tiny_model(family)), Asks(), "tiny")


def text(seed: int = 1, tokens: int = TOKENS) -> Tensor:
    ids = torch.randint(3, 97, (1, tokens), generator=torch.Generator().manual_seed(seed))
    ids[0, 0] = BOS
    return ids


def run(model: LoadedModel, cache: Any, ids: Tensor, **given: Any) -> Tensor:
    with torch.inference_mode():
        return model.model(ids, past_key_values=cache, use_cache=True, **given).logits[:, -1]


class Watch:
    """Keeps each layer's attention (Hq, q, S) of a full cache's passes, worked out by hand."""

    full = True

    def __init__(self) -> None:
        self.mass: dict[int, Tensor] = {}

    def attended(self, layer_idx: int, slots: Any, seen: Any, output: Tensor) -> None:
        query, key = seen.query[0].double(), seen.key[0].double().repeat_interleave(len(seen.query[0]) // 2, 0)
        rows, columns = query.shape[1], key.shape[1]
        logits = query @ key.transpose(-1, -2) * seen.scaling
        later = torch.arange(columns) > torch.arange(columns - rows, columns)[:, None]
        self.mass[layer_idx] = torch.softmax(logits.masked_fill(later, -torch.inf), -1)

    def compressed(self, *_: Any) -> None: ...


def expected_scores(model: LoadedModel, ids: Tensor, pieces: list[list[int]], over: str) -> Tensor:
    """(L, H, T): every query of every piece, read behind the prompt by a full cache of its own, one after the other."""
    found: list[Tensor] = []
    for piece in pieces:
        cache, watch = make_cache(model, "full"), Watch()
        run(model, cache, ids)
        cache.settings.observer = watch
        run(model, cache, torch.tensor([piece]))
        by_layer = [watch.mass[layer] for layer in sorted(watch.mass)]
        masses = torch.stack(by_layer)[..., : ids.shape[1]].unflatten(1, (2, -1))  # (L, H, G, q, T)
        found.append(masses)
    every = torch.cat(found, 3)
    if over == "max":
        return every.amax((2, 3)).float()
    return (every.square().mean(2).sum(2).sqrt() if over == "rms" else every.mean(2).sum(2)).float()


def scores(model: LoadedModel, ids: Tensor, method: str = "kvzip", **settings: Any) -> Tensor:
    """(L, H, T) as the cache has them when it decides."""
    cache, noted = make_cache(model, method, 0.5, **settings), {}

    class Decided(Watch):
        def compressed(self, layer_idx: int, view: Any, plan: Any, before: Any, after: Any) -> None:
            noted[layer_idx] = before.score[0].clone()

    cache.settings.observer = Decided()
    run(model, cache, ids)
    return torch.stack([noted[layer] for layer in sorted(noted)])


@pytest.mark.parametrize("over", ["max", "rms", "mean"])
def test_scores_are_those_of_a_second_reading(over: str) -> None:
    """Newline and context behind the prompt, BOS left out; the normaliser holds what was read again."""
    model, ids = lab(), text()
    expected = expected_scores(model, ids, [ASK + ids[0, 1:].tolist()], over)
    torch.testing.assert_close(scores(model, ids, over=over, recent=2), expected, rtol=1e-4, atol=1e-5)


def test_long_contexts_are_read_again_in_pieces() -> None:
    """Each piece over the full prompt alone, behind the request and the 8 tokens before it."""
    model, ids = lab(), text(tokens=60)
    context = ids[0, 1:].tolist()
    cuts = [0, 14, 29, 44, 59]
    pieces = [ASK + context[max(a - 8, 0) : b] for a, b in pairwise(cuts)]
    expected = expected_scores(model, ids, pieces, "max")
    torch.testing.assert_close(scores(model, ids, piece=16), expected, rtol=1e-4, atol=1e-5)


def test_answers_to_requests_are_read_as_well() -> None:
    """Self-study: three requests, each with the tokens that transformers' own greedy decoding writes to it."""
    model, ids = lab(), text()
    with torch.inference_mode():
        whole = tiny_model("llama").generate(
            torch.cat([ids, torch.tensor([ASK])], 1), max_new_tokens=4, min_new_tokens=4, do_sample=False,
        )  # fmt: skip
    answer = whole[0, TOKENS + len(ASK) :].tolist()
    assert len(answer) == 4
    pieces = [ASK + ids[0, 1:].tolist(), *[ASK + answer] * 3]
    expected = expected_scores(model, ids, pieces, "rms")
    settings = {"study": 4, "allocate": "equal", "bias": False, "values": False, "recent": 2}
    found = scores(model, ids, "attention-matching", **settings)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def sampled(ids: Tensor, seed: int) -> list[int]:
    """A continuation by plain transformers: each token inverts the cumulative distribution at a uniform draw."""
    draws = torch.rand(CONTINUATION, generator=torch.Generator().manual_seed(seed)).tolist()
    written: list[int] = []
    for draw in draws:
        with torch.inference_mode():
            whole = tiny_model("llama")(torch.cat([ids, torch.tensor([written], dtype=torch.long)], 1))
        total = whole.logits[0, -1].double().softmax(-1).cumsum(-1)
        written.append(int((total <= draw * total[-1]).sum()))
    return written


def test_continuations_are_sampled_and_read_as_well() -> None:
    """Scores are those of the context and of both continuations; the end of text cuts what follows it."""
    model, ids = lab(), text()
    model.model.generation_config.eos_token_id = 7
    written = [sampled(ids, seed) for seed in (3, 4)]
    ended = [one[: one.index(7)] if 7 in one else one for one in written]
    assert ended != written and written[0][:4] != written[1][:4]
    expected = expected_scores(model, ids, [ASK + ids[0, 1:].tolist(), *ended], "rms")
    found = scores(model, ids, "exactmerge2", continuations=2, refit="none", recent=2, window=1, seed=3, store="native")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_continuations_of_padded_rows_and_chunks() -> None:
    """A row beside another, and a prompt in chunks, keep the slots they keep alone and at once."""
    model, pads, settings = lab(), 5, {"continuations": 2, "recent": 2, "window": 1, "queries": 8, "store": "native"}
    ids = torch.cat([text(1), torch.cat([torch.zeros(1, pads, dtype=torch.int64), text(3, TOKENS - pads)], 1)])
    mask = (ids != 0).long()
    together, chunked = (make_cache(model, "exactmerge2", 0.5, **settings) for _ in range(2))
    run(model, together, ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0))
    prefill(model, chunked, ids[:1], 7)
    for row, skip in ((0, 0), (1, pads)):
        alone = make_cache(model, "exactmerge2", 0.5, **settings)
        run(model, alone, ids[row : row + 1, skip:])
        for ours, theirs in zip(together.compressed_layers(), alone.compressed_layers(), strict=True):
            assert kept(ours, row) == kept(theirs, 0)
    for ours, theirs in zip(together.compressed_layers(), chunked.compressed_layers(), strict=True):
        assert kept(ours, 0) == kept(theirs, 0)


def test_continuations_that_do_not_fit_are_left_out() -> None:
    """Past the model's context window nothing is written."""
    model, ids = lab(), text()
    room = model.model.config.max_position_embeddings
    settings = {"refit": "none", "recent": 2, "window": 1, "store": "native"}
    try:
        model.model.config.max_position_embeddings = TOKENS + CONTINUATION - 1
        without = scores(model, ids, "exactmerge2", continuations=2, **settings)
    finally:
        model.model.config.max_position_embeddings = room
    assert torch.equal(without, scores(model, ids, "exactmerge2", **settings))
    assert not torch.equal(without, scores(model, ids, "exactmerge2", continuations=2, **settings))


@pytest.mark.parametrize("family", SOME)
def test_nothing_of_it_is_left_behind(family: str) -> None:
    """What follows a prompt that was read twice is as if it had been read once: with room for all of it in the budget,
    the next steps' logits are the full cache's, sliding windows and recurrent states included.
    """
    model, ids = lab(family), text()
    cache, full = make_cache(model, "kvzip", TOKENS + 50), make_cache(model, "full")
    cache.expect(TOKENS)
    for part in (ids, text(2, 3), text(3, 1), text(4, 1)):
        torch.testing.assert_close(run(model, cache, part), run(model, full, part), rtol=1e-4, atol=1e-4)
    state = cache.settings.second_pass
    assert state is not None and state.done
    for ours, theirs in zip(cache.compressed_layers(), full.compressed_layers(), strict=True):
        assert ours.cumulative_length == theirs.cumulative_length == TOKENS + 5
        assert (ours.slots.live() == TOKENS + 5).all()


@pytest.mark.parametrize("with_position_ids", [True, False])
@pytest.mark.parametrize("family", SOME)
def test_padded_rows_are_read_again_as_if_alone(family: str, with_position_ids: bool) -> None:
    model, pads = lab(family), 5
    ids = torch.cat([text(1), text(2)])
    ids[1] = torch.cat([torch.zeros(pads, dtype=torch.int64), text(3, TOKENS - pads)[0]])
    mask = torch.ones_like(ids)
    mask[1, :pads] = 0
    position = (mask.cumsum(-1) - 1).clamp_min(0)
    counted = family == "bloom" or "alibi" in family or not with_position_ids  # the model counts padding, or uses none
    given = {} if counted else {"position_ids": position}
    together = make_cache(model, "kvzip", 0.5, recent=2)
    run(model, together, ids, attention_mask=mask, **given)
    for row, skip in ((0, 0), (1, pads)):
        alone = make_cache(model, "kvzip", 0.5, recent=2)
        run(model, alone, ids[row : row + 1, skip:])
        for ours, theirs in zip(together.compressed_layers(), alone.compressed_layers(), strict=True):
            assert kept(ours, row) == kept(theirs, 0)


def kept(layer: Any, row: int) -> list[list[int]]:
    slots = layer.slots
    return [sorted(slots.position[row, head][slots.valid[row, head]].tolist()) for head in range(slots.valid.shape[1])]


def test_the_budget_is_the_models_and_goes_to_its_highest_scores() -> None:
    """Sinks and the newest stay everywhere; what else stays beats what leaves, wherever in the model it is."""
    model, ids, budget = lab(), text(tokens=50), 12
    before = scores(model, ids, sinks=2, recent=3)
    cache = make_cache(model, "kvzip", budget, sinks=2, recent=3)
    run(model, cache, ids)
    layers = cache.compressed_layers()
    held = [kept(layer, 0) for layer in layers]
    assert sum(len(head) for heads in held for head in heads) == budget * 3 * 2
    own = {
        (layer, head, slot) for layer, heads in enumerate(held) for head, slots in enumerate(heads) for slot in slots
    }
    always = {(layer, head, slot) for layer in range(3) for head in range(2) for slot in (0, 1, 47, 48, 49)}
    assert always <= own
    every = {(layer, head, slot) for layer in range(3) for head in range(2) for slot in range(50)}
    lowest = min(float(before[place]) for place in own - always)
    highest = max(float(before[place]) for place in every - own)
    assert lowest >= highest
    assert len({len(head) for heads in held for head in heads}) > 1


@pytest.mark.parametrize("score", ["snapkv", "accumulated", "keydiff", "ema", "recency"])
def test_any_score_can_be_cut_over_the_model(score: str) -> None:
    """The same total as with equal heads, and every row of a batch has its own."""
    from kvlab.core.methods.composition.composed import compose

    model = lab()
    ids = torch.cat([text(1, 60), text(2, 60)])
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    method = compose(score, "global", sinks=2, recent=4)
    cache = make_cache(model, method, 0.3)
    run(model, cache, ids, attention_mask=mask)
    totals = torch.stack([layer.slots.live() for layer in cache.compressed_layers()]).sum((0, 2))
    assert totals.tolist() == [18 * 6, 12 * 6]


def test_whole_heads_win_at_head_level() -> None:
    model, ids = lab(), text(tokens=40)
    cache = make_cache(model, "kvzip", 20, level="head", sinks=1, recent=2)
    run(model, cache, ids)
    lengths = sorted(len(head) for layer in cache.compressed_layers() for head in kept(layer, 0))
    assert sum(lengths) == 120 and lengths[0] == 3 and lengths[-1] == 40
    assert sum(3 < length < 40 for length in lengths) <= 1


def test_generate_and_a_prompt_in_chunks_are_read_again_too() -> None:
    """A bare `generate` finds the tokens by itself; chunks of the prompt change nothing."""
    model, ids = lab(), text(tokens=40)
    whole, chunked, generating = (make_cache(model, "kvzip", 0.3) for _ in range(3))
    run(model, whole, ids)
    prefill(model, chunked, ids, 16)
    model.model.generate(
        ids, past_key_values=generating, max_new_tokens=1, do_sample=False, attention_mask=torch.ones_like(ids)
    )
    expected = [kept(layer, 0) for layer in whole.compressed_layers()]
    for cache in (chunked, generating):
        assert [kept(layer, 0) for layer in cache.compressed_layers()] == expected


def test_a_question_is_not_read_again() -> None:
    """Only the context is read again, though the question is in the prompt."""
    model, ids = lab(), text(tokens=30)
    expected = expected_scores(model, ids, [ASK + ids[0, 1:20].tolist()], "max")
    cache, noted = make_cache(model, "kvzip", 0.5), {}

    class Decided(Watch):
        def compressed(self, layer_idx: int, view: Any, plan: Any, before: Any, after: Any) -> None:
            noted[layer_idx] = before.score[0].clone()

    cache.settings.observer = Decided()
    cache.limit_second_pass(20)
    run(model, cache, ids)
    torch.testing.assert_close(torch.stack([noted[i] for i in range(3)]), expected, rtol=1e-4, atol=1e-5)


def test_a_bare_model_reads_the_context_alone() -> None:
    """Without a tokenizer there is nothing to ask with; BOS comes from the config."""
    model, ids = lab(), text()
    bare = LoadedModel(model.model, None, "tiny")
    cache = make_cache(model.model, "kvzip", 0.5)
    assert cache.settings.second_pass is not None and cache.settings.second_pass.ask == []
    expected = expected_scores(bare, ids, [ids[0, 1:].tolist()], "max")
    noted: dict[int, Tensor] = {}

    class Decided(Watch):
        def compressed(self, layer_idx: int, view: Any, plan: Any, before: Any, after: Any) -> None:
            noted[layer_idx] = before.score[0].clone()

    cache.settings.observer = Decided()
    run(bare, cache, ids)
    torch.testing.assert_close(torch.stack([noted[i] for i in range(3)]), expected, rtol=1e-4, atol=1e-5)


def test_without_tokens_it_says_so() -> None:
    model = lab()
    embedded = model.model.get_input_embeddings()(text())
    with pytest.raises(UserError, match="input_ids"), torch.inference_mode():
        model.model(inputs_embeds=embedded, past_key_values=make_cache(model, "kvzip", 0.5))
    cache = make_cache(model, "kvzip", 0.5)
    with torch.inference_mode(), pytest.raises(UserError, match="second time"):
        model.model.base_model(text(), past_key_values=cache)


@pytest.mark.parametrize("family", ["jamba", "bamba"])
def test_a_state_that_cannot_go_on_is_refused(family: str) -> None:
    with pytest.raises(UserError, match="reset their recurrent state"):
        make_cache(lab(family), "kvzip", 0.5)


def test_what_it_read_is_given_back() -> None:
    """Tables are as large as without a second pass, and the time it took is known where it was asked for."""
    model, ids = lab(), text(tokens=60)
    cache = make_cache(model, "kvzip", 30, level="uniform", timed=True)
    plain = make_cache(model, "snapkv", 30)
    run(model, cache, ids)
    run(model, plain, ids)
    ours, theirs = cache.memory(), plain.memory()
    assert (ours.live_bytes, ours.allocated_bytes) == (theirs.live_bytes, theirs.allocated_bytes)
    assert cache.settings.second_pass_seconds > 0
    assert isinstance(cache, CompressedCache)


def test_kvzip_decides_by_its_settings() -> None:
    assert make_method("kvzip", preset="uniform").pipeline().allocate != make_method("kvzip").pipeline().allocate
