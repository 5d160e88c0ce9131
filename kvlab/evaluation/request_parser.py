"""Parse an evaluation's command-line values, such as `key_value:pairs=64`, `ruler=niah.jsonl` or `0.05,128`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from kvlab.core.errors import UserError
from kvlab.core.method_spec import parse_spec, split_list
from kvlab.core.methods.spec import parse_choices
from kvlab.core.validation import as_option, in_one_sentence, quote_value
from kvlab.evaluation.request import EvalRequest, FileChoice, TaskChoice, split_file
from kvlab.tasks.loaders import LOADERS
from kvlab.tasks.registry import TASKS
from kvlab.tasks.sample import StyleChoice
from kvlab.tasks.tokens import Cut

Number = TypeVar("Number", int, float)


def _file(text: str) -> FileChoice:
    try:
        form, path, options = split_file(text)
    except ValueError:
        form = ""
    if form not in LOADERS:
        raise UserError(f"'{text}' is not format=path: choose a format from {', '.join(LOADERS)}.")
    return FileChoice(form=form, path=Path(path), options=options)


def parse_numbers(text: str | None, option: str, kind: type[Number]) -> tuple[Number, ...] | None:
    """Parse comma-separated numbers, None if empty; raises UserError naming the option."""
    try:
        numbers = tuple(kind(part) for part in split_list(text)) if text else None
    except ValueError:
        numbers = ()
    if numbers == ():
        raise UserError(f"{option} takes comma-separated numbers, not {quote_value(text)}.")
    return numbers


def parse_whole(number: int | None, option: str, least: int) -> int | None:
    """Check that the number is at least `least`; raises UserError naming the option."""
    if number is not None and not least <= number < 2**31:
        raise UserError(f"{option} takes a whole number of at least {least}, not {number}.")
    return number


def parse_style(text: str) -> StyleChoice:
    """Parse a style; raises UserError for an unknown one."""
    return _one_of(text, "--set style", get_args(StyleChoice))


def parse_cut(text: str) -> Cut:
    """Parse a cut; raises UserError for anything but start, middle and end."""
    return _one_of(text, "--set cut", get_args(Cut))


def _one_of(text: str, option: str, allowed: tuple[str, ...]) -> Any:
    if text not in allowed:
        raise UserError(f"{option} takes {', '.join(allowed)}, not '{text}'.")
    return text


def parse_yes_no(text: str, option: str) -> bool:
    """Parse yes or no; raises UserError for anything else."""
    if text not in ("yes", "no"):
        raise UserError(f"{option} takes yes or no, not '{text}'.")
    return text == "yes"


def parse_request(
    *,
    tasks: str,
    files: Iterable[str],
    methods: str,
    budgets: str,
    lengths: str | None,
    depths: str | None,
    question_aware: str,
    **fields: Any,
) -> EvalRequest:
    """Build the request from command-line values; `fields` are its other fields. Raises UserError if invalid."""
    try:
        # Tasks such as `needle,key_value:pairs=64`.
        text = ",".join(TASKS) if tasks == "all" else tasks
        return EvalRequest(
            tasks=tuple(TaskChoice(task=name, difficulty=values) for name, values in map(parse_spec, split_list(text))),
            files=tuple(map(_file, files)),
            choices=parse_choices(methods, budgets),
            lengths=parse_numbers(lengths, "--lengths", int),
            depths=parse_numbers(depths, "--depths", float),
            question_aware=parse_yes_no(question_aware, "--question-aware"),
            **fields,
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from error
