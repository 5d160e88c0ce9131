"""A branch of a fan-out cache: one compressed cache, its rows of the batch, its failure and its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from kvlab.cache.cache import CompressedCache
from kvlab.common.errors import is_out_of_memory

Result = TypeVar("Result")


@dataclass(eq=False)
class Branch:
    """A compressed cache that takes part in shared passes.

    `rows` are its rows of the batch: all of them while branches share a prompt. `seconds` is the time its own layers
    took, `charged` that of results it took over from other branches, which it would have computed alone. `error` ended
    it; other branches go on.
    """

    cache: CompressedCache
    rows: slice = field(default_factory=lambda: slice(None))
    seconds: float = 0.0
    charged: float = 0.0
    error: Exception | None = None

    def own_seconds(self) -> float:
        """Seconds its layers would take alone, including its second pass over the prompt."""
        return self.seconds + self.charged + self.cache.settings.rehearsal_seconds

    def run(self, work: Callable[[], Result], now: Callable[[], float]) -> Result | None:
        """The result of `work`, timed by the clock `now`; None if it fails, which ends this branch.

        Out-of-memory errors pass through, because they concern all branches.
        """
        begun = now()
        try:
            return work()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.error = error
            return None
        finally:
            self.seconds += now() - begun
