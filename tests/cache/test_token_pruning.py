"""PyramidInfer's prefill saving: deeper layers work on what the layers before kept, and on nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, PreTrainedModel

from kvlab.checking.case import walk
from kvlab.core.attention.pass_view import PassSeen
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.methods.composition.composed import compose
from kvlab.core.methods.eviction.pyramidinfer import RecentRows
from kvlab.engine import compare
from kvlab.models.load import prepare
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from tests.families import tiny_model

PROMPT, PADS = 40, 7
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma"]


def ids(count: int = PROMPT, rows: int = 1) -> Tensor:
    return torch.randint(3, 97, (rows, count), generator=torch.Generator().manual_seed(5))


def saving(model: PreTrainedModel, budget: float = 0.4, **options: object) -> CompressedCache:
    return make_cache(model, "pyramidinfer", budget, prefill_saving=True, **options)


@torch.inference_mode()
def reference(family: str, cache: CompressedCache, text: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(last logits, keys of each layer before it drops any) of a plain model given what the cache says was kept.

    Layer by layer with transformers' own eager attention and explicit masks, positions and gathers.
    """
    model = tiny_model(family, num_hidden_layers=3)
    base, place = model.model, torch.arange(text.shape[1])
    plain, keys = DynamicCache(config=model.config), []
    hidden = base.embed_tokens(text)
    for index, layer in enumerate(base.layers):
        rows = len(place)
        mask = torch.zeros(1, 1, rows, rows).masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
        turn = base.rotary_emb(hidden, position_ids=place[None])
        hidden = layer(
            hidden, attention_mask=mask, position_ids=place[None], position_embeddings=turn, past_key_values=plain
        )
        keys.append(plain.layers[index].keys)
        slots = cache.compressed_layers()[index].slots
        assert slots is not None
        kept = slots.position[0, 0][slots.valid[0, 0]].sort().values.long()
        hidden, place = hidden[:, torch.isin(place, kept)], kept
    return model.lm_head(base.norm(hidden))[:, -1], keys


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_a_plain_model_given_fewer_tokens_layer_by_layer(family: str) -> None:
    lab, text = prepare(tiny_model(family, num_hidden_layers=3)), ids()
    cache = saving(lab)
    with torch.inference_mode():
        logits = lab(text, past_key_values=cache).logits
    expected, keys = reference(family, cache, text)
    torch.testing.assert_close(logits[:, -1], expected, rtol=1e-4, atol=1e-4)
    seen = [layer.shape[2] for layer in keys]
    assert seen[0] == PROMPT > seen[1] >= seen[2]
    assert torch.isnan(logits[0]).any(-1).sum() == PROMPT - seen[-1], "what does not get through predicts nothing"
    for layer, full in zip(cache.compressed_layers(), keys, strict=True):
        assert layer.slots is not None and layer.slots.live().unique().numel() == 1
        assert layer.get_seq_length() == PROMPT
        held = layer.slots.keys[0][layer.slots.valid[0]]
        nearest = torch.cdist(held, full[0].flatten(0, 1), compute_mode="donot_use_mm_for_euclid_dist").amin(-1)
        assert nearest.max() < 1e-4, "every kept key is one the plain model makes of the same tokens"


def test_budgets_are_those_without_saving_and_every_token_is_accounted_for() -> None:
    lab, text = prepare(tiny_model("llama")), ids()
    saved, whole = saving(lab, ratio=0.3), make_cache(lab, "pyramidinfer", 0.4, ratio=0.3)
    with torch.inference_mode():
        for cache in (saved, whole):
            lab(text, past_key_values=cache)
        inner = [set(layer.slots.position[layer.slots.valid].tolist()) for layer in saved.compressed_layers()]
        assert inner[0] >= inner[1] > inner[2], "a prompt token a layer dropped never comes back"
        for cache in (saved, whole):
            for step in range(6):
                lab(torch.full((1, 1), 10 + step), past_key_values=cache)
    for ours, other in zip(saved.compressed_layers(), whole.compressed_layers(), strict=True):
        assert ours.slots is not None and other.slots is not None
        assert torch.equal(ours.budget, other.budget)
        assert torch.equal(ours.slots.live(), other.slots.live())
        votes = ours.slots.votes.masked_fill(~ours.slots.valid, 0).sum(-1).float()
        torch.testing.assert_close(votes + ours.evicted_votes, torch.full_like(votes, PROMPT + 6))


