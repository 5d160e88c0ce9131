"""From what the harness says of a prompt to a row of kvlab's own results. Torch-free."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvlab.common.errors import UserError
from kvlab.evaluate.results.rows import ANY_LENGTH, PromptIdentity, budget_unit, canonical_json
from kvlab.lmeval.journal import Answer, Measured, merged, request_key
from kvlab.lmeval.request import LmEvalRequest
from kvlab.requests.budget import Budget
from kvlab.requests.compare import MethodChoice

Sample = Mapping[str, Any]
ROLLING, WRITING, CHOOSING = "loglikelihood_rolling", "generate_until", "loglikelihood"
PERPLEXITY = "bits_per_byte"


@dataclass(frozen=True)
class Prompt:
    """A prompt of a task as it was planned: the kind of its requests and their arguments."""

    task: str
    index: int
    kind: str
    requests: tuple[tuple[Any, ...], ...]

    def identity(self, request: LmEvalRequest) -> PromptIdentity:
        """What names the prompt in kvlab's rows; its content is the hash of its first request's context."""
        content = hashlib.sha256(str(self.requests[0][0]).encode()).hexdigest()[:16]
        way, name = canonical_json(request.way), request.task_name(self.task)
        return PromptIdentity(name, way, ANY_LENGTH, None, self.index, request.seed, content)


@dataclass(frozen=True)
class Metric:
    """Which of a task's metrics is a prompt's score, under which of its filters."""

    name: str
    filter: str


def metric_of(task: str, asked: str, samples: Sequence[Sample], better: Mapping[str, Any]) -> Metric:
    """The metric of a task that becomes the score: the one asked for, else its first that can be one.

    A score is a number from 0 to 1 for each prompt, where more is better; of a rolling likelihood, bits per byte.
    `better` says of each metric whether more is better. Raises UserError where there is none.
    """
    first = samples[0]["filter"]
    name, _, chosen = asked.partition(",")
    there = {str(sample["filter"]) for sample in samples}
    usable = [
        one
        for one in samples[0]["metrics"]
        if one == PERPLEXITY or (better.get(one) is not False and all(map(_is_score, (x[one] for x in samples))))
    ]
    if not usable:
        has = ", ".join(samples[0]["metrics"])
        raise UserError(f"Task {task!r} has no score from 0 to 1 for each prompt (it has {has}): choose another task.")
    if name and (name not in usable or (chosen or first) not in there):
        raise UserError(
            f"Task {task!r} has no score {asked!r}: --metric is one of {', '.join(usable)}"
            + (f", with one of the filters {', '.join(sorted(there))} after a comma." if len(there) > 1 else ".")
        )
    return Metric(name or str(usable[0]), chosen or str(first))


def _is_score(value: Any) -> bool:
    try:
        return 0 <= float(value) <= 1
    except (TypeError, ValueError):
        return False


def score_of(sample: Sample, metric: Metric) -> float:
    """The prompt's score; bits per byte from the harness's (log-probability in nats, bytes)."""
    value = sample[metric.name]
    if metric.name == PERPLEXITY:
        logprob, size = value
        return -float(logprob) / (math.log(2) * max(int(size), 1))
    return float(value)


def told(sample: Sample, kind: str) -> tuple[str, str]:
    """(right answer, what was chosen or written), as text."""
    arguments, answers = sample["arguments"], sample["filtered_resps"]
    right = sample["target"]
    if kind == WRITING:
        return _text(right), _text(answers[0] if answers else "")
    if kind == ROLLING:
        return "", ""
    options = _options(arguments)
    best = max(range(len(answers)), key=lambda place: answers[place][0])
    if len(options) == 1:
        return _text(right), options[0] if answers[0][1] else ""
    named = isinstance(right, int) and 0 <= right < len(options)
    return options[right] if named else _text(right), options[best]


def _options(arguments: Sequence[Sequence[Any]]) -> list[str]:
    """The continuations; where they are all one, as with Winogrande, the ends of the contexts, which then differ."""
    options = [str(pair[1]).strip() for pair in arguments]
    return options if len(set(options)) == len(options) else [f"...{str(pair[0])[-60:]}" for pair in arguments]


def _text(value: object) -> str:
    return canonical_json([str(one) for one in value]) if isinstance(value, list | tuple) else str(value).strip()


@dataclass(frozen=True)
class RowMaker:
    """Makes the rows of one choice; `made_by` holds the columns that are the same in all rows of a run."""

    request: LmEvalRequest
    choice: MethodChoice
    settings: Mapping[str, object]
    made_by: Mapping[str, object]

    def row(
        self, key: str, prompt: Prompt, sample: Sample, metric: Metric, found: Mapping[str, tuple[Answer, Measured]]
    ) -> dict[str, object]:
        """`found` are the answers to the prompt's requests, by `request_key`."""
        choice, score = self.choice, score_of(sample, metric)
        right, said = told(sample, prompt.kind)
        measured = merged([found[request_key(prompt.kind, one)][1] for one in prompt.requests])
        return {
            "key": key,
            **vars(prompt.identity(self.request)),
            "tokens_in_sight": measured.in_sight,
            **{name: value for name, value in vars(measured).items() if name != "in_sight"},
            "method": choice.method,
            "variant": str(self.settings.get("variant", "")),
            "hyper_parameters": canonical_json(choice.hyper_parameters),
            "settings": canonical_json(self.settings),
            "budget": Budget(choice.budget).number,
            "budget_unit": budget_unit(choice),
            "question_aware": True,
            "prefill_chunk": self.request.prefill_chunk,
            "metric": metric.name,
            "score": score,
            "bits_per_byte": score if metric.name == PERPLEXITY else None,
            "answer": canonical_json([right]),
            "prediction": said,
            **self.made_by,
        }
