"""Test cases for methods, running a case (a prompt followed by decode steps), and what the properties need of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.methods import Method
from kvlab.models.load import prepare

STEPS = 6
Watch = Callable[[int], None]


@dataclass(frozen=True)
class Case:
    """A model family and dtype, a prompt, a budget, and a decision interval."""

    family: str = "llama"
    tokens: int = 24
    budget: float | int = 0.3
    dtype: torch.dtype = torch.float32
    pads: int = 0  # padding before the second of two rows; 0: one row
    compress_every: int = 1

    def __str__(self) -> str:
        rows = f"two rows, {self.pads} pads before the second" if self.pads else "one row"
        every = f", deciding every {self.compress_every} steps" if self.compress_every > 1 else ""
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.family} in {kind}, {self.tokens} tokens, {rows}, budget {self.budget}{every}"

    def model(self, plain: bool = False) -> PreTrainedModel:
        return random_model(self.family, self.dtype, plain)

    def cache(self, method: Method, budget: float | int | None = None) -> CompressedCache:
        budget = self.budget if budget is None else budget
        return make_cache(self.model(), method, budget, compress_every=self.compress_every)

    def prompt(self) -> tuple[Tensor, Tensor]:
        """Ids and padding mask, (rows, tokens) each."""
        rows = 2 if self.pads else 1
        draw = torch.Generator().manual_seed(5)
        ids = torch.randint(3, VOCABULARY, (rows, self.tokens), generator=draw)
        mask = torch.ones_like(ids)
        mask[1:, : self.pads] = 0
        return ids * mask, mask


def cases() -> list[Case]:
    """All cases, smallest first, so that the first failure is the smallest."""
    single = [Case(tokens=tokens, budget=budget) for tokens in (1, 2, 8, 24) for budget in (1, 0.3)]
    kinds = ((torch.float32, 0), (torch.float32, 7), (torch.bfloat16, 7))
    families = [Case(family=family, dtype=dtype, pads=pads) for family, (dtype, pads) in product(FAMILIES, kinds)]
    return [*single, Case(tokens=24, budget=9, compress_every=3), Case(tokens=60, budget=0.2), *families]


def walk(
    model: PreTrainedModel, cache: Cache, ids: Tensor, mask: Tensor, after: Watch = lambda _: None, steps: int = STEPS
) -> Tensor:
    """Logits (rows, steps, vocabulary) after the prompt and forced decode steps; calls `after(step)` after each."""
    forced = torch.arange(steps, device=ids.device)[None].expand(len(ids), -1) * 7 % 90 + 3
    logits = []
    with torch.inference_mode():
        for step in range(steps):
            new = ids if step == 0 else forced[:, step - 1 : step]
            grown = torch.cat([mask, mask.new_ones(len(ids), step)], 1)
            position = (grown.cumsum(-1) - 1)[:, -new.shape[1] :].clamp_min(0)
            output = model(new, attention_mask=grown, position_ids=position, past_key_values=cache)
            logits.append(output.logits[:, -1].float())
            after(step)
    return torch.stack(logits, 1)


def furthest(ours: Tensor, expected: Tensor) -> float:
    """The largest difference, relative for logits above 1."""
    return float(((ours - expected).abs() / expected.abs().clamp_min(1)).max())


VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
# Ordered by difference from a plain decoder: grouped queries; norms on queries and keys; softcapped logits and sliding
# layers; multi-head attention, partly rotated; multi-query attention with ALiBi.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen3": GROUPED,
    "gemma2": {**GROUPED, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gpt_neox": {"rotary_pct": 0.5},
    "falcon": {"multi_query": True, "new_decoder_architecture": False, "alibi": False},
}
OUTSIDE = {"falcon": ("intermediate_size",)}


@lru_cache(maxsize=4 * len(FAMILIES))
def random_model(family: str, dtype: torch.dtype, plain: bool = False) -> PreTrainedModel:
    """A model with fixed random weights and kvlab's attention, or with transformers' if it is `plain`."""
    shape: dict[str, Any] = {name: value for name, value in SHAPE.items() if name not in OUTSIDE.get(family, ())}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**shape, **FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", trust_remote_code=False)
    model = model.to(dtype).eval()
    return model if plain else prepare(model)


@dataclass(frozen=True)
class LayerAfterPass:
    """One layer after one pass; tensors are (B, H), `tokens_seen` is (B,)."""

    step: int  # 0 is the prompt
    layer: int
    live: Tensor
    budget: Tensor
    newest: Tensor  # the largest position among valid slots
    votes: Tensor  # of valid slots and dropped tokens
    tokens_seen: Tensor
    finite: bool  # keys, values and log masses of valid slots

    @property
    def place(self) -> str:
        """Layer and step, as part of a message."""
        return f"in layer {self.layer} after {'the prompt' if self.step == 0 else f'decode step {self.step}'}"


@dataclass(frozen=True)
class Observed:
    """Logits (rows, steps, vocabulary), layers after each pass, and final bytes (layer, reported, actual)."""

    logits: Tensor
    layers: tuple[LayerAfterPass, ...]
    allocated: tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=64)
def observe_case(method: Method, case: Case) -> Observed:
    """Run the case once; cached per method and case."""
    cache = case.cache(method)
    ids, mask = case.prompt()
    states: list[LayerAfterPass] = []
    logits = walk(
        case.model(),
        cache,
        ids,
        mask,
        lambda step: states.extend(_state(layer, step) for layer in cache.compressed_layers()),
    )
    allocated = []
    for layer, reported in zip(cache.compressed_layers(), cache.memory().layers, strict=True):
        taken: dict[int, int] = {}
        for table in layer.tables:
            state = [*table.slots.varying_columns().values(), *table.head_state.values()]
            for tensor in (table.slots.keys, table.slots.values, *state):
                storage = tensor.untyped_storage()
                taken[storage.data_ptr()] = storage.nbytes()
        allocated.append((layer.layer_idx, reported.allocated_bytes, sum(taken.values())))
    return Observed(logits, tuple(states), tuple(allocated))


def _state(layer: CompressedLayer, step: int) -> LayerAfterPass:
    slots = layer.slots
    assert slots is not None and layer.budget is not None
    valid = slots.valid
    parts = (slots.keys[valid], slots.values[valid], slots.log_mass[valid])
    return LayerAfterPass(
        step,
        layer.layer_idx,
        slots.live(),
        layer.budget.clone(),
        slots.position.masked_fill(~valid, -1).amax(-1),
        slots.votes.masked_fill(~valid, 0).sum(-1) + layer.evicted_votes,
        layer.tokens_seen.clone(),
        all(bool(torch.isfinite(part).all()) for part in parts),
    )
