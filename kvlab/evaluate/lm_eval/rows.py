"""Convert lm-eval's samples to rows of kvlab's results. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvlab.core.budget import Budget
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluate.lm_eval.answers import Answers, mean_measurement, request_key
from kvlab.evaluate.lm_eval.request import LmEvalRequest
from kvlab.evaluate.results.rows import ANY_LENGTH, PromptIdentity, budget_unit, canonical_json

Sample = Mapping[str, Any]
# Request types of lm-eval.
ROLLING = "loglikelihood_rolling"
GENERATION = "generate_until"
CHOICES = "loglikelihood"
PERPLEXITY = "bits_per_byte"


KINDS = {"multiple_choice": CHOICES}  # the request type of a task's output type; the others have the same name


def identity_of(request: LmEvalRequest, task: str, sample: Sample) -> PromptIdentity:
    """A prompt's columns in kvlab's rows; the content is lm-eval's hash of the first request's context."""
    difficulty = canonical_json(request.settings)
    name = request.task_name(task)
    content = sample["prompt_hash"][:16]
    return PromptIdentity(name, difficulty, ANY_LENGTH, None, sample["doc_id"], request.seed, content)


@dataclass(frozen=True)
class Metric:
    """The metric that is a prompt's score, and its filter."""

    name: str
    filter: str


def select_metric(task: str, requested: str, samples: Sequence[Sample], higher_is_better: Mapping[str, Any]) -> Metric:
    """The metric used as score: the requested one, or the task's first that can be a score.

    A score is a number from 0 to 1 for each prompt, higher is better; for rolling likelihoods it is bits per byte.
    Raises UserError if there is none.
    """
    first_filter = samples[0]["filter"]
    name, _, filter_name = requested.partition(",")
    filters = {str(sample["filter"]) for sample in samples}
    metrics = samples[0]["metrics"]
    usable = [
        metric
        for metric in metrics
        if metric == PERPLEXITY
        or (higher_is_better.get(metric) is not False and all(_is_score(sample[metric]) for sample in samples))
    ]
    if not usable:
        raise UserError(
            f"Task {task!r} has no score from 0 to 1 per prompt (it has {', '.join(metrics)}): choose another task."
        )
    if name and (name not in usable or (filter_name or first_filter) not in filters):
        raise UserError(
            f"Task {task!r} has no score {requested!r}: --set metric is one of {', '.join(usable)}"
            + (f", with one of the filters {', '.join(sorted(filters))} after a comma." if len(filters) > 1 else ".")
        )
    return Metric(name or str(usable[0]), filter_name or str(first_filter))


def _is_score(value: Any) -> bool:
    try:
        return 0 <= float(value) <= 1
    except (TypeError, ValueError):
        return False


def score_of(sample: Sample, metric: Metric) -> float:
    """The prompt's score; bits per byte from lm-eval's (log-probability in nats, bytes)."""
    value = sample[metric.name]
    if metric.name == PERPLEXITY:
        logprob, size = value
        return -float(logprob) / (math.log(2) * max(int(size), 1))
    return float(value)


def _answers(sample: Sample, kind: str) -> tuple[str, str]:
    """(correct answer, prediction) as text."""
    responses = sample["filtered_resps"]
    target = sample["target"]
    if kind == GENERATION:
        return _text(target), _text(responses[0] if responses else "")
    if kind == ROLLING:
        return "", ""
    options = _options(sample["arguments"])
    best = max(range(len(responses)), key=lambda index: responses[index][0])
    if len(options) == 1:
        return _text(target), options[0] if responses[0][1] else ""
    is_index = isinstance(target, int) and 0 <= target < len(options)
    return options[target] if is_index else _text(target), options[best]


def _options(arguments: Sequence[Sequence[Any]]) -> list[str]:
    """The continuations; if they are not distinct, as in Winogrande, the ends of the contexts."""
    options = [str(pair[1]).strip() for pair in arguments]
    return options if len(set(options)) == len(options) else [f"...{str(pair[0])[-60:]}" for pair in arguments]


def _text(value: object) -> str:
    return canonical_json([str(item) for item in value]) if isinstance(value, list | tuple) else str(value).strip()


@dataclass(frozen=True)
class RowMaker:
    """Creates the rows of one choice; `answers` hold what its requests took, `constants` the columns of one value."""

    request: LmEvalRequest
    choice: MethodChoice
    settings: Mapping[str, object]
    answers: Answers
    constants: Mapping[str, object]

    def row(self, identity: PromptIdentity, kind: str, sample: Sample, metric: Metric) -> dict[str, object]:
        """One row without its key."""
        choice = self.choice
        score = score_of(sample, metric)
        answer, prediction = _answers(sample, kind)
        requests = {request_key(kind, arguments) for arguments in sample["arguments"]}
        measured = vars(mean_measurement([self.answers.known[request][1] for request in sorted(requests)])).copy()
        return {
            **vars(identity),
            "tokens_in_sight": measured.pop("in_sight"),
            **measured,
            "batch_rows": 1,
            "method": choice.method,
            "variant": str(self.settings.get("variant", "")),
            "hyper_parameters": canonical_json(choice.hyper_parameters),
            "settings": canonical_json(self.settings),
            "budget": Budget(choice.budget).number,
            "budget_unit": budget_unit(choice),
            "question_aware": True,
            "metric": metric.name,
            "score": score,
            "bits_per_byte": score if metric.name == PERPLEXITY else None,
            "answer": canonical_json([answer]),
            "prediction": prediction,
            **self.constants,
        }
