"""Ask several questions about one compressed context: each of a copy of the cache, or as turns with answers kept."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.engine.forward import end_ids, read_on
from kvlab.evaluation.generate import Stops
from kvlab.evaluation.results.outcome import Memory, read_memory
from kvlab.evaluation.shared_prompt import Check, SharedPrompt, failures_in_branches, nothing, sharing_groups
from kvlab.models.chat import decode_answer
from kvlab.models.load import LoadedModel


@dataclass(frozen=True)
class Questions:
    """What is read and asked. With `first_in_sight` the first question is compressed with the context.

    `keeps_answers`: a question follows the answers so far; else each is asked of a copy of the compressed context.
    """

    context: list[int]
    asked: Sequence[list[int]]
    max_new_tokens: int
    stops: Stops
    keeps_answers: bool = False
    first_in_sight: bool = False


@dataclass(frozen=True)
class Answers:
    """One cache's answers to all questions, by question, as texts and as token ids.

    `cache` is the one that answered last, with `memory`.
    """

    texts: list[str]
    ids: list[list[int]]
    cache: CompressedCache
    memory: Memory
    seconds: float
    prompt_seconds: float
    context: CompressedCache  # as it was before the first question


@dataclass(eq=False)
class _Asked:
    """A cache that answers: `cache` is what it reads the next tokens with, `error` ended it."""

    cache: CompressedCache
    tokens_read: int
    answers: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    error: Exception | None = None


def ask_each(
    loaded: LoadedModel,
    questions: Questions,
    caches: Sequence[CompressedCache],
    prefill_chunk: int | None = None,
    check: Check = nothing,
) -> list[Answers | Exception]:
    """For each cache its answers, or the error that ended it.

    The context is read once by all caches that can share the pass; `caches` then hold the compressed context. Those
    that hold it already read nothing. Raises UserError for a method whose result chunks would change.
    """
    found: dict[int, Answers | Exception] = {}
    held = [number for number, cache in enumerate(caches) if cache.get_seq_length()]
    new = [number for number in range(len(caches)) if number not in held]
    if held:
        every = [_Asked(caches[number], len(questions.context)) for number in held]
        found |= zip(held, _ask_all(loaded, questions, every, None, dict.fromkeys(every, 0.0), check), strict=True)
    for group in sharing_groups([caches[number] for number in new]):
        numbers = [new[place] for place in group]
        together = [caches[number] for number in numbers]
        # Read the context, with the first question if that is in sight.
        in_sight = questions.context + (questions.asked[0] if questions.first_in_sight else [])
        shared = SharedPrompt(loaded, together, [in_sight], len(in_sight), prefill_chunk, check)
        logits: Tensor | None = None
        with failures_in_branches(shared.fan_out):
            logits = shared.read()
        every = [_Asked(branch.cache, len(in_sight), error=branch.error) for branch in shared.branches]
        times = {
            one: shared.prompt_seconds(branch) if one.error is None else 0.0
            for one, branch in zip(every, shared.branches, strict=True)
        }
        found |= zip(numbers, _ask_all(loaded, questions, every, logits, times, check), strict=True)
    return [found[number] for number in range(len(caches))]


def _ask_all(
    loaded: LoadedModel,
    questions: Questions,
    every: Sequence[_Asked],
    logits: Tensor | None,
    prompt_seconds: dict[_Asked, float],
    check: Check,
) -> list[Answers | Exception]:
    """Ask caches that hold the context; `logits` are those after a first question that was in sight."""
    first, *others = questions.asked
    in_sight = questions.context + (first if questions.first_in_sight else [])
    alive = [one for one in every if one.error is None]
    compressed = {one: one.cache for one in alive}
    # A copy under the same observer; caches that have read a prompt together share their layers without slots.
    for one in alive:
        one.cache = copy_cache(compressed[one], compressed[one].settings.observer)
    waiting = questions.asked
    if questions.first_in_sight and logits is not None:
        _answer(loaded, questions, alive, dict(zip(alive, logits, strict=True)), check)
        waiting = others
    for question in waiting:
        alive = [one for one in alive if one.error is None]
        if not questions.keeps_answers:
            for one in alive:
                one.cache = copy_cache(compressed[one], compressed[one].settings.observer)
                one.tokens_read = len(in_sight)
        _answer(loaded, questions, alive, _read(loaded, alive, [question] * len(alive)), check)
    found: list[Answers | Exception] = []
    for one in every:
        if one.error is not None:
            found.append(one.error)
            continue
        texts = [questions.stops.cut(decode_answer(loaded.tokenizer, ids)) for ids in one.answers]
        memory = read_memory(one.cache, 1)[0]
        seconds = prompt_seconds[one]
        found.append(Answers(texts, one.answers, one.cache, memory, seconds + one.seconds, seconds, compressed[one]))
    return found


def _answer(
    loaded: LoadedModel,
    questions: Questions,
    questions_read: Sequence[_Asked],
    logits: dict[_Asked, Tensor],
    check: Check,
) -> None:
    """Write one more answer with each of them; `logits` are those after the question.

    What ends an answer is not read: the model's end token is part of the text before the next question.
    """
    ends = end_ids(loaded)
    stops = questions.stops
    writing = [one for one in questions_read if one in logits]
    for one in writing:
        one.answers.append([])
    for step in range(questions.max_new_tokens):
        for one in writing:
            one.answers[-1].append(int(logits[one].argmax()))
        writing = [one for one in writing if one.answers[-1][-1] not in ends]
        if stops.texts:
            writing = [one for one in writing if not stops.are_in(decode_answer(loaded.tokenizer, one.answers[-1]))]
        if not writing or (len(questions.asked) == 1 and step + 1 == questions.max_new_tokens):
            return  # nothing follows the last token
        check()
        logits = _read(loaded, writing, [[one.answers[-1][-1]] for one in writing])
        writing = [one for one in writing if one in logits]


def _read(loaded: LoadedModel, asked: Sequence[_Asked], ids: Sequence[list[int]]) -> dict[_Asked, Tensor]:
    """Logits (V,) of each after its tokens; what fails has none. The time is shared out evenly."""
    if not asked:
        return {}
    begun = time.perf_counter()
    caches = [one.cache for one in asked]
    tokens_read = [one.tokens_read for one in asked]
    results = read_on(loaded.model, loaded.device, caches, tokens_read, ids)
    seconds = (time.perf_counter() - begun) / len(asked)
    found: dict[_Asked, Tensor] = {}
    for one, given, result in zip(asked, ids, results, strict=True):
        one.tokens_read += len(given)
        one.seconds += seconds
        if isinstance(result, Exception):
            one.error = result
        else:
            found[one] = result
    return found
