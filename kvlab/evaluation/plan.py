"""Expand a request into prompts: every task, length, depth and index, and every usable line of every file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from pydantic import JsonValue
from transformers import PreTrainedTokenizerBase

from kvlab.core import UserError, quote_value
from kvlab.evaluation.request import EvalRequest, FileChoice, TaskChoice
from kvlab.evaluation.results.rows import ANY_LENGTH, PromptIdentity, canonical_json
from kvlab.evaluation.scoring.metrics import LIKELIHOOD_METRICS, check_metric
from kvlab.models.chat import chat_of, window_of
from kvlab.models.load import LoadedModel
from kvlab.tasks.draft import DEFAULT_LENGTHS, Task
from kvlab.tasks.loaders import load_file
from kvlab.tasks.loaders.haystack import NEW_TOKENS as HAYSTACK_ANSWER
from kvlab.tasks.registry import get_task
from kvlab.tasks.sample import Sample, Style, apply_style, choose_style, with_style
from kvlab.tasks.tokens import Cut, shorten

FORCED = "forced"  # in a row's difficulty: the full cache's continuation was forced
BLOCK = 32  # prompts per block: four default batches of a GPU
_FREE_SHARE = 8  # default lengths leave an eighth of the window for the answer


@dataclass(frozen=True)
class PlannedPrompt:
    """A prompt that `make` generates when needed."""

    identity: PromptIdentity
    make: Callable[[], Sample]
    chat: bool = True  # may be put into a chat template
    context_alone: bool = False  # no question is in sight at compression, whatever the request says


@dataclass(frozen=True)
class Plan:
    """All prompts of a request, and a sentence per omitted part of a file."""

    prompts: list[PlannedPrompt]
    notes: list[str]


@dataclass(frozen=True)
class Shard:
    """The part `number` (from 1) of `count` parts of an evaluation, as `3/8`."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `3/8`. Raises UserError for anything else."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise UserError(f"--shard takes a part of how many, such as 3/8, not {quote_value(text)}.")
        return cls(int(found[1]), int(found[2]))


def make_plan(request: EvalRequest, tokenizer: PreTrainedTokenizerBase, window: int, has_chat: bool = False) -> Plan:
    """Return the plan for a model with a context window of `window` tokens; `has_chat`: prompts are put into a chat.

    The first sample of every cell is generated immediately, so that an impossible length or difficulty raises UserError
    before the first forward pass.
    """
    if not request.tasks and not request.files:
        raise UserError("Nothing to evaluate: name tasks with --tasks or files with --data.")
    style = choose_style(request.style, has_chat)
    prompts = [
        prompt for choice in request.tasks for prompt in _task_prompts(request, choice, tokenizer, window, style)
    ]
    notes: list[str] = []
    for file in request.files:
        file_prompts, file_notes = _file_prompts(request, file, tokenizer, window)
        prompts += file_prompts
        notes += file_notes
    return Plan(prompts, notes)


def blocks(prompts: Sequence[PromptIdentity], size: int = BLOCK) -> list[tuple[int, int]]:
    """Split consecutive prompts of one task and length into blocks (start, end) of at most `size`.

    Prompts of files count as one task. Batches never cross a block's border.
    """
    parts: list[tuple[int, int]] = []
    cells = [("" if one.content else one.task, one.difficulty, one.length) for one in prompts]
    for _, cell in groupby(range(len(prompts)), cells.__getitem__):
        numbers = list(cell)
        parts += [(part[0], part[-1] + 1) for start in range(0, len(numbers), size) if (part := numbers[start:][:size])]
    return parts


def _file_prompts(
    request: EvalRequest, file: FileChoice, tokenizer: PreTrainedTokenizerBase, window: int
) -> tuple[list[PlannedPrompt], list[str]]:
    """The prompts of a file, and a sentence per omitted line or part."""
    # Options, with --lengths and --depths for the formats that build prompts from a text.
    options: dict[str, Any] = {}
    lengths = tuple(min(length, window) for length in request.lengths or DEFAULT_LENGTHS)
    if file.form == "text":
        options["length"] = lengths[0]
    elif file.form == "haystack":
        options["lengths"] = tuple(dict.fromkeys(min(length, window - HAYSTACK_ANSWER) for length in lengths))
        options |= {"depths": request.depths} if request.depths else {}
    options |= file.options
    loaded = load_file(file.form, file.path, tokenizer, request.skip_malformed, **options)
    taken = loaded.samples[: request.samples]
    available = len(loaded.samples)
    for metric in {sample.metric for sample in taken}:
        check_metric(metric)
    short = [fit_to_window(sample, tokenizer, window, request.max_prompt, request.cut) for sample in taken]
    notes = [*loaded.skipped, *loaded.notes]
    if shortened := [sample for sample in short if "shortened_from" in sample.meta]:
        lost = max(int(str(sample.meta["shortened_from"])) for sample in shortened)
        notes.append(
            f"{file.path}: {len(shortened)} of {len(short)} prompts were longer than allowed and lost the "
            f"{request.cut} of their context: the longest had {lost:,} tokens, at most "
            f"{max(sample.length for sample in shortened):,} were kept."
        )
    if available > len(taken):
        notes.append(f"{file.path}: {len(taken)} of its {available} prompts are used: raise --samples for more.")
    cut: dict[str, JsonValue] = (
        {} if request.max_prompt is None else {"max_prompt": request.max_prompt, "cut": request.cut}
    )
    forced: dict[str, JsonValue] = {FORCED: True} if request.forced else {}
    prompts = []
    for sample in short:
        later = [one.question for one in sample.further]
        content = "\0".join([sample.context, sample.question, *sample.answers, *later])
        placed = sample.depth is not None  # a text with a hidden needle, at the requested length
        identity = PromptIdentity(
            sample.task,
            canonical_json(file.named | cut | forced),
            sample.length if placed else ANY_LENGTH,
            sample.depth,
            sample.index,
            request.seed if sample.temperature else 0,
            hashlib.sha256(content.encode()).hexdigest()[:16],
        )
        make = partial(_as_measured, request, partial(Sample.model_copy, sample), "continuation")
        prompts.append(PlannedPrompt(identity, make, sample.chat))
    return prompts, notes


