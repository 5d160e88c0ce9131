"""Fitted files for methods that need them: list them, and build a fit's job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvlab.common.formatting import model_title
from kvlab.common.lab_file import lab
from kvlab.core.errors import UserError
from kvlab.core.validation import in_one_sentence
from kvlab.forms import compare_form
from kvlab.models.fitting.request import SETTING, FitJob, FitRequest, Fittable, fitted_file
from kvlab.models.info.names import EMBEDDED, check_model
from kvlab.trace.user_labels import may_view

LEARNS: Mapping[str, Fittable] = {
    "kvzap": "kvzap", "kvzap-threshold": "kvzap", "fast-kvzip": "fast-kvzip", "less": "less", "lukv": "lukv",
    "duoattention": "duoattention", "headkv": "duoattention", "triattention": "triattention", "qfilter": "qfilter",
}  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """A file made by a fit."""

    name: str
    file: Path


def fitted_files(root: Path, model: str, method: Fittable) -> list[Fitted]:
    """Files fitted to the model for the method that the acting user may see, newest first."""
    files = []
    for request_file in (root / "fit").glob("*/request.json"):
        file = fitted_file(root, request_file.parent.name)
        try:
            request = FitRequest.model_validate_json(request_file.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            continue
        matches = (request.model, request.method) == (model.strip(), method)
        if matches and file.exists() and may_view(root, request_file.parent.name, "fit"):
            files.append(Fitted(request_file.parent.name, file.absolute()))
    return sorted(files, key=lambda fit: fit.file.stat().st_mtime, reverse=True)


def request_name(one: Fitted) -> str:
    """The file's name in a request: never its path on a server with a lab file."""
    return f"fit:{one.name}" if lab() is not None else str(one.file)


def ships(model: str) -> bool:
    """Whether the model's fitted files ship with kvlab."""
    return model.strip() == EMBEDDED


def make_fit(
    model: str, method: Fittable, options: Mapping[str, Any], moment: datetime | None = None, private: bool = False
) -> FitJob:
    """The job under a new name; `options` are further fields of `FitRequest`, or the form's values for them.

    Raises UserError if there is no such model, or an option is out of range.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(check_model(model)).name).strip(".-") or "model"
    try:
        request = FitRequest(model=model.strip(), method=method, **compare_form.request_fields(options))
        name = f"{method}-{stem[:60]}-{moment or datetime.now(UTC):%Y%m%d-%H%M%S}"
        return FitJob(name=name, request=request, title=f"Fit {method} to {model_title(model)}", private=private)
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from error


def setting(method: str) -> str:
    """The hyper-parameter of a method that takes the file."""
    return SETTING[LEARNS[method]]
