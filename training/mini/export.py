"""Write a trained model as a plain transformers folder: bfloat16 weights, fast tokenizer, generation settings."""

from __future__ import annotations

import copy
from pathlib import Path

from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from training.mini import checkpoint as saved
from training.mini.presets import Phase
from training.mini.shape import build_model


def export_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path, length: int) -> None:
    """Write the folder; `length` is the longest context that was trained and becomes max_position_embeddings."""
    folder.mkdir(parents=True, exist_ok=True)
    model = copy.deepcopy(model).cpu().bfloat16()
    model.config.max_position_embeddings = length
    model.config.use_cache = True
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def newest_model(folder: Path, phases: tuple[Phase, ...], seed: int = 0) -> tuple[LlamaForCausalLM, saved.Progress]:
    """Return the model of a run's newest checkpoint and where the run stood; raises IndexError where there is none."""
    newest = saved.checkpoints(folder)[-1]
    progress = saved.read_progress(newest)
    phase = next(phase for phase in phases if phase.name == progress.phase_name)
    model = build_model(phase.shape, seed)
    saved.load_weights(newest, model)
    return model.eval(), progress
