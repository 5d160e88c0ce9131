"""Write the config and tokenizer of a GGUF file as files: `python -m kvlab.models.describe_gguf FILE FOLDER`.

Prints a JSON object with `error`, which is empty on success. The file's metadata is data: its chat template becomes a
file, and nothing of it runs here.
"""

import hashlib
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from kvlab.core.errors import UserError
from kvlab.models.info.model_faults import ABOUT

FREQS = "rope_freqs.weight"
LONG = "rope_factors_long.weight"
SHORT = "rope_factors_short.weight"
PARTIAL = ("phi3", "stablelm", "nemotron")  # families whose attention rotates a part of each head, if so configured
FITTED = 1e-5  # relative error of the factors of Llama 3 that were found again

Read = Callable[[str], Any]  # the value of a key of the architecture, None if the file lacks it


def complete_config(config: Any, read: Read, tensors: dict[str, np.ndarray]) -> None:
    """Put head width and rotary positions of a file into its config. Raises UserError for what has no counterpart."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:  # no rotary positions
        return
    # Families with sliding windows scale their full-attention layers alone, as llama.cpp does.
    layered = "full_attention" in parameters
    rope = dict(parameters["full_attention"] if layered else parameters)
    if not layered:
        # The width of a head, and the share of it that rotates.
        known = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        width = int(read("attention.key_length") or known)
        if width != known:
            config.head_dim = width
        rotated = read("rope.dimension_count")
        share = 1.0 if rotated is None else int(rotated) / width
        if rotated is not None and share != rope.get("partial_rotary_factor", 1.0):
            if config.model_type not in PARTIAL:
                raise UserError(
                    f"it rotates {int(rotated)} of the {width} numbers of a head, which transformers does not for a "
                    f"{config.model_type} model"
                )
            rope["partial_rotary_factor"] = share
    if rope.get("rope_type") != "proportional":  # Gemma 4's own, whose factors the file holds too
        if (base := read("rope.freq_base")) is not None:
            rope["rope_theta"] = float(base)
        rope |= _scaling(config, read, tensors, rope)
    config.rope_parameters = {**parameters, "full_attention": rope} if layered else rope
    if "original_max_position_embeddings" in rope and hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = rope["original_max_position_embeddings"]  # Phi-3 reads it there


def _scaling(config: Any, read: Read, tensors: dict[str, np.ndarray], rope: dict[str, Any]) -> dict[str, Any]:
    """transformers' parameters of the file's scaling; empty if it has none."""
    kind = read("rope.scaling.type") or "linear"  # llama.cpp's default, as is the older name of the factor
    factor = float(read("rope.scaling.factor") or read("rope.scale_linear") or 1.0)
    attention = float(read("rope.scaling.attn_factor") or 1.0)
    before = int(read("rope.scaling.original_context_length") or config.max_position_embeddings)
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UserError(f"its rotary positions are scaled by {kind!r}, which transformers does not know")
    if kind == "yarn":
        names = {"ext_factor": 1.0, "attn_factor": 1.0, "log_multiplier": 0.0}
        changed = [name for name, usual in names.items() if read(f"rope.scaling.yarn_{name}") not in (None, usual)]
        if changed or tensors:
            raise UserError(
                f"its YaRN positions have {'factors of their own' if tensors else f'a {changed[0]}'}, for which "
                "transformers has no setting"
            )
        betas = {name: read(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": before,
            "attention_factor": attention * (0.1 * math.log(max(factor, 1.0)) + 1.0),
            **{name: float(beta) for name, beta in betas.items() if beta is not None},
        }
    factor = 1.0 if kind == "none" else factor
    if LONG in tensors and SHORT in tensors:
        short = tensors[SHORT] * factor
        long = tensors[LONG] * factor
    else:
        short = long = factor * tensors.get(FREQS, np.ones(1, np.float32))
        if attention != 1.0:
            raise UserError("its rotary positions have an attention factor without YaRN or two sets of frequencies")
        if np.all(short == short[0]):
            return {} if short[0] == 1.0 else {"rope_type": "linear", "factor": float(short[0])}
        if llama3 := _llama3(short, rope):
            return llama3
        before = config.max_position_embeddings  # the same frequencies before and after it
    # A set of frequencies up to `before` tokens and one beyond.
    return {
        "rope_type": "longrope",
        "short_factor": short.tolist(),
        "long_factor": long.tolist(),
        "attention_factor": attention,
        "original_max_position_embeddings": before,
    }


def _llama3(factors: np.ndarray, rope: dict[str, Any]) -> dict[str, Any]:
    """The parameters of Llama 3.1 that give these factors; empty if none do.

    1 / factor is 1 for short waves, 1 / `factor` for long ones, and linear in the frequency between them. Its line
    there determines the two bounds, of which one scale is free: Llama's `low_freq_factor` is 1.
    """
    frequency = rope["rope_theta"] ** (-np.arange(len(factors)) / len(factors)) / (2 * math.pi)
    factor = float(factors.max())
    kept = (1 / factors.astype(np.float64) - 1 / factor) / (1 - 1 / factor)  # the share of the unscaled frequency
    between = (kept > FITTED) & (kept < 1 - FITTED)
    if between.sum() < 2:
        return {}
    slope, start = np.polyfit(frequency[between], kept[between], 1)
    high = round(1 - 1 / start, 4)
    before = round(slope * (high - 1))
    smooth = np.clip((before * frequency - 1) / (high - 1), 0, 1)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=FITTED, atol=0):
        return {}
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": before,
    }


FILE_TYPE = "general.file_type"


def describe(file: Path, folder: Path) -> None:
    """Write `folder` in one step. Raises UserError if the file is damaged or is no model that can be loaded."""
    from gguf import GGUFReader

    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        try:
            reader = GGUFReader(str(file))
        except Exception as error:  # the reader checks nothing itself: any class, from wherever it stumbles
            if "GGMLQuantizationType" in str(error):
                why = f"it holds weights of an unknown type ({error}), so a newer gguf may be needed"
                raise UserError(why) from None
            raise UserError(f"it is incomplete or damaged ({_short(error)}), so copy it again") from None
        known = _read(reader)
        known["notes"] = _save(file, reader, work)
        with file.open("rb") as opened:
            checksum = hashlib.file_digest(opened, "sha256").hexdigest()
        known |= {"file": str(file.resolve()), "bytes": file.stat().st_size, "checksum": checksum}
        (work / ABOUT).write_text(json.dumps(known, indent=1), encoding="utf-8")
        if not (folder / ABOUT).is_file():  # another process may have been faster
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


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
    from kvlab.models.load import set_pre_tokenizer

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
