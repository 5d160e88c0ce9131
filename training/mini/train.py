"""The training loop: phase after phase, growing the model between them, resumable from the newest checkpoint."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.optim import Optimizer
from transformers import LlamaForCausalLM

from training.mini import checkpoint as saved
from training.mini.checkpoint import Progress
from training.mini.curve import append_row
from training.mini.growth import grow_depth, grow_width
from training.mini.presets import Phase
from training.mini.random_rows import draw_batch
from training.mini.rows import TEXT
from training.mini.shape import build_model
from training.mini.step import answers_right, loss_function, make_optimizers, to_tensors
from training.mini.text import Text

log = logging.getLogger(__name__)

_WARMUP_STEPS = 50
_CLIP = 1.0
_MEMORY = 0.97  # of the running averages that are logged and that end a phase
_EMBEDDING_NOISE = 0.02
_LOG_EVERY = 20


@dataclass
class Run:
    """One training run: phases, text, output folder."""

    phases: Sequence[Phase]
    text: Text
    folder: Path
    seed: int
    hours: float
    device: str = "cpu"
    compiled: bool = True
    checkpoint_seconds: float = 180.0
    milestones: Callable[[LlamaForCausalLM, Phase, Progress], None] | None = None
    averages: dict[str, float] = field(default_factory=dict)
    start: Path | None = None  # the model folder to start from instead of random weights


def train(run: Run, resume: bool) -> LlamaForCausalLM:
    """Run all phases (from the newest checkpoint if `resume`) and return the trained model."""
    progress, model, optimizers = _restore(run) if resume and saved.checkpoints(run.folder) else _begin(run)
    for index in range(progress.phase, len(run.phases)):
        if index != progress.phase:
            if not run.phases[index].continues:
                model = _on_device(_grown(model, run.phases[index], run.seed + index), run.device)
                optimizers = make_optimizers(model, run.phases[index].optimizer, run.phases[index].learning_rate)
            progress = _next_phase(progress, index, run.phases[index])
        log.info("phase %s: %.2f M parameters", progress.phase_name, model.num_parameters() / 1e6)
        _train_phase(run, run.phases[index], model, optimizers, progress)
        saved.save_checkpoint(run.folder, model, optimizers, progress)
    return model


def _on_device(model: LlamaForCausalLM, device: str) -> LlamaForCausalLM:
    torch.nn.Module.to(model, device)
    return model


def _begin(run: Run) -> tuple[Progress, LlamaForCausalLM, list[Optimizer]]:
    first = run.phases[0]
    model = build_model(first.shape, run.seed)
    if run.start is not None:
        saved.load_weights(run.start, model)
    model = _on_device(model, run.device)
    return Progress(phase_name=first.name), model, make_optimizers(model, first.optimizer, first.learning_rate)


def _restore(run: Run) -> tuple[Progress, LlamaForCausalLM, list[Optimizer]]:
    newest = saved.checkpoints(run.folder)[-1]
    progress = saved.read_progress(newest)
    names = [phase.name for phase in run.phases]
    progress.phase = names.index(progress.phase_name)
    phase = run.phases[progress.phase]
    model = build_model(phase.shape, run.seed)
    saved.load_weights(newest, model)
    _on_device(model, run.device)
    optimizers = make_optimizers(model, phase.optimizer, phase.learning_rate)
    saved.load_optimizers(newest, optimizers)
    run.averages.update(progress.averages)
    log.info("resumed %s: phase %s, step %d", newest.name, progress.phase_name, progress.step)
    return progress, model, optimizers


def _next_phase(progress: Progress, index: int, phase: Phase) -> Progress:
    return Progress(
        phase=index,
        phase_name=phase.name,
        seconds=progress.seconds,
        tokens=progress.tokens,
        text_tokens=progress.text_tokens,
    )


def _grown(model: LlamaForCausalLM, phase: Phase, seed: int) -> LlamaForCausalLM:
    """The model at the phase's shape: deeper first, then wider."""
    model = model.cpu()
    if phase.places:
        config = model.config
        depth_only = replace(phase.shape, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size)
        model = grow_depth(model, depth_only, phase.places, seed)
    if phase.shape.hidden_size != model.config.hidden_size:
        model = grow_width(model, phase.shape, seed, _EMBEDDING_NOISE)
    return model


