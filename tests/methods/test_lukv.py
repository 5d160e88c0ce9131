"""LU-KV: curves measured with later text, the cut that divides a budget by them, and what each head keeps."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.fitted.kinds import CURVES, write_profile
from kvlab.models.fitting import curves, fit, text
from kvlab.models.fitting.curves import falling, ranked_importance, split
from kvlab.models.fitting.request import FitRequest
from tests.cache.layers import draw
from tests.cache.test_second_pass import Watch
from tests.methods.test_kvzap import HEADS, LAYERS, TOKENS, kept, lab


def convex_losses(losses: list[float]) -> list[float]:
    """The greatest convex sequence below `losses`, by the chords over each point."""
    points = range(len(losses))

    def chord(left: int, right: int, at: int) -> float:
        return losses[left] + (losses[right] - losses[left]) * (at - left) / max(right - left, 1)

    return [min(chord(i, j, at) for i, j in product(range(at + 1), range(at, len(losses)))) for at in points]


def test_gains_are_the_steps_of_the_convex_hull_of_the_losses() -> None:
    """Loss after keeping i slots is what the others matter; its hull falls by ever less."""
    gains = draw(1, 4, 9).abs()
    for row, fitted in zip(gains.tolist(), falling(gains[:, None])[:, 0].tolist(), strict=True):
        losses = [sum(row[kept:]) for kept in range(len(row) + 1)]
        hull = convex_losses(losses)
        assert fitted == pytest.approx([before - after for before, after in pairwise(hull)])
        assert fitted == sorted(fitted, reverse=True)


def test_a_cut_has_the_least_loss_of_all_divisions() -> None:
    gains = falling(draw(2, 1, 3, 5).abs())
    for total in range(16):
        given = split(gains, total)
        lost = {
            counts: sum(float(gains[0, head, count:].sum()) for head, count in enumerate(counts))
            for counts in product(range(6), repeat=3)
            if sum(counts) == total
        }
        assert int(given.sum()) == total
        assert lost[tuple(given[0].tolist())] == pytest.approx(min(lost.values()))


def test_importance_is_what_later_queries_take_in_the_order_of_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """max over later queries and the group of A |W_o v|, written out; key norms (shortest keys first) as the score."""
    monkeypatch.setattr(curves, "LATER", 6)
    # no token twice, so that no two keys are equally long
    model, ids, seen = lab(), torch.randperm(90, generator=torch.Generator().manual_seed(4))[None, :24] + 3, Watch()
    tokens = ids.shape[1] - 6
    found = ranked_importance(model, ids, "key-norm")
    full = make_cache(model, "full")
    full.settings.observer = seen
    with torch.inference_mode():
        model.model(ids, past_key_values=full)
    for number, layer in enumerate(full.compressed_layers()):
        keys, values, mass = layer.slots.keys[0], layer.slots.values[0], seen.mass[number]
        weight, width = model.model.model.layers[number].self_attn.o_proj.weight.detach(), values.shape[-1]
        for head, group in product(range(HEADS), [len(mass) // HEADS]):
            lengths = keys[head, :tokens].norm(dim=-1).tolist()
            rest = sorted(range(4, tokens - 1), key=lengths.__getitem__)
            expected = []
            for token in [0, 1, 2, 3, tokens - 1, *rest]:
                norms = [
                    float((weight[:, q * width : (q + 1) * width] @ values[head, token]).norm())
                    for q in range(head * group, (head + 1) * group)
                ]
                rows = mass[head * group : (head + 1) * group, tokens:, token].amax(-1).tolist()
                expected.append(max(a * b for a, b in zip(rows, norms, strict=True)))
            assert found[number, head].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def written(path: Path, rates: Tensor) -> Path:
    """A file whose heads keep `rates` (L, H) of their tokens at a budget of their mean, and as much at any other."""
    shares = (rates / rates.sum()).expand(99, -1, -1)
    write_profile(path, list(curves.BUDGETS), shares, lab().model, {"model": "tiny"})
    return path


def test_each_head_keeps_the_best_of_its_share(tmp_path: Path) -> None:
    """Rates of a curve times the tokens, and within a head what ExpectedAttention keeps of as many."""
    rates = torch.tensor([[6, 3], [12, 9], [24, 18]]) / TOKENS
    path, model = written(tmp_path / "tiny.safetensors", rates), lab()
    ids = torch.randint(3, 97, (1, TOKENS), generator=torch.Generator().manual_seed(3))
    options = {"n_future": 8, "sinks": 1, "epsilon": 0.02}
    found = kept(model, ids, "lukv", 12, curves=str(path), **options)
    for (layer, head), tokens in found.items():
        count = round(float(rates[layer, head]) * TOKENS)
        assert tokens == kept(model, ids, "expected-attention", count, **options)[layer, head]


def test_any_score_is_measured_and_cut_by_its_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget between two of the file is met; another model is refused; a fit stops when asked."""
    monkeypatch.setattr(text, "text_windows", lambda *_: iter(draw(7, 2, 1, 160).abs().mul(30).long() % 90 + 3))
    model, out = lab(), tmp_path / "snapkv.safetensors"
    request = FitRequest(method="lukv", score="snapkv", windows=2)
    monkeypatch.setattr(fit, "held_model", lambda request: model)
    told: list[str] = []
    fit.fit(request, out, say=told.append)
    assert told[-1].endswith(f"use it with compose:score=snapkv:allocate=curves:curves={out}")
    assert torch.tensor(CURVES.read(out)[0].shares).shape == (99, LAYERS, HEADS)
    ids = torch.randint(3, 97, (1, TOKENS), generator=torch.Generator().manual_seed(3))
    options = {"score": "snapkv", "allocate": "curves", "curves": str(out), "score_window": 3, "recent": 2, "sinks": 1}
    found = kept(model, ids, "compose", 11, **options)
    assert sum(map(len, found.values())) == 11 * LAYERS * HEADS and len({len(tokens) for tokens in found.values()}) > 1
    with pytest.raises(UserError, match=r"run `kvlab fit --method lukv --model qwen3 .* set curves=FILE \(.*even"):
        make_cache(lab("qwen3"), "lukv", 0.3, curves=str(out))
    fit.fit(request, tmp_path / "stopped", cancelled=lambda: True)
    assert not (tmp_path / "stopped").exists()


def test_the_shipped_curves_are_minis() -> None:
    known, _, about = CURVES.read(CURVES.path("mini"))
    assert about["model"] == "mini" and len(known.budgets) == 99
    assert known.at(0.2).sum(-1).argmax() == 3, "layer 3 of mini retrieves"
