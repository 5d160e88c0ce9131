"""Convert lm-eval's samples to rows of kvlab's results. Torch-free."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvlab.core import Budget, MethodChoice, UserError
from kvlab.evaluation.lm_eval.request import LmEvalRequest
from kvlab.evaluation.results.rows import ANY_LENGTH, PromptIdentity, budget_unit, canonical_json

FOLDER = ".answers"
Answer = Any  # JSON: [log-probability, greedy], a log-probability or a text


@dataclass(frozen=True)
class Measurement:
    """The cost of one request; requests with the same context share its seconds, and each has its whole memory."""

    prompt_tokens: int
    in_sight: int
    slots: float
    logical_tokens: int
    live_bytes: int
    allocated_bytes: int
    bytes_read: int
    seconds: float
    prompt_seconds: float | None


def mean_measurement(parts: Sequence[Measurement], sharing: int = 1) -> Measurement:
    """One measurement of several passes or requests: mean memory, total seconds, largest token counts.

    `sharing`: how many requests share the seconds.
    """
    count = len(parts)
    prompt_seconds = [part.prompt_seconds for part in parts if part.prompt_seconds is not None]
    return Measurement(
        prompt_tokens=max(part.prompt_tokens for part in parts),
        in_sight=max(part.in_sight for part in parts),
        slots=sum(part.slots for part in parts) / count,
        logical_tokens=round(sum(part.logical_tokens for part in parts) / count),
        live_bytes=sum(part.live_bytes for part in parts) // count,
        allocated_bytes=sum(part.allocated_bytes for part in parts) // count,
        bytes_read=sum(part.bytes_read for part in parts) // count,
        seconds=sum(part.seconds for part in parts) / sharing,
        prompt_seconds=sum(prompt_seconds) / sharing if prompt_seconds else None,
    )


def request_key(kind: str, arguments: Sequence[object]) -> str:
    """Hash of a request's kind and arguments."""
    text = json.dumps([kind, *arguments], sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Answers:
    """Answers and measurements by request key; `settings` holds what an answer depends on besides its request."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        digest = hashlib.sha256(canonical_json(settings).encode()).hexdigest()[:32]
        self.path = folder / FOLDER / f"{digest}.jsonl"
        self.known: dict[str, tuple[Answer, Measurement]] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").split("\n"):
                try:
                    entry = json.loads(line)
                    self.known[entry["key"]] = entry["answer"], Measurement(**entry["measured"])
                except (ValueError, KeyError, TypeError):
                    continue  # truncated by a kill: this request is answered again

    def add(self, key: str, answer: Answer, measured: Measurement) -> None:
        """Add an answer and write it to disk at once."""
        self.known[key] = answer, measured
        entry = json.dumps({"key": key, "answer": answer, "measured": asdict(measured)}, ensure_ascii=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"\n{entry}\n")  # the first line break ends a line that a kill truncated
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"Cannot write {self.path} ({reason}): free some space and run again.") from error


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
    usable = []
    for metric in metrics:
        try:
            are_scores = all(0 <= float(sample[metric]) <= 1 for sample in samples)
        except (TypeError, ValueError):
            are_scores = False
        if metric == PERPLEXITY or (higher_is_better.get(metric) is not False and are_scores):
            usable.append(metric)
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
    # The continuations; if they are not distinct, as in Winogrande, the ends of the contexts.
    pairs = sample["arguments"]
    options = [str(pair[1]).strip() for pair in pairs]
    if len(set(options)) < len(options):
        options = [f"...{str(pair[0])[-60:]}" for pair in pairs]
    best = max(range(len(responses)), key=lambda index: responses[index][0])
    if len(options) == 1:
        return _text(target), options[0] if responses[0][1] else ""
    is_index = isinstance(target, int) and 0 <= target < len(options)
    return options[target] if is_index else _text(target), options[best]


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
