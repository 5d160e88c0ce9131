"""Write the config and tokenizer of a GGUF file as files: `python -m kvlab.models.describe_gguf FILE FOLDER`.

Prints a JSON object with `error`, which is empty on success. The file's metadata is data: its chat template becomes a
file, and nothing of it runs here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from kvlab.core.errors import UserError
from kvlab.models.gguf_rotary import FREQS, LONG, SHORT, complete_config
from kvlab.models.info.gguf_files import ABOUT
from kvlab.models.pre_tokenizers import set_pre_tokenizer

FILE_TYPE = "general.file_type"


def describe(file: Path, folder: Path) -> None:
    """Write `folder` in one step. Raises UserError if the file is damaged or is no model that can be loaded."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        reader = _open(file)
        known = _read(reader)
        known["notes"] = _save(file, reader, work)
        known |= {"file": str(file.resolve()), "bytes": file.stat().st_size, "checksum": _checksum(file)}
        (work / ABOUT).write_text(json.dumps(known, indent=1), encoding="utf-8")
        if not (folder / ABOUT).is_file():  # another process may have been faster
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _open(file: Path) -> Any:
    """A `GGUFReader` of a whole file."""
    from gguf import GGUFReader

    try:
        return GGUFReader(str(file))
    except Exception as error:  # the reader checks nothing itself: any class, from wherever it stumbles
        if "GGMLQuantizationType" in str(error):
            raise UserError(f"it holds weights of an unknown type ({error}), so a newer gguf may be needed") from None
        raise UserError(f"it is incomplete or damaged ({_short(error)}), so copy it again") from None


def _read(reader: Any) -> dict[str, Any]:
    """Quantization, architecture and number of parameters of a file whose tensors can be read."""
    from gguf import LlamaFileType, dequantize

    architecture = _value(reader, "general.architecture")
    parts = _value(reader, "split.count")
    if parts is not None and int(parts) > 1:
        raise UserError("it is part of a split file, so merge the parts with `llama-gguf-split --merge` of llama.cpp")
    if architecture is None or not reader.tensors:
        raise UserError("it holds no model")
    elements: Counter[str] = Counter()
    for tensor in reader.tensors:
        kind = tensor.tensor_type.name
        if kind not in elements:
            try:
                dequantize(tensor.data[:1], tensor.tensor_type)
            except NotImplementedError:
                raise UserError(f"its weights are of type {kind}, which the package gguf cannot convert") from None
        elements[kind] += int(tensor.n_elements)
    named = _value(reader, FILE_TYPE)
    kinds = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    main = elements.most_common(1)[0][0]
    quantization = kinds.get(int(named), main) if named is not None else main
    return {
        "quantization": quantization,
        "architecture": str(architecture),
        "parameters": sum(elements.values()),
    }


def _value(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()


def _save(file: Path, reader: Any, folder: Path) -> list[str]:
    """Config and tokenizer as transformers converts them, with what it leaves out; notes on what stays unknown."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from kvlab.core.families import check_supported

    try:
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    except Exception as error:
        raise UserError(f"transformers does not read it ({_short(error)})") from None
    try:
        check_supported(config)
    except UserError as error:
        raise UserError(str(error).rstrip(".")) from None
    architecture = _value(reader, "general.architecture")
    tables = {one.name: np.array(one.data) for one in reader.tensors if one.name in (FREQS, LONG, SHORT)}
    complete_config(config, lambda name: _value(reader, f"{architecture}.{name}"), tables)
    config.dtype = "bfloat16"  # on a GPU; a CPU computes in float32
    config.save_pretrained(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
        note = set_pre_tokenizer(tokenizer, *(_value(reader, f"tokenizer.ggml.{name}") for name in ("model", "pre")))
        tokenizer.save_pretrained(folder)
    except Exception as error:
        raise UserError(f"transformers does not read its tokenizer ({_short(error)})") from None
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    return [note] if note else []


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _short(error: Exception) -> str:
    message = " ".join(str(error).split()) or type(error).__name__
    return message[:160].rstrip(".: ")


def main() -> None:
    """Describe one file and report the error, if any."""
    error = ""
    try:
        describe(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as problem:
        error = str(problem)
    except OSError as problem:
        error = f"its description cannot be written ({problem.strerror or problem})"
    print(json.dumps({"error": error}))


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    main()
