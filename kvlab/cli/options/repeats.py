"""`kvlab compare --repeats N` and `--resume BATCH`: batches of planted needles or of several prompts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli.options.signature import Setting
from kvlab.cli.options.tables import print_batch
from kvlab.core.errors import UserError
from kvlab.requests.repeats import Planting, plantings

Resume = Annotated[str, typer.Option(help="resume a stopped comparison or batch by its id")]


@dataclass(frozen=True)
class RepeatsOptions:
    """Repeatedly planted needles, and what varies between them."""

    repeats: Annotated[
        int, typer.Option(help="plant a needle in the text this many times, one comparison each; 0: no needle")
    ] = 0
    vary: Annotated[
        str, Setting("what varies of a repeated needle besides name and number, depth, wording, both or nothing")
    ] = "depth,wording"
    depth: Annotated[float, Setting("depth of the needle if not varied, from 0 (start) to 1 (end)")] = 0.3
    wording: Annotated[int, Setting("wording of the needle if not varied, from 1")] = 1

    def plantings(self, seed: int) -> tuple[Planting, ...]:
        """The requested plantings; empty for 0 repeats. Raises UserError for invalid values."""
        from kvlab.tasks.haystack import WORDINGS

        if not self.repeats:
            return ()
        if not 0 <= self.depth <= 1:
            raise UserError(f"The needle cannot be at depth {self.depth:g}: use 0 (start) to 1 (end).")
        if not 1 <= self.wording <= WORDINGS:
            raise UserError(f"There is no wording {self.wording}: choose one of 1 to {WORDINGS}.")
        if seed < 0:
            raise UserError("--seed must be at least 0: names and numbers are drawn from it.")
        named = tuple(word.strip() for word in self.vary.split(",") if word.strip() not in ("", "nothing"))
        first = Planting(wording=self.wording - 1, depth=self.depth, draw=seed)
        return plantings(self.repeats, first, WORDINGS, named)


def show_batch(out: Path, batch: str, as_json: bool) -> None:
    """Print a batch: right answers with intervals, rankings, and the full cache's results."""
    from kvlab.views.frames.repeats import batch_prompts, build_batch, rank_cells
    from kvlab.views.repeats import caption_references, caption_significance, rank_line

    found = build_batch([batch_prompts(out, batch)])
    if as_json:
        typer.echo(found.cells.to_json(orient="records", indent=2, double_precision=15))
        return
    print_batch(found.cells)
    groups, left_out = rank_cells(found.cells)
    if found.is_asked:
        typer.echo(caption_references(found))
    for group in groups:
        typer.echo(f"At {rank_line(group)}. {caption_significance(found, group)}".rstrip())
    for label, reason in left_out:
        typer.echo(f"Not ranked: {label}, {reason}.")
    typer.echo(f"Open it: kvlab app --runs {out} --open {batch}")
