"""Units of work (a prompt and its missing choices), batched by shape and turned into result rows."""

import gc
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kvlab.core import Budget, MethodChoice, UserError, is_out_of_memory
from kvlab.engine.energy import Energy, NoCounter, describe_energy, joule_meter
from kvlab.engine.out_of_memory import drop_frames, release_memory
from kvlab.evaluation.measure import Measurer
from kvlab.evaluation.plan import PlannedPrompt
from kvlab.evaluation.prepare import PreparedPrompt, prepare
from kvlab.evaluation.results.outcome import Outcome
from kvlab.evaluation.results.rows import budget_unit, canonical_json
from kvlab.evaluation.scoring.metrics import check_metric, score
from kvlab.evaluation.scoring.order import of_each
from kvlab.models.chat import Chat
from kvlab.models.load import LoadedModel
from kvlab.tasks.sample import UNSCORED

Measured = list[list[Outcome] | Exception]  # of each choice the outcomes by prompt, or the error of its method


@dataclass(eq=False)
class Backoff:
    """Batch prompts and choices; the largest number of rows that fits is remembered for the rest of the evaluation.

    Every prompt is a row of the batch for every choice.
    """

    measurer: Measurer
    most: int | None = None  # rows that fit, once one batch did not

    def outcomes(
        self, prompts: Sequence[PreparedPrompt], choices: Sequence[MethodChoice]
    ) -> list[list[tuple[Outcome, int]] | Exception]:
        """For each choice each prompt's outcome and the rows that ran together, or the error of its method.

        All prompts must have one shape. Raises UserError if a single row does not fit; other errors pass through.
        """
        found: dict[tuple[int, int], tuple[Outcome, int]] = {}
        errors: dict[int, Exception] = {}
        waiting = [(range(len(prompts)), range(len(choices)))]
        while waiting:
            part, numbers = waiting.pop(0)
            rows = len(part) * len(numbers)
            if self.most is not None and rows > self.most:
                # Halve the prompts, so that each is still read once, or else the choices.
                middle = len(part) // 2 or len(numbers) // 2
                if len(part) > 1:
                    waiting = [(part[:middle], numbers), (part[middle:], numbers), *waiting]
                else:
                    waiting = [(part, numbers[:middle]), (part, numbers[middle:]), *waiting]
                continue
            outcomes: Measured | None = None  # if memory runs out
            try:
                outcomes = self.measurer.measure(
                    [prompts[row] for row in part], [choices[number] for number in numbers]
                )
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                drop_frames(error)
            if outcomes is None:
                gc.collect()
                release_memory(self.measurer.loaded.device)
                if rows == 1:
                    raise UserError(
                        f"{self.measurer.loaded.device.type} ran out of memory on one prompt of "
                        f"{prompts[part[0]].prompt_tokens:,} tokens ({choices[numbers[0]].label}): use shorter "
                        "--lengths, --set prefill_chunk=N, --dtype bfloat16 or --set placement=auto; measured rows "
                        "are kept."
                    )
                self.most = rows // 2
                waiting.insert(0, (part, numbers))
                continue
            for number, results in zip(numbers, outcomes, strict=True):
                if isinstance(results, Exception):
                    errors[number] = results
                else:
                    found |= {(number, row): (one, rows) for row, one in zip(part, results, strict=True)}
        every = range(len(prompts))
        return [errors.get(number) or [found[number, row] for row in every] for number in range(len(choices))]


OF_PARTS = {
    "all_rules": "rules",
    "ifeval_all": "ifeval",
    "ifeval_all_loose": "ifeval_loose",
}  # the metric of parts, for a metric that is no mean over them


def parts_json(prompt: PreparedPrompt, outcome: Outcome) -> str | None:
    """One object per part of the sample, as JSON; None if it has none.

    Each has kind, order (1 is the first in the prompt's text, of questions the first asked), position (index of its
    first token; null without a statement), tokens, answer, score, and of its tokens own, merged, unreachable and
    consensus (`Survival`; null without a statement).
    """
    sample = prompt.sample
    if not sample.parts:
        return None
    metric = OF_PARTS.get(sample.metric, sample.metric)
    scores = of_each(lambda answers: score(metric, outcome.prediction, answers, tags=prompt.tags), sample.answers)
    lines = []
    fields = {"own": "own_slots", "merged": "merged", "unreachable": "unreachable", "consensus": "consensus"}
    for index, part in enumerate(sample.parts):
        place = prompt.parts[index]
        left = outcome.survival.parts[index] if outcome.survival and place else None
        lines.append(
            {
                "kind": part.kind,
                "order": index + 1,
                "position": place[0] if place else None,
                "tokens": len(place),
                "answer": sample.answers[index],
                "score": scores[index],
                **{key: getattr(left, field) if left else None for key, field in fields.items()},
            }
        )
    return json.dumps(lines, ensure_ascii=False)


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


def batches(
    units: Sequence[Unit], loaded: LoadedModel, rows: int, chat: Chat | None = None
) -> Iterator[list[PreparedUnit]]:
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
    backoff: Backoff  # runs the largest batches that fit
    choices: Sequence[MethodChoice]
    settings: Sequence[Mapping[str, object]]  # every hyper-parameter of each choice
    model_digest: str
    environment: Mapping[str, str]  # the columns device and versions
    chat: str | None = None  # JSON
    energy: Energy = NO_COUNTER
    errors: dict[int, Exception] = field(default_factory=dict)  # of methods that raised, by choice index

    def rows(self, batch: Sequence[PreparedUnit]) -> Iterator[tuple[MethodChoice, list[dict[str, object]]]]:
        """Yield each choice with the batch's missing rows; a choice whose method raised is left out from then on."""
        by_missing: dict[tuple[int, ...], list[PreparedUnit]] = {}
        for unit in batch:
            numbers = tuple(number for number in unit.keys if number not in self.errors)
            by_missing.setdefault(numbers, []).append(unit)
        for numbers, units in by_missing.items():
            choices = [self.choices[number] for number in numbers]
            joules_since_now = joule_meter(self.energy)
            measured = self.backoff.outcomes([unit.prompt for unit in units], choices) if numbers else []
            joules = joules_since_now()
            # of all outcomes, each as if alone
            answered = [outcomes for outcomes in measured if not isinstance(outcomes, Exception)]
            seconds = sum(one.seconds for outcomes in answered for one, _ in outcomes)
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
        draws = outcome.survival.draws if outcome.survival else None
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
            "chat": self.chat if prompt.sample.chat and not prompt.continuation else None,
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
            "hidden_own": outcome.survival.own_slots if outcome.survival else None,
            "hidden_merged": outcome.survival.merged if outcome.survival else None,
            "unreachable": outcome.survival.unreachable if outcome.survival else None,
            "consensus": outcome.survival.consensus if outcome.survival else None,
            "answer_tokens": outcome.answer_tokens,
            "loop_tokens": outcome.loop_tokens,
            "parts": parts_json(prompt, outcome),
            "energy": describe_energy(self.energy),
            "hidden_at": min(prompt.hidden, default=None),
            # the decisions of several copies of a cache are not those of one
            "draws": canonical_json(vars(draws)) if draws and not prompt.sample.further else None,
            **self.environment,
        }


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
        return float(score(metric, outcome.prediction, prompt.sample.answers, names, prompt.tags)), None
    except Exception as error:
        return math.nan, f"{metric}: {type(error).__name__}: {error}"[:LONGEST_ERROR]
