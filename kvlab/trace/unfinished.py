"""What comparisons were asked for that have not come to their end, so that they can go on: `.unfinished/ID.json`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.common.errors import UserError
from kvlab.requests.compare import CompareRequest
from kvlab.trace.schema import check_id

FOLDER = ".unfinished"


def begin(root: Path, comparison_id: str, request: CompareRequest) -> None:
    """Write down what was asked for; raises UserError where the disk is full or cannot be written to."""
    try:
        replace_text(_file(root, comparison_id), request.model_dump_json())
    except OSError as error:
        raise UserError(f"The folder of runs {root} cannot be written to ({error.strerror or error}).") from error


def end(root: Path, comparison_id: str) -> None:
    """It came to its end."""
    with suppress(OSError):
        _file(root, comparison_id).unlink(missing_ok=True)
        (Path(root) / FOLDER).rmdir()  # the last one takes the folder along


def asked(root: Path, comparison_id: str) -> CompareRequest:
    """What an unfinished comparison was asked for.

    Raises:
        UserError: there is none of this id, or its file is damaged.
    """
    try:
        return CompareRequest.model_validate_json(_file(root, comparison_id).read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"There is no unfinished comparison or batch {comparison_id!r} in {root}: `kvlab runs ls` lists what is "
            "there, and what is complete has nothing to go on with."
        ) from None
    except (OSError, ValidationError) as error:
        raise UserError(f"{_file(root, comparison_id)} is damaged: ask for the comparison anew.") from error


def like(root: Path, request: CompareRequest) -> Iterator[str]:
    """Ids of unfinished comparisons that were asked for in the same words."""
    for file in sorted((Path(root) / FOLDER).glob("*.json")):
        with suppress(UserError):
            if asked(root, file.stem) == request:
                yield file.stem


def _file(root: Path, comparison_id: str) -> Path:
    return Path(root) / FOLDER / f"{check_id(comparison_id)}.json"