@pytest.mark.parametrize("passed", [PROMPT, 31, 12])
def test_as_many_queries_vote_as_the_whole_prompt_says(passed: int) -> None:
    """A layer given fewer tokens still asks the last 1 + int(.2 T) queries, T being the prompt's length."""
    generator = torch.Generator().manual_seed(passed)
    position = torch.cat(
        [
            torch.randperm(PROMPT - 10, generator=generator)[: passed - 10].sort().values,
            torch.arange(PROMPT - 10, PROMPT),
        ]
    )
    query, key = (torch.randn(1, heads, passed, 8, generator=generator) for heads in (4, 2))
    slots = make_method("pyramidinfer").pipeline().fresh(key, key, position[None], 2, PROMPT)
    score = RecentRows(0.2, 1.2, "shared").update(slots, PassSeen(query, key, None, None, 8**-0.5), True)["score"]
    voters = 1 + int(0.2 * PROMPT)
    expected = [0.0] * passed
    for head in range(4):
        for rank, row in enumerate(range(passed - voters, passed)):
            mass = torch.softmax(key[0, head // 2, : row + 1] @ query[0, head, row] * 8**-0.5, 0)
            weight = 1 + 0.2 * rank / (voters - 1)
            for column in range(row + 1):
                expected[column] += weight * float(mass[column]) / voters / 4
    torch.testing.assert_close(score[0], torch.tensor(expected).expand(2, -1), rtol=1e-4, atol=1e-6)


def test_a_padded_row_equals_the_row_alone() -> None:
    lab, text = prepare(tiny_model("qwen2")), ids(rows=2)
    mask = torch.ones_like(text)
    mask[1, :PADS] = 0

    def steps(text: Tensor, mask: Tensor) -> Tensor:
        return walk(lab, saving(lab), text, mask, steps=5)

    together = steps(text, mask)
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together[:1], steps(text[:1], mask[:1]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together[1:], steps(text[1:, PADS:], mask[1:, PADS:]), rtol=1e-4, atol=1e-4)


def test_a_second_turn_and_generation_go_on_as_usual() -> None:
    lab, text = prepare(tiny_model("llama")), ids()
    cache = saving(lab)
    cache.expect(PROMPT)
    with torch.inference_mode():
        lab(text, past_key_values=cache)
        second = lab(ids(9), past_key_values=cache).logits
    assert torch.isfinite(second).all()
    assert cache.get_seq_length() == PROMPT + 9
    assert all((layer.slots.live() <= layer.budget).all() for layer in cache.compressed_layers())
    output = lab.generate(text, past_key_values=saving(lab), max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert output.shape[1] == PROMPT + 5
    with torch.inference_mode():
        full = lab(text, past_key_values=saving(lab, 1.0)).logits
        torch.testing.assert_close(full, lab(text, past_key_values=make_cache(lab, "full")).logits)


def test_a_cache_used_again_after_reset_starts_with_all_tokens() -> None:
    lab, text = prepare(tiny_model("llama")), ids()
    cache = saving(lab)
    with torch.inference_mode():
        first = lab(text, past_key_values=cache).logits[:, -1]
        cache.reset()
        torch.testing.assert_close(lab(text, past_key_values=cache).logits[:, -1], first)


def test_a_recorded_run_knows_which_tokens_a_layer_never_saw(tmp_path: Path, tiny_model_folder: Path) -> None:
    """The shadow of a deeper layer holds what reached it: all its mass is kept or regretted, none is made up."""
    choice = MethodChoice(method="pyramidinfer", budget=0.4, hyper_parameters={"prefill_saving": True})
    text = "a kept token goes on, a dropped one stays behind, and so it is " * 2
    request = CompareRequest(model=str(tiny_model_folder), prompt=text, choices=(choice,), max_new_tokens=4)
    run = next(run for run in map(open_run, compare(request, tmp_path)) if run.record.method == "pyramidinfer")
    known = torch.tensor((run.steps["kept_mass"] + run.steps["regret"]).to_numpy()).float()
    torch.testing.assert_close(known, torch.ones(len(known)), rtol=0, atol=2e-3)
    start = run.steps[run.steps["step"] == 0]
    assert (start["live_slots"] + start["evicted"] == start["tokens_seen"]).all()
    left = run.events[run.events["step"] == 0].groupby(["layer", "head"])["source"]
    assert (left.nunique() == left.count()).all(), "each token leaves once"
    assert (left.count().to_numpy() == start.sort_values(["layer", "head"])["evicted"].to_numpy()).all()
    prompt = run.tokens.query("phase == 'prompt'")["logprob"]
    assert 0 < prompt.notna().sum() < len(prompt) - 1, "tokens that did not get through predict nothing"


def test_prefill_takes_fewer_operations() -> None:
    lab, text, counts = prepare(tiny_model("llama", num_hidden_layers=6)), ids(256), []
    for on in (False, True):
        cache = make_cache(lab, "pyramidinfer", 0.3, prefill_saving=on)
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            lab(text, past_key_values=cache, logits_to_keep=1)
        counts.append(counter.get_total_flops())
    assert counts[1] < 0.6 * counts[0]


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gpt-neox", "falcon-grouped"])
def test_other_families_are_refused_with_a_sentence(family: str) -> None:
    with pytest.raises(UserError, match="does not support"):
        saving(prepare(tiny_model(family, num_hidden_layers=3)))


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(UserError, match="same tokens in every head"):
        make_method("pyramidinfer", prefill_saving=True, heads="each")
    with pytest.raises(UserError, match="prefill_saving needs every head"):
        compose(score="pyramidinfer", prefill_saving=True)
