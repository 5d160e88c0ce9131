"""Answer lm-eval's requests under one method's cache in batches, saving each answer as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvlab.cache import CompressedCache
from kvlab.evaluate.backoff import Backoff
from kvlab.evaluate.results.outcome import Loaded, Memory
from kvlab.lmeval.generation import GenerationRequest, generate_texts
from kvlab.lmeval.journal import Journal, Measurement
from kvlab.lmeval.likelihood import (
    ContextGroup,
    Scored,
    Tokens,
    equal_length_batches,
    fit_window,
    group_pairs,
    score_decoded,
    score_simulated,
)
from kvlab.lmeval.request import LmEvalRequest
from kvlab.requests.compare import MethodChoice

Written = tuple[str, Measurement]
Result = TypeVar("Result")
SIMULATED_ROWS = 8  # a step of one token costs as much for eight rows, on a CPU too


@dataclass
class Answering:
    """Answers requests under one choice; `report` is called with the number of newly answered requests."""

    loaded: Loaded
    make_cache: Callable[[MethodChoice], CompressedCache]
    choice: MethodChoice
    request: LmEvalRequest
    journal: Journal
    window: int
    rows: int
    report: Callable[[int], None] = lambda count: None
    notes: dict[str, None] = field(default_factory=dict)  # an ordered set of messages

    def likelihoods(self, keys: Sequence[str], pairs: Sequence[tuple[Tokens, Tokens]]) -> list[tuple[float, bool]]:
        """For each (context, continuation) its log-probability in nats, and whether greedy decoding generates it.

        `keys` identify the requests. Raises UserError for a continuation longer than the model's context window.
        """
        missing = self._missing(keys)
        fitting = [fit_window(*pairs[index], self.window) for index in missing]
        if any(len(pair[0]) < len(pairs[index][0]) for index, pair in zip(missing, fitting, strict=True)):
            self.notes["Contexts longer than the model's window were truncated on the left, as in lm-eval."] = None
        simulated = self.request.protocol == "simulated"
        groups = group_pairs(fitting, same_text=simulated)
        backoff = Backoff[ContextGroup, Scored](self.loaded, lambda batch, choices: [self._score(batch, choices[0])])
        rows = max(self.rows, SIMULATED_ROWS) if simulated else self.rows
        for batch in equal_length_batches(groups, simulated, rows):
            for group, (scored, batch_rows) in zip(batch, _of_one(backoff.outcomes(batch, [self.choice])), strict=True):
                measured = _measurement(group, scored, batch_rows)
                for index, answer in zip(group.indices, scored.answers, strict=True):
                    self.journal.add(keys[missing[index]], list(answer), measured)
                self.report(len(group.indices))
        self._note(backoff.note)
        answers = (self.journal.answers[key][0] for key in keys)
        return [(float(logprob), bool(greedy)) for logprob, greedy in answers]

    def texts(self, keys: Sequence[str], requests: Sequence[GenerationRequest]) -> list[str]:
        """The text generated after each context; sampled texts are never taken from the journal."""
        missing, batches = set(self._missing(keys)), dict[tuple[object, ...], list[GenerationRequest]]()
        for request in requests:
            if request.index in missing or request.is_sampled:
                batches.setdefault(request.batch_key, []).append(request)
        backoff = Backoff[GenerationRequest, Written](
            self.loaded, lambda batch, choices: [self._generate(batch, choices[0])]
        )
        texts: dict[int, str] = {}
        for equal in batches.values():
            for start in range(0, len(equal), self.rows):
                batch = equal[start : start + self.rows]
                outcomes = _of_one(backoff.outcomes(batch, [self.choice]))
                for request, ((text, measured), _) in zip(batch, outcomes, strict=True):
                    texts[request.index] = text
                    self.journal.add(keys[request.index], text, measured, save=not request.is_sampled)
                    self.report(1)
        self._note(backoff.note)
        return [texts.get(index, str(self.journal.answers[key][0])) for index, key in enumerate(keys)]

    def _missing(self, keys: Sequence[str]) -> list[int]:
        """Indices of the requests without an answer in the journal; the others are reported."""
        missing = [index for index, key in enumerate(keys) if key not in self.journal.answers]
        self.report(len(keys) - len(missing))
        return missing

    def _note(self, note: str) -> None:
        if note:
            self.notes[note] = None

    def _score(self, groups: Sequence[ContextGroup], choice: MethodChoice) -> list[Scored]:
        cache = self.make_cache(choice)
        if self.request.protocol == "simulated":
            return score_simulated(self.loaded, groups, cache)
        return score_decoded(self.loaded, groups, cache, self.request.hold_back, self.request.prefill_chunk)

    def _generate(self, requests: Sequence[GenerationRequest], choice: MethodChoice) -> list[tuple[str, Measurement]]:
        tokens = requests[0].prompt_tokens
        in_sight = max(1, tokens - self.request.hold_back)
        cache, chunk = self.make_cache(choice), self.request.prefill_chunk
        texts, written = generate_texts(self.loaded, requests, cache, in_sight, chunk)
        seconds = written.seconds, written.prompt_seconds
        measured = Measurement(tokens, in_sight, *_fields(written.memory), *seconds, len(requests))
        return [(text, measured) for text in texts]


def _measurement(group: ContextGroup, scored: Scored, batch_rows: int) -> Measurement:
    """One request's measurement; continuations of a context share its seconds."""
    count = len(group.continuations)
    seconds = scored.seconds / count, None if scored.prompt_seconds is None else scored.prompt_seconds / count
    return Measurement(group.prompt_tokens, scored.in_sight, *_fields(scored.memory), *seconds, batch_rows)


def _fields(memory: Memory) -> tuple[float, int, int, int]:
    return memory.slots, memory.logical_tokens, memory.live_bytes, memory.allocated_bytes


def _of_one(found: list[list[tuple[Result, int]] | Exception]) -> list[tuple[Result, int]]:
    """The outcomes of the only choice; raises its error."""
    (outcomes,) = found
    if isinstance(outcomes, Exception):
        raise outcomes
    return outcomes
