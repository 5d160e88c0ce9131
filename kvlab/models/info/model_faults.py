"""Explain, from file names alone, why a file or folder cannot be loaded as a model, and what to do about it."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

from kvlab.models.info.gguf_files import SUFFIX, gguf_fault, gguf_file
from kvlab.models.info.packaged_models import not_here

CONVERT = (
    "convert it once (from_pretrained({given}) of transformers' AutoModelForCausalLM and AutoTokenizer, then "
    "save_pretrained(OUT) of both) and give OUT"
)
WEIGHTS = "model.safetensors"
PARTS = "model.safetensors.index.json"
PART = re.compile(r"model-\d+-of-\d+\.safetensors")
TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model",
)  # fmt: skip
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
OTHERS = ("*.h5", "*.msgpack", "*.onnx", "*.npz", "*.tflite", "*.mlmodel", "*.pdparams")


def fault(place: Path, name: str = "") -> str:
    """Why the file or folder `place`, shown as `name`, holds no model that can be loaded; empty if it does."""
    called = name or str(place)
    if message := not_here(str(place)):
        return message
    try:
        if (file := gguf_file(str(place))) is not None:
            return gguf_fault(file, called)
        if place.is_file():
            return f"{called!r} is a file: give its folder, with config.json and the tokenizer in it."
        if not place.is_dir():
            return ""
        if not (place / "config.json").is_file():
            folder = place
            if other := _adapter_or_gguf(folder, called):
                return other
            if inside := sorted(folder.glob("*/config.json")) or sorted(folder.glob("snapshots/*/config.json")):
                subfolder = f"{called}/{inside[0].parent.relative_to(folder)}"
                return f"The folder {called!r} holds no config.json itself: give {subfolder!r}, which does."
            if any(folder.glob("*.safetensors")):
                return (
                    f"The folder {called!r} holds weights and no config.json: copy config.json and the tokenizer's "
                    "files from where the weights came."
                )
            return (
                f"The folder {called!r} holds no config.json: give a folder that transformers' save_pretrained wrote."
            )
        return _of_weights(place, called) or _of_adapter_beside(place, called)
    except (OSError, ValueError):  # no valid path, or no permission
        return ""


def no_tokenizer(folder: Path, name: str) -> str:
    """Why a folder lacks a tokenizer; empty if it has one."""
    if any((folder / file).is_file() for file in TOKENIZERS):
        return ""
    return (
        f"The folder {name!r} holds no tokenizer: copy tokenizer.json and tokenizer_config.json from where the model "
        "came."
    )


def _adapter_or_gguf(folder: Path, called: str) -> str:
    if (folder / "adapter_config.json").is_file():
        return (
            f"The folder {called!r} holds an adapter{_of_what(folder)} and no model: merge it once (from_pretrained of "
            "peft's AutoPeftModelForCausalLM, merge_and_unload, save_pretrained(OUT), the tokenizer too) and give OUT."
        )
    if files := sorted(file.name for file in folder.iterdir() if file.suffix.lower() == SUFFIX):
        if len(files) == 1:
            return f"The folder {called!r} holds no weights but {files[0]}: give that file, {called}/{files[0]}."
        return f"The folder {called!r} holds {len(files)} GGUF files: give one of them, such as {called}/{files[0]}."
    return ""


def _of_what(folder: Path) -> str:
    """Which model an adapter belongs to, if its file tells."""
    try:
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f" to {str(base)[:80]!r}" if base else ""


def _of_weights(folder: Path, called: str) -> str:
    if (folder / PARTS).is_file():
        missing = [part for part in _named_parts(folder) if not (folder / part).is_file()]
        lacks = f"The folder {called!r} lacks {_some(missing)}, which {PARTS} names" if missing else ""
        return f"{lacks}: copy it from where the model came." if missing else ""
    if (folder / WEIGHTS).is_file():
        return ""
    names = sorted(file.name for file in folder.glob("*.safetensors") if file.name != "adapter_model.safetensors")
    parts = [file for file in names if PART.fullmatch(file)]
    if parts:
        return (
            f"The folder {called!r} holds parts of a model ({_some(parts)}) without {PARTS}, which maps "
            "weights to files: copy that file from where the model came."
        )
    if names:
        return (
            f"The folder {called!r} holds {_some(names)} and no {WEIGHTS}: kvlab reads what transformers' "
            "save_pretrained writes, under its names."
        )
    if other := _adapter_or_gguf(folder, called):
        return other
    if found := _files(folder, PICKLES):
        return (
            f"The folder {called!r} holds its weights as {_some(found)}, a form that can run code when it is read, and "
            f"kvlab reads safetensors only: {CONVERT.format(given=repr(called))}."
        )
    if found := _files(folder, OTHERS):
        return (
            f"The folder {called!r} holds its weights as {_some(found)}, which is no form of transformers: take "
            f"{WEIGHTS} from where the model came, or export it with the library that wrote the file."
        )
    return f"The folder {called!r} holds no weights: copy {WEIGHTS} from where its config.json came."


def _files(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    return sorted(file.name for pattern in patterns for file in folder.glob(pattern))


def _named_parts(folder: Path) -> list[str]:
    try:
        index = json.loads((folder / PARTS).read_text(encoding="utf-8"))
        return sorted({str(part) for part in index["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []  # transformers reports the error


def _of_adapter_beside(folder: Path, called: str) -> str:
    if not (folder / "adapter_config.json").is_file() or find_spec("peft") is not None:
        return ""
    return (
        f"The folder {called!r} holds an adapter beside the model, which needs the package peft: pip install peft, or "
        "move adapter_config.json away to load the model without it."
    )


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
