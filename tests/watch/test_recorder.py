"""The recorder names the token of every slot of a cache that evicts, moves, merges, masks or quantises."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

from kvlab.watch import recorder as recorder_module
from kvlab.watch import recording as recording_module
from kvlab.watch.recorder import watch
from kvlab.watch.recording import Recording, read_recording

TOKENS = 60
COMMON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = COMMON | {"num_key_value_heads": 2}
SIZES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "phi3": GROUPED | {"pad_token_id": 0},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": COMMON,
    "falcon": COMMON | {"multi_query": True},
    "qwen3": GROUPED | {"head_dim": 16},
}


def model_of(family: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{"vocab_size": 97, **SIZES[family]})
    return AutoModelForCausalLM.from_config(config).eval().to(dtype)


def ids_of(rows: int = 1, tokens: int = TOKENS) -> Tensor:
    return torch.randint(3, 97, (rows, tokens), generator=torch.Generator().manual_seed(1))


def record(
    path: Path, model: Any, change: Callable[[Any], None], rows: int = 1, steps: int = 4, cache: Any = None
) -> Recording:
    """A prompt and single steps, with `change` applied to the cache after the prompt."""
    ids = ids_of(rows)
    cache = DynamicCache() if cache is None else cache
    with watch(model, title="test", path=str(path)), torch.no_grad():
        prompt = TOKENS - steps
        model(ids[:, :prompt], past_key_values=cache)
        change(cache)
        for at in range(prompt, TOKENS):
            model(ids[:, at : at + 1], past_key_values=cache, position_ids=torch.full((rows, 1), at))
    return read_recording(path)


def keep_at_random(cache: Any, kept: list[Tensor], count: int = 20) -> None:
    """Keep other tokens in every layer, row and head."""
    generator = torch.Generator().manual_seed(2)
    for layer in cache.layers:
        rows, heads, slots, size = layer.keys.shape
        order = torch.rand(rows, heads, slots, generator=generator).argsort(-1)[..., :count].sort(-1).values
        index = order[..., None].expand(-1, -1, -1, size)
        layer.keys = layer.keys.gather(2, index)
        layer.values = layer.values.gather(2, index)
        kept.append(order)


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("rows", [1, 2])
def test_kept_slots_are_named_in_every_layer_row_and_head(tmp_path: Path, family: str, rows: int) -> None:
    kept: list[Tensor] = []
    recording = record(tmp_path / "a.kvlab", model_of(family), lambda cache: keep_at_random(cache, kept), rows)
    for layer, expected in enumerate(kept):
        assert recording.passes[0].layers[layer].positions.tolist() == expected.tolist()
        new = torch.arange(TOKENS - 4, TOKENS).expand(*expected.shape[:2], -1)
        assert recording.passes[-1].layers[layer].positions.tolist() == torch.cat([expected, new], -1).tolist()
    assert recording.counts()["unknown"] == 0 and recording.counts()["merged"] == 0


class Storing(DynamicCache):
    """Stores the very tensors of the prompt, as caches of older transformers do."""

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
        held = super().update(keys, values, layer_idx, *rest, **more)
        if held[0].shape == keys.shape:
            self.layers[layer_idx].keys, self.layers[layer_idx].values = held = keys, values
        return held


def test_what_is_written_into_a_slot_in_place_is_no_tokens_own(tmp_path: Path) -> None:
    def fold(cache: Any) -> None:
        for layer in cache.layers:
            layer.values[:, :, 6] += 0.25 * layer.values[:, :, 5]
            layer.keys, layer.values = layer.keys[:, :, 6:], layer.values[:, :, 6:]

    held = record(tmp_path / "a.kvlab", model_of(), fold, cache=Storing()).passes[0].layers[1]
    assert held.counts["merged"] == 2 and held.counts["kept"] == 2 * (TOKENS - 4 - 7)
    parents = {int(row[3]): row[5] for row in held.merges if row[1] == 0}
    assert parents == pytest.approx({5: 0.25, 6: 1.0}, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_slots_are_taken_apart_with_their_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    pairs = torch.randperm(TOKENS - 4, generator=torch.Generator().manual_seed(3))[:20].view(2, 10)
    weight = torch.linspace(0.2, 0.8, 10)

    def merge(cache: Any) -> None:
        for layer in cache.layers:
            part = weight[None, None, :, None].to(dtype)
            for name in ("keys", "values"):
                rows = getattr(layer, name).clone()
                rows[:, :, pairs[0]] = part * rows[:, :, pairs[0]] + (1 - part) * rows[:, :, pairs[1]]
                left = [slot for slot in range(rows.shape[2]) if slot not in pairs[1].tolist()]
                setattr(layer, name, rows[:, :, left])

    recording = record(tmp_path / "a.kvlab", model_of(dtype=dtype), merge)
    left = [slot for slot in range(TOKENS - 4) if slot not in pairs[1].tolist()]
    for layer, held in recording.passes[0].layers.items():
        for head in range(2):
            for first, second, share in zip(*pairs.tolist(), weight.tolist(), strict=True):
                slot = left.index(first)
                rows = held.merges[(held.merges[:, 1] == head) & (held.merges[:, 2] == slot)]
                parents = {int(row[3]): (row[4], row[5]) for row in rows}
                assert set(parents) == {first, second}, (layer, head, slot)
                assert parents[first] == pytest.approx((share, share), abs=0.03)
                assert parents[second] == pytest.approx((1 - share, 1 - share), abs=0.03)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_cache_that_gets_only_chosen_tokens_is_recognised_by_rotated_keys(
    tmp_path: Path, family: str, turned: bool
) -> None:
    chosen = torch.arange(TOKENS - 4).flip(0)[::3]

    model = model_of(family)
    model.config._attn_implementation = "eager"
    ids = ids_of()
    mask = torch.zeros(1, 1, TOKENS - 4, len(chosen))
    with watch(model, path=str(tmp_path / "a.kvlab")), pytest.MonkeyPatch.context() as patch, torch.no_grad():
        update: Any = DynamicCache.update

        def choose_first(cache: Any, keys: Tensor, values: Tensor, layer: int, *rest: Any) -> Any:
            """As an attention does that chooses before it stores, a copy for each query head."""
            keys, values = (part[:, :, chosen].repeat_interleave(2, 1) for part in (-keys if turned else keys, values))
            whole = update(cache, keys, values, layer)
            return whole[0][:, ::2], whole[1][:, ::2]

        patch.setattr(DynamicCache, "update", choose_first)
        model(ids[:, :-4], past_key_values=DynamicCache(), attention_mask=mask)
    held = read_recording(tmp_path / "a.kvlab").passes[0].layers[0]
    expected = chosen.tolist()
    if turned:  # the keys are none of the model's: a token whose value is not its alone is not guessed
        text = ids[0, :-4].tolist()
        expected = [place if text.count(text[place]) == 1 else -1 for place in expected]
        assert -1 in expected
    assert held.positions[0].tolist() == [expected] * 4


def test_rotated_keys_are_moved_values_written_over_are_changed_and_noise_is_unknown(tmp_path: Path) -> None:
    def rotate_and_spoil(cache: Any) -> None:
        for layer in cache.layers:
            layer.keys = layer.keys[:, :, 10:].clone()
            layer.values = layer.values[:, :, 10:].clone()
            layer.keys[:, :, :5] = -layer.keys[:, :, :5]
            noise = torch.randn(layer.values[:, :, 7:9].shape, generator=torch.Generator().manual_seed(4))
            layer.values[:, :, 7:9] = noise
            layer.keys[:, :, 7] = noise[:, :, 1]

    recording = record(tmp_path / "a.kvlab", model_of(), rotate_and_spoil)
    for held in (recording.passes[0].layers[1], recording.passes[-1].layers[1]):
        assert held.counts["moved"] == 2 * 5 and held.counts["unknown"] == held.counts["changed"] == 2
        assert held.positions[0, 0, :9].tolist() == [10, 11, 12, 13, 14, 15, 16, -1, 18]


def test_slots_of_one_bit_a_number_are_told_by_the_nearest_token(tmp_path: Path) -> None:
    def quantise(cache: Any) -> None:
        for layer in cache.layers:
            for name in ("keys", "values"):
                rows = getattr(layer, name)
                rows = rows.sign() * rows.abs().mean(-1, keepdim=True)
                rows[:, :, 5] = rows[:, :, 9]  # is not the token of its place
                setattr(layer, f"_quantized_{name}", rows)
                setattr(layer, name, torch.empty(0))
            layer._dequantize = lambda rows: rows

    for held in record(tmp_path / "a.kvlab", model_of(), quantise, steps=0).passes[0].layers.values():
        # With 16 numbers a row a sign can come nearest to another token's: then the slot is not named.
        assert held.counts["quantised"] >= 0.95 * 2 * TOKENS and held.counts["kept"] == 0
        for slots in held.positions[0].tolist():
            assert slots[5] == -1 and all(token in (place, -1) for place, token in enumerate(slots))


def test_static_caches_padding_and_masks(tmp_path: Path) -> None:
    model = model_of()
    cache = StaticCache(config=model.config, max_cache_len=100)
    recording = record(tmp_path / "a.kvlab", model, lambda cache: None, cache=cache)
    assert recording.passes[-1].layers[0].positions.shape[-1] == TOKENS
    model.model.layers[1].self_attn.masked_key_indices = (
        torch.tensor([0, 0]),
        torch.tensor([0, 1]),
        torch.tensor([3, 9]),
    )
    recording = record(tmp_path / "b.kvlab", model, lambda cache: None)
    assert recording.passes[0].layers[1].counts["masked"] == 2
    assert recording.passes[0].layers[1].positions[0, 1, 9] == recorder_module.MASKED


def test_generate_is_recorded_and_each_call_is_a_sequence(tmp_path: Path) -> None:
    model = model_of()
    with watch(model, path=str(tmp_path / "a.kvlab")) as recording:
        for _ in range(2):
            model.generate(ids_of(), max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert "100 % kept" in recording.summary
    assert not any("only as they were handed" in note for note in recording.notes)  # the second one's values too
    read = read_recording(tmp_path / "a.kvlab")
    assert {one.sequence for one in read.passes} == {0, 1}
    assert sum(one.tokens for one in read.passes) == 2 * (TOKENS + 4)
    assert read.passes[0].logits is not None and read.passes[0].logits.shape == (1, 97)


def test_passes_may_be_in_and_out_of_inference_mode(tmp_path: Path) -> None:
    model, ids, cache = model_of(), ids_of(), DynamicCache()
    with watch(model, path=str(tmp_path / "a.kvlab")) as recording:
        with torch.inference_mode():
            model(ids[:, :40], past_key_values=cache)
        with torch.no_grad():
            model(ids[:, 40:], past_key_values=cache)
    assert "100 % kept" in recording.summary


def test_nothing_of_the_model_is_changed(tmp_path: Path) -> None:
    model = model_of()
    ids = ids_of()
    with torch.no_grad():
        before = model(ids).logits
        update = DynamicCache.update
        with watch(model, path=str(tmp_path / "a.kvlab")):
            assert model(ids).logits.equal(before)
        assert DynamicCache.update is update
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_recording_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "a.kvlab"
    whole = record(path, model_of(), lambda cache: None)
    data = path.read_bytes()
    for end in (len(data) - 1, len(data) // 2):
        path.write_bytes(data[:end])
        part = read_recording(path)
        assert part.cut_off and 0 < len(part.passes) <= len(whole.passes)


def test_what_was_recorded_stands_when_the_process_dies(tmp_path: Path) -> None:
    script = f"""
import sys, time, os
sys.path.insert(0, {str(Path(recorder_module.__file__).parent)!r})
from recorder import watch
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)).eval()
with watch(model, path={str(tmp_path / "a.kvlab")!r}), torch.no_grad():
    for _ in range(3):
        model(torch.arange(3, 20)[None])
        time.sleep(1.1)
    model(torch.arange(3, 20)[None])
    os._exit(1)
"""
    begun = time.monotonic()
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 1
    assert time.monotonic() > begun
    assert len(read_recording(tmp_path / "a.kvlab").passes) >= 2


def test_reader_and_recorder_agree_on_the_format() -> None:
    for name in ("MAGIC", "FORMAT", "UNKNOWN", "MASKED", "ABSENT"):
        assert getattr(recorder_module, name) == getattr(recording_module, name)


def test_the_recorder_stands_alone_and_compiles_as_python_3_9() -> None:
    import ast

    text = Path(recorder_module.__file__).read_text()
    tree = ast.parse(text, feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("kvlab") for name in names)
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
    assert "from __future__ import annotations" in text, "3.9 cannot evaluate `int | None`"
