"""What people say of a comparison after it ran, its answer and facts: JSON beside the runs, never in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.answers import Fact, check_answer, find_facts
from kvlab.errors import UserError
from kvlab.trace.atomic import replace_text

FOLDER = "labels"


class Labels(BaseModel):
    """What was said of one comparison; None and () leave what its runs recorded. Fields of a newer kvlab are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    answer: str | None = Field(None, min_length=1)
    facts: tuple[Fact, ...] = ()


def load_labels(root: Path, comparison_id: str) -> Labels:
    """The labels of a comparison, empty where there are none.

    Raises:
        UserError: their file is damaged.
    """
    file = _path(root, comparison_id)
    if not file.exists():
        return Labels()
    try:
        return Labels.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{file} is damaged: remove it, and add the answer again.") from error


def save_answer(root: Path, comparison_id: str, prompt: str, answer: str, facts: Sequence[str | Fact] = ()) -> Path:
    """Write the expected answer and the facts (words or places of the prompt), whole or not at all; returns the file.

    Raises:
        UserError: the answer is empty, the prompt lacks a fact, or the disk is full.
    """
    known, spans = load_labels(root, comparison_id), find_facts(prompt, facts)
    labels = known.model_copy(update={"answer": check_answer(answer), "facts": spans})
    file = _path(root, comparison_id)
    replace_text(file, labels.model_dump_json(indent=2))
    return file


def _path(root: Path, comparison_id: str) -> Path:
    return Path(root) / FOLDER / f"{comparison_id}.json"
