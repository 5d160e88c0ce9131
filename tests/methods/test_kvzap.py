"""KVzap: what its networks make of hidden states, what stays by them, and the refusal of another model's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.fitted.kinds import SCORE_HEADS, write_score_heads
from kvlab.core.methods.scorers.kvzap import ScoreHead
from kvlab.models.load import LoadedModel, prepare
from tests.cache.layers import draw
from tests.families import tiny_model

TOKENS, HEADS, LAYERS, HIDDEN = 30, 2, 3, 5


def lab(family: str = "llama") -> LoadedModel:
    return LoadedModel(prepare(tiny_model(family)), None, family)


def networks(model: LoadedModel) -> dict[int, ScoreHead]:
    width = model.model.config.hidden_size
    return {
        layer: ScoreHead(
            draw(layer, HEADS, HIDDEN),
            draw(layer + 10, HEADS),
            draw(layer + 20, HIDDEN, width).half().float(),  # as the file stores it
            draw(layer + 30, HIDDEN),
        )
        for layer in range(LAYERS)
    }


def scores_by_hand(model: LoadedModel, ids: Tensor, heads: dict[int, ScoreHead]) -> dict[tuple[int, int], list[float]]:
    """{(layer, head): score of each token}: a Gaussian error linear unit between two maps of the module's input."""
    given: dict[int, Tensor] = {}
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, named, number=number: given.update({number: named["hidden_states"][0].double()}),
            with_kwargs=True,
        )
        for number, layer in enumerate(model.model.model.layers)
    ]
    with torch.inference_mode():
        model.model(ids, past_key_values=make_cache(model, "full"))
    for hook in hooks:
        hook.remove()
    found = {}
    for number, head in heads.items():
        for h in range(HEADS):
            found[number, h] = []
            for token in given[number]:
                inner = [float(w.double() @ token + b) for w, b in zip(head.inner, head.inner_bias, strict=True)]
                bent = [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in inner]
                found[number, h].append(
                    sum(float(w) * x for w, x in zip(head.weight[h], bent, strict=True)) + float(head.bias[h])
                )
    return found


def kept(
    model: LoadedModel, ids: Tensor, method: str, budget: float = 0.4, **settings: object
) -> dict[tuple[int, int], set[int]]:
    cache = make_cache(model, method, budget, **settings)
    with torch.inference_mode():
        model.model(ids, past_key_values=cache)
    return {
        (number, h): set(layer.slots.position[0, h][layer.slots.valid[0, h]].tolist())
        for number, layer in enumerate(cache.compressed_layers())
        for h in range(HEADS)
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Path, Tensor]:
    model, path = lab(), tmp_path_factory.mktemp("kvzap") / "tiny.safetensors"
    write_score_heads(path, networks(model), model.model, {"model": "tiny"})
    return model, path, torch.randint(3, 97, (1, TOKENS), generator=torch.Generator().manual_seed(3))


def test_what_the_networks_score_highest_in_the_model_stays(written: tuple[LoadedModel, Path, Tensor]) -> None:
    """One sink and two recent tokens in every head, and the highest of all other scores, wherever they are."""
    model, path, ids = written
    scores = scores_by_hand(model, ids, networks(model))
    safe = {0, TOKENS - 2, TOKENS - 1}
    places = 12 * LAYERS * HEADS - len(safe) * LAYERS * HEADS
    rest = sorted(
        ((s, where, t) for where, row in scores.items() for t, s in enumerate(row) if t not in safe), reverse=True
    )
    expected = {where: set(safe) for where in scores}
    for _, where, token in rest[:places]:
        expected[where].add(token)
    assert kept(model, ids, "kvzap", heads=str(path), sinks=1, recent=2) == expected


def test_exactmerge2_s_single_pass_is_given_the_scores_themselves(written: tuple[LoadedModel, Path, Tensor]) -> None:
    """Not their logs, so that a token without a score is below any; nothing is lost of one that stays."""
    model, path, ids = written
    by_hand = scores_by_hand(model, ids, networks(model))
    cache = make_cache(model, "exactmerge2", 12, second_pass=False, heads=str(path), refit="none", window=3)
    with torch.inference_mode():
        model.model(ids, past_key_values=cache)
    for number, layer in enumerate(cache.compressed_layers()):
        for h in range(HEADS):
            slots = layer.slots
            assert slots is not None
            here = slots.valid[0, h]
            expected = [math.exp(by_hand[number, h][token]) for token in slots.position[0, h][here].tolist()]
            assert slots.score[0, h][here].tolist() == pytest.approx(expected, rel=1e-3)


