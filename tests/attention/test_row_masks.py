"""Sliding layers in blocks of rows: the same masks, the same attention, and nothing of size tokens x tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache
from transformers.masking_utils import chunked_causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

from kvlab.core.attention.slot_attention import ROW_BLOCK
from kvlab.core.attention.transformers_hook import RowMask, kvlab_attention, kvlab_mask, register_attention
from kvlab.core.cache import make_cache
from tests.families import tiny_model

WINDOWED = (
    "mistral-sliding", "gemma2", "gemma3", "qwen3-windowed", "gpt-oss", "llama4", "ministral", "olmo3", "cohere2",
    "gemma3n", "gemma4", "exaone4",
)  # fmt: skip


def geometry(rows: int, before: int, window: int, padding: int, chunked: bool = False) -> dict:
    """Of `rows` queries behind `before` tokens, of which a cache still holds what the window reaches."""
    held = min(before, window - 1)
    seen = torch.ones(2, before + rows, dtype=torch.long)
    seen[1, :padding] = 0
    starts = torch.tensor([0, padding])
    function = chunked_causal_mask_function(window, starts) if chunked else sliding_window_causal_mask_function(window)
    return {
        "batch_size": 2, "q_length": rows, "kv_length": held + rows, "q_offset": before, "kv_offset": before - held,
        "mask_function": function, "attention_mask": seen.bool() if padding else None, "local_size": window,
        "use_vmap": False, "device": torch.device("cpu"),
    }  # fmt: skip


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("padding", [0, 11])
@pytest.mark.parametrize(("rows", "before", "window"), [(700, 0, 20), (700, 0, 300), (300, 450, 100), (257, 3, 5000)])
def test_blocks_put_together_are_the_mask(rows: int, before: int, window: int, padding: int, chunked: bool) -> None:
    """Columns left out of a block are those that none of its rows can see."""
    given = geometry(rows, before, window, padding, chunked)
    lazy = kvlab_mask(**given)
    assert isinstance(lazy, RowMask)
    found = torch.zeros(2, 1, rows, given["kv_length"], dtype=torch.bool)
    for at, columns, mask in lazy.to("cpu").blocks(torch.device("cpu")):
        assert mask.shape[2] <= ROW_BLOCK
        found[:, :, at, columns] = mask
    assert (found == sdpa_mask(**given, allow_is_causal_skip=False)).all()


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("learned", [False, True])
def test_attention_of_a_window_is_the_sum_over_what_it_sees(softcap: float | None, learned: bool) -> None:
    """Row by row from the definition, in float64: a group of two heads, a window of 40, padding on the left."""
    torch.manual_seed(1)
    rows, window, padding = 600, 40, 9
    query, (key, value) = torch.randn(2, 4, rows, 8), torch.randn(2, 2, 2, rows, 8)
    sinks = torch.randn(4) if learned else None
    lazy = kvlab_mask(**geometry(rows, 0, window, padding))
    output, _ = kvlab_attention(
        torch.nn.Module(),
        query,
        key,
        value,
        lazy,
        scaling=0.7,
        softcap=softcap,
        s_aux=sinks,
    )
    for batch, head, row in [(0, 0, 0), (0, 3, 255), (0, 2, 256), (0, 1, 599), (1, 1, 9), (1, 0, 30), (1, 3, 300)]:
        first = max(row - window + 1, padding if batch else 0)
        weights = []
        for column in range(first, row + 1):
            logit = 0.7 * float(query[batch, head, row].double() @ key[batch, head // 2, column].double())
            weights.append(math.exp(softcap * math.tanh(logit / softcap) if softcap else logit))
        whole = sum(weights) + (math.exp(float(sinks[head])) if sinks is not None else 0.0)
        expected = torch.tensor(weights).double() @ value[batch, head // 2, first : row + 1].double() / whole
        torch.testing.assert_close(output[batch, row, head].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", WINDOWED)
def test_a_long_prompt_is_what_transformers_makes_of_it(family: str) -> None:
    """Two rows, one padded, of more tokens than a block, and a second pass of more than a block."""
    options = {"max_position_embeddings": 1024}
    plain, own = tiny_model(family, **options), tiny_model(family, attention=register_attention(), **options)
    ids = torch.randint(3, 97, (2, 560), generator=torch.Generator().manual_seed(2))
    real = torch.ones_like(ids)
    real[1, :7] = 0
    every_layer_slides = family == "mistral-sliding"
    own_cache = DynamicCache(config=own.config) if every_layer_slides else make_cache(own, "full")
    caches = (DynamicCache(config=plain.config), own_cache)
    with torch.inference_mode():
        for first, last in ((0, 290), (290, 560)):
            expected, found = (
                model(ids[:, first:last], attention_mask=real[:, :last], past_key_values=cache, use_cache=True).logits
                for model, cache in zip((plain, own), caches, strict=True)
            )
            seen = real[:, first:last].bool()
            torch.testing.assert_close(found[seen], expected[seen], rtol=1e-3, atol=1e-4)


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made has memory for."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self.most = max(self.most, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gpt-oss", "mistral-sliding"])
def test_nothing_is_of_size_tokens_by_tokens(family: str) -> None:
    tokens, heads = 2048, 4
    model = tiny_model(family, attention=register_attention(), max_position_embeddings=4096, sliding_window=64)
    with torch.inference_mode(), Largest() as made:
        cache = DynamicCache(config=model.config) if family == "mistral-sliding" else make_cache(model, "full")
        model(torch.randint(3, 97, (1, tokens)), past_key_values=cache, use_cache=True, logits_to_keep=1)
    assert made.most <= heads * ROW_BLOCK * (tokens + 1) < tokens * tokens
