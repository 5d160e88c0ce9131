"""`kvlab fit`: fit what a method has to learn about a model, and save it as a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from kvlab import jobs
from kvlab.cli.options.model import LoadingOptions
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.cli.options.signature import group_parameters
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.models.fitting.request import FitJob, FitRequest, fitted_file

Books = Annotated[
    Path | None, typer.Option(help="Folder with plain-text books (*.txt, or in books/); default: shipped excerpts.")
]


@group_parameters
def fit(
    method: Annotated[
        str, typer.Option(help="kvzap, fast-kvzip, less, duoattention, lukv, triattention or qfilter")
    ] = "kvzap",
    corpus: Books = None,
    out: Annotated[Path, typer.Option(help="The file, for kvzap:heads=FILE and the like.")] = Path(
        "fitted.safetensors"
    ),
    windows: Annotated[int | None, typer.Option(help="Windows of text to read (all but less).")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens per window.")] = None,
    form: Annotated[str | None, typer.Option(help="kvzap: mlp, or linear.")] = None,
    target: Annotated[str | None, typer.Option(help="kvzap: kvzip+ (as its authors), or kvzip.")] = None,
    rank: Annotated[int | None, typer.Option(help="fast-kvzip: width of a gate's queries and keys.")] = None,
    steps: Annotated[int | None, typer.Option(help="fast-kvzip: training steps.")] = None,
    score: Annotated[str | None, typer.Option(help="lukv: the method whose scores are cut.")] = None,
    minutes: Annotated[float | None, typer.Option(help="less: processor minutes.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the windows and the initial weights.")] = None,
    queue: Annotated[
        str, typer.Option(help="Submit it to the queue under this name; the file will be in RUNS/fit/NAME.")
    ] = "",
    runs: Annotated[Path, typer.Option(help="The folder of runs, with its queue.")] = Path("runs"),
    force: Force = False,
    *,
    loading: LoadingOptions,
) -> None:
    """Fit what a method has to learn about a model, from text; the model itself is not changed."""
    options: dict[str, Any] = {
        "method": method,
        "corpus": corpus,
        "windows": windows,
        "length": length,
        "form": form,
        "target": target,
        "rank": rank,
        "steps": steps,
        "score": score,
        "minutes": minutes,
        "seed": seed,
    }
    given = {name: value for name, value in (options | asdict(loading)).items() if value is not None}
    try:
        request = FitRequest(**given)
        job = FitJob(name=queue or "request", request=request, title=f"Fit {method} to {model_title(loading.model)}")
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"--{str(first['loc'][0]).replace('_', '-')} cannot be {first['input']!r}: {first['msg']}."
        ) from None
    if not force:
        check_fits(job)
    if not queue:
        from kvlab.models.fitting.fit import fit as run  # torch is slow to import

        run(request, out, say=typer.echo)
        return
    job_id = jobs.submit(runs, job)
    jobs.ensure_worker(runs)
    typer.echo(f"job {job_id}: /new_run?job={job_id} on the dashboard; the file will be {fitted_file(runs, queue)}")


@group_parameters
def train_less(
    corpus: Books = None,
    out: Annotated[Path, typer.Option(help="The file of feature maps, for less:weights=FILE.")] = Path(
        "less.safetensors"
    ),
    rank: Annotated[int, typer.Option(help="Features per head: rows of its state.")] = 8,
    minutes: Annotated[float, typer.Option(help="Processor minutes for running the model and fitting.")] = 3.0,
    hidden: Annotated[int, typer.Option(help="Hidden units of each map.")] = 64,
    form: Annotated[str, typer.Option(help="exponential, or gelu (the paper's).")] = "exponential",
    length: Annotated[int, typer.Option(help="Tokens per window of text.")] = 1024,
    seed: Annotated[int, typer.Option(help="Seed of the windows, budgets and initial weights.")] = 0,
    *,
    loading: LoadingOptions,
) -> None:
    """Fit the feature maps of `less` to a model from text; the model itself is not changed."""
    from kvlab.models.fitting.less import LessRequest, fit_less  # torch is slow to import

    chosen: Any = form
    fitted = {"rank": rank, "hidden": hidden, "form": chosen, "minutes": minutes, "length": length, "seed": seed}
    fit_less(LessRequest(corpus=corpus, **fitted, **asdict(loading)), out, report=typer.echo)


@group_parameters
def profile(
    texts: Books = None,
    out: Annotated[Path, typer.Option(help="The file, for duoattention:profile=FILE.")] = Path("profile.safetensors"),
    windows: Annotated[int, typer.Option(help="Windows of text to read.")] = 8,
    length: Annotated[int, typer.Option(help="Tokens per window.")] = 1024,
    seed: Annotated[int, typer.Option(help="Seed of the windows.")] = 0,
    *,
    loading: LoadingOptions,
) -> None:
    """Measure each head's share of a global top-k cut at four budgets, for `allocate=profile`."""
    from kvlab.models.fitting.profile import BUDGETS, ProfileRequest, make_profile  # torch is slow to import

    request = ProfileRequest(texts=texts, windows=windows, length=length, seed=seed, **asdict(loading))
    shares = make_profile(request, out, report=typer.echo)
    for budget, by_layer in zip(BUDGETS, shares.sum(-1).tolist(), strict=True):
        parts = ", ".join(f"{100 * share:.0f}" for share in by_layer)
        typer.echo(f"at {100 * budget:g} % the layers get these percentages of all slots: {parts}")
    typer.echo(f"wrote {out}")
