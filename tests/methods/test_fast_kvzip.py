"""Fast KVzip: what its gates make of hidden states, what stays by them, how they are fitted, and bad files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.fitted.kinds import GATES, write_score_heads
from kvlab.core.methods.scorers.kvzap import SinkGate
from kvlab.models.fitting.kvzap import RATE, fit_gate
from kvlab.models.fitting.request import FitRequest
from kvlab.models.load import LoadedModel
from tests.cache.layers import draw
from tests.methods.test_kvzap import HEADS, LAYERS, TOKENS, kept, lab

GROUP, RANK, SINKS = 2, 3, 4


def gate(layer: int, width: int) -> SinkGate:
    """Random weights that float16 holds exactly."""
    queries = (HEADS, GROUP, RANK, width), (HEADS, GROUP, RANK)
    shapes = [*queries, (HEADS, RANK, width), (RANK,), (RANK,), (HEADS, SINKS, RANK), (HEADS, GROUP)]
    return SinkGate(*(draw(100 * layer + place, *shape).half().float() for place, shape in enumerate(shapes)))


def norm(vector: list[float], weight: Tensor) -> list[float]:
    length = math.sqrt(sum(x * x for x in vector) / len(vector) + 1e-6)
    return [x / length * float(w) for x, w in zip(vector, weight, strict=True)]


def dot(left: list[float], right: list[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True)) / math.sqrt(len(left))


def by_hand(gate: SinkGate, token: Tensor, head: int) -> float:
    """The share of its own key in each query's softmax over that key and the sink keys, mean over queries."""
    key = norm([float(row.double() @ token) for row in gate.key[head]], gate.key_norm)
    found = 0.0
    for g in range(GROUP):
        rows = zip(gate.query[head, g], gate.query_bias[head, g], strict=True)
        query = norm([float(row.double() @ token + shift) for row, shift in rows], gate.query_norm)
        own = math.exp(dot(query, key) + float(gate.bias[head, g]))
        others = sum(math.exp(dot(query, sink.tolist())) for sink in gate.sinks[head])
        found += own / (own + others) / GROUP
    return found


def inputs(model: LoadedModel, ids: Tensor) -> list[Tensor]:
    """Inputs (T, D) float64 of each attention module."""
    given: list[Tensor] = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, named: given.append(named["hidden_states"][0].double()), with_kwargs=True
        )
        for layer in model.model.model.layers
    ]
    with torch.inference_mode():
        model.model(ids, past_key_values=make_cache(model, "full"))
    for hook in hooks:
        hook.remove()
    return given


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Path, Tensor]:
    model, path = lab(), tmp_path_factory.mktemp("gates") / "tiny.safetensors"
    width = model.model.config.hidden_size
    write_score_heads(path, {layer: gate(layer, width) for layer in range(LAYERS)}, model.model, {"model": "tiny"})
    return model, path, torch.randint(3, 97, (1, TOKENS), generator=torch.Generator().manual_seed(3))


def test_what_the_gates_score_highest_in_the_model_stays(written: tuple[LoadedModel, Path, Tensor]) -> None:
    """One sink and two recent tokens in every head, and the highest of all other gates, wherever they are."""
    model, path, ids = written
    states, (known, _, _) = inputs(model, ids), GATES.read(path)
    safe, scores = {0, TOKENS - 2, TOKENS - 1}, {}
    for layer, network in known.items():
        predicted = network.predict(states[layer][None].float())[0].exp()
        for head in range(HEADS):
            scores[layer, head] = [by_hand(network, token, head) for token in states[layer]]
            assert predicted[head].tolist() == pytest.approx(scores[layer, head], rel=1e-4)
    places = (12 - len(safe)) * LAYERS * HEADS
    rest = [(s, where, t) for where, row in scores.items() for t, s in enumerate(row) if t not in safe]
    expected = {where: set(safe) for where in scores}
    for _, where, token in sorted(rest, reverse=True)[:places]:
        expected[where].add(token)
    assert kept(model, ids, "fast-kvzip", gates=str(path), sinks=1, recent=2) == expected


def test_gates_far_from_one_still_differ() -> None:
    """In log space: of gates below the smallest float32, the larger one scores higher."""
    base = gate(0, 5)
    faint = SinkGate(**(base.tensors() | {"bias": torch.full((HEADS, GROUP), -200.0)}))
    scores = faint.predict(draw(1, 1, 6, 5))
    assert torch.isfinite(scores).all() and (scores.exp() == 0).all()
    assert all(row.unique().numel() == 6 for row in scores[0])


def test_a_fit_finds_what_a_gate_of_its_kind_says() -> None:
    states, truth = draw(5, 300, 6), gate(1, 6)
    scores = truth.predict(states[None])[0].T
    request = FitRequest(method="fast-kvzip", rank=RANK, sink_keys=SINKS, steps=150)
    found = fit_gate(states[:250], scores[:250], request, 0, GROUP).predict(states[None, 250:])[0].T.exp()
    wanted = scores[250:].exp()
    assert float((found - wanted).square().mean()) < 0.2 * float((wanted - wanted.mean(0)).square().mean())


def test_the_learning_rate_rises_and_is_halved_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: rates.append(self.param_groups[0]["lr"] / RATE))
    states = draw(5, 20, 6)
    request = FitRequest(method="fast-kvzip", rank=RANK, sink_keys=SINKS, steps=200)
    fit_gate(states, gate(1, 6).predict(states[None])[0].T, request, 0, GROUP)
    at = [rates[step] for step in (0, 1, 2, 99, 100, 149, 150, 199)]
    assert len(rates) == 200 and at == pytest.approx([0, 0.5, 1, 1, 0.5, 0.5, 0.25, 0.25])


def test_files_of_other_models_or_methods_are_refused(written: tuple[LoadedModel, Path, Tensor]) -> None:
    model, path, _ = written
    with pytest.raises(UserError, match="not fitted to these weights of qwen3: run `kvlab fit --method fast-kvzip"):
        make_cache(lab("qwen3"), "fast-kvzip", 0.3, gates=str(path))
    with pytest.raises(
        UserError, match="is not a file of KVzap's networks: create one with `kvlab fit --method kvzap`"
    ):
        make_cache(model, "kvzap", 0.3, heads=str(path))
    with pytest.raises(UserError, match="There is no file of Fast KVzip's gates none: create one with"):
        make_cache(model, "fast-kvzip", 0.3, gates="none")


def test_those_that_ship_are_minis_and_small() -> None:
    path = GATES.path("mini")
    gates, _, about = GATES.read(path)
    assert about["model"] == "mini" and sorted(gates) == list(range(6)) and gates[0].tensors()["sinks"].shape[0] == 4
    assert path.stat().st_size < 300_000
