"""The harness's requests, answered under one method's cache: in batches, each answer on disk as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvlab.cache import CompressedCache
from kvlab.evaluate.backoff import Backoff
from kvlab.evaluate.results.outcome import Loaded, Memory
from kvlab.lmeval.journal import Answer, Journal, Measured
from kvlab.lmeval.request import LmEvalRequest
from kvlab.lmeval.score import Scored, score_decoded, score_simulated
from kvlab.lmeval.texts import Asked, Tokens, in_window, of_equal_length, of_one_text, together
from kvlab.lmeval.write import Asking, write_texts
from kvlab.requests.compare import MethodChoice

SIMULATED_ROWS = 8  # a step of one token costs as much for eight rows, also on a CPU


@dataclass
class Answering:
    """Answers requests under one choice; `told` is called with how many were answered since the last time."""

    loaded: Loaded
    make_cache: Callable[[MethodChoice], CompressedCache]
    choice: MethodChoice
    request: LmEvalRequest
    journal: Journal
    window: int
    rows: int
    told: Callable[[int], None] = lambda count: None
    notes: dict[str, None] = field(default_factory=dict)  # sentences, each once

    def likelihoods(self, keys: Sequence[str], pairs: Sequence[tuple[Tokens, Tokens]]) -> list[tuple[float, bool]]:
        """For each (context, continuation) its log-probability in nats, and whether greedy decoding writes it.

        `keys` name the requests. Raises UserError for a continuation longer than the model's window.
        """
        found = self._known(keys)
        missing = [place for place, key in enumerate(keys) if key not in found]
        fitting = [in_window(*pairs[place], self.window) for place in missing]
        if any(len(new[0]) < len(pairs[place][0]) for place, new in zip(missing, fitting, strict=True)):
            self.notes["Contexts longer than the model's window lost their beginning, as the harness has it."] = None
        simulated = self.request.protocol == "simulated"
        asked = of_one_text(fitting) if simulated else together(fitting)
        backoff = Backoff(self.loaded, self._score)
        rows = max(self.rows, SIMULATED_ROWS) if simulated else self.rows
        for batch in of_equal_length(asked, simulated, rows):
            for one, (scored, beside) in zip(batch, backoff.outcomes(batch, self.choice), strict=True):
                measured = _measured(one, scored, beside)
                for place, answer in zip(one.places, scored.answers, strict=True):
                    self.journal.add(keys[missing[place]], list(answer), measured)
                self.told(len(one.places))
        self._note(backoff.note)
        answers = (self.journal.found[key][0] for key in keys)
        return [(float(logprob), bool(greedy)) for logprob, greedy in answers]

    def texts(self, keys: Sequence[str], asked: Sequence[Asking]) -> list[str]:
        """What the model writes after each context."""
        found = self._known(keys)
        alike: dict[tuple[object, ...], list[Asking]] = {}
        for key, one in zip(keys, asked, strict=True):
            if key not in found or one.drawn:
                alike.setdefault(one.alike, []).append(one)
        backoff, answers = Backoff(self.loaded, self._write), dict[int, str]()
        for group in alike.values():
            for start in range(0, len(group), self.rows):
                batch = group[start : start + self.rows]
                for one, ((text, measured), beside) in zip(batch, backoff.outcomes(batch, self.choice), strict=True):
                    answers[one.place] = text
                    now = Measured(**(vars(measured) | {"batch_rows": beside}))
                    self.journal.add(keys[one.place], text, now, keep=not one.drawn)
                    self.told(1)
        self._note(backoff.note)
        for key, one in zip(keys, asked, strict=True):
            answers.setdefault(one.place, str(self.journal.found[key][0]))
        return [answers[one.place] for one in asked]

    def _known(self, keys: Sequence[str]) -> dict[str, tuple[Answer, Measured]]:
        known = {key: self.journal.found[key] for key in keys if key in self.journal.found}
        self.told(sum(key in known for key in keys))
        return known

    def _note(self, note: str) -> None:
        if note:
            self.notes[note] = None

    def _score(self, asked: Sequence[Asked], choice: MethodChoice) -> list[Scored]:
        cache = self.make_cache(choice)
        if self.request.protocol == "simulated":
            return score_simulated(self.loaded, asked, cache)
        return score_decoded(self.loaded, asked, cache, self.request.hold_back, self.request.prefill_chunk)

    def _write(self, asked: Sequence[Asking], choice: MethodChoice) -> list[tuple[str, Measured]]:
        hold_back, chunk = self.request.hold_back, self.request.prefill_chunk
        texts, written = write_texts(self.loaded, asked, self.make_cache(choice), hold_back, chunk)
        tokens = len(asked[0].context)
        in_sight = max(1, tokens - hold_back)
        seconds = written.seconds, written.prompt_seconds
        measured = Measured(tokens, in_sight, *_of(written.memory), *seconds, len(asked))
        return [(text, measured) for text in texts]


def _measured(one: Asked, scored: Scored, beside: int) -> Measured:
    """A request's own: seconds are the context's, shared by its continuations."""
    count = len(one.continuations)
    took = None if scored.prompt_seconds is None else scored.prompt_seconds / count
    return Measured(one.prompt_tokens, scored.in_sight, *_of(scored.memory), scored.seconds / count, took, beside)


def _of(memory: Memory) -> tuple[float, int, int, int]:
    return memory.slots, memory.logical_tokens, memory.live_bytes, memory.allocated_bytes
