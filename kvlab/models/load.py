"""Loading a model by name so that it runs kvlab's attention."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT as HF_ENDPOINT
from huggingface_hub.errors import HFValidationError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from kvlab.assets import asset_path
from kvlab.attention import register_attention
from kvlab.errors import UserError
from kvlab.models.falcon import use_slot_attention
from kvlab.models.phi3 import keep_compressed_cache

EMBEDDED = ("mini",)
REACH_SECONDS = 5
SUPPORTED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "falcon",
)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for compressed caches, its tokenizer, and the name it was asked for by."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.model.device

    def encode(self, text: str) -> torch.Tensor:
        """Token ids (1, T) of a text on the model's device, with the BOS token first where the model has one."""
        ids = self.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
        bos = self.tokenizer.bos_token_id
        if bos is not None and (ids.shape[1] == 0 or int(ids[0, 0]) != bos):
            ids = torch.cat([torch.full((1, 1), bos, dtype=ids.dtype), ids], dim=1)
        return ids.to(self.device)


def load_model(name_or_path: str = "mini", device: str = "auto", dtype: str = "auto") -> LoadedModel:
    """The embedded model `mini`, a local folder, or a hub name, in evaluation mode.

    `device` auto takes cuda, else mps, else cpu. `dtype` auto takes float32 on cpu, else the checkpoint's own.
    Raises UserError for a name that cannot be found, a family kvlab does not support, or a device that is not there.
    """
    where = asset_path(name_or_path) if name_or_path in EMBEDDED else name_or_path
    place = pick_device(device)
    disable_progress_bar()
    _check_reachable(name_or_path, Path(where))
    try:
        config = AutoConfig.from_pretrained(where)
        check_supported(config)
        tokenizer = AutoTokenizer.from_pretrained(where)
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype=_pick_dtype(dtype, place), use_safetensors=True, attn_implementation=_made_with(config)
        )
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(_not_loaded(name_or_path, error)) from error
    return LoadedModel(prepare(model).to(place).eval(), tokenizer, name_or_path)  # type: ignore[arg-type]


def _made_with(config: Any) -> str:
    """The attention a model is made with; Falcon picks a class by it and knows its own only, `prepare` changes it."""
    return "eager" if config.model_type == "falcon" else register_attention()


def _check_reachable(name: str, folder: Path) -> None:
    """Says at once that a hub name cannot be had, where the hub's client would retry for half a minute."""
    if folder.exists():
        return
    hub = urlparse(HF_ENDPOINT)
    try:
        if try_to_load_from_cache(name, "config.json") is not None:
            return
        socket.create_connection((hub.hostname or "", hub.port or 443), timeout=REACH_SECONDS).close()
    except (OSError, HFValidationError) as error:
        raise UserError(_not_loaded(name, error)) from None


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """The same model, set to kvlab's attention; raises UserError for an unsupported family."""
    check_supported(model.config.get_text_config(decoder=True))
    name = register_attention()
    if model.config.model_type == "falcon":
        use_slot_attention(model, name)
    else:
        model.set_attn_implementation(name)
    if model.config.model_type == "phi3":
        keep_compressed_cache(model)
    return model


def check_supported(config: Any) -> None:
    """Raises UserError if kvlab cannot run this configuration faithfully."""
    config = config.get_text_config(decoder=True)
    if config.model_type not in SUPPORTED:
        raise UserError(f"Models of family {config.model_type!r} are not supported; kvlab runs {', '.join(SUPPORTED)}.")


def pick_device(device: str) -> torch.device:
    """The device asked for, or the best one there is; raises UserError if it is not there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if not there.get(device.split(":")[0], False):
        raise UserError(f"There is no device {device!r} here; leave the device out to use the best one there is.")
    return torch.device(device)


def _pick_dtype(dtype: str, device: torch.device) -> torch.dtype | str:
    if dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    return torch.float32 if device.type == "cpu" else "auto"


def _not_loaded(name: str, error: Exception) -> str:
    folder = Path(name)
    if folder.is_dir():
        reason = str(error).strip().splitlines()[0][:200]
        return f"The folder {name!r} does not hold a loadable safetensors model ({reason})."
    return (
        f"There is no model {name!r}: give 'mini', a local folder, or a hub name that can be downloaded from here "
        "(only safetensors checkpoints are loaded)."
    )
