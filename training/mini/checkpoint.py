"""Checkpoints that survive a kill: a folder is written under a temporary name and then renamed."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerBase

_KEPT = 2


@dataclass
class Progress:
    """State of a run: phase index, steps and seconds within it, and totals over the run."""

    phase: int = 0
    phase_name: str = ""
    step: int = 0
    phase_seconds: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    text_tokens: int = 0
    averages: dict[str, float] = field(default_factory=dict)


def _optimizer_tensors(optimizers: list[Optimizer]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for which, optimizer in enumerate(optimizers):
        for index, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                tensors[f"{which}/{index}/{key}"] = torch.as_tensor(value).clone()
    return tensors


def _restore_optimizers(optimizers: list[Optimizer], tensors: dict[str, Tensor]) -> None:
    for which, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            owner, index, key = name.split("/")
            if int(owner) == which:
                state.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("checkpoint-*") if (path / "progress.json").is_file())


def save_checkpoint(folder: Path, model: LlamaForCausalLM, optimizers: list[Optimizer], progress: Progress) -> Path:
    """Write a checkpoint and delete all but the newest two; returns its folder."""
    number = int(checkpoints(folder)[-1].name.split("-")[1]) + 1 if checkpoints(folder) else 0
    target = folder / f"checkpoint-{number:06d}"
    partial = folder / f"partial-{number:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, partial / "model.safetensors")
    save_file(_optimizer_tensors(optimizers), partial / "optimizer.safetensors")
    (partial / "progress.json").write_text(json.dumps(asdict(progress), indent=1))
    partial.rename(target)
    for old in checkpoints(folder)[:-_KEPT]:
        shutil.rmtree(old)
    return target


def read_progress(checkpoint: Path) -> Progress:
    """The state of the run when the checkpoint was written."""
    return Progress(**json.loads((checkpoint / "progress.json").read_text()))


def load_weights(checkpoint: Path, model: LlamaForCausalLM) -> None:
    """Copy a checkpoint's weights into a model of the same shape."""
    weights = load_file(checkpoint / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)


def load_optimizers(checkpoint: Path, optimizers: list[Optimizer]) -> None:
    """Copy a checkpoint's optimizer state into optimizers over the same parameters."""
    _restore_optimizers(optimizers, load_file(checkpoint / "optimizer.safetensors"))


def export_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path, length: int) -> None:
    """Write the folder; `length` is the longest trained context and becomes max_position_embeddings."""
    folder.mkdir(parents=True, exist_ok=True)
    model = copy.deepcopy(model).cpu().bfloat16()
    model.config.max_position_embeddings = length
    model.config.use_cache = True
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
