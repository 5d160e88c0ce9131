"""What is no safetensors model, and models that peft wrapped: one sentence each that says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import kvlab
from kvlab.core.errors import UserError
from kvlab.models.info import model_faults
from kvlab.models.info.names import check_model
from kvlab.models.info.size import find_model
from kvlab.models.load import LoadedModel, load_model

PART, OTHER_PART = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = json.dumps({"weight_map": {"a": PART, "b": OTHER_PART}})
ADAPTER = json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/base"})
CONFIG = {"config.json": "", "tokenizer.json": ""}  # copied from the tiny model
# What a folder holds, and words of what is said of it.
FOLDERS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "a damaged GGUF file": ({"m.Q4.gguf": "GGUF"}, ("incomplete or damaged", "copy it again")),
    "two GGUF files": ({"a.gguf": "GGUF", "b.gguf": "GGUF"}, ("2 GGUF files", "a.gguf")),
    "GGUF beside a config": (CONFIG | {"m.gguf": "GGUF"}, ("holds no weights but m.gguf", "give that file")),
    "an adapter": (
        {"adapter_config.json": ADAPTER, "adapter_model.safetensors": ""},
        ("'org/base'", "merge_and_unload"),
    ),
    "an adapter with its config": (CONFIG | {"adapter_config.json": ADAPTER}, ("merge_and_unload",)),
    "an adapter that names no base": ({"adapter_config.json": "[]"}, ("holds an adapter and no model",)),
    "a pickle": (CONFIG | {"pytorch_model.bin": ""}, ("pytorch_model.bin", "from_pretrained(", "save_pretrained(OUT)")),
    "pickles in parts": (CONFIG | {"a-1.bin": "", "a-2.bin": ""}, ("a-1.bin and 1 more",)),
    "a checkpoint of torch": (CONFIG | {"consolidated.00.pth": ""}, ("consolidated.00.pth",)),
    "TensorFlow": (CONFIG | {"tf_model.h5": ""}, ("tf_model.h5", "export it")),
    "ONNX": (CONFIG | {"model.onnx": ""}, ("model.onnx", "export it")),
    "parts without an index": (CONFIG | {PART: ""}, (PART, "without model.safetensors.index.json", "copy that file")),
    "an index without a part": (CONFIG | {PART: "", "model.safetensors.index.json": INDEX}, (OTHER_PART, "copy it")),
    "another name": (CONFIG | {"consolidated.safetensors": ""}, ("consolidated.safetensors", "no model.safetensors")),
    "weights alone": ({"model.safetensors": ""}, ("no config.json", "copy config.json")),
    "a config alone": (CONFIG, ("holds no weights", "copy model.safetensors")),
    "nothing": ({}, ("holds no config.json", "save_pretrained")),
    "a model one level down": ({"snapshots/abc/config.json": "{}"}, ("snapshots/abc",)),
}


def filled(folder: Path, files: dict[str, str], tiny_folder: Path) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if text or not (tiny_folder / name).is_file() or name == "model.safetensors":
            (folder / name).write_text(text)
        else:
            shutil.copy(tiny_folder / name, folder / name)
    return folder


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_holds_no_model_is_one_sentence_wherever_it_is_named(
    tmp_path: Path, tiny_folder: Path, kind: str
):
    files, words = FOLDERS[kind]
    folder = filled(tmp_path, files, tiny_folder)
    said = []
    for named in (load_model, check_model):
        with pytest.raises(UserError) as error:
            named(str(folder))
        said.append(str(error.value))
    assert said[0] == said[1] and all(word in said[0] for word in words), said
    assert said[0].endswith(".") and "\n" not in said[0] and "Error" not in said[0]
    if "config.json" not in files:
        with pytest.raises(UserError, match=r"\.$") as error:
            find_model(str(folder))
        assert str(error.value) == said[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [("m.Q4_1.gguf", "incomplete or damaged"), ("m.safetensors", "give its folder"), ("m.bin", "give")],
)
def test_a_file_in_place_of_a_folder_is_told_apart(tmp_path: Path, name: str, words: str):
    (tmp_path / name).write_text("x")
    for named in (load_model, check_model, find_model):
        with pytest.raises(UserError, match=words.replace(".", r"\.")):
            named(str(tmp_path / name))


def test_a_folder_without_a_tokenizer_is_named_for_that(tmp_path: Path, tiny_folder: Path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny_folder / name, tmp_path)
    with pytest.raises(UserError, match=r"holds no tokenizer: copy tokenizer\.json"):
        load_model(str(tmp_path))


def test_an_adapter_beside_a_model_is_not_left_out_without_a_word(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = shutil.copytree(tiny_folder, tmp_path / "both")
    (folder / "adapter_config.json").write_text(ADAPTER)
    monkeypatch.setattr(model_faults, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install peft, or move adapter_config\.json away"):
        load_model(str(folder))


class Wrapped(nn.Module):
    """A PEFT model's interface: `generate` calls the model inside, and not through the wrapper."""

    def __init__(self, model: Any, prompt_learning: bool = False) -> None:
        super().__init__()
        self.inside = model
        self.config, self.peft_config = model.config, {"default": object()}
        self.active_peft_config = SimpleNamespace(is_prompt_learning=prompt_learning)

    def get_base_model(self) -> Any:
        return self.inside

    def generate(self, *given: Any, **named: Any) -> Any:
        return self.inside.generate(*given, **named)


@pytest.mark.parametrize("method", ["h2o", "kvzip", "exactmerge2", "pyramidinfer", "semanticache", "gvote"])
def test_a_wrapped_model_is_compressed_as_the_model_inside(tiny: LoadedModel, method: str):
    ids = tiny.encode("The captain wrote that the lamp is red, and she wrote that the harbour is cold and far. " * 2)
    written = []
    for model in (tiny.model, Wrapped(tiny.model)):
        cache = kvlab.make_cache(model, method, budget=0.4)
        with torch.inference_mode():
            out = model.generate(ids, past_key_values=cache, max_new_tokens=4, do_sample=False)
        written.append((out.tolist(), cache.memory().live_slots))
    assert written[0] == written[1]


def test_adapters_that_a_cache_cannot_serve_are_said_with_the_way_out(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(UserError, match="an adapter of weights such as LoRA"):
        kvlab.make_cache(Wrapped(tiny.model, prompt_learning=True), "h2o")
    monkeypatch.setattr(tiny.model, "peft_config", {}, raising=False)
    with pytest.raises(UserError, match=r"merge the adapter .*fit the method to it"):
        kvlab.make_cache(tiny.model, "duoattention")