def test_a_threshold_decides_how_much_each_head_keeps(written: tuple[LoadedModel, Path, Tensor]) -> None:
    model, path, ids = written
    scores = scores_by_hand(model, ids, networks(model))
    threshold = sorted(score for row in scores.values() for score in row)[TOKENS * LAYERS * HEADS // 3] + 1e-4
    expected = {
        where: {t for t, score in enumerate(row) if score >= threshold or t == 0 or t >= TOKENS - 4}
        for where, row in scores.items()
    }
    found = kept(model, ids, "kvzap-threshold", heads=str(path), threshold=threshold, sinks=1, recent=4)
    assert found == expected
    assert len({len(tokens) for tokens in found.values()}) > 1


def test_padding_changes_nothing(written: tuple[LoadedModel, Path, Tensor]) -> None:
    model, path, ids = written
    padded = torch.cat([torch.zeros(1, 7, dtype=ids.dtype), ids], 1)
    both = torch.cat([padded, torch.randint(3, 97, padded.shape)])
    mask = torch.ones_like(both)
    mask[0, :7] = 0
    cache = make_cache(model, "kvzap-threshold", heads=str(path), threshold=0.0, sinks=1, recent=4)
    with torch.inference_mode():
        place = (mask.cumsum(-1) - 1).clamp_min(0)
        model.model(both, attention_mask=mask, position_ids=place, past_key_values=cache)
    alone = kept(model, ids, "kvzap-threshold", heads=str(path), threshold=0.0, sinks=1, recent=4)
    for number, layer in enumerate(cache.compressed_layers()):
        for h in range(HEADS):
            assert set(layer.slots.position[0, h][layer.slots.valid[0, h]].tolist()) == alone[number, h]


def test_networks_of_another_model_are_refused(written: tuple[LoadedModel, Path, Tensor], tmp_path: Path) -> None:
    _, path, _ = written
    other = lab("qwen3")
    with pytest.raises(UserError, match="not fitted to these weights of qwen3: run `kvlab fit --method kvzap"):
        make_cache(other, "kvzap", 0.3, heads=str(path))
    with pytest.raises(UserError, match="not fitted to these weights"):
        make_cache(other, "kvzap-threshold", heads=str(path))
    with pytest.raises(UserError, match="There is no file of KVzap's networks"):
        make_cache(other, "kvzap", 0.3, heads=str(tmp_path / "none"))
    (tmp_path / "text").write_text("not one")
    with pytest.raises(UserError, match="is not a file of KVzap's networks"):
        make_cache(other, "kvzap", 0.3, heads=str(tmp_path / "text"))


@pytest.mark.parametrize("settle", ["keepkv", "values"])
def test_beside_the_averages_of_a_merge_it_is_given_its_networks(
    written: tuple[LoadedModel, Path, Tensor], settle: str
) -> None:
    model, path, ids = written
    cache = make_cache(model, "compose", 0.4, score="kvzap", settle=settle, heads=str(path))
    with torch.inference_mode():
        model.model(ids, past_key_values=cache)
    by_hand = scores_by_hand(model, ids, networks(model))
    for (number, h), scores in by_hand.items():
        slots = cache.compressed_layers()[number].slots
        assert slots is not None
        kept_tokens = set(slots.position[0, h][slots.valid[0, h]].tolist())
        assert max(range(TOKENS), key=scores.__getitem__) in kept_tokens


SHIPPED = SCORE_HEADS.path("mini")


@pytest.mark.skipif(not SHIPPED.is_file(), reason="`kvlab fit` of assets/kvzap/README.md was not run in this checkout")
def test_those_that_ship_are_minis_and_small() -> None:
    path = SHIPPED
    heads, _, about = SCORE_HEADS.read(path)
    assert about["model"] == "mini" and sorted(heads) == list(range(6)) and heads[0].tensors()["weight"].shape[0] == 4
    assert path.stat().st_size < 1_000_000
