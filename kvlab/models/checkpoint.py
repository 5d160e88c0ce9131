"""Check checkpoints before and after loading, with one-sentence errors.

transformers fills missing weights with random numbers; kvlab rejects such checkpoints. It also builds nothing that the
files cannot fill, so a config with a million layers fails at once.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from kvlab.core.errors import UserError
from kvlab.core.families import model_class

FOREIGN_CODE = "The model {name!r} needs its own Python code, which kvlab never runs: use a model transformers knows."
LARGEST_CONFIG_BYTES = 8 * 2**20
MOST_LAYERS = 1_000
MOST_WIDTH = 2**24
# tensors named in a message, and characters quoted from a library
NAMED = 3
MOST_SAID = 200
# The smallest stored weight takes half a byte (4 bit); tied weights and buffers are counted but not stored.
MOST_ELEMENTS_A_BYTE = 4
SPARE_ELEMENTS = 2**20
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
WIDTHS = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "num_key_value_heads", "num_local_experts")


def read_config(file: Path, name: str) -> dict[str, Any]:
    """Read the raw `config.json` of the model called `name`. Raises UserError if it is unreadable or implausible."""
    try:
        if file.stat().st_size > LARGEST_CONFIG_BYTES:
            raise UserError(f"The config.json of {name!r} is larger than any model's: use a folder with a real one.")
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"The config.json of {name!r} cannot be read ({reason(error)}).") from None
    if not isinstance(raw, dict):
        raise UserError(f"The config.json of {name!r} contains no model settings.")
    kind = raw.get("model_type")
    packing = raw.get("quantization_config")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        if raw.get("auto_map"):
            raise UserError(FOREIGN_CODE.format(name=name))
        raise UserError(f"The model {name!r} is of family {str(kind)[:40]!r}, which this transformers does not know.")
    if isinstance(packing, dict) and packing.get("quant_method") not in (*AUTO_QUANTIZER_MAPPING, "bitsandbytes", None):
        method = str(packing["quant_method"])[:40]
        raise UserError(f"The weights of {name!r} are in {method} form, which this transformers does not know.")
    text = raw.get("text_config")
    for part in (raw, text if isinstance(text, dict) else {}):
        for fields, most in ((LAYERS, MOST_LAYERS), (HEADS, MOST_WIDTH), (WIDTHS, MOST_WIDTH)):
            for field in fields:
                value = part.get(field)
                every = value if isinstance(value, list) else [] if value is None else [value]  # some: one per layer
                if any(type(number) is not int or not 0 < number <= most for number in every):
                    shown = str(value)[:20]
                    raise UserError(
                        f"The config.json of {name!r} has {field} {shown}: use a number from 1 to {most:,}."
                    )
        heads = part.get("num_attention_heads")
        shared = part.get("num_key_value_heads")
        if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
            raise UserError(
                f"The config.json of {name!r} has {heads} attention heads, which {shared} KV heads cannot share."
            )
    return raw


def check_files(config: Any, folder: Path, name: str) -> None:
    """Raise UserError unless the folder holds complete safetensors files that can hold all weights of `config`."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"The folder {name!r} does not hold a loadable safetensors model (no .safetensors file).")
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                opened.keys()
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"The file {file.name} of {name!r} is not a complete safetensors file ({reason(error)}): copy it again."
            ) from None
    stored = sum(file.stat().st_size for file in files)
    with torch.device("meta"):
        described = model_class(config).from_config(config, trust_remote_code=False)
    wanted = sum(parameter.numel() for parameter in described.parameters())
    if wanted > MOST_ELEMENTS_A_BYTE * stored + SPARE_ELEMENTS:
        raise UserError(
            f"The config.json of {name!r} describes {wanted:,} weights, but its safetensors files hold "
            f"{stored:,} bytes: they do not belong together."
        )


def check_loaded(
    model: PreTrainedModel, info: dict[str, Collection[Any]], tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    """Raise UserError if the checkpoint lacks tensors, has others, has them in other shapes, or lacks rows for tokens.

    `info` is transformers' loading report, without keys that the model declares ignorable and heads tied to the
    embedding. Ordinary tokens of the tokenizer need a row in the model's embedding.
    """
    other = []
    for key, *sizes in info["mismatched_keys"]:
        there, wanted = (" x ".join(map(str, size)) or "a number" for size in sizes)
        other.append(f"{key}: {there} for {wanted}")
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    faults = {
        "missing": set(info["missing_keys"]) - tied,
        "not part of the model": info["unexpected_keys"],
        "of another shape": other,
    }
    messages = []
    for what, keys in faults.items():
        names = sorted(map(str, keys))
        count = "1 tensor is" if len(names) == 1 else f"{len(names):,} tensors are"
        rest = ", ..." if len(names) > NAMED else ""
        messages += [f"{count} {what} ({', '.join(names[:NAMED])}{rest})"] if names else []
    if messages:
        raise UserError(f"The checkpoint of {name!r} does not fit its config.json: {'; '.join(messages)}.")
    if info.get("error_msgs"):
        raise UserError(f"The checkpoint of {name!r} cannot be read ({reason(next(iter(info['error_msgs'])))}).")
    embedding: Any = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    if len(tokenizer) <= rows:
        return
    added = set(tokenizer.added_tokens_decoder)
    beyond = sum(index >= rows and index not in added for index in tokenizer.get_vocab().values())
    if beyond:
        raise UserError(
            f"The tokenizer of {name!r} has {beyond:,} tokens more than the model ({rows:,}): they do not belong "
            "together."
        )


def reason(error: object) -> str:
    """A library's error message on one line, shortened."""
    if isinstance(error, KeyError):
        return f"{error} is not known"
    message = " ".join(str(error).split()) or type(error).__name__
    return (message if len(message) <= MOST_SAID else message[:MOST_SAID].rsplit(" ", 1)[0] + " ...").rstrip(".:")
