"""The whole recipe: tokenize, train through all phases, draw the curve, write the model folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kvlab.core.errors import UserError
from training.mini.checkpoint import checkpoints, export_model, read_progress
from training.mini.curve import Milestones, curve_figure, read_curve
from training.mini.presets import PRESETS, Phase
from training.mini.text import prepare_text, validation_text
from training.mini.train import Run, train

MODEL_FOLDER = "model"
_SETTINGS_FILE = "settings.json"


@dataclass(frozen=True)
class Recipe:
    """Options of `python -m training.mini`."""

    preset: str
    out: Path
    corpus: Path
    seed: int
    hours: float
    resume: bool
    compiled: bool = True
    start: Path | None = None  # a finished model to refine in the last phases
    phases: tuple[str, ...] = ()  # of those, only these
    every: int = 1  # of the training books, sorted by name: the first and every n-th after it


def device_of(preset: str) -> str:
    """The device of a preset; raises UserError for an unknown preset or without a GPU."""
    if preset not in PRESETS:
        raise UserError(f"Unknown preset {preset!r}: use one of {', '.join(PRESETS)}.")
    if preset == "gpu" and not torch.cuda.is_available():
        raise UserError("The gpu preset needs a CUDA device, and there is none: use --preset cpu.")
    return "cuda" if preset == "gpu" else "cpu"


def _check_folder(recipe: Recipe) -> None:
    """Refuse to mix two runs in one folder."""
    wanted = {"preset": recipe.preset, "seed": recipe.seed, "hours": recipe.hours, "every": recipe.every}
    settings = recipe.out / _SETTINGS_FILE
    if checkpoints(recipe.out):
        if not recipe.resume:
            raise UserError(f"{recipe.out} already contains a training run: use --resume auto or another --out.")
        before = wanted | (json.loads(settings.read_text()) if settings.is_file() else {})
        if any(before[name] != wanted[name] for name in ("preset", "seed", "every")):
            raise UserError(
                f"{recipe.out} contains a run with --preset {before['preset']} --seed {before['seed']} "
                f"--every {before['every']}: resume it with the same options, or use another --out."
            )
    recipe.out.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(wanted))


def run_recipe(recipe: Recipe) -> Path:
    """Train (or resume training) and return the folder of the finished model."""
    device = device_of(recipe.preset)
    if recipe.hours <= 0:
        raise UserError(f"--hours must be above 0, not {recipe.hours}.")
    if recipe.every < 1:
        raise UserError(f"--every must be at least 1 (all books), not {recipe.every}.")
    _check_folder(recipe)
    phases = PRESETS[recipe.preset]
    if recipe.start is not None:
        phases = refining_phases(phases, recipe.start, recipe.phases)
    elif recipe.phases:
        raise UserError("--phases selects refining phases: use it with --start.")
    text = prepare_text(recipe.corpus, recipe.out / "cache", recipe.start, recipe.every)
    milestones = Milestones(validation_text(recipe.corpus, text.tokenizer), recipe.out / "curve.csv")
    run = Run(
        phases,
        text,
        recipe.out,
        recipe.seed,
        recipe.hours,
        device,
        recipe.compiled,
        milestones=milestones,
        start=recipe.start,
    )
    model = train(run, recipe.resume)
    folder = recipe.out / MODEL_FOLDER
    export_model(model, text.tokenizer, folder, phases[-1].length)
    draw_curve(recipe.out)
    return folder


def refining_phases(phases: Sequence[Phase], start: Path, only: Sequence[str] = ()) -> tuple[Phase, ...]:
    """The refining phases (or those named in `only`), which share all the hours.

    Raises UserError if the model in `start` does not fit or a name is not a refining phase.
    """
    last = phases[-1]
    if not (start / "config.json").is_file():
        raise UserError(f"{start} is not a model folder: it has no config.json.")
    config = json.loads((start / "config.json").read_text())
    given = config.get("hidden_size"), config.get("num_hidden_layers")
    if given != (last.shape.hidden_size, last.shape.num_hidden_layers):
        raise UserError(f"The model in {start} does not have this preset's final shape: use its own preset.")
    refining = [phase for phase in phases if phase.refines]
    if unknown := set(only) - {phase.name for phase in refining}:
        names = ", ".join(phase.name for phase in refining)
        raise UserError(f"There is no refining phase {', '.join(sorted(unknown))}: use {names}.")
    refining = [phase for phase in refining if not only or phase.name in only]
    whole = sum(phase.share for phase in refining)
    return tuple(replace(phase, share=phase.share / whole) for phase in refining)


def draw_curve(out: Path) -> Path:
    """Draw the training curve of a run folder as curve.png and return its path."""
    curve_figure(read_curve(out / "curve.csv")).write_image(out / "curve.png", width=1000, height=640, scale=1.5)
    return out / "curve.png"


def progress_line(out: Path) -> str:
    """One sentence on what a run folder has seen."""
    progress = read_progress(checkpoints(out)[-1])
    return (
        f"{progress.tokens / 1e6:.1f} M tokens ({progress.text_tokens / 1e6:.1f} M of real text) in "
        f"{progress.seconds / 3600:.2f} hours, last phase {progress.phase_name}"
    )
