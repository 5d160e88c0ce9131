"""What happens in a live session, in order; each event is a JSON object with its kind."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from kvlab.common.atomic_write import full_disk_sentence

FOLDER = Path(".jobs") / "live"
LEFT_OUT = ("opened", "lane_changed", "heads_read", "read_again", "recorded")  # by a fork
Events = list[dict[str, Any]]


def log_path(root: Path, session: str) -> Path:
    """The file of a session."""
    return Path(root) / FOLDER / f"{session}.jsonl"


def heads_path(root: Path, session: str, lane: int) -> Path:
    """The file of what a lane's heads hold (`kvlab.views.frames.token_heads`)."""
    return log_path(root, session).with_suffix(f".lane-{lane}.npz")


def append_event(root: Path, session: str, event: Mapping[str, Any]) -> None:
    """Append one event. Raises UserError if the disk is full."""
    path = log_path(root, session)
    line = json.dumps(event, ensure_ascii=False) + "\n"
    with full_disk_sentence(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line)


def fork_log(root: Path, session: str, other: str, turn: int, opened: Mapping[str, Any]) -> None:
    """Begin the log of session `other` with `opened` and what was said in `session` before question `turn`."""
    events, _ = read_events(root, session)
    asked = [place for place, event in enumerate(events) if event.get("kind") == "question" and event["turn"] == turn]
    before = events[: asked[-1]] if asked else events
    kept = [event for event in before if event.get("kind") not in LEFT_OUT]
    for event in (opened, {"kind": "forked", "source": session}, *kept, {"kind": "went_back", "turn": turn}):
        append_event(root, other, event)


def read_events(root: Path, session: str, start: int = 0) -> tuple[Events, int]:
    """The events from byte `start` on, and where the next ones will begin; a line that is not complete is left."""
    try:
        with log_path(root, session).open("rb") as file:
            file.seek(start)
            content = file.read()
    except OSError:
        return [], start
    end = content.rfind(b"\n") + 1
    events: Events = []
    for line in content[:end].splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # cut off by a killed worker
            continue
        if isinstance(event, dict):
            events.append(event)
    return events, start + end


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
