"""Parse an evaluation's command-line values, such as `key_value:pairs=64`, `ruler=niah.jsonl` or `0.05,128`."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from kvlab.core.assets import asset_path
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.method_spec import parse_spec, split_list
from kvlab.core.methods import make_method
from kvlab.core.methods.spec import parse_choices
from kvlab.core.validation import as_option, in_one_sentence, quote_value
from kvlab.evaluation.request import EvalRequest, FileChoice, TaskChoice, split_file
from kvlab.tasks.loaders import LOADERS
from kvlab.tasks.registry import TASKS
from kvlab.tasks.sample import StyleChoice
from kvlab.tasks.tokens import Cut

# The preset `reasoning`: methods that compress while generating, with as many slots at most, on traced answers.
#
# A method that decides whenever a buffer of generated tokens is full holds budget plus buffer before it decides. So its
# budget is what the buffer leaves of the slots asked for; a method that decides at every step has them all.

REASONING = "reasoning"
REASONING_TASKS = "state_tracing:steps=2:others=1,arithmetic_chain:steps=4,list_recall:words=3:count=20"
REASONING_SLOTS = "48,96"
BUFFER = 16  # generated tokens: the answers of these tasks are shorter than the authors' buffer of 128
_BUFFERED = ("rkv", "snapkv:preset=decode", "lazyeviction")
_EVERY_STEP = ("h2o", "raas", "morphkv")


def reasoning_choices(model: str, slots: str, methods: str = "") -> tuple[tuple[MethodChoice, ...], list[str]]:
    """Every method at every number of slots that a KV head may hold at most, its buffer counted.

    Without `methods` they are the preset's for a model, with a sentence if TriAttention's statistics of it are not at
    hand. Raises UserError for budgets that are not slots, and for fewer slots than twice a method's buffer.
    """
    notes: list[str] = []
    if not methods:
        named = [*(f"{spec}:buffer={BUFFER}" for spec in _BUFFERED), *_EVERY_STEP]
        if Path(asset_path("queries") / f"{Path(model).name}.safetensors").is_file():
            named.append(f"triattention:queries={model}:buffer={BUFFER}")
        else:
            notes.append(
                f"triattention is left out, as it needs statistics of {model}: `kvlab fit` makes them, then name all "
                f"methods with --methods, as in triattention:queries=FILE:buffer={BUFFER}."
            )
        methods = ",".join(named)
    choices: list[MethodChoice] = []
    for text in split_list(slots):
        if not text.isdecimal():
            raise UserError(
                f"--preset {REASONING} takes --budgets in slots, such as {REASONING_SLOTS}, not '{text[:40]}'."
            )
        for choice in parse_choices(methods, text):
            # Generated tokens that wait beside the budget for the next decision.
            buffer = make_method(choice.method, **choice.hyper_parameters).pipeline().buffer
            beside = buffer if buffer > 1 else 0
            budget = int(text) - beside
            if budget < beside:
                raise UserError(
                    f"{text} slots leave {choice.method} too little beside its buffer of {beside} generated tokens: "
                    f"give at least {2 * beside}."
                )
            choices.append(choice.model_copy(update={"budget": budget}))
    return tuple(choices), notes


Number = TypeVar("Number", int, float)


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


WORDS = {"style": get_args(StyleChoice), "cut": get_args(Cut)}


def parse_word(name: str, text: str) -> Any:
    """Parse the style or the cut; raises UserError for an unknown one."""
    if text not in WORDS[name]:
        raise UserError(f"--set {name} takes {', '.join(WORDS[name])}, not '{text}'.")
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
        named = [TaskChoice(task=name, difficulty=values) for name, values in map(parse_spec, split_list(text))]
        chosen = []
        for file in files:
            form = ""
            with suppress(ValueError):
                form, path, options = split_file(file)
            if form not in LOADERS:
                raise UserError(f"'{file}' is not format=path: choose a format from {', '.join(LOADERS)}.")
            chosen.append(FileChoice(form=form, path=Path(path), options=options))
        return EvalRequest(
            tasks=tuple(named),
            files=tuple(chosen),
            choices=parse_choices(methods, budgets),
            lengths=parse_numbers(lengths, "--lengths", int),
            depths=parse_numbers(depths, "--depths", float),
            question_aware=parse_yes_no(question_aware, "--question-aware"),
            **fields,
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from error
