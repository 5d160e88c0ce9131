"""The type of a task, and the draft of its sample: real text to the requested length, then the sample."""

import inspect
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import accumulate
from random import Random
from typing import Any, Literal, get_args, get_origin, get_type_hints

from transformers import PreTrainedTokenizerBase

from kvlab.core import UserError, quote_value
from kvlab.models.info.mini import TAIL, Query
from kvlab.tasks.haystack import Window, draw_window, hide
from kvlab.tasks.sample import Sample, sample_random
from kvlab.tasks.tokens import count_tokens, text_ids, token_starts

DEFAULT_LENGTHS = (1024,)
Depth = float | None  # position of the requested information in the context, 0 to 1; None: random


@dataclass(frozen=True)
class Task:
    """A named generator. `ruler` is RULER's name for the same kind of task, if it has one.

    `generate(tokenizer, length, seed, index, **difficulty)` returns the sample; with `uses_depth` it also takes
    `depth` (0 to 1, None for random).
    """

    name: str
    summary: str
    generate: Callable[..., Sample]
    uses_depth: bool = False
    ruler: str | None = None
    context_alone: bool = False  # no question is in sight when the context is compressed
    lengths: tuple[int, ...] = DEFAULT_LENGTHS

    @property
    def parameters(self) -> dict[str, int | str]:
        """The difficulty parameters with their defaults: the generator's keyword-only arguments except depth."""
        arguments = inspect.signature(self.generate).parameters.values()
        kinds = [argument for argument in arguments if argument.kind is inspect.Parameter.KEYWORD_ONLY]
        return {argument.name: argument.default for argument in kinds if argument.name != "depth"}

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """The words that a parameter may have, for parameters that are words."""
        hints = get_type_hints(self.generate)
        return {name: get_args(hints[name]) for name in self.parameters if get_origin(hints[name]) is Literal}

    def resolve(self, difficulty: Mapping[str, object]) -> dict[str, object]:
        """Return every parameter with its value; raises UserError for an unknown name or an impossible value."""
        for name, value in difficulty.items():
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise UserError(f"{self.name} has no parameter '{name}': it takes {known}.")
            if words := self.choices.get(name):
                if value not in words:
                    raise UserError(f"{self.name}: {name} is one of {', '.join(words)}, not {quote_value(value)}.")
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{self.name}: {name}={value} cannot be used: give a whole number of at least 1.")
        return {**self.parameters, **difficulty}


def spread(random: Random, count: int) -> list[float]:
    """Return `count` random depths in ascending order."""
    return sorted(random.random() for _ in range(count))


