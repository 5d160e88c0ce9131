"""`python -m training.mini`: train mini, or print the acceptance table of a model folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli import run_alone
from kvlab.core.assets import asset_path
from kvlab.core.errors import UserError
from training.mini.recipe import Recipe, progress_line, run_recipe
from training.mini.report import print_report

_RESUMES = ("auto", "no")


def train_mini(
    corpus: Annotated[Path | None, typer.Option(help="Folder with plain-text books (*.txt, or in books/).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, curve and model.")] = Path("checkpoints/mini"),
    preset: Annotated[str, typer.Option(help="cpu (5 M parameters) or gpu (15 M).")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of initial weights and training rows.")] = 0,
    hours: Annotated[float, typer.Option(help="Training hours over all phases; on a CPU process time.")] = 2.0,
    resume: Annotated[
        str, typer.Option(help="auto: resume from the newest checkpoint in --out; no: start over.")
    ] = "auto",
    start: Annotated[
        Path | None, typer.Option(help="Refine a finished model, such as assets/mini, with the refining phases only.")
    ] = None,
    every: Annotated[int, typer.Option(help="Train only on every n-th book by name; 1: all.")] = 1,
    phases: Annotated[str, typer.Option(help="With --start: only these refining phases, comma-separated.")] = "",
    report: Annotated[bool, typer.Option(help="Print the acceptance table when done.")] = True,
    report_only: Annotated[
        Path | None, typer.Option(help="Only print the table of this model folder (on shipped text).")
    ] = None,
    samples: Annotated[int, typer.Option(help="Prompts per line of the table.")] = 200,
) -> None:
    """Train mini; a killed run resumes from its newest checkpoint."""
    if resume not in _RESUMES:
        raise UserError(f"--resume takes {' or '.join(_RESUMES)}, not {resume!r}.")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if report_only is None and corpus is None:
        raise UserError("Training needs text: give --corpus a folder with plain-text books.")
    folder = report_only or out
    if report_only is None and corpus is not None:
        names = tuple(name.strip() for name in phases.split(",") if name.strip())
        recipe = Recipe(preset, out, corpus, seed, hours, resume == "auto", start=start, phases=names, every=every)
        folder = run_recipe(recipe)
        typer.echo(f"Model written to {folder}: {progress_line(out)}")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is no model folder: it has no config.json.")
    if report or report_only:
        print_report(folder, corpus or asset_path("prompts/haystack"), samples)


if __name__ == "__main__":
    run_alone(train_mini)
