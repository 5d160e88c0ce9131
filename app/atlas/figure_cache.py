"""What was drawn is kept over people: bounded in bytes, drawn once however many wait, and anew behind the page."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

from kvlab.results.sources import Seen
from kvlab.server.users import acting, acting_as

V = TypeVar("V")
OLDEST_SECONDS = 60.0  # what is older than this is drawn anew where more has come since
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Entry(Generic[V]):
    value: V
    seen: Seen
    size: int
    drawn: float


def _is_older(entry: _Entry[V], seen: Seen) -> bool:
    return entry.seen.stamp != seen.stamp and entry.seen.at < seen.at


class Kept(Generic[V]):
    """Values by what they are and `Seen.place`, the last used ones up to `most_bytes`.

    A value drawn before more came is given as it is, and drawn anew by a thread that leaves the pages half of the time;
    where something it was drawn from is gone or hidden since, or where `stands` says that it shows nothing, the one who
    asks waits for a new one. Who asks while it is drawn waits for the same. Who looked before it was drawn takes it as
    it is: a page that is slow would else put an older one in its place, card by card.
    """

    def __init__(self, most_bytes: int, size: Callable[[V], int], stands: Callable[[V], bool]) -> None:
        self.bytes = 0
        self._most, self._size, self._stands = most_bytes, size, stands
        self._entries: OrderedDict[Hashable, _Entry[V]] = OrderedDict()
        self._lock = threading.Lock()
        self._drawing: dict[Hashable, threading.Lock] = {}
        self._behind: set[Hashable] = set()
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def get(self, what: Hashable, seen: Seen, draw: Callable[[], V]) -> V:
        """The value, from `draw` where there is none yet. What `draw` raises is raised, and nothing is kept."""
        key = (what, seen.place)
        entry = self._find(key, seen)
        if entry is None:
            with self._lock:
                alone = self._drawing.setdefault(key, threading.Lock())
            with alone:
                entry = self._find(key, seen) or self._draw(key, seen, draw)
        if _is_older(entry, seen) and time.monotonic() - entry.drawn >= OLDEST_SECONDS:
            self._draw_behind(key, seen, draw)
        return entry.value

    def _find(self, key: Hashable, seen: Seen) -> _Entry[V] | None:
        """The entry, where it will do."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is None or not _is_older(entry, seen):
            return entry
        return entry if entry.seen.names <= seen.names and self._stands(entry.value) else None

    def _draw(self, key: Hashable, seen: Seen, draw: Callable[[], V]) -> _Entry[V]:
        try:
            value = draw()
            entry = _Entry(value, seen, self._size(value), time.monotonic())
            with self._lock:
                self._drop(key)
                self._entries[key] = entry
                self.bytes += entry.size
                while self.bytes > self._most and len(self._entries) > 1:
                    self._drop(next(iter(self._entries)))
            return entry
        finally:
            with self._lock:
                self._drawing.pop(key, None)

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        self.bytes -= entry.size if entry else 0

    def _draw_behind(self, key: Hashable, seen: Seen, draw: Callable[[], V]) -> None:
        person = acting()

        def work() -> None:
            try:
                with acting_as(person):
                    self._draw(key, seen, draw)
            except Exception as error:  # the page that asks next draws it, and says what is wrong
                log.error("%s could not be drawn anew", key, exc_info=error)
                with self._lock:
                    self._drop(key)
            with self._lock:
                self._behind.discard(key)

        with self._lock:
            if key in self._behind:
                return
            self._behind.add(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kept", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def _work(self) -> None:
        while True:
            work = self._queue.get()
            begun = time.monotonic()
            work()
            del work  # it holds runs
            time.sleep(time.monotonic() - begun)
