"""Reports a session as JSON events: what happens in it, and what the heads of every lane hold of the context."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kvlab.engine.prompt import prompt_pieces
from kvlab.live.events import ContextRead, Event, LaneSettled, TokenWritten
from kvlab.live.session import LiveSession

HELD_SECONDS = 0.1  # after which what is left of the context is reported again while an answer is written


class SessionReporter:
    """Passes events of one session on, and gives them to `tell` as JSON objects."""

    def __init__(self, session: LiveSession, tell: Callable[[dict[str, Any]], None]) -> None:
        self.session, self.tell = session, tell
        # By lane what was reported last: (2, tokens) thousandths of all heads, in own slots and in others'.
        self._held: dict[int, np.ndarray] = {}

    def question(self, text: str) -> None:
        """Report a question that will be asked now."""
        self.tell({"kind": "question", "turn": self.session.turn, "text": text})

    def follow(self, events: Iterator[Event]) -> Iterator[Event]:
        """Report events of the session while they are taken from the result."""
        reported = time.monotonic()
        for event in events:
            self.tell(event.as_json())
            if isinstance(event, ContextRead):
                self._tell_texts()
            if isinstance(event, LaneSettled):
                self._held.pop(event.lane, None)
                self._tell_lane(event.lane)
            if isinstance(event, TokenWritten) and time.monotonic() - reported >= HELD_SECONDS:
                self.tell_held()
                reported = time.monotonic()
            yield event
        self.tell_held()

    def tell_held(self) -> None:
        """Report what heads hold of each token of the context, in every lane; after the first time only changes."""
        for number in range(len(self.session.lanes)):
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

    def _tell_texts(self) -> None:
        turns, tokenizer = self.session.turns, self.session.loaded.tokenizer
        text = turns.opening + self.session.context
        texts = prompt_pieces(tokenizer, text, self.session.ids, special=turns.special)
        self.tell({"kind": "context_texts", "texts": texts})
