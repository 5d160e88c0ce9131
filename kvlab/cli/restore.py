"""`kvlab restore`: find what a failed run would have had to keep."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kvlab.common.terminal import standard_error
from kvlab.requests.compare import RestoreRequest
from kvlab.trace import open_run


def restore(
    run: Annotated[str, typer.Argument(help="the id of a recorded run, or its folder")],
    runs: Annotated[Path, typer.Option("--runs", help="the folder of runs")] = Path("runs"),
    reruns: Annotated[int, typer.Option(help="most reruns of decision and answer", min=1)] = 40,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Find the smallest sets of tokens or heads whose restoration corrects a run's answer."""
    from rich.status import Status

    from kvlab.engine.restore import restore as search
    from kvlab.trace.restore_results import RestoreResult
    from kvlab.views.frames.restore import budget_sentence, search_table, sentence

    folder = Path(run)
    root, name = (folder.parent, folder.name) if (folder / "run.json").is_file() else (runs, folder.name)
    with Status("loading the model", console=standard_error()) as status:
        path = search(
            RestoreRequest(run_id=name, most_reruns=reruns, device=device),
            root,
            progress=lambda report: status.update(Text(report.stage)),
        )
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"))
        return
    found = RestoreResult.model_validate_json(path.read_bytes())
    typer.echo(sentence(found, open_run(root / name)))
    if budget := budget_sentence(found):
        typer.echo(budget)
    for row in search_table(found).itertuples():
        typer.echo(
            f"  {row.search}: {row.outcome} ({row.slots:+,} slots, {row.tried} reruns, mean KL {row.mean_kl:.3g})"
        )
    if found.ending:
        typer.echo(found.ending)
