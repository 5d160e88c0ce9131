"""Following a sweep from its files while something else measures it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from kvlab.sweep.state import SweepState, state

Say = Callable[[str], None]
LINE_SECONDS = 10.0


class Follower:
    """Tells how far a folder's sweep is, a line each time something changed and a few seconds have passed."""

    def __init__(self, folder: Path, say: Say) -> None:
        self.folder, self.say = folder, say
        self._told, self._at = "", 0.0

    def look(self) -> SweepState:
        """The sweep as it is now."""
        now = state(self.folder)
        due = time.monotonic() - self._at >= LINE_SECONDS or not now.left
        if now.words != self._told and due:
            self.say(now.words)
            self._told, self._at = now.words, time.monotonic()
        return now
