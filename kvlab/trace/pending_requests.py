"""Requests of unfinished comparisons, so that they can be resumed: `.unfinished/ID.json`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.core.errors import UserError
from kvlab.requests.compare import CompareRequest
from kvlab.trace.schema import check_id

FOLDER = ".unfinished"


def save_request(root: Path, comparison_id: str, request: CompareRequest) -> None:
    """Store a request; raises UserError if the disk is full or not writable."""
    try:
        replace_text(_file(root, comparison_id), request.model_dump_json())
    except OSError as error:
        raise UserError(f"The folder of runs {root} cannot be written to ({error.strerror or error}).") from error


def remove_request(root: Path, comparison_id: str) -> None:
    """Remove the request of a finished comparison."""
    with suppress(OSError):
        _file(root, comparison_id).unlink(missing_ok=True)
        (Path(root) / FOLDER).rmdir()  # succeeds once it is empty


def load_request(root: Path, comparison_id: str) -> CompareRequest:
    """The request of an unfinished comparison; raises UserError if there is none of this id, or its file is damaged."""
    try:
        return CompareRequest.model_validate_json(_file(root, comparison_id).read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"There is no unfinished comparison or batch {comparison_id!r} in {root}: list all with `kvlab runs ls`; "
            "complete ones cannot be resumed."
        ) from None
    except (OSError, ValidationError) as error:
        raise UserError(f"{_file(root, comparison_id)} is damaged: request the comparison again.") from error


def equal_requests(root: Path, request: CompareRequest) -> Iterator[str]:
    """Ids of unfinished comparisons with an equal request."""
    for file in sorted((Path(root) / FOLDER).glob("*.json")):
        with suppress(UserError):
            if load_request(root, file.stem) == request:
                yield file.stem


def _file(root: Path, comparison_id: str) -> Path:
    return Path(root) / FOLDER / f"{check_id(comparison_id)}.json"
