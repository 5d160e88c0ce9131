"""Units of work (a prompt and its missing choices), batched by shape and turned into result rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from kvlab.core.budget import Budget
from kvlab.core.choice import MethodChoice
from kvlab.engine.energy import Energy, Meter, NoCounter, words
from kvlab.evaluate.backoff import Backoff
from kvlab.evaluate.measure import Measurer
from kvlab.evaluate.plan import PlannedPrompt
from kvlab.evaluate.prepare import PreparedPrompt, prepare
from kvlab.evaluate.results.outcome import Loaded, Outcome
from kvlab.evaluate.results.rows import budget_unit, canonical_json
from kvlab.evaluate.scoring.metrics import check_metric, score
from kvlab.evaluate.scoring.parts import parts_json
from kvlab.models.chat import Chat
from kvlab.tasks.sample import UNSCORED

NO_COUNTER = NoCounter("no counter was asked for")
LONGEST_ERROR = 300  # characters
_LOOK_AHEAD = 4  # batches of prompts generated at once, to find some of equal length


@dataclass(frozen=True)
class Unit:
    """A prompt with its missing row keys by choice index."""

    prompt: PlannedPrompt
    keys: dict[int, str]


@dataclass(frozen=True)
class PreparedUnit:
    """A tokenised prompt, and the row keys of the choices still to be measured on it."""

    prompt: PreparedPrompt
    keys: dict[int, str]


def batches(units: Sequence[Unit], loaded: Loaded, rows: int, chat: Chat | None = None) -> Iterator[list[PreparedUnit]]:
    """Yield batches of at most `rows` units of one shape, nearly in order; prompts are generated as needed."""
    waiting = iter(units)
    while ahead := list(islice(waiting, 1 if rows == 1 else rows * _LOOK_AHEAD)):
        shapes: dict[tuple[object, ...], list[PreparedUnit]] = {}
        for unit in ahead:
            prepared = PreparedUnit(prepare(unit.prompt, loaded, chat), unit.keys)
            shapes.setdefault(prepared.prompt.shape, []).append(prepared)
        for alike in shapes.values():
            yield from (alike[start : start + rows] for start in range(0, len(alike), rows))


@dataclass(frozen=True)
class RowMaker:
    """Run batches and build their result rows."""

    measurer: Measurer
    choices: Sequence[MethodChoice]
    settings: Sequence[Mapping[str, object]]  # every hyper-parameter of each choice
    model_digest: str
    environment: Mapping[str, str]  # the columns device and versions
    chat: str | None = None  # JSON
    energy: Energy = NO_COUNTER
    errors: dict[int, Exception] = field(default_factory=dict)  # of methods that raised, by choice index

    @cached_property
    def backoff(self) -> Backoff[PreparedPrompt, Outcome]:
        """Runs the largest batches that fit."""
        return Backoff(self.measurer.loaded, self.measurer.measure)

    def rows(self, batch: Sequence[PreparedUnit]) -> Iterator[tuple[MethodChoice, list[dict[str, object]]]]:
        """Yield each choice with the batch's missing rows; a choice whose method raised is left out from then on."""
        by_missing: dict[tuple[int, ...], list[PreparedUnit]] = {}
        for unit in batch:
            numbers = tuple(number for number in unit.keys if number not in self.errors)
            by_missing.setdefault(numbers, []).append(unit)
        for numbers, units in by_missing.items():
            choices = [self.choices[number] for number in numbers]
            meter = Meter(self.energy)
            measured = self.backoff.outcomes([unit.prompt for unit in units], choices) if numbers else []
            joules = meter.joules()
            seconds = _seconds(measured)
            for number, outcomes in zip(numbers, measured, strict=True):
                if isinstance(outcomes, Exception):
                    self.errors[number] = outcomes
                    continue
                rows = zip(units, outcomes, strict=True)
                made = [self._row(unit, number, *outcome) for unit, outcome in rows]
                if joules is not None and seconds > 0:
                    made = [
                        row | {"joules": joules * outcome.seconds / seconds}
                        for row, (outcome, _) in zip(made, outcomes, strict=True)
                    ]
                yield self.choices[number], made

    def _row(self, unit: PreparedUnit, number: int, outcome: Outcome, batch_rows: int) -> dict[str, object]:
        prompt = unit.prompt
        choice = self.choices[number]
        value, error = _score(prompt, outcome)
        return {
            "key": unit.keys[number],
            **vars(prompt.identity),
            "prompt_tokens": prompt.prompt_tokens,
            "tokens_in_sight": prompt.in_sight(self.measurer.question_aware),
            "method": choice.method,
            "variant": str(self.settings[number].get("variant", "")),
            "hyper_parameters": canonical_json(choice.hyper_parameters),
            "settings": canonical_json(self.settings[number]),
            "budget": Budget(choice.budget).number,
            "budget_unit": budget_unit(choice),
            "question_aware": self.measurer.question_aware and not prompt.sample.compresses_context_alone,
            "prefill_chunk": self.measurer.prefill_chunk,
            "model": self.measurer.loaded.name,
            "model_digest": self.model_digest,
            "chat": self.chat if prompt.is_in_chat else None,
            "metric": prompt.sample.metric,
            "score": value,
            "error": error,
            "answer": canonical_json(prompt.sample.answers),
            "prediction": outcome.prediction,
            **vars(outcome.memory),
            "seconds": outcome.seconds,
            "prompt_seconds": outcome.prompt_seconds,
            "batch_rows": batch_rows,
            "bits_per_byte": outcome.bits_per_byte,
            "kl": outcome.kl,
            "top1_agreement": outcome.top1_agreement,
            "hidden_own": outcome.survival.own if outcome.survival else None,
            "hidden_merged": outcome.survival.merged if outcome.survival else None,
            "unreachable": outcome.survival.unreachable if outcome.survival else None,
            "consensus": outcome.survival.consensus if outcome.survival else None,
            "answer_tokens": outcome.answer_tokens,
            "loop_tokens": outcome.loop_tokens,
            "parts": parts_json(prompt, outcome),
            "energy": words(self.energy),
            **self.environment,
        }


def _seconds(measured: Sequence[Sequence[tuple[Outcome, int]] | Exception]) -> float:
    """Seconds of all outcomes, each as if alone."""
    return sum(one.seconds for outcomes in measured if not isinstance(outcomes, Exception) for one, _ in outcomes)


def _score(prompt: PreparedPrompt, outcome: Outcome) -> tuple[float, str | None]:
    """The metric's value, and why there is none: an error on one prompt does not end the evaluation of the others.

    A likelihood metric is named like the outcome's field; prompts without answers have no score.
    """
    metric = prompt.sample.metric
    if prompt.is_forced:
        return float(getattr(outcome, metric)), None
    if metric == UNSCORED:
        return math.nan, None
    classes = prompt.sample.meta.get("classes")
    names = [str(name) for name in classes] if isinstance(classes, list) else []
    check_metric(metric)
    try:
        return float(score(metric, outcome.prediction, prompt.sample.answers, names)), None
    except Exception as error:
        return math.nan, f"{metric}: {type(error).__name__}: {error}"[:LONGEST_ERROR]
