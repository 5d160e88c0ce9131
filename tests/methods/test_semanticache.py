"""SemantiCache: chunks and clusters against the greedy rule token by token, and what reads the text."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.core.methods import make_method
from kvlab.core.methods.merging.semanticache import ending
from kvlab.models.load import LoadedModel, prepare
from tests.families import tiny_model
from tests.methods.merging import Layer, prompt

TOKENS, SINKS, RECENT, LONGEST = 40, 2, 5, 7
STOP = 9  # the token that ends a chunk


def clusters(keys: list[Tensor], ids: list[int], theta: float) -> list[list[int]]:
    """Runs up to a stop or the longest; in each the first free token takes all later free ones that are like it."""
    chunks: list[list[int]] = [[]]
    for token in range(len(keys)):
        if len(chunks[-1]) == LONGEST or (token and ids[token - 1] == STOP):
            chunks.append([])
        chunks[-1].append(token)
    found = []
    for chunk in chunks:
        free = [token for token in chunk if SINKS <= token < TOKENS - RECENT]
        while free:
            seed = free.pop(0)
            like = [t for t in free if float(torch.cosine_similarity(keys[seed], keys[t], dim=0)) > theta]
            found.append([seed, *like])
            free = [t for t in free if t not in like]
    return found


def layer(budget: int, told: bool = True, **settings: object) -> tuple[Layer, Tensor, Tensor, list[int]]:
    method = make_method("semanticache", sinks=SINKS, recent=RECENT, longest=LONGEST, **settings)
    one = Layer(method, budget)
    query, key, value = prompt(5, TOKENS)
    ids = [STOP if t % 11 == 4 else 3 for t in range(TOKENS)]
    if told:
        one.layer.settings.prompt_ids = [torch.tensor([ids])]
        object.__setattr__(one.layer.settings.pipeline.settle, "ends", torch.arange(20) == STOP)
    one.feed(query, key, value)
    return one, key[0].double(), value[0].double(), ids if told else [3] * TOKENS


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("theta", [-0.2, 0.1, 0.4])
def test_clusters_token_by_token(theta: float, told: bool) -> None:
    """Means of keys and values at the seed's position, log mass log n; without token ids chunks have equal length."""
    one, key, value, ids = layer(TOKENS - 1, told, theta=theta)
    for head in range(2):
        expected = clusters(list(key[head]), ids, theta)
        table = one.table(head)
        alone = {*range(SINKS), *range(TOKENS - RECENT, TOKENS)}
        assert set(table) == alone | {cluster[0] for cluster in expected}
        for cluster in expected:
            slot = table[cluster[0]]
            torch.testing.assert_close(slot["key"].double(), key[head][cluster].mean(0), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(slot["value"].double(), value[head][cluster].mean(0), atol=1e-5, rtol=1e-5)
            assert float(slot["log_mass"]) == pytest.approx(math.log(len(cluster)), abs=1e-5)
    one.check_votes(TOKENS)


@pytest.mark.parametrize("budget", [36, 24, 16])
def test_each_head_merges_no_more_than_its_budget_asks_for(budget: int) -> None:
    """The threshold found fits, and one a step stricter would not (the greedy rule is nearly monotone in it)."""
    one, key, _, ids = layer(budget)
    for head in range(2):
        places = budget - SINKS - RECENT
        held = len(one.table(head)) - SINKS - RECENT
        counts = [len(clusters(list(key[head]), ids, step / 64 - 1)) for step in range(128)]
        assert held <= places
        assert held >= places - 3 or held == max(count for count in counts if count <= places)
    one.check_votes(TOKENS)


def test_where_even_chunks_are_too_many_the_oldest_leave() -> None:
    one, *_ = layer(SINKS + RECENT + 3)
    for head in range(2):
        positions = sorted(one.table(head))
        assert len(positions) == SINKS + RECENT + 3
        assert positions[SINKS : SINKS + 3] == sorted(positions)[SINKS : SINKS + 3] and positions[SINKS] > TOKENS // 3
    one.check_votes(TOKENS)


class Words:
    """A tokenizer of 97 tokens, some of which end sentences."""

    bos_token_id = 1

    def __len__(self) -> int:
        return 97

    def batch_decode(self, ids: list[list[int]]) -> list[str]:
        return [{STOP: "end. ", 10: "what?", 11: "\n"}.get(one[0], f"w{one[0]}.x") for one in ids]


def test_a_model_tells_its_caches_what_they_read() -> None:
    """Left padding, chunks of the prompt and the plain transformers call: clusters end where sentences do."""
    words = Words()
    assert ending(words, ".?\n").nonzero()[:, 0].tolist() == [STOP, 10, 11]
    model = LoadedModel(prepare(tiny_model("llama")), words, "tiny")
    ids = torch.randint(12, 97, (2, 36), generator=torch.Generator().manual_seed(1))
    ids[:, 5::9] = STOP
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    cache = make_cache(model, "semanticache", 0.5, theta=-1.0, loosest=-1.0, sinks=1, recent=2)
    with torch.inference_mode():
        model.model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0), past_key_values=cache)
    for layer_of in cache.compressed_layers():
        slots = layer_of.slots
        assert slots is not None
        for row, pads in ((0, 0), (1, 6)):
            begins = {t - pads + 1 for t in range(5, 34, 9) if t >= pads and t + 1 < 34}
            for head in range(2):
                merged = slots.valid[row, head] & (slots.votes[row, head] > 1)
                assert set(slots.position[row, head][merged].tolist()) <= begins | {1}
                assert int(merged.sum()) >= 3
