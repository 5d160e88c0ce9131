"""What methods learn of a model, from a form: which files there are, a fit for the queue, and how long it will take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvlab.catalogue.methods import MethodEntry
from kvlab.common.errors import UserError
from kvlab.common.validation import in_one_sentence
from kvlab.fitting.request import SETTING, FitJob, FitRequest, Fittable, fitted_file
from kvlab.forms import compare_form, plan_preview
from kvlab.jobs.client import list_jobs, request_of
from kvlab.model_info.names import EMBEDDED, check_model
from kvlab.server.settings import lab
from kvlab.trace.user_labels import may_view

LEARNS: Mapping[str, Fittable] = {
    "kvzap": "kvzap", "kvzap-threshold": "kvzap", "less": "less", "duoattention": "duoattention",
}  # fmt: skip
READS = "kvzip"  # what a window of text is read by
MOST_JOBS = 200  # that are looked through
PROFILE_READINGS = 4  # of each window, one a budget


@dataclass(frozen=True)
class Fitted:
    """A file that a job made."""

    name: str
    file: Path


def fitted(root: Path, model: str, method: Fittable) -> list[Fitted]:
    """The files fitted to the model for the method that the person who acts may see, the newest first."""
    found = []
    for asked in (root / "fit").glob("*/request.json"):
        file = fitted_file(root, asked.parent.name)
        try:
            request = FitRequest.model_validate_json(asked.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            continue
        meant = (request.model, request.method) == (model.strip(), method)
        if meant and file.exists() and may_view(root, asked.parent.name, "fit"):
            found.append(Fitted(asked.parent.name, file.absolute()))
    return sorted(found, key=lambda one: one.file.stat().st_mtime, reverse=True)


def named(one: Fitted) -> str:
    """How a request names the file: on a server with a lab file never by its path."""
    return f"fit:{one.name}" if lab() is not None else str(one.file)


def ships(model: str) -> bool:
    """Whether what the methods learn of the model comes with kvlab."""
    return model.strip() == EMBEDDED


def make_fit(
    model: str, method: Fittable, options: Mapping[str, Any], moment: datetime | None = None, private: bool = False
) -> FitJob:
    """The job under a name of its own; `options` are further fields of `FitRequest`, or words of a form for them.

    Raises:
        UserError: there is no such model, or an option is out of range.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(check_model(model)).name).strip(".-") or "model"
    try:
        request = FitRequest(model=model.strip(), method=method, **compare_form.meant(options))
        name = f"{method}-{stem[:60]}-{moment or datetime.now(UTC):%Y%m%d-%H%M%S}"
        return FitJob(name=name, request=request, title=f"Fit {method} to {model.strip()}", private=private)
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from error


def seconds(job: FitJob, root: Path, registered: Sequence[MethodEntry]) -> tuple[float, bool] | None:
    """Seconds the fit takes, and whether an earlier one of the model says so; else they are at most.

    None where nothing is known. LESS is given its time.
    """
    asked = job.request
    if asked.method == "less":
        return 60 * asked.minutes, True
    if (seen := _seen(asked, root)) is not None:
        return seen, True
    reader = [entry for entry in registered if entry.name == READS]
    plan = plan_preview.plan_of(
        asked.length, asked.model, reader, "50%", {}, {"level": "off", "max_new_tokens": 1}, root
    )
    if plan is None or plan.seconds is None:
        return None
    return asked.windows * plan.seconds.high * (PROFILE_READINGS if asked.method == "duoattention" else 1), False


def _seen(asked: FitRequest, root: Path) -> float | None:
    """As long as the last fit of the method to the model, by the tokens that were read."""
    for status in list_jobs(root)[:MOST_JOBS]:
        job = request_of(root, status.job_id) if status.state == "complete" else None
        if isinstance(job, FitJob) and (job.request.model, job.request.method) == (asked.model, asked.method):
            return status.elapsed * asked.windows * asked.length / (job.request.windows * job.request.length)
    return None


def setting(method: str) -> str:
    """The hyper-parameter of a method that takes the file."""
    return SETTING[LEARNS[method]]
