"""Reports a session as JSON events: what happens in it, and what the heads of every lane hold of the context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from kvlab.engine.progress import Pace
from kvlab.engine.prompt import prompt_pieces
from kvlab.live.events import ContextRead, Event, LaneSettled, TokenWritten
from kvlab.live.session import LiveSession

# What is left of the context is reported again while an answer is written: after so long, in this share of the time.
HELD_SECONDS = 0.1
HELD_SHARE = 0.05


class SessionReporter:
    """Passes events of one session on, and gives them to `tell` as JSON objects."""

    def __init__(self, session: LiveSession, tell: Callable[[dict[str, Any]], None]) -> None:
        self.session = session
        self.tell = tell
        # By lane what was reported last: (2, tokens) thousandths of all heads, in own slots and in others'.
        self._held: dict[int, np.ndarray] = {}

    def question(self, text: str) -> None:
        """Report a question that will be asked now."""
        self.tell({"kind": "question", "turn": self.session.turn, "text": text})

    def follow(self, events: Iterator[Event]) -> Iterator[Event]:
        """Report events of the session while they are taken from the result."""
        pace = Pace(seconds=HELD_SECONDS, share=HELD_SHARE)
        writing = set[int]()
        for event in events:
            self.tell(event.as_json())
            if isinstance(event, ContextRead):
                turns = self.session.turns
                tokenizer = self.session.loaded.tokenizer
                text = turns.opening + self.session.context
                texts = prompt_pieces(tokenizer, text, self.session.ids, special=turns.special)
                self.tell({"kind": "context_texts", "texts": texts})
            if isinstance(event, LaneSettled):
                self._held.pop(event.lane, None)
                self._tell_lane(event.lane)
            if isinstance(event, TokenWritten):
                writing.add(event.lane)
                if pace.is_due():
                    with pace.spending():
                        self.tell_held(writing)
                    writing.clear()
            yield event
        self.tell_held(range(len(self.session.lanes)))

    def tell_held(self, lanes: Iterable[int]) -> None:
        """Report what heads hold of each token of the context, in these lanes; after the first time only changes."""
        for number in sorted(lanes):
            self._tell_lane(number)

    def _tell_lane(self, number: int) -> None:
        lane = self.session.lanes[number]
        if lane.failure:
            return
        shares = lane.context_shares()
        now = (1000 * np.stack([shares.own, shares.merged])).round().astype(int)
        before = self._held.get(number)
        self._held[number] = now
        own, merged = now
        if before is None:
            self.tell({"kind": "held", "lane": number, "per_mille": own.tolist()})
            if merged.any():
                owners = lane.merges.most_common_owners().tolist()
                self.tell({"kind": "merged", "lane": number, "per_mille": merged.tolist(), "into": owners})
        elif (changed := np.flatnonzero((now != before).any(0))).size:
            changes = {"per_mille": own[changed].tolist(), "merged": merged[changed].tolist()}
            self.tell({"kind": "held_changes", "lane": number, "tokens": changed.tolist(), **changes})
