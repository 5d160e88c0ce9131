"""The state of a session as its events tell it: lanes, turns, answers. Torch-free."""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvlab.live.events import Exchange


@dataclass
class Word:
    """What one token added to an answer; see `kvlab.live.events.TokenWritten`."""

    text: str
    kl: float | None
    leaves: bool
    token: int


@dataclass
class Answer:
    """A lane's answer to one question. `reason` is why it ended; empty while it is written."""

    words: list[Word] = field(default_factory=list)
    reason: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(word.text for word in self.words)


@dataclass
class LaneState:
    """A lane as last told; `settled_bytes` are those after the context was compressed.

    `held` (context tokens,) is the share of heads that hold each token in a slot of its own, `merged` (context tokens,)
    in another token's, and `into` the token whose slot that is in most heads, -1 for none. None: not told. `kept` is
    the name of the prefix that the lane was kept as.
    """

    label: str = ""
    live_bytes: int = 0
    settled_bytes: int = 0
    failure: str = ""
    held: np.ndarray | None = None
    merged: np.ndarray | None = None
    into: list[int] | None = None
    kept: str = ""


@dataclass
class Turn:
    """A question and its answers by lane."""

    question: str
    answers: dict[int, Answer] = field(default_factory=dict)


@dataclass
class Transcript:
    """A session. `tokens` and `texts` are those of the context; `seconds` the time to read and compress it.

    `full_bytes` are those of a full cache, which lane 0 is unless it is a kept prefix of another method.
    `heads_read` is by lane the number of questions after which its heads (`TokenHeads`) were read. `recorded` are the
    comparisons that the session was recorded as, and `runs` by lane the run of the last one, if the lane is as it was.
    """

    tokens: int = 0
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    full_bytes: int = 0
    tokens_seen: int = 0
    lanes: dict[int, LaneState] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    heads_read: dict[int, int] = field(default_factory=dict)
    recorded: list[str] = field(default_factory=list)
    runs: dict[int, str] = field(default_factory=dict)

    def exchanges(self) -> list[Exchange]:
        """Questions with the token ids of their answers; an answer that was not completed counts as far as it got.

        A question that was refused has none.
        """
        return [
            Exchange(turn.question, {lane: [word.token for word in one.words] for lane, one in turn.answers.items()})
            for turn in self.turns
            if turn.answers
        ]

    @property
    def is_read(self) -> bool:
        """Whether the context has been read in all lanes."""
        return bool(self.lanes)

    def follow(self, events: Iterable[Mapping[str, Any]]) -> "Transcript":
        """Take over events in order; unknown ones are left out. Returns itself."""
        for event in events:
            lane = event.get("lane", 0)
            match event.get("kind"):
                # The context.
                case "context_read":
                    self.tokens = self.tokens_seen = event["tokens"]
                    self.seconds = event["seconds"]
                case "context_texts":
                    self.texts = event["texts"]
                # What a lane holds of it.
                case "lane_settled":
                    self.full_bytes = event["full_bytes"]
                    before = self.lanes.get(lane, LaneState())  # what it held stays until the new shares are known
                    size = event["live_bytes"]
                    self.lanes[lane] = LaneState(event["label"], size, size, held=before.held)
                    self.heads_read.pop(lane, None)
                case "lane_failed":
                    self.lanes.setdefault(lane, LaneState()).failure = event["message"]
                case "held":
                    self.lanes[lane].held = np.array(event["per_mille"], np.float32) / 1000
                case "merged":
                    self.lanes[lane].merged = np.array(event["per_mille"], np.float32) / 1000
                    self.lanes[lane].into = event["into"]
                case "held_changes":
                    for shares, name in ((self.lanes[lane].held, "per_mille"), (self.lanes[lane].merged, "merged")):
                        if shares is not None:
                            shares[event["tokens"]] = np.array(event[name], np.float32) / 1000
                case "heads_read":
                    self.heads_read[lane] = event["turn"]
                case "kept":
                    self.lanes[lane].kept = event["name"]
                # Questions and answers.
                case "question":
                    del self.turns[event["turn"] :]
                    self.turns.append(Turn(event["text"]))
                case "question_again":
                    self.turns[event["turn"]].answers.pop(lane, None)
                case "token":
                    words = self.turns[event["turn"]].answers.setdefault(lane, Answer()).words
                    words.append(Word(event["text"], event["kl"], event["leaves"], event["token"]))
                case "answer_ended":
                    answer = self.turns[event["turn"]].answers.setdefault(lane, Answer())
                    answer.reason = event["reason"]
                    answer.seconds = event["seconds"]
                    if lane == 0:
                        is_full = self.lanes[0].live_bytes == self.full_bytes
                        grown = round(self.full_bytes * event["tokens_seen"] / max(self.tokens_seen, 1))
                        self.tokens_seen = event["tokens_seen"]
                        self.full_bytes = event["live_bytes"] if is_full else grown
                    self.lanes[lane].live_bytes = event["live_bytes"]
                case "went_back":
                    del self.turns[event["turn"] :]
                # The session.
                case "read_again":
                    self.notes.append(event["message"])
                case "recorded":
                    self.recorded.append(event["comparison"])
                    self.runs = dict(enumerate(event["runs"]))
                case "lane_changed":
                    self.runs.pop(lane, None)
        return self


SHARES = (0.1, 0.3, 0.6, 0.999)  # upper ends of the classes of held shares; the last class is all heads
NAMES = (
    "in no slot", "merged into others' slots only", "a slot of its own in up to 10 % of heads", "in up to 30 %",
    "in up to 60 %", "in most heads", "in all heads",
)  # fmt: skip
MOST_NOTES = 8192  # tokens of a text whose tokens say what they were merged into


def codes_of(lane: LaneState) -> np.ndarray:
    """(context tokens,) uint8: the class of `NAMES` of each token."""
    held = lane.held
    merged = lane.merged
    assert held is not None
    classes = np.searchsorted(SHARES, held - 1e-6, side="left") + 2
    alive = np.zeros_like(held, bool) if merged is None else merged > 0
    return np.where(held > 0, classes, alive).astype(np.uint8)


def merge_notes(lane: LaneState, texts: list[str]) -> list[str]:
    """Per token what most heads that merged it merged it into; empty if nothing was merged."""
    if lane.into is None or lane.merged is None or len(texts) > MOST_NOTES:
        return []
    notes = []
    for share, owner in zip(lane.merged, lane.into, strict=True):
        word = textwrap.shorten(texts[owner], 90, placeholder=" …")
        into = f"mostly into {owner} “{word}”"
        notes.append(f"merged in {100 * share:.0f} % of heads, {into}" if share > 0 else "")
    return notes


def what_is_left_sentence(lane: LaneState) -> str:
    """How much of the text has no slot, and how much a head holds on average."""
    codes = codes_of(lane)
    assert lane.held is not None
    gone, merged = (100 * float((codes == code).mean()) for code in (0, 1))
    others = f", {merged:.0f} % are only in slots that they were merged into" if lane.merged is not None else ""
    return f"{gone:.0f} % of the tokens are in no slot{others}; a head holds {100 * lane.held.mean():.0f} % on average."
