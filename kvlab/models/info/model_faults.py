"""Explain, from file names alone, why a file or folder cannot be loaded as a model, and what to do about it."""

import hashlib
import json
import re
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvlab.core import UserError, cache_folder
from kvlab.models.info.packaged_models import not_here, packaged_file

SUFFIX = ".gguf"
ABOUT = "gguf.json"
SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
NEEDED = ("gguf", "accelerate")
COMMAND = (sys.executable, "-P", "-m", "kvlab.models.describe_gguf")
VERSION = 2  # of what a description holds: rises when the same file is described otherwise
SECONDS_ALLOWED = 600  # a checksum of a large file on a slow disk


def gguf_file(name: str) -> Path | None:
    """The GGUF file that a model's name stands for: `smollm2`, a file, or a folder with one and no config.json."""
    if (packaged := packaged_file(name)) is not None:
        return packaged
    try:
        place = Path(name).expanduser()
        if place.suffix.lower() == SUFFIX and place.is_file():
            return place
        if not place.is_dir() or (place / "config.json").is_file():
            return None
        files = [file for file in place.iterdir() if file.suffix.lower() == SUFFIX]
        return files[0] if len(files) == 1 else None
    except (OSError, RuntimeError, ValueError):  # no valid path, no permission, or an unknown home
        return None


def description_folder(file: Path, called: str = "") -> Path:
    """Folder with the config and tokenizer of a GGUF file, and what `about` reads; written once per file.

    Raises UserError if the file is part of a split one, is damaged, or is no model that can be loaded.
    """
    called = called or str(file)
    if split := SPLIT.fullmatch(file.name):
        raise UserError(
            f"{called!r} is part {int(split[2])} of {int(split[3])} of a split GGUF file: merge the parts with "
            "`llama-gguf-split --merge` of llama.cpp and give the merged file."
        )
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        raise UserError(f"Reading the GGUF file {called!r} needs {' and '.join(missing)}: pip install 'kvlab[gguf]'.")
    # The key changes with the file's path, size and time, which are read faster than its content, and with `VERSION`.
    found = file.stat()
    words = f"{VERSION}\n{file.resolve()}\n{found.st_size}\n{found.st_mtime_ns}"
    folder = cache_folder("gguf", hashlib.sha256(words.encode()).hexdigest()[:24])
    if (folder / ABOUT).is_file():
        return folder
    describe_file(file, folder, called)
    return folder


def describe_file(file: Path, folder: Path, called: str) -> None:
    """Describe a GGUF file in a process of its own, which a damaged file may end."""
    try:
        done = subprocess.run(
            [*COMMAND, str(file), str(folder)], capture_output=True, text=True, timeout=SECONDS_ALLOWED, check=True
        )
        error = json.loads(done.stdout.splitlines()[-1])["error"]
    except (subprocess.SubprocessError, OSError, ValueError, LookupError):
        error = "the process that reads it gave no answer"
    if error:
        raise UserError(f"The GGUF file {called!r} cannot be loaded: {error}.")


def about(folder: Path) -> dict[str, Any]:
    """Properties of the GGUF file that `folder` describes: `quantization`, `checksum`, `parameters`, `file`,
    `notes`."""
    return json.loads((folder / ABOUT).read_text(encoding="utf-8"))


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
            # Why a GGUF file, shown as `called`, cannot be loaded.
            try:
                description_folder(file, called)
            except UserError as error:
                return str(error)
            return ""
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
        if message := _of_weights(place, called):
            return message
        if (place / "adapter_config.json").is_file() and find_spec("peft") is None:
            return (
                f"The folder {called!r} holds an adapter beside the model, which needs the package peft: pip install "
                "peft, or move adapter_config.json away to load the model without it."
            )
        return ""
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
        base = None  # which model it belongs to, if its file tells
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
        to_base = f" to {str(base)[:80]!r}" if base else ""
        return (
            f"The folder {called!r} holds an adapter{to_base} and no model: merge it once (from_pretrained of "
            "peft's AutoPeftModelForCausalLM, merge_and_unload, save_pretrained(OUT), the tokenizer too) and give OUT."
        )
    if files := sorted(file.name for file in folder.iterdir() if file.suffix.lower() == SUFFIX):
        if len(files) == 1:
            return f"The folder {called!r} holds no weights but {files[0]}: give that file, {called}/{files[0]}."
        return f"The folder {called!r} holds {len(files)} GGUF files: give one of them, such as {called}/{files[0]}."
    return ""


def _of_weights(folder: Path, called: str) -> str:
    if (folder / PARTS).is_file():
        named: set[str] = set()
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # transformers reports an error here
            index = json.loads((folder / PARTS).read_text(encoding="utf-8"))
            named = {str(part) for part in index["weight_map"].values()}
        missing = [part for part in sorted(named) if not (folder / part).is_file()]
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
    if found := sorted(file.name for pattern in PICKLES for file in folder.glob(pattern)):
        return (
            f"The folder {called!r} holds its weights as {_some(found)}, a form that can run code when it is read, and "
            f"kvlab reads safetensors only: {CONVERT.format(given=repr(called))}."
        )
    if found := sorted(file.name for pattern in OTHERS for file in folder.glob(pattern)):
        return (
            f"The folder {called!r} holds its weights as {_some(found)}, which is no form of transformers: take "
            f"{WEIGHTS} from where the model came, or export it with the library that wrote the file."
        )
    return f"The folder {called!r} holds no weights: copy {WEIGHTS} from where its config.json came."


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
