"""Cache of rendered figures shared by all sessions, bounded in bytes; stale figures are redrawn in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

from kvlab.common.lab import acting, acting_as
from kvlab.results.sources import SourceState

V = TypeVar("V")
MAX_AGE_SECONDS = 60.0  # after which an outdated value is redrawn
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Entry(Generic[V]):
    value: V
    seen: SourceState
    size: int
    drawn: float

    def is_outdated(self, seen: SourceState) -> bool:
        return self.seen.stamp != seen.stamp and self.seen.at < seen.at


class FigureCache(Generic[V]):
    """Least-recently-used cache of at most `max_bytes`, keyed by content and `Seen.place` (what the user may see).

    Each value is drawn once, however many sessions wait for it. An outdated value is returned, and redrawn by a
    background thread that is idle half of the time; a caller waits for a new one only if a source of the old one was
    deleted or hidden, or if `is_useful` is false for it. A value newer than the caller's sources is returned as it is:
    otherwise a slow page would replace newer values by older ones.
    """

    def __init__(self, max_bytes: int, size: Callable[[V], int], is_useful: Callable[[V], bool]) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._size = size
        self._is_useful = is_useful
        self._entries: OrderedDict[Hashable, _Entry[V]] = OrderedDict()
        self._lock = threading.Lock()
        self._drawing: dict[Hashable, threading.Lock] = {}
        self._queued: set[Hashable] = set()
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def get(self, what: Hashable, seen: SourceState, draw: Callable[[], V]) -> V:
        """The value, from `draw` if it is not cached. Errors of `draw` are raised and not cached."""
        key = (what, seen.place)
        entry = self._find(key, seen)
        if entry is None:
            with self._lock:
                turn = self._drawing.setdefault(key, threading.Lock())
            with turn:
                entry = self._find(key, seen) or self._draw(key, seen, draw)
        if entry.is_outdated(seen) and time.monotonic() - entry.drawn >= MAX_AGE_SECONDS:
            self._redraw_later(key, seen, draw)
        return entry.value

    def known(self, what: Hashable, seen: SourceState) -> V | None:
        """The value if `get` would return it without drawing."""
        entry = self._find((what, seen.place), seen)
        return None if entry is None else entry.value

    def _find(self, key: Hashable, seen: SourceState) -> _Entry[V] | None:
        """The entry, if it may be shown."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is None or not entry.is_outdated(seen):
            return entry
        return entry if entry.seen.names <= seen.names and self._is_useful(entry.value) else None

    def _draw(self, key: Hashable, seen: SourceState, draw: Callable[[], V]) -> _Entry[V]:
        try:
            value = draw()
            entry = _Entry(value, seen, self._size(value), time.monotonic())
            with self._lock:
                self._drop(key)
                self._entries[key] = entry
                self.bytes += entry.size
                while self.bytes > self._max_bytes and len(self._entries) > 1:
                    self._drop(next(iter(self._entries)))
            return entry
        finally:
            with self._lock:
                self._drawing.pop(key, None)

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        self.bytes -= entry.size if entry else 0

    def _redraw_later(self, key: Hashable, seen: SourceState, draw: Callable[[], V]) -> None:
        user = acting()

        def work() -> None:
            try:
                with acting_as(user):
                    self._draw(key, seen, draw)
            except Exception as error:  # the next page draws it, and shows the error
                log.error("%s could not be redrawn", key, exc_info=error)
                with self._lock:
                    self._drop(key)
            with self._lock:
                self._queued.discard(key)

        with self._lock:
            if key in self._queued:
                return
            self._queued.add(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="figure-cache", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def _work(self) -> None:
        while True:
            work = self._queue.get()
            begun = time.monotonic()
            work()
            del work  # it refers to runs
            time.sleep(time.monotonic() - begun)
