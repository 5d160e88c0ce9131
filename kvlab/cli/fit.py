"""`kvlab fit`: fit what a method has to learn about a model, and save it as a file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from kvlab import jobs
from kvlab.cli.options.model import LoadingOptions
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.cli.options.signature import Setting, group_parameters
from kvlab.common.formatting import model_title
from kvlab.core import UserError, as_option, in_one_sentence
from kvlab.models.fitting.request import FitJob, FitRequest, fitted_file


@dataclass(frozen=True)
class FitOptions:
    """What only some methods use, or few users change; defaults are the method's."""

    windows: Annotated[int | None, Setting("windows of text to read (all but less)")] = None
    length: Annotated[int | None, Setting("tokens per window")] = None
    form: Annotated[str | None, Setting("mlp or linear (kvzap), exponential or gelu (less)")] = None
    target: Annotated[str | None, Setting("kvzip+ as its authors, or kvzip (kvzap)")] = None
    rank: Annotated[int | None, Setting("width of a gate (fast-kvzip), rows of a state (less)")] = None
    hidden: Annotated[int | None, Setting("hidden units of each map (less)")] = None
    steps: Annotated[int | None, Setting("training steps (fast-kvzip)")] = None
    score: Annotated[str | None, Setting("the method whose scores are cut (lukv)")] = None
    seed: Annotated[int | None, Setting("seed of the windows and the initial weights")] = None


@group_parameters
def fit(
    method: Annotated[
        str, typer.Option(help="kvzap, fast-kvzip, less, duoattention (also for headkv), lukv, triattention or qfilter")
    ] = "kvzap",
    corpus: Annotated[
        Path | None, typer.Option(help="folder with plain-text books (*.txt, or in books/); default: shipped excerpts")
    ] = None,
    out: Annotated[Path, typer.Option(help="the file, for kvzap:heads=FILE and the like")] = Path("fitted.safetensors"),
    minutes: Annotated[float | None, typer.Option(help="less: processor minutes")] = None,
    queue: Annotated[
        str, typer.Option(help="submit it to the queue under this name; the file will be in RUNS/fit/NAME")
    ] = "",
    runs: Annotated[Path, typer.Option(help="the folder of runs, with its queue")] = Path("runs"),
    force: Force = False,
    *,
    loading: LoadingOptions,
    options: FitOptions,
) -> None:
    """Fit what a method has to learn about a model, from text; the model itself is not changed."""
    values = {"method": method, "corpus": corpus, "minutes": minutes, **asdict(options), **asdict(loading)}
    given = {name: value for name, value in values.items() if value is not None}
    try:
        request = FitRequest(**given)
        job = FitJob(name=queue or "request", request=request, title=f"Fit {method} to {model_title(loading.model)}")
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from None
    if not force:
        check_fits(job)
    if not queue:
        from kvlab.models.fitting.fit import fit as run  # torch is slow to import

        run(request, out, say=typer.echo)
        return
    job_id = jobs.submit(runs, job)
    jobs.ensure_worker(runs)
    typer.echo(f"job {job_id}: /compare?job={job_id} on the dashboard; the file will be {fitted_file(runs, queue)}")
