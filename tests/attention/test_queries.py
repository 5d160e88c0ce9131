"""Queries that no token asked: the projection of every family, the turn ahead, and the Gaussian they come from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.core.attention import pass_view, tiles
from kvlab.core.attention.pass_view import PassView
from kvlab.core.attention.queries import num_key_value_heads, project_queries
from kvlab.core.cache import make_cache
from kvlab.core.contract.rotary import Rotary
from kvlab.core.methods.scorers import sampled_queries as future_module
from kvlab.core.methods.scorers.sampled_queries import FutureQueries, average_turn, moments
from kvlab.models.info.size import UNGROUPED
from kvlab.models.load import prepare
from tests.cache.layers import draw
from tests.conformance.test_matrix import COMPRESSIBLE
from tests.families import tiny_model

CASES = [(family, {}) for family in COMPRESSIBLE] + [
    ("gpt-neox", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    ("falcon-multi-query", {"multi_query": False}),
]
ROTARY = Rotary(10000.0 ** -(torch.arange(4) / 4))


class Watcher:
    """Keeps what every layer of a cache saw at the prompt."""

    def __init__(self) -> None:
        self.seen: dict[int, PassView] = {}

    def attended(self, layer_idx: int, slots: object, layer_pass: PassView, output: object) -> None:
        """Remembers the first pass."""
        self.seen.setdefault(layer_idx, layer_pass)

    def compressed(self, *what: object) -> None:
        """Nothing."""


def lively(family: str, dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    """A model whose biases and query norms are not at their neutral start."""
    model = tiny_model(family, dtype, **changes)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "q_norm" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(dtype))
    return prepare(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "changes"), CASES)
def test_projection_gives_the_models_own_queries(family: str, changes: dict, dtype: torch.dtype) -> None:
    """The query each attention call received, turned back to position 0, is the projection of what the layer got."""
    model, watcher = lively(family, dtype, **changes), Watcher()
    ids = torch.randint(3, 97, (2, 12), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        model(ids, past_key_values=make_cache(model, "gvote", observer=watcher))
        assert watcher.seen
        for seen in watcher.seen.values():
            assert seen.hidden_states is not None
            assert (seen.rotary is None) == ("alibi" in family)
            ours = seen.project_queries(seen.hidden_states).float()
            back = seen.query.float()
            if seen.rotary is not None:
                back = seen.rotary.turn(seen.query, -torch.arange(12).expand(seen.query.shape[:3]))
            tolerance = 1e-4 if dtype == torch.float32 else 0.03 * float(ours.abs().max())
            assert ours.shape == seen.query.shape
            assert (ours - back).abs().max() < tolerance
            assert ours.std() > 0.1


def test_an_unknown_projection_says_so() -> None:
    with pytest.raises(ValueError, match="does not know the query projection of Linear"):
        project_queries(nn.Linear(3, 3), torch.zeros(1, 1, 3))
    bare = PassView(draw(0, 1, 1, 1, 4), draw(1, 1, 1, 1, 4), None, None, 1.0)
    with pytest.raises(ValueError, match="only runs inside a model"):
        bare.project_queries(torch.zeros(1, 1, 3))


def test_averaged_rotation_is_the_mean_of_the_rotations() -> None:
    query, start = draw(0, 2, 3, 5, 10), torch.tensor([7, 30])
    turned = [
        ROTARY.turn(query, (start + ahead)[:, None, None].expand(2, 3, 5)) for ahead in range(6)
    ]  # the last two of ten coordinates are not rotated
    torch.testing.assert_close(average_turn(query, ROTARY, start, 6), torch.stack(turned).mean(0))


def test_each_sample_may_stand_at_a_position_of_its_own() -> None:
    query, start = draw(0, 1, 2, 4, 8), torch.tensor([11])
    future, nothing = FutureQueries(samples=4, n_future=20, rope_mode="sampled"), torch.zeros(1, 3)
    given = SimpleNamespace(generator=torch.Generator(), rotary=ROTARY, project_queries=lambda states, position: query)
    ahead = future.draw_from(given, nothing, nothing, torch.float32, start)
    for sample, offset in enumerate([2, 7, 12, 17]):
        alone = ROTARY.turn(query[:, :, sample], torch.full((1, 2), 11 + offset))
        torch.testing.assert_close(ahead[:, :, sample], alone)
    torch.testing.assert_close(ahead.norm(dim=-1), query.norm(dim=-1))


def test_moments_see_their_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_module, "ROW_BLOCK", 4)
    states, rows = draw(2, 2, 11, 6) * 3 + 5, torch.rand(2, 11, generator=torch.Generator().manual_seed(1)) > 0.3
    clean = states.clone()
    states[~rows] = torch.nan
    mean, deviation = moments(states, rows)
    for row in range(2):
        torch.testing.assert_close(mean[row], clean[row][rows[row]].mean(0))
        torch.testing.assert_close(deviation[row], clean[row][rows[row]].std(0))


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_logits_of_any_query(monkeypatch: pytest.MonkeyPatch, softcap: float | None) -> None:
    """No causal order, invalid slots never, the model's soft cap, in blocks of keys."""
    monkeypatch.setattr(pass_view, "KEY_BLOCK", 4)
    query, key, bias = draw(0, 2, 4, 3, 8), draw(1, 2, 2, 10, 8), torch.zeros(2, 2, 10)
    bias[1, :, :3] = -torch.inf
    layer_pass = PassView(draw(5, 2, 4, 10, 8), key, bias[:, :, None], None, 0.3, softcap)
    expected = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.3
    expected = expected if softcap is None else softcap * torch.tanh(expected / softcap)
    expected[1, :, :, :3] = -torch.inf
    torch.testing.assert_close(layer_pass.logits_of(query).flatten(1, 2), expected)


def test_rows_of_a_batch_may_weigh_their_queries_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiles.TILE, "cpu", (3, 1))
    query, key = draw(0, 2, 4, 9, 8), draw(1, 2, 2, 9, 8)
    weight = torch.rand(2, 5, generator=torch.Generator().manual_seed(2))
    both = PassView(query, key, None, None, 0.4).column_mass(5, weight)
    for row in range(2):
        alone = PassView(query[row : row + 1], key[row : row + 1], None, None, 0.4).column_mass(5, weight[row])
        torch.testing.assert_close(both[row : row + 1], alone)


@pytest.mark.parametrize("family", sorted(UNGROUPED))
def test_families_without_grouped_heads_ignore_the_number_in_their_config(family: str):
    config = CONFIG_MAPPING[family](num_key_value_heads=1)
    assert num_key_value_heads(config) == config.num_attention_heads > 1


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "phi", "gpt_bigcode", "olmo2"])
def test_families_with_grouped_heads_have_the_number_of_their_config(family: str):
    assert family not in UNGROUPED
    assert num_key_value_heads(CONFIG_MAPPING[family](num_attention_heads=8, num_key_value_heads=1)) == 1
