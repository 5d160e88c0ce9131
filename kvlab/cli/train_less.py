"""`kvlab train-less`: fit the feature maps of the method `less` to a model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.cli.options.groups import grouped
from kvlab.cli.options.model import LoadingOptions


@grouped
def train_less(
    corpus: Annotated[
        Path | None, typer.Option(help="Folder with plain-text books (*.txt, or in books/); default: shipped excerpts.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file of feature maps, for less:weights=FILE.")] = Path(
        "less.safetensors"
    ),
    rank: Annotated[int, typer.Option(help="Features a head: rows of its state.")] = 8,
    minutes: Annotated[float, typer.Option(help="Processor minutes for watching the model and fitting.")] = 3.0,
    hidden: Annotated[int, typer.Option(help="Hidden units of each map.")] = 64,
    form: Annotated[str, typer.Option(help="exponential, or gelu (the paper's).")] = "exponential",
    length: Annotated[int, typer.Option(help="Tokens of each window of text.")] = 1024,
    seed: Annotated[int, typer.Option(help="Of the windows, the budgets and the first weights.")] = 0,
    *,
    loading: LoadingOptions,
) -> None:
    """Fit the feature maps of `less` to a model from text; the model itself is not changed."""
    from kvlab.fitting.less import LessRequest, fit_less  # torch is slow to import

    chosen: Any = form
    fitted = {"rank": rank, "hidden": hidden, "form": chosen, "minutes": minutes, "length": length, "seed": seed}
    fit_less(LessRequest(corpus=corpus, **fitted, **asdict(loading)), out, say=typer.echo)
