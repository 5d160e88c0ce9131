"""`make_cache` and `attach` on a model that kvlab did not load: exact at a full budget, and undone without a trace."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertLMHeadModel

import kvlab

SIZES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True},  # inline attention
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    "opt": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32},  # unlisted
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
}
# Until transformers 5.23 these two compute attention inside their layers; since 5.24 they call its interface.
MOVED_TO_THE_INTERFACE = {
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "bos_token_id": 1, "eos_token_id": 2},
    "codegen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "bos_token_id": 1, "eos_token_id": 2},
}
INLINE = transformers.__version__ < "5.24"
if not INLINE:
    SIZES |= MOVED_TO_THE_INTERFACE


def plain_model(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{"vocab_size": 97, **SIZES.get(family, {}), **changes})
    return AutoModelForCausalLM.from_config(config).eval()


def logits_of(model: Any, cache: Any = None) -> torch.Tensor:
    """Of a pass over 20 tokens and two single steps, (1, 22, vocabulary)."""
    ids = torch.randint(3, 97, (1, 22), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        first = model(ids[:, :20], past_key_values=cache, use_cache=True)
        rest = [model(ids[:, at : at + 1], past_key_values=first.past_key_values).logits for at in (20, 21)]
    return torch.cat([first.logits, *rest], dim=1)


@pytest.mark.parametrize("family", SIZES)
def test_a_full_budget_equals_the_plain_model_and_detaching_leaves_no_trace(family: str) -> None:
    model = plain_model(family)
    before, attention = logits_of(model), model.config._attn_implementation
    kinds = [type(module) for module in model.modules()]
    with kvlab.attach(model):
        assert (logits_of(model, kvlab.make_cache(model, "full", 1.0)) - before).abs().max() < 1e-4
        small = kvlab.make_cache(model, "streaming-llm", 8)
        assert (logits_of(model, small)[:, :20] - before[:, :20]).abs().max() < 1e-4  # the prompt is read in full
        assert small.compressed_layers()[0].slots.valid.sum(-1).max() == 8
        assert (logits_of(model) - before).abs().max() < 1e-4  # with transformers' own cache
    assert model.config._attn_implementation == attention
    assert [type(module) for module in model.modules()] == kinds
    assert torch.equal(logits_of(model), before)


def test_make_cache_switches_once_and_says_how_to_switch_back() -> None:
    model = plain_model("llama")
    with pytest.warns(UserWarning, match=r"kvlab\.detach\(model\)"):
        kvlab.make_cache(model, "snapkv", 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kvlab.make_cache(model, "h2o", 0.5)
        kvlab.detach(model)
        kvlab.detach(model)
    assert model.config._attn_implementation == "sdpa"


REFUSED = {
    "deepseek_v2": (
        r"latent state per token",
        {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "moe_intermediate_size": 8},
    ),
}
if INLINE:
    REFUSED |= {family: ("inline", sizes) for family, sizes in MOVED_TO_THE_INTERFACE.items()}


@pytest.mark.parametrize("family", REFUSED)
def test_a_refusal_names_the_reason_and_changes_nothing(family: str) -> None:
    reason, sizes = REFUSED[family]
    model = plain_model(family, **sizes)
    attention = model.config._attn_implementation
    with pytest.raises(kvlab.UserError, match=reason):
        kvlab.make_cache(model, "h2o", 0.5)
    assert model.config._attn_implementation == attention


def test_a_model_that_looks_at_later_tokens_is_refused_by_its_logits() -> None:
    config = BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32)
    model = BertLMHeadModel(config).eval()  # an encoder with a head: each token sees the whole text
    with pytest.raises(kvlab.UserError, match="bert"):
        kvlab.attach(model)
    assert model.config._attn_implementation == "sdpa"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(kvlab.UserError, match="pass a transformers model"):
        kvlab.make_cache("mini", "h2o", 0.5)
