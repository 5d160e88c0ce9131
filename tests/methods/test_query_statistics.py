"""TriAttention and Q-Filters: their formulas token by token, what is measured for them, and the refusal of others'."""

from __future__ import annotations

import cmath
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvlab.core.assets import asset_path
from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.fitted.kinds import QUERIES, write_query_statistics
from kvlab.core.methods.scorers.query_statistics import QueryStatistics, random_statistics
from kvlab.models.fitting.query_statistics import Watcher
from kvlab.models.load import LoadedModel
from tests.families import tiny_model
from tests.methods.test_kvzap import HEADS, LAYERS, TOKENS, kept, lab

GROUP, FURTHEST, DIM = 2, 9, 16


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, dict[int, QueryStatistics], Path]:
    model, path = lab(), tmp_path_factory.mktemp("queries") / "tiny.safetensors"
    known = {layer: random_statistics(HEADS * GROUP, HEADS, DIM, DIM // 2, 10 + layer) for layer in range(LAYERS)}
    write_query_statistics(path, known, model.model, {"model": "tiny"})
    return model, known, path


def text(tokens: int = TOKENS) -> Tensor:
    return torch.randint(3, 97, (1, tokens), generator=torch.Generator().manual_seed(3))


def keys_of(model: LoadedModel, ids: Tensor) -> list[Tensor]:
    """Each layer's keys (H, T, d) of the full cache, rotated as stored."""
    cache = make_cache(model, "full")
    with torch.inference_mode():
        model.model(ids, past_key_values=cache)
    return [layer.slots.keys[0] for layer in cache.compressed_layers()]


def pairs(vector: Tensor) -> list[complex]:
    half = len(vector) // 2
    return [complex(float(a), float(b)) for a, b in zip(vector[:half], vector[half:], strict=True)]


def frequencies() -> list[float]:
    return [10000.0 ** (-2 * f / DIM) for f in range(DIM // 2)]


def centre_scores(
    known: QueryStatistics, keys: Tensor, head: int, tokens: dict[int, int], now: int
) -> dict[int, float]:
    """{position: score} of one KV head's `tokens` {position: index of its key in `keys`}, from the paper's series."""
    offsets = [2**i for i in range(FURTHEST.bit_length()) if 2**i <= FURTHEST]
    best = dict.fromkeys(tokens, -math.inf)
    for query_head in range(head * GROUP, (head + 1) * GROUP):
        centre, lengths, raw = pairs(known.mean[query_head]), known.length[query_head].tolist(), {}
        for position, index in tokens.items():
            stored = pairs(keys[head, index])
            plain = [k * cmath.exp(-1j * position * w) for k, w in zip(stored, frequencies(), strict=True)]
            raw[position] = 0.0
            for q, length, k, w in zip(centre, lengths, plain, frequencies(), strict=True):
                angle = cmath.phase(q) - cmath.phase(k)
                for offset in offsets:
                    cosine = math.cos((now + offset - position) * w + angle)
                    raw[position] += abs(q) * abs(k) * cosine / len(offsets)
                raw[position] += (length - abs(q)) * abs(k)
        mean = sum(raw.values()) / len(raw)
        deviation = math.sqrt(sum((each - mean) ** 2 for each in raw.values()) / len(raw))
        best = {position: max(best[position], (raw[position] - mean) / deviation) for position in tokens}
    return best


def highest(score: dict[int, float], budget: int, newest: int, safe: int = 0) -> set[int]:
    """The newest, the first `safe`, and the best of the others."""
    always = {newest, *range(safe)}
    others = sorted((t for t in score if t not in always), key=lambda t: -score[t])
    return always | set(others[: budget - len(always)])


@pytest.mark.parametrize("heads", ["each", "shared"])
def test_triattention_keeps_what_the_trigonometric_series_says(
    written: tuple[LoadedModel, dict[int, QueryStatistics], Path], heads: str
) -> None:
    model, known, path = written
    found = kept(model, text(), "triattention", 12, queries=str(path), furthest=FURTHEST, heads=heads)
    for layer, keys in enumerate(keys_of(model, text())):
        scores = [centre_scores(known[layer], keys, h, {t: t for t in range(TOKENS)}, TOKENS) for h in range(HEADS)]
        if heads == "shared":
            scores = [{t: max(each[t] for each in scores) for t in range(TOKENS)}] * HEADS
        for h in range(HEADS):
            assert found[layer, h] == highest(scores[h], 12, TOKENS - 1), (layer, h)


@pytest.mark.parametrize("prompt", ["compete", "keep"])
def test_triattention_decides_whenever_the_buffer_is_full(
    written: tuple[LoadedModel, dict[int, QueryStatistics], Path], prompt: str
) -> None:
    """In the first layer, whose keys do not depend on what was dropped; prompts kept leave generated tokens to go."""
    model, known, path = written
    budget, first, ids = 12, 8 if prompt == "keep" else TOKENS, text(TOKENS + 12)
    options = {"queries": str(path), "furthest": FURTHEST, "prompt": prompt, "buffer": 3}
    cache, keys = make_cache(model, "triattention", budget, **options), keys_of(model, ids)[0]
    with torch.inference_mode():
        model.model(ids[:, :first], past_key_values=cache)
        alive = [set(range(first))] * HEADS
        for now in range(first, first + 12):
            if now == first and prompt == "compete":
                scores = [centre_scores(known[0], keys, h, {t: t for t in alive[h]}, now) for h in range(HEADS)]
                alive = [highest(scores[h], budget, now - 1) for h in range(HEADS)]
            model.model(ids[:, now : now + 1], past_key_values=cache)
            alive, safe = [each | {now} for each in alive], first if prompt == "keep" else 0
            over = len(alive[0]) - budget
            if (now + 1 - first) % 3 == 0 and over > 0:
                for h in range(HEADS):
                    competing = {t: t for t in alive[h] if t >= safe}
                    score = centre_scores(known[0], keys, h, competing, now + 1)
                    alive[h] = highest(score, budget, now, safe)
            slots = cache.compressed_layers()[0].slots
            assert slots is not None
            assert [set(p[v].tolist()) for p, v in zip(slots.position[0], slots.valid[0], strict=True)] == alive, now
    assert len(alive[0]) == budget


def test_qfilter_keeps_what_lies_along_the_direction(
    written: tuple[LoadedModel, dict[int, QueryStatistics], Path],
) -> None:
    model, known, path = written
    found = kept(model, text(), "qfilter", 12, queries=str(path))
    for layer, keys in enumerate(keys_of(model, text())):
        for h in range(HEADS):
            along = known[layer].direction[h].tolist()
            score = {t: sum(a * float(b) for a, b in zip(along, keys[h, t], strict=True)) for t in range(TOKENS)}
            assert found[layer, h] == highest(score, 12, TOKENS - 1)


def test_statistics_are_those_of_the_queries_before_and_after_rotation() -> None:
    """Of two windows: projections by the layer's own weights, rotated by hand, and their singular vectors."""
    model, plain = lab(), {number: [] for number in range(LAYERS)}
    hooks = [
        layer.self_attn.q_proj.register_forward_hook(lambda m, a, out, n=n: plain[n].append(out[0].double()))
        for n, layer in enumerate(model.model.model.layers)
    ]
    watcher, windows = Watcher(), [text(), text(50)[:, TOKENS:]]
    for ids in windows:
        with torch.inference_mode():
            model.model(ids, past_key_values=make_cache(model, "full", observer=watcher), logits_to_keep=1)
    for hook in hooks:
        hook.remove()
    for layer in range(LAYERS):
        found = watcher.layers[layer].statistics()
        queries = [part.unflatten(-1, (HEADS * GROUP, DIM)) for part in plain[layer]]
        for h in range(HEADS):
            directions = []
            for query_head in range(h * GROUP, (h + 1) * GROUP):
                own = torch.cat([part[:, query_head] for part in queries])
                torch.testing.assert_close(found.mean[query_head], own.mean(0).float(), rtol=1e-3, atol=1e-4)
                lengths = [sum(abs(pairs(q)[f]) for q in own) / len(own) for f in range(DIM // 2)]
                assert found.length[query_head].tolist() == pytest.approx(lengths, rel=1e-3)
                turned = []
                for part in queries:
                    for position, query in enumerate(part[:, query_head]):
                        each = [
                            q * cmath.exp(1j * position * w) for q, w in zip(pairs(query), frequencies(), strict=True)
                        ]
                        turned.append([z.real for z in each] + [z.imag for z in each])
                asked = torch.tensor(turned, dtype=torch.float64)
                direction = torch.linalg.svd(asked).Vh[0]
                directions.append(direction if float((asked @ direction).mean()) > 0 else -direction)
            mean = sum(directions) / GROUP
            torch.testing.assert_close(found.direction[h], (mean / mean.norm()).float(), rtol=1e-3, atol=1e-3)


def test_statistics_of_another_model_are_refused(
    written: tuple[LoadedModel, dict[int, QueryStatistics], Path], tmp_path: Path
) -> None:
    _, known, path = written
    for method in ("triattention", "qfilter"):
        with pytest.raises(UserError, match="not fitted to these weights of qwen3: run `kvlab fit --method triattent"):
            make_cache(lab("qwen3"), method, 0.3, queries=str(path))
    with pytest.raises(UserError, match="There is no file of query statistics"):
        make_cache(lab(), "qfilter", 0.3, queries=str(tmp_path / "none"))
    bad = {0: QueryStatistics(known[0].mean[:3], known[0].length, known[0].direction)}
    write_query_statistics(tmp_path / "bad.safetensors", bad, tiny_model("llama"), {})
    with pytest.raises(UserError, match="is not a file of query statistics"):
        make_cache(lab(), "qfilter", 0.3, queries=str(tmp_path / "bad.safetensors"))


def test_a_wrapped_scorer_is_given_its_statistics(
    written: tuple[LoadedModel, dict[int, QueryStatistics], Path],
) -> None:
    """With a merge that keeps averages beside the score, and with budgets that split the heads over tables."""
    model, _, path = written
    for options in ({"settle": "keepkv"}, {"allocate": "adakv", "recent": 2}):
        options = {"score": "triattention", "queries": str(path), "score_buffer": 2} | options
        cache = make_cache(model, "compose", 0.4, **options)
        with torch.inference_mode():
            model.model(text(), past_key_values=cache)
            for token in range(5):
                model.model(torch.tensor([[5 + token]]), past_key_values=cache)


@pytest.mark.parametrize("name", QUERIES.shipped)
def test_those_that_ship_have_a_mean_no_longer_than_their_queries(name: str) -> None:
    found, _, about = QUERIES.read(QUERIES.path(name))
    assert about["windows"] == {"smollm2": "64"}.get(name, "24") and sorted(found) == list(range(len(found)))
    for one in found.values():
        half = one.mean.shape[1] // 2
        assert (one.mean.unflatten(-1, (2, half)).norm(dim=-2) <= one.length * (1 + 1e-5)).all()
        torch.testing.assert_close(one.direction.norm(dim=-1), torch.ones(len(one.direction)))


def test_a_model_with_a_shipped_file_is_told_its_name(
    written: tuple[LoadedModel, dict[int, QueryStatistics], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, path = written
    monkeypatch.setattr(
        "kvlab.core.fitted.files.asset_path",
        lambda name: path if name == "queries/mini-60.safetensors" else asset_path(name),
    )
    with pytest.raises(UserError, match="set queries=mini-60, which were"):
        make_cache(model, "triattention", 0.3)


def test_smollm2s_shipped_statistics_are_of_its_shape() -> None:
    """30 layers of 9 query and 3 KV heads of 64; directions of length 1, no mean query longer than the queries are."""
    known, _, about = QUERIES.read(QUERIES.path("smollm2"))
    assert sorted(known) == list(range(30)) and about["model"] == "smollm2"
    for one in known.values():
        assert (one.mean.shape, one.length.shape, one.direction.shape) == ((9, 64), (9, 32), (3, 64))
        torch.testing.assert_close(one.direction.norm(dim=-1), torch.ones(3))
