"""What a request may name: runs that its person sees and, on a server with a lab file, nothing by its path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

from kvlab.bench.request import BenchJob
from kvlab.common.errors import UserError
from kvlab.evaluate.request import EvalJob, SampleJob
from kvlab.fitting.request import SETTING, FitJob, fitted_file
from kvlab.jobs.disk_usage import RESULTS
from kvlab.jobs.work import Work
from kvlab.requests.compare import CompareRequest, MethodChoice, RescueRequest
from kvlab.server.offered_models import place_of
from kvlab.server.settings import lab
from kvlab.server.users import acting, is_owner
from kvlab.trace.catalogue import list_runs
from kvlab.trace.user_labels import Kind, claim_name, load_labels, may_view

SHIPPED = re.compile(r"mini|even|untrained|fit:[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAMED = re.compile(r"[\w.:+-]*")
Named = EvalJob | BenchJob | FitJob  # work whose results lie under a name that belongs to somebody
KINDS: dict[type, Kind] = {EvalJob: "evaluation", BenchJob: "benchmark", FitJob: "fit"}
CHANGES = {"scale", "shorten", "device", "repeats"}


def check_reach(root: Path, request: Work) -> None:
    """Nothing, where the person who acts may ask for this here.

    Raises:
        UserError: the request names a run they do not see, a name that is another person's or, on a server with a lab
            file, a model that is not offered or anything by its path.
    """
    if lab() is None:
        return
    if isinstance(request, RescueRequest):
        if all(run.run_id != request.run_id for run in list_runs(root)):
            raise UserError(f"There is no run {request.run_id[:80]!r} here: choose one on the page Runs.")
        return
    _check_by_name(root, request)
    if isinstance(request, Named):
        made = has_results(root, request, request.name)
        claim_name(root, request.name, KINDS[type(request)], request.private, made)


def under_own_name(root: Path, work: Work) -> Work:
    """Work whose name nobody chose, such as a card's of the atlas, under one that is the acting person's own.

    On a server with a lab file the first of NAME, NAME-2, NAME-3 and so on that is theirs, or nobody's and without
    results; elsewhere NAME.

    Raises:
        UserError: what was said of a result of such a name is damaged.
    """
    if lab() is None or not isinstance(work, Named):
        return work
    numbered = chain([work.name], (f"{work.name}-{number}" for number in count(2)))
    own = next(name for name in numbered if _is_free(root, work, name))
    return work.model_copy(update={"name": own})


def has_results(root: Path, work: Named, name: str) -> bool:
    """Whether something lies where the results of such work would under this name."""
    place = Path(root) / RESULTS[type(work)].format(name)
    return place.is_file() or next(place.glob("*"), None) is not None


def _is_free(root: Path, work: Named, name: str) -> bool:
    owner = load_labels(root, name, KINDS[type(work)]).owner
    return owner == acting().name or (not owner and (is_owner(owner) or not has_results(root, work, name)))


def _check_by_name(root: Path, request: Work) -> None:
    for model, revision, cache_dir in _models(request):
        place_of(model, revision, cache_dir)
    for choice in _choices(request):
        check_settings(root, choice)
    if isinstance(request, EvalJob | SampleJob):
        kept = Path(root) / ".jobs" / "prompts"
        for file in request.request.files:
            inside = file.path.resolve().is_relative_to(kept.resolve())
            if not inside or any(name.endswith("_from") for name in file.options):
                raise UserError("On this server prompts come by upload: upload the file instead of naming it.")
        if not all(NAMED.fullmatch(task.task) for task in request.request.tasks):
            raise UserError("On this server tasks are named, not read from a file: choose one of the list.")
    if isinstance(request, FitJob) and request.request.corpus is not None:
        raise UserError("On this server fits learn from the shipped excerpts: leave the folder of books out.")
    if isinstance(request, BenchJob) and not request.changes.keys() <= CHANGES:
        raise UserError(f"Of a preset only {', '.join(sorted(CHANGES))} can be changed on this server.")


def check_settings(root: Path, choice: MethodChoice) -> None:
    """Raises UserError where a setting that takes a file is a path, be it there or not, or a fit they do not see."""
    for name in set(SETTING.values()) & choice.hyper_parameters.keys():
        value = choice.hyper_parameters[name]
        if isinstance(value, str) and not (SHIPPED.fullmatch(value) or value.isalpha()):
            raise UserError(f"On this server {choice.method}: {name} is mini, or fit:NAME of a fit made here.")
        named = value.removeprefix("fit:") if isinstance(value, str) and value.startswith("fit:") else None
        if named and not (fitted_file(root, named).exists() and may_view(root, named, "fit")):
            raise UserError(f"There is no fit {named} here: choose one that the form offers, or make one.")


def _models(request: Work) -> Iterator[tuple[str, str | None, str | None]]:
    if isinstance(request, BenchJob):
        asked = [one for one in request.requests if not one.model.startswith("shape:")]
        yield from ((one.model, one.revision, one.cache_dir) for one in asked)
    elif not isinstance(request, RescueRequest):
        one = request if isinstance(request, CompareRequest) else request.request
        yield one.model, one.revision, one.cache_dir


def _choices(request: Work) -> Iterator[MethodChoice]:
    if isinstance(request, CompareRequest):
        yield from request.choices
    elif isinstance(request, EvalJob | SampleJob):
        yield from request.request.choices
    elif isinstance(request, BenchJob):
        yield from (choice for one in request.requests for choice in one.choices)