def _rate(phase: Phase, step: int, fraction: float) -> float:
    warm = 1.0 if phase.continues else min(1.0, (step + 1) / _WARMUP_STEPS)
    return phase.learning_rate * warm * (1 - (1 - phase.final_rate) * min(1.0, fraction))


def _fraction(run: Run, phase: Phase, progress: Progress) -> float:
    """Completed fraction of the phase, by steps or by time, whichever is larger."""
    return max(progress.step / phase.steps, progress.phase_seconds / (phase.share * run.hours * 3600))


def _solved(run: Run, phase: Phase, progress: Progress) -> bool:
    if not phase.advance_on or progress.step < phase.least_steps:
        return False
    return all(run.averages.get(task, 0.0) >= phase.accuracy for task in phase.advance_on)


def _average(run: Run, name: str, value: float) -> None:
    old = run.averages.get(name)
    run.averages[name] = value if old is None else _MEMORY * old + (1 - _MEMORY) * value


def _clock(device: str) -> Callable[[], float]:
    """Clock for the hours: on a CPU the thread's processor time, so that other load does not shorten phases."""
    return time.thread_time if device == "cpu" else time.monotonic


def _train_phase(
    run: Run, phase: Phase, model: LlamaForCausalLM, optimizers: list[Optimizer], progress: Progress
) -> None:
    if progress.step == 0:
        run.averages.clear()
    losses, clock = loss_function(model, run.device, run.compiled), _clock(run.device)
    model.train()
    saved_at = time.monotonic()
    while (fraction := _fraction(run, phase, progress)) < 1 and not _solved(run, phase, progress):
        started = clock()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = _rate(phase, progress.step, fraction)
        _train_step(run, phase, model, optimizers, progress, losses)
        seconds = clock() - started
        progress.phase_seconds += seconds
        progress.seconds += seconds
        progress.step += 1
        if progress.step % _LOG_EVERY == 0:
            _log(run, phase, progress)
        if time.monotonic() - saved_at > run.checkpoint_seconds:
            progress.averages = dict(run.averages)
            saved.save_checkpoint(run.folder, model, optimizers, progress)
            saved_at = time.monotonic()
            if run.milestones:
                run.milestones(model, phase, progress)
                model.train()
    progress.averages = dict(run.averages)


def _train_step(
    run: Run, phase: Phase, model: LlamaForCausalLM, optimizers: list[Optimizer], progress: Progress, losses: Callable
) -> None:
    batch = draw_batch(run.text, phase, run.seed, progress.phase, progress.step)
    tokens, marks = to_tensors(batch, run.device)
    loss, text_loss, answer_loss, hits = losses(tokens, marks, phase.answer_weight)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    text_tokens = int((batch.marks == TEXT).sum())
    progress.tokens += batch.marks.size
    progress.text_tokens += text_tokens
    _average(run, "answer_loss", answer_loss.item())
    if text_tokens:
        _average(run, "text_loss", text_loss.item())
    for task, right in answers_right(batch, hits).items():
        _average(run, task, sum(right) / len(right))
    if not math.isfinite(loss.item()):
        raise FloatingPointError(f"the loss is {loss.item()} at step {progress.step} of {phase.name}")


def _log(run: Run, phase: Phase, progress: Progress) -> None:
    averages = {name: round(value, 4) for name, value in sorted(run.averages.items())}
    speed = progress.step * phase.batch * phase.length / max(progress.phase_seconds, 1e-9)
    log.info("%s %d (%.0f s, %.0f tokens/s): %s", phase.name, progress.step, progress.seconds, speed, averages)
    append_row(run.folder / "curve.csv", progress, averages)
