"""Models with recurrent layers: their attention is compressed, their state is left alone, and both are said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from kvlab.core.attention.queries import project_queries
from kvlab.core.cache import make_cache
from kvlab.core.cache.replay import replay_obstacle
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.families import compressed_only
from kvlab.engine import compare
from kvlab.models.load import prepare
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from tests.families import tiny_folder, tiny_model

HYBRIDS = ("qwen3-next", "lfm2", "jamba", "nemotron-h", "falcon-h1", "zamba2")
ANEW = ("jamba", "bamba")
IDS = torch.arange(3, 33)[None] * 7 % 90 + 3


@pytest.mark.parametrize("family", HYBRIDS)
@pytest.mark.parametrize("beams", [1, 2])
def test_generate_at_full_budget_is_plain_transformers(family: str, beams: int) -> None:
    plain, lab = tiny_model(family), prepare(tiny_model(family))
    asked = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams, "eos_token_id": None}
    expected = plain.generate(IDS, past_key_values=DynamicCache(config=plain.config), **asked)
    assert lab.generate(IDS, past_key_values=make_cache(lab, "keepkv", 1.0), **asked).tolist() == expected.tolist()


@pytest.mark.parametrize("family", HYBRIDS)
def test_states_are_what_plain_transformers_has_and_slots_are_fewer(family: str) -> None:
    """The first recurrent layer comes before anything was compressed: its state is the same to rounding."""
    plain, lab = tiny_model(family), prepare(tiny_model(family))
    theirs, ours = DynamicCache(config=plain.config), make_cache(lab, "h2o", 0.3)
    with torch.inference_mode():
        plain(IDS, past_key_values=theirs)
        lab(IDS, past_key_values=ours)
    first = next(index for index, layer in enumerate(ours.layers) if hasattr(layer, "conv_states"))
    assert (ours.layers[first].conv_states[0] - theirs.layers[first].conv_states[0]).abs().max() < 1e-4
    for layer in ours.compressed_layers():
        assert layer.slots is not None and int(layer.slots.live().max()) == 9
    others = sum(
        state.nbytes
        for layer in ours.layers
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {}))
        for state in states.values()
        if state is not None
    )
    assert ours.memory().sliding_bytes == others > 0
    assert "state" in replay_obstacle(ours)


@pytest.mark.parametrize("family", ANEW)
def test_a_second_pass_of_several_tokens_is_refused_where_it_would_forget_the_first(family: str) -> None:
    plain, lab = tiny_model(family), prepare(tiny_model(family))
    with torch.inference_mode():
        theirs, ours = DynamicCache(config=plain.config), make_cache(lab, "h2o", 1.0)
        whole = plain(IDS, past_key_values=DynamicCache(config=plain.config)).logits[:, -1]
        plain(IDS[:, :20], past_key_values=theirs)
        assert (plain(IDS[:, 20:], past_key_values=theirs).logits[:, -1] - whole).abs().max() > 1e-2, "mended there"
        lab(IDS[:, :20], past_key_values=ours)
        with pytest.raises(UserError, match="whole text must come in one"):
            lab(IDS[:, 20:], past_key_values=ours)
        lab(IDS[:, 20:21], past_key_values=ours)


@pytest.mark.parametrize("family", [family for family in HYBRIDS if family not in ANEW])
def test_chunks_give_the_same_as_the_whole(family: str) -> None:
    lab = prepare(tiny_model(family))
    with torch.inference_mode():
        whole = lab(IDS, past_key_values=make_cache(lab, "h2o", 0.3)).logits[:, -1]
        cache = make_cache(lab, "h2o", 0.3)
        for size in cache.expect(30, 11):
            begun = cache.get_seq_length()
            last = lab(IDS[:, begun : begun + size], past_key_values=cache).logits[:, -1]
    assert (last - whole).abs().max() < 1e-4 * whole.abs().max()


def test_a_gate_is_no_query() -> None:
    """Qwen 3.5 projects each head's query and a gate side by side."""
    module = prepare(tiny_model("qwen3.5")).model.layers[0].self_attn
    states = torch.randn(1, 5, 64)
    both = module.q_proj(states).view(1, 5, 4, 32)
    expected = torch.stack([module.q_norm(both[:, :, head, :16]) for head in range(4)], 1)
    torch.testing.assert_close(project_queries(module, states), expected)


def test_a_comparison_says_what_was_compressed(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", "qwen3-next")
    choices = tuple(MethodChoice(method=method, budget=0.4) for method in ("h2o", "gvote"))
    request = CompareRequest(
        prompt="Where is it? " * 3, model=str(folder), choices=choices, max_new_tokens=3, device="cpu"
    )
    full, *others = [open_run(path).record for path in compare(request, tmp_path / "runs")]
    sentence = "1 of 3 layers keep a recurrent state, which does not grow with the text and is unchanged: "
    assert not any(sentence in remark for remark in full.remarks) and full.sliding_layers == (1,)
    for record in (full, *others):
        assert any("hold 6 KiB more" in remark for remark in record.remarks), "layers beside the compressed ones"
    for record in others:
        assert sentence + "kvlab compresses the attention of 2 layers (0, 2)." in record.remarks
    assert not compressed_only(["full_attention", "sliding_attention"], [0])
