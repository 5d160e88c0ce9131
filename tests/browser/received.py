"""What the server has sent to a page."""

from __future__ import annotations

import time
from typing import Any

from tests.browser.settle import PATIENCE_SECONDS


class Received:
    """Loads a page again, and keeps every message that it gets from then on."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.frames: list[bytes | str] = []
        page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: self.frames.append(frame)))
        page.reload()

    def count(self, words: bytes) -> int:
        """How many messages hold these words."""
        return sum(words in frame for frame in self.frames if isinstance(frame, bytes))

    def wait_for(self, words: bytes) -> None:
        """Wait for a message with these words: the fragments of a page come one after the other."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.count(words):
            assert time.monotonic() < deadline, f"no message holds {words!r}"
            self.page.wait_for_timeout(50)

    def clear(self) -> None:
        """Forget what came so far."""
        self.frames.clear()