@dataclass(frozen=True)
class Draft:
    """A sample to be built: its task, length, seed and index, and its random numbers.

    `stream` names another task whose random numbers it uses, so that both tasks have the same prompts.
    """

    tokenizer: PreTrainedTokenizerBase
    task: str
    length: int
    seed: int
    index: int
    stream: str = ""

    @cached_property
    def random(self) -> Random:
        """The sample's random stream, determined by task, length, seed and index."""
        return sample_random(self.stream or self.task, self.length, self.seed, self.index)

    def place(self, depth: Depth) -> float:
        """`depth`, or a random place; a number is drawn either way, so that depth only moves the information."""
        drawn = self.random.random()
        return drawn if depth is None else depth

    def check_range(self, name: str, value: int, least: int, most: int) -> None:
        """Raise UserError if a difficulty parameter is outside its range."""
        if not least <= value <= most:
            raise UserError(f"{self.task}: {name}={value} cannot be used: give a whole number from {least} to {most}.")

    def hiding(
        self,
        query: Query,
        statements: Sequence[str],
        depths: Sequence[float],
        metric: str = "whole_match_all",
        **more: Any,
    ) -> Sample:
        """Real text with the statements hidden at their depths, then the query; `more` as for `asking`."""
        context = self.filled(lambda window: hide(window, statements, depths), query.prompt)
        return self.asking(query, context, metric, statements=list(statements), **more)

    def around(self, query: Query, block: str, place: float, metric: str = "whole_match_all", **more: Any) -> Sample:
        """A block of lines with real text around it (the share `place` before it), then the query."""

        def render(window: Window) -> str:
            cut = round(place * len(window.words))
            before = "".join(window.words[:cut]).rstrip()
            after = "".join(window.words[cut:]).rstrip()
            return (f"{before}\n" if before else "") + block + after

        return self.asking(query, self.filled(render, query.prompt), metric, block=block, **more)

    def filled(self, render: Callable[[Window], str], question: str = "", length: int | None = None) -> str:
        """The longest `render(window)` whose prompt fits `length`, by default the draft's.

        Raises UserError if even an empty window does not fit.
        """
        length = self.length if length is None else length
        window = draw_window(self.random, length)  # a word has at least one token, so more words are never needed
        question_tokens = len(text_ids(self.tokenizer, question))

        def measure(count: int) -> int:
            return count_tokens(self.tokenizer, render(window.first(count))) + question_tokens

        fixed = measure(0)
        if fixed > length:
            raise too_short(self.task, self.length, fixed + self.length - length)
        starts = token_starts(self.tokenizer, window.text)
        guess = len(window.words)
        if length - fixed < len(starts):
            guess = bisect_right(list(accumulate(len(word) for word in window.words)), starts[length - fixed])
        return render(window.first(largest_fit(lambda count: measure(count) <= length, length, guess)))

    def asking(
        self,
        query: Query,
        context: str,
        metric: str,
        *,
        depth: float | None = None,
        answers: Sequence[str] | None = None,
        hold_back: int = 0,
        **meta: Any,
    ) -> Sample:
        """The sample of a context and a query; `answers` default to the query's targets."""
        # The right answer and its end, with a margin for another wording.
        most = len(text_ids(self.tokenizer, query.answer + TAIL)) + 4
        return Sample(
            task=self.task,
            index=self.index,
            seed=self.seed,
            length=self.length,
            depth=depth,
            context=context,
            question=query.prompt,
            answers=list(answers or query.targets),
            metric=metric,
            max_new_tokens=most,
            hold_back=hold_back,
            meta=meta,
        )


def drafted(
    name: str, summary: str, ruler: str | None = None, context_alone: bool = False
) -> Callable[[Callable[..., Sample]], Task]:
    """Function decorator: a task from a function of a draft and keyword-only difficulty parameters.

    With a parameter `depth` the task `uses_depth`. The function raises UserError for a length that is too short.
    """

    def as_task(of_draft: Callable[..., Sample]) -> Task:
        @wraps(of_draft)
        def generate(
            tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, **difficulty: Any
        ) -> Sample:
            return of_draft(Draft(tokenizer, name, length, seed, index), **difficulty)

        uses_depth = "depth" in inspect.signature(of_draft).parameters
        return Task(name, summary, generate, uses_depth, ruler, context_alone)

    return as_task


def largest_fit(fits: Callable[[int], bool], most: int, guess: int) -> int:
    """Return the largest size in [0, most] that fits, or -1 if none does; `fits` must be monotone.

    Galloping search from `guess`: a good guess costs three or four trials.
    """
    low = min(max(guess, 0), most)
    high = low + 1
    stride = 1
    while low >= 0 and not fits(low):
        low, high, stride = low - stride, low, 2 * stride
    stride = 1
    while 0 <= low < most and high <= most and fits(high):
        low = high
        high = high + stride
        stride = 2 * stride
    # low fits (or is -1), high does not (or is past the end)
    low = max(low, -1)
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def too_short(task: str, length: int, need: int) -> UserError:
    """Return the error for a length too short for the task's statements."""
    return UserError(f"{task}: {length} tokens cannot hold this task: ask for at least {need}, or for fewer parts.")
