"""CriticalKV's two stages, slot by slot, and the output projection of every family."""

from __future__ import annotations

import pytest
import torch

from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.models.load import prepare
from tests.cache.inside import GROUP, HEADS, HIDDEN, Attention, feed, output_part
from tests.cache.layers import DIM, HandLayer, draw
from tests.families import EVERY, tiny_model
from tests.methods.merging import Layer
from tests.methods.test_selection import mass_of

TOKENS, BUDGET, WINDOW = 30, 13, 4
# Nothing to compress, and outputs that are gated before they are projected.
UNLIKE = ("mistral-sliding", "qwen3-next", "qwen3.5", "qwen3.5-moe")


@pytest.mark.parametrize("first", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_half_by_score_and_the_rest_by_what_it_adds(first: float, epsilon: float) -> None:
    method = make_method("criticalkv", window=WINDOW, kernel=1, first=first, epsilon=epsilon)
    layer, module = Layer(method, BUDGET), Attention()
    query, key = draw(1, 1, HEADS * GROUP, TOKENS, DIM) * 2, draw(2, 1, HEADS, TOKENS, DIM)
    value = draw(3, 1, HEADS, TOKENS, DIM) * draw(4, 1, HEADS, TOKENS, 1).exp()
    feed(layer, module, draw(5, 1, TOKENS, HIDDEN), query, key, value)
    mass = mass_of(query, key)[:, -WINDOW:].sum(1)
    for head in range(HEADS):
        score = {t: float(mass[head, t]) for t in range(TOKENS - WINDOW)}
        norm = {
            t: sum(float(output_part(module, h, value[0, head, t]).abs().sum())
                   for h in range(head * GROUP, (head + 1) * GROUP)) / GROUP
            for t in score
        }  # fmt: skip
        certain = max(0, int(BUDGET * first) - WINDOW)  # the window's slots stand before all others
        ranked = sorted(score, key=lambda t: -score[t])
        rest = sorted(ranked[certain:], key=lambda t: -(score[t] / WINDOW + epsilon) * norm[t])
        expected = [*ranked[:certain], *rest[: BUDGET - WINDOW - certain], *range(TOKENS - WINDOW, TOKENS)]
        assert sorted(layer.table(head)) == sorted(expected)


@pytest.mark.parametrize("family", [family for family in EVERY if family not in UNLIKE])
def test_the_output_weight_is_what_the_family_projects_with(family: str) -> None:
    """Each head's output through its own part of the weight, added up, is what the layer's projection gives."""
    model = prepare(tiny_model(family))
    told: list[torch.Tensor] = []
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Watcher:
        full = True

        def attended(self, layer_idx, slots, part, output) -> None:
            with torch.no_grad():
                told.append(torch.einsum("bhqd,hde->bqe", output.float(), part.output_weight().float()[0]))

        def compressed(self, *_) -> None:
            """Nothing to note."""

    def note(linear: torch.nn.Linear, _, output: torch.Tensor) -> None:
        if told:  # sliding layers attend by themselves
            pairs.append((told.pop(), output.float() - (0 if linear.bias is None else linear.bias)))

    for module in model.modules():
        for name in ("o_proj", "out_proj", "dense"):
            if hasattr(module, "layer_idx") and hasattr(module, name):
                getattr(module, name).register_forward_hook(note)
    cache = make_cache(model, "h2o", 0.5, observer=Watcher())
    with torch.inference_mode():
        model(torch.arange(3, 19)[None], past_key_values=cache)
    assert len(pairs) == len(cache.compressed_layers())
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_outside_a_model_it_says_so() -> None:
    with pytest.raises(UserError, match="only runs inside a model"):
        HandLayer("criticalkv", 5, window=2).feed(draw(1, 1, 4, 9, DIM), draw(2, 1, 2, 9, DIM), draw(3, 1, 2, 9, DIM))