def _task_prompts(
    request: EvalRequest, choice: TaskChoice, tokenizer: PreTrainedTokenizerBase, window: int, style: Style
) -> Iterator[PlannedPrompt]:
    task = get_task(choice.task)
    difficulty = task.resolve(choice.difficulty)
    # Nothing is recorded for the default, so that keys of older rows stay.
    recorded = with_style(difficulty, style) | ({FORCED: True} if request.forced else {})
    for length in request.lengths or default_lengths(task, window):
        if length > window:  # before a haystack of that length is built
            raise UserError(
                f"{task.name}: {quote_value(length)} tokens do not fit the model's context window of {window}."
            )
        for depth in (request.depths or (None,)) if task.uses_depth else (None,):
            for index in range(request.samples):
                identity = PromptIdentity(task.name, canonical_json(recorded), length, depth, index, request.seed)
                settings = {**({"depth": depth} if task.uses_depth else {}), **difficulty}
                generate = partial(task.generate, tokenizer, length, request.seed, index, **settings)
                make = partial(_as_measured, request, generate, style)
                if index == 0:
                    sample = make()
                    new = sample.new_tokens
                    if sample.length + new > window:
                        raise UserError(
                            f"{sample.task}: {sample.length} tokens and {new} for the answer do not fit the model's "
                            f"context window of {window}: use lengths of at most {window - new}."
                        )
                yield PlannedPrompt(identity, make, context_alone=task.context_alone)


def default_lengths(task: Task, window: int) -> tuple[int, ...]:
    """The task's default lengths, limited by the model's context window."""
    return tuple(dict.fromkeys(min(length, window - window // _FREE_SHARE) for length in task.lengths))


def fit_to_window(
    sample: Sample, tokenizer: PreTrainedTokenizerBase, window: int, max_prompt: int | None, cut: Cut
) -> Sample:
    """Cut the sample to `max_prompt` tokens and to what its answer leaves of the context window.

    Raises UserError if the answer alone fills the window, or the question the rest.
    """
    room = window - sample.new_tokens
    if room < 1:
        raise UserError(
            f"{sample.task}: {sample.new_tokens:,} tokens for the answer do not fit the model's context window "
            f"of {window:,}: set the file's option max_new_tokens, such as FILE:max_new_tokens={max(window // 2, 1)}."
        )
    return shorten(tokenizer, sample, min(room, max_prompt or room), cut)


def _as_measured(request: EvalRequest, generate: Callable[[], Sample], style: Style) -> Sample:
    """The sample in its style, without its answers and parts if the full cache's continuation is forced.

    A given text stays.
    """
    sample = apply_style(generate(), style)
    if not request.forced or sample.metric in LIKELIHOOD_METRICS:
        return sample
    return sample.model_copy(update={"metric": "kl", "answers": [], "parts": ()})


@dataclass
class Measurable:
    """A request's tasks by the length at which they are measured (None: their own defaults), and why others are not."""

    window: int
    tasks: dict[int | None, list[TaskChoice]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # by task


def measurable_tasks(request: EvalRequest, loaded: LoadedModel) -> Measurable:
    """The request's tasks at their default lengths, or at the longest that the window holds with the answer.

    Every prompt is generated once, nothing is computed.
    """
    chat = chat_of(request, loaded.tokenizer)
    room = window_of(loaded.model.config) - (0 if chat is None else sum(map(len, chat.around())))
    found = Measurable(room)
    for choice in request.tasks:
        one = request.model_copy(update={"tasks": (choice,)})
        model = loaded.tokenizer, chat is not None
        length: int | None = None
        try:
            try:
                _answer_tokens(one, *model, room)
            except UserError:  # raises again if even the whole window is too short
                length = room - _answer_tokens(one, *model, 2 * room, (room,))
                _answer_tokens(one, *model, room, (length,))
        except UserError as error:
            found.reasons[choice.task] = str(error).removeprefix(f"{choice.task}: ")
        else:
            found.tasks.setdefault(length, []).append(choice)
    return found


def _answer_tokens(
    request: EvalRequest,
    tokenizer: PreTrainedTokenizerBase,
    has_chat: bool,
    window: int,
    lengths: tuple[int, ...] | None = None,
) -> int:
    """Most tokens of an answer, of prompts of these lengths in place of the request's if they are given."""
    if lengths is not None:
        request = request.model_copy(update={"lengths": lengths})
    return max(prompt.make().new_tokens for prompt in make_plan(request, tokenizer, window, has_chat).prompts)
