"""What happens in a live session, in order; each event is a JSON object with its kind."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from kvlab.common.atomic_write import full_disk_sentence

FOLDER = Path(".jobs") / "live"
LEFT_OUT = ("opened", "branch_changed", "heads_read", "read_again", "recorded")  # by a fork
Events = list[dict[str, Any]]
# What logs called branches before -> what they call them now: the key of a branch's number, and kinds of events.
OLD_NAMES = {
    "lane": "branch",
    "lane_settled": "branch_settled",
    "lane_failed": "branch_failed",
    "lane_changed": "branch_changed",
}


def log_path(root: Path, session: str) -> Path:
    """The file of a session."""
    return Path(root) / FOLDER / f"{session}.jsonl"


def heads_path(root: Path, session: str, branch: int) -> Path:
    """The file of what a branch's heads hold (`kvlab.views.frames.token_heads`)."""
    log = log_path(root, session)
    path = log.with_suffix(f".branch-{branch}.npz")
    former = log.with_suffix(f".lane-{branch}.npz")
    return former if former.exists() and not path.exists() else path


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
            event = {OLD_NAMES.get(name, name): value for name, value in event.items()}
            if event.get("kind") in tuple(OLD_NAMES):
                event["kind"] = OLD_NAMES[event["kind"]]
            events.append(event)
    return events, start + end


@dataclass(frozen=True)
class Event:
    """Something that happened. `branch` counts from 0, the full cache."""

    kind: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """The event's fields and kind."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Exchange:
    """A question and the token ids of each branch's answer, by the branch's number.

    `logits` are the full cache's (V,), of each token of its answer; empty where they were not held.
    """

    question: str
    answers: dict[int, list[int]]
    logits: tuple[Tensor, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class ContextRead(Event):
    """The context was read, once for all branches that can share a pass."""

    kind = "context_read"
    tokens: int
    seconds: float


@dataclass(frozen=True)
class BranchSettled(Event):
    """A branch has compressed the context. `full_bytes` are those of the full cache."""

    kind = "branch_settled"
    branch: int
    label: str
    live_bytes: int
    full_bytes: int


@dataclass(frozen=True)
class QuestionAgain(Event):
    """A branch that was changed answers a question again, `text`."""

    kind = "question_again"
    turn: int
    branch: int
    text: str


@dataclass(frozen=True)
class TokenWritten(Event):
    """A branch wrote a token, which adds `text`.

    `kl`: divergence of the branch's prediction from the full cache's, in nats; None once their texts differ. `leaves`:
    the first token of the session at which the branch's text leaves the full cache's.
    """

    kind = "token"
    turn: int
    branch: int
    token: int
    text: str
    kl: float | None
    leaves: bool


@dataclass(frozen=True)
class AnswerEnded(Event):
    """A branch's answer is complete: `reason` is "end" (the model's), "length" or "stopped"."""

    kind = "answer_ended"
    turn: int
    branch: int
    reason: str
    tokens_seen: int
    live_bytes: int
    seconds: float


@dataclass(frozen=True)
class BranchFailed(Event):
    """A branch's method raised an error; the other branches go on."""

    kind = "branch_failed"
    branch: int
    message: str
