"""`kvlab profile`: what share of the cache each head of a model wants."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli.options.groups import grouped
from kvlab.cli.options.model import LoadingOptions


@grouped
def profile(
    texts: Annotated[
        Path | None, typer.Option(help="Folder with plain-text books (*.txt, or in books/); default: shipped excerpts.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file, for duoattention:profile=FILE.")] = Path("profile.safetensors"),
    windows: Annotated[int, typer.Option(help="How many windows of text are read.")] = 8,
    length: Annotated[int, typer.Option(help="Tokens of each window.")] = 1024,
    seed: Annotated[int, typer.Option(help="Of the windows.")] = 0,
    *,
    loading: LoadingOptions,
) -> None:
    """Read off what one cut over all layers and heads gives each head, at four budgets, for `allocate=profile`."""
    from kvlab.fitting.profile import BUDGETS, ProfileRequest, make_profile  # torch is slow to import

    request = ProfileRequest(texts=texts, windows=windows, length=length, seed=seed, **asdict(loading))
    shares = make_profile(request, out, say=typer.echo)
    for budget, by_layer in zip(BUDGETS, shares.sum(-1).tolist(), strict=True):
        parts = ", ".join(f"{100 * share:.0f}" for share in by_layer)
        typer.echo(f"at {100 * budget:g} % the layers get, in per cent of all slots: {parts}")
    typer.echo(f"wrote {out}")
