"""What happens in a live session, in order; each event is a JSON object with its kind."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Event:
    """Something that happened. `lane` counts from 0, the full cache."""

    kind: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """The event's fields and kind."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Exchange:
    """A question and the token ids of each lane's answer, by the lane's number.

    `logits` are the full cache's (V,), of each token of its answer; empty where they were not held.
    """

    question: str
    answers: dict[int, list[int]]
    logits: tuple[Tensor, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class ContextRead(Event):
    """The context was read, once for all lanes that can share a pass."""

    kind = "context_read"
    tokens: int
    seconds: float


@dataclass(frozen=True)
class LaneSettled(Event):
    """A lane has compressed the context. `full_bytes` are those of the full cache."""

    kind = "lane_settled"
    lane: int
    label: str
    live_bytes: int
    full_bytes: int


@dataclass(frozen=True)
class QuestionAgain(Event):
    """A lane that was changed answers a question again, `text`."""

    kind = "question_again"
    turn: int
    lane: int
    text: str


@dataclass(frozen=True)
class TokenWritten(Event):
    """A lane wrote a token, which adds `text`.

    `kl`: divergence of the lane's prediction from the full cache's, in nats; None once their texts differ. `leaves`:
    the first token of the session at which the lane's text leaves the full cache's.
    """

    kind = "token"
    turn: int
    lane: int
    token: int
    text: str
    kl: float | None
    leaves: bool


@dataclass(frozen=True)
class AnswerEnded(Event):
    """A lane's answer is complete: `reason` is "end" (the model's), "length" or "stopped"."""

    kind = "answer_ended"
    turn: int
    lane: int
    reason: str
    tokens_seen: int
    live_bytes: int
    seconds: float


@dataclass(frozen=True)
class LaneFailed(Event):
    """A lane's method raised an error; the other lanes go on."""

    kind = "lane_failed"
    lane: int
    message: str
