"""The state of a session as its events tell it: branches, turns, answers. Torch-free."""

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
    """A branch's answer to one question. `reason` is why it ended; empty while it is written."""

    words: list[Word] = field(default_factory=list)
    reason: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(word.text for word in self.words)


@dataclass
class BranchState:
    """A branch as last told; `settled_bytes` are those after the context was compressed.

    `held` (context tokens,) is the share of heads that hold each token in a slot of its own, `merged` (context tokens,)
    in another token's, and `into` the token whose slot that is in most heads, -1 for none. None: not told. `kept` is
    the name of the prefix that the branch was kept as.
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
    """A question and its answers by branch."""

    question: str
    answers: dict[int, Answer] = field(default_factory=dict)


@dataclass
class Transcript:
    """A session. `tokens` and `texts` are those of the context; `seconds` the time to read and compress it.

    `full_bytes` are those of a full cache, which branch 0 is unless it is a kept prefix of another method.
    `heads_read` is by branch the number of questions after which its heads (`TokenHeads`) were read. `recorded` are the
    comparisons that the session was recorded as, and `runs` by branch the run of the last one, if the branch is as it
    was.
    """

    tokens: int = 0
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    full_bytes: int = 0
    tokens_seen: int = 0
    branches: dict[int, BranchState] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    heads_read: dict[int, int] = field(default_factory=dict)
    recorded: list[str] = field(default_factory=list)
    runs: dict[int, str] = field(default_factory=dict)

    def exchanges(self) -> list[Exchange]:
        """Questions with the token ids of their answers; an answer that was not completed counts as far as it got.

        A question that was refused has none.
        """
        exchanges = []
        for turn in self.turns:
            tokens = {branch: [word.token for word in answer.words] for branch, answer in turn.answers.items()}
            if tokens:
                exchanges.append(Exchange(turn.question, tokens))
        return exchanges

    @property
    def is_read(self) -> bool:
        """Whether the context has been read in all branches."""
        return bool(self.branches)

    def follow(self, events: Iterable[Mapping[str, Any]]) -> "Transcript":
        """Take over events in order; unknown ones are left out. Returns itself."""
        for event in events:
            branch = event.get("branch", 0)
            match event.get("kind"):
                # The context.
                case "context_read":
                    self.tokens = self.tokens_seen = event["tokens"]
                    self.seconds = event["seconds"]
                case "context_texts":
                    self.texts = event["texts"]
                # What a branch holds of it.
                case "branch_settled":
                    self.full_bytes = event["full_bytes"]
                    # What it held stays until the new shares are known.
                    before = self.branches.get(branch, BranchState())
                    size = event["live_bytes"]
                    self.branches[branch] = BranchState(event["label"], size, size, held=before.held)
                    self.heads_read.pop(branch, None)
                case "branch_failed":
                    self.branches.setdefault(branch, BranchState()).failure = event["message"]
                case "held":
                    self.branches[branch].held = np.array(event["per_mille"], np.float32) / 1000
                case "merged":
                    self.branches[branch].merged = np.array(event["per_mille"], np.float32) / 1000
                    self.branches[branch].into = event["into"]
                case "held_changes":
                    state = self.branches[branch]
                    for shares, name in ((state.held, "per_mille"), (state.merged, "merged")):
                        if shares is not None:
                            shares[event["tokens"]] = np.array(event[name], np.float32) / 1000
                case "heads_read":
                    self.heads_read[branch] = event["turn"]
                case "kept":
                    self.branches[branch].kept = event["name"]
                # Questions and answers.
                case "question":
                    del self.turns[event["turn"] :]
                    self.turns.append(Turn(event["text"]))
                case "question_again":
                    self.turns[event["turn"]].answers.pop(branch, None)
                case "token":
                    words = self.turns[event["turn"]].answers.setdefault(branch, Answer()).words
                    words.append(Word(event["text"], event["kl"], event["leaves"], event["token"]))
                case "answer_ended":
                    answer = self.turns[event["turn"]].answers.setdefault(branch, Answer())
                    answer.reason = event["reason"]
                    answer.seconds = event["seconds"]
                    if branch == 0:
                        is_full = self.branches[0].live_bytes == self.full_bytes
                        grown = round(self.full_bytes * event["tokens_seen"] / max(self.tokens_seen, 1))
                        self.tokens_seen = event["tokens_seen"]
                        self.full_bytes = event["live_bytes"] if is_full else grown
                    self.branches[branch].live_bytes = event["live_bytes"]
                case "went_back":
                    del self.turns[event["turn"] :]
                # The session.
                case "read_again":
                    self.notes.append(event["message"])
                case "recorded":
                    self.recorded.append(event["comparison"])
                    self.runs = dict(enumerate(event["runs"]))
                case "branch_changed":
                    self.runs.pop(branch, None)
        return self


SHARES = (0.1, 0.3, 0.6, 0.999)  # upper ends of the classes of held shares; the last class is all heads
NAMES = (
    "in no slot", "merged into others' slots only", "a slot of its own in up to 10 % of heads", "in up to 30 %",
    "in up to 60 %", "in most heads", "in all heads",
)  # fmt: skip
MOST_NOTES = 8192  # tokens of a text whose tokens say what they were merged into


def codes_of(branch: BranchState) -> np.ndarray:
    """(context tokens,) uint8: the class of `NAMES` of each token."""
    held = branch.held
    merged = branch.merged
    assert held is not None
    classes = np.searchsorted(SHARES, held - 1e-6, side="left") + 2
    alive = np.zeros_like(held, bool) if merged is None else merged > 0
    return np.where(held > 0, classes, alive).astype(np.uint8)


def merge_notes(branch: BranchState, texts: list[str]) -> list[str]:
    """Per token what most heads that merged it merged it into; empty if nothing was merged."""
    if branch.into is None or branch.merged is None or len(texts) > MOST_NOTES:
        return []
    notes = []
    for share, owner in zip(branch.merged, branch.into, strict=True):
        word = textwrap.shorten(texts[owner], 90, placeholder=" …")
        into = f"mostly into {owner} “{word}”"
        notes.append(f"merged in {100 * share:.0f} % of heads, {into}" if share > 0 else "")
    return notes


def what_is_left_sentence(branch: BranchState) -> str:
    """How much of the text has no slot, and how much a head holds on average."""
    codes = codes_of(branch)
    assert branch.held is not None
    gone, merged = (100 * float((codes == code).mean()) for code in (0, 1))
    others = f", {merged:.0f} % are only in slots that they were merged into" if branch.merged is not None else ""
    average = f"{100 * branch.held.mean():.0f} %"
    return f"{gone:.0f} % of the tokens are in no slot{others}; a head holds {average} on average."
