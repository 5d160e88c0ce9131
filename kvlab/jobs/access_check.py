"""Check a request before it is queued: what its user may see and name."""

import re
import shutil
from itertools import chain, count
from pathlib import Path
from typing import Any

from kvlab.bench.request import BenchJob
from kvlab.common.formatting import format_bytes
from kvlab.common.lab import acting, is_owner, lab
from kvlab.core import MethodChoice, UserError
from kvlab.evaluation.request import EvalJob, SampleJob
from kvlab.jobs.work import Work
from kvlab.library.prefixes import find_prefix
from kvlab.models.fitting.request import SETTING, FitJob, fitted_file
from kvlab.models.info.offered_models import place_of
from kvlab.requests.compare import MOST_RUNS, CompareRequest, ImportRequest, RestoreRequest
from kvlab.requests.live_session import LiveJob
from kvlab.trace.catalogue import list_runs
from kvlab.trace.user_labels import Kind, claim_name, load_labels, may_view

LEAST_FREE = 500 * 10**6  # on a small disk a twentieth of it


def full_disk(root: Path, margin: int = 1) -> str:
    """A clause if the disk has less than `margin` times the least free space; else ""."""
    disk = shutil.disk_usage(root)
    if disk.free > margin * min(LEAST_FREE, disk.total // 20):
        return ""
    return f"the disk has {format_bytes(disk.free)} left of {format_bytes(disk.total)}"


def check_disk(root: Path) -> None:
    """Raises UserError if the disk is full."""
    if full := full_disk(root):
        raise UserError(f"Nothing more is run here: {full}. Delete or thin recordings.")


def disk_warning(root: Path) -> str:
    """A sentence if the disk is full or nearly full; else ""."""
    if full := full_disk(root, margin=2):
        return f"On the machine of these runs {full}: delete or thin recordings soon. When it is full, nothing is run."
    return ""


SHIPPED = re.compile(r"mini|mini-60|mini-half|smollm2|even|untrained|fit:[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAMED = re.compile(r"[\w.:+-]*")
Named = EvalJob | BenchJob | FitJob  # jobs whose results have a name and an owner
RESULTS = {EvalJob: "eval/{}", BenchJob: "bench/{}.parquet", FitJob: "fit/{}"}
KINDS: dict[type, Kind] = {EvalJob: "evaluation", BenchJob: "benchmark", FitJob: "fit"}
CHANGES = {"scale", "shorten", "device", "repeats"}


def check_access(root: Path, request: Work) -> None:
    """Check that the acting user may submit this request here.

    Raises UserError if it asks for too many runs or, on a server with a lab file, names a run the user may not see,
    another user's result, a path, or a model that is not offered.
    """
    if isinstance(request, CompareRequest) and (runs := len(request.runs) * max(1, len(request.repeats))) > MOST_RUNS:
        raise UserError(f"This asks for {runs:,} runs, and {MOST_RUNS:,} a request are allowed: ask for fewer.")
    if lab() is None:
        return
    if isinstance(request, RestoreRequest):
        if all(run.run_id != request.run_id for run in list_runs(root)):
            raise UserError(f"There is no run {request.run_id[:80]!r} here: choose one under All runs, on Home.")
        return
    if isinstance(request, LiveJob):
        for name in request.request.prefixes:
            find_prefix(root, name)
    parts: list[Any]
    if isinstance(request, BenchJob):
        parts = list(request.requests)
    else:
        parts = [request if isinstance(request, CompareRequest | ImportRequest) else request.request]
    for part in parts:
        # Shapes of a benchmark have random weights, so nothing is loaded for them.
        if not (isinstance(request, BenchJob) and part.model.startswith("shape:")):
            place_of(part.model, part.revision, part.cache_dir)
    for choice in (choice for part in parts for choice in getattr(part, "choices", ())):
        check_settings(root, choice)
    if isinstance(request, EvalJob | SampleJob):
        uploads = Path(root) / ".jobs" / "prompts"
        for file in request.request.files:
            inside = file.path.resolve().is_relative_to(uploads.resolve())
            if not inside or any(name.endswith("_from") for name in file.options):
                raise UserError("On this server prompts come by upload: upload the file instead of naming it.")
        if not all(NAMED.fullmatch(task.task) for task in request.request.tasks):
            raise UserError("On this server tasks are named, not read from a file: choose one of the list.")
    if isinstance(request, FitJob) and request.request.corpus is not None:
        raise UserError("On this server fits learn from the shipped excerpts: leave the folder of books out.")
    if isinstance(request, BenchJob) and not request.changes.keys() <= CHANGES:
        raise UserError(f"Of a preset only {', '.join(sorted(CHANGES))} can be changed on this server.")
    if isinstance(request, Named):
        exists = has_results(root, request, request.name)
        claim_name(root, request.name, KINDS[type(request)], request.private, exists)


def under_own_name(root: Path, work: Work) -> Work:
    """Give a job with an automatic name, such as an atlas card's, a name that belongs to the acting user.

    On a server with a lab file: the first of NAME, NAME-2, NAME-3 ... that is theirs, or unowned and without results;
    elsewhere NAME. Raises UserError if the labels of a result of such a name are damaged.
    """
    if lab() is None or not isinstance(work, Named):
        return work
    numbered = chain([work.name], (f"{work.name}-{number}" for number in count(2)))
    owners = ((name, load_labels(root, name, KINDS[type(work)]).owner) for name in numbered)
    free = next(
        name
        for name, owner in owners
        if owner == acting().name or (not owner and (is_owner(owner) or not has_results(root, work, name)))
    )
    return work.model_copy(update={"name": free})


def has_results(root: Path, work: Named, name: str) -> bool:
    """Whether results of such a job exist under this name."""
    place = Path(root) / RESULTS[type(work)].format(name)
    return place.is_file() or next(place.glob("*"), None) is not None


def check_settings(root: Path, choice: MethodChoice) -> None:
    """Raises UserError if a setting that takes a file is a path, or a fit the user may not see."""
    for name in set(SETTING.values()) & choice.hyper_parameters.keys():
        value = choice.hyper_parameters[name]
        if isinstance(value, str) and not (SHIPPED.fullmatch(value) or value.isalpha()):
            raise UserError(f"On this server {choice.method}: {name} is mini, or fit:NAME of a fit made here.")
        named = value.removeprefix("fit:") if isinstance(value, str) and value.startswith("fit:") else None
        if named and not (fitted_file(root, named).exists() and may_view(root, named, "fit")):
            raise UserError(f"There is no fit {named} here: choose one that the form offers, or make one.")
