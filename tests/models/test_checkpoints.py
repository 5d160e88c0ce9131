"""What may not run: a checkpoint that is not whole, not what its config says, or comes with code of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvlab.core.assets import project_root
from kvlab.core.errors import UserError
from kvlab.models.load import load_model
from tests.families import tiny_folder

NORM, UP = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "model")


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Write the folder's weights again, changed."""
    file = folder / "model.safetensors"
    stored = load_file(file)
    change(stored)
    save_file(stored, file, metadata={"format": "pt"})


def settings(folder: Path, **changed: Any) -> None:
    """Write the folder's config again, changed."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


def refused(folder: Path) -> str:
    """The sentence that the folder is refused with, at once."""
    begun = time.perf_counter()
    with pytest.raises(UserError) as error:
        load_model(str(folder), device="cpu")
    assert time.perf_counter() - begun < 10
    said = str(error.value)
    assert "\n" not in said and said.endswith(".")
    return said


def test_missing_tensors_are_named(folder: Path) -> None:
    weights(folder, lambda stored: [stored.pop(key) for key in (NORM, UP)])
    assert f"2 tensors are missing ({UP}, {NORM})" in refused(folder)


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    weights(folder, lambda stored: [stored.pop(key) for key in list(stored) if ".layers.1." in key])
    assert re.search(r"9 tensors are missing \((model\.layers\.1\.[\w.]+, ){3}\.\.\.\)", refused(folder))


def test_tensors_of_another_model_are_named(folder: Path) -> None:
    weights(folder, lambda stored: stored.update({"model.layers.9.mlp.up_proj.weight": torch.zeros(2)}))
    assert "1 tensor is not part of the model (model.layers.9.mlp.up_proj.weight)" in refused(folder)


def test_tensors_of_another_shape_are_named(folder: Path) -> None:
    weights(folder, lambda stored: stored.update({NORM: torch.zeros(5)}))
    assert f"1 tensor is of another shape ({NORM}: 5 for 64)" in refused(folder)


def test_a_tied_head_and_old_buffers_may_be_left_out_or_in(folder: Path) -> None:
    """A head tied to the embedding is not stored; rotary buffers of older checkpoints are not asked for."""
    settings(folder, tie_word_embeddings=True)
    weights(folder, lambda stored: stored.pop("lm_head.weight"))
    weights(folder, lambda stored: stored.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    model: Any = load_model(str(folder), device="cpu").model
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "pickled", "directory", "none"])
def test_a_file_that_is_no_safetensors_file(damage: str, folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    if damage == "pickled":
        torch.save({NORM: torch.ones(64)}, file)
    elif damage == "directory":
        file.mkdir()
    elif damage != "none":
        file.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "garbage": os.urandom(999)}[damage])
    assert "safetensors" in refused(folder)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"num_hidden_layers": -1}, "num_hidden_layers -1"),
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers 1000000"),
        ({"num_hidden_layers": 900}, "."),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers 2.5"),
        ({"hidden_size": 2**40}, "hidden_size"),
        ({"intermediate_size": 2**23}, "describes"),
        ({"num_attention_heads": 0}, "num_attention_heads 0"),
        ({"num_attention_heads": 5}, "5 attention heads, which 2 KV heads cannot share"),
        ({"head_dim": 15}, "."),
        ({"hidden_act": "swoosh"}, "swoosh"),
        ({"rope_parameters": {"rope_type": "corkscrew", "rope_theta": 1e4}}, "corkscrew"),
        ({"rope_parameters": "none"}, "."),
        ({"vocab_size": "many"}, "vocab_size many"),
        ({"vocab_size": 100}, "."),
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({"model_type": "mamba"}, "mamba"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes"),
        ({"quantization_config": {"quant_method": "no_such_method"}}, "no_such_method"),
    ],
    ids=lambda part: next(iter(part.items()))[0] if isinstance(part, dict) else None,
)
def test_a_config_that_cannot_be_meant(changed: dict[str, Any], named: str, folder: Path) -> None:
    settings(folder, **changed)
    assert named in refused(folder)


@pytest.mark.parametrize("text", ["", "{", DEEP, "[1, 2]", '{"a": ' * 5000 + "1" + "}" * 5000, "null", "\ud800"])
def test_a_config_that_is_no_config(text: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(folder)


def test_a_tokenizer_with_more_tokens_than_the_model(folder: Path, tmp_path: Path) -> None:
    from tests.families import tiny_model

    tiny_model("llama", vocab_size=50).save_pretrained(tmp_path / "small")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "small" / name).write_bytes((folder / name).read_bytes())
    assert "209 tokens more than the model (50)" in refused(tmp_path / "small")


# A repository's own code

HOSTILE = "from pathlib import Path\nPath(__file__).parent.joinpath('ran').touch()\nPath({mark!r}).touch()\n"


LOAD_EACH = """
import sys
from kvlab.core.errors import UserError
from kvlab.models.load import load_model
for folder in sys.argv[1:]:
    try:
        load_model(folder, device="cpu")
        print("loaded")
    except UserError as error:
        print(error)
"""


def test_code_that_comes_with_a_model_never_runs(tmp_path: Path) -> None:
    """With somebody at the keyboard who answers every question with yes; one process loads all three."""
    parts = ("model", "known model", "tokenizer")
    folders = [tiny_folder(tmp_path / part) for part in parts]
    mark = tmp_path / "foreign_code_ran"
    for part, folder in zip(parts, folders, strict=True):
        (folder / "own.py").write_text(HOSTILE.format(mark=str(mark)))
        if part == "tokenizer":
            file = folder / "tokenizer_config.json"
            own = {"auto_map": {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]}, "tokenizer_class": "OwnTokenizer"}
            file.write_text(json.dumps(json.loads(file.read_text()) | own))
        else:
            kinds = {
                "AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.T", "own.T"],
            }  # fmt: skip
            settings(folder, auto_map=kinds, **({} if part == "known model" else {"model_type": "my_own"}))
    done = subprocess.run(
        [sys.executable, "-c", LOAD_EACH, *folders], input="y\n" * 50, text=True, capture_output=True, check=False,
        timeout=120, env=os.environ | {"PYTHONPATH": str(project_root()), "HF_HOME": str(tmp_path / "hub")},
    )  # fmt: skip
    assert not mark.exists() and not list(tmp_path.rglob("ran")), "foreign code ran"
    assert "[y/N]" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    own_model, known, tokenizer = done.stdout.splitlines()
    assert known == "loaded", "transformers has this model itself, so nothing foreign is needed"
    for said in (own_model, tokenizer):
        assert "needs its own Python code, which kvlab never runs" in said


def test_every_call_that_reads_a_model_says_that_no_foreign_code_runs() -> None:
    """By its words: `trust_remote_code=False`, or the options of `kvlab.models.sources` that hold them."""
    calls = re.compile(r"(?:Auto\w+|model_class\(config\))\s*\.from_(?:pretrained|config)\((?:[^()]|\([^()]*\))*\)")
    found = 0
    for folder in ("kvlab", "app"):
        for file in (project_root() / folder).rglob("*.py"):
            for call in calls.findall(file.read_text(encoding="utf-8")):
                found += 1
                assert "trust_remote_code=False" in call or "**source.options" in call, f"{file}: {call}"
    assert found >= 5
