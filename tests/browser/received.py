"""What the server has sent to a page."""

from __future__ import annotations

from typing import Any


class Received:
    """Loads a page again, and keeps every message that it gets from then on."""

    def __init__(self, page: Any) -> None:
        self.frames: list[bytes | str] = []
        page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: self.frames.append(frame)))
        page.reload()

    def count(self, words: bytes) -> int:
        """How many messages hold these words."""
        return sum(words in frame for frame in self.frames if isinstance(frame, bytes))

    def clear(self) -> None:
        """Forget what came so far."""
        self.frames.clear()
