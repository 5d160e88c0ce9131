"""Counts what a layer of the cache asks of a device: on a GPU each operation costs a launch, however small it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from kvlab.core.cache import CompressedCache

# What gives a tensor another shape or takes memory for it, and launches nothing.
FREE = {
    *("view", "expand", "slice", "select", "unsqueeze", "squeeze", "transpose", "t", "permute", "as_strided", "detach"),
    *("alias", "_unsafe_view", "_reshape_alias", "split", "split_with_sizes", "unbind", "unfold", "diagonal"),
    *("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "lift_fresh"),
}


class Operations(TorchDispatchMode):
    """Operations by name, in `counts`, while `counting`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.counting = False

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], given: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        name = operation.overloadpacket.__name__
        if self.counting and name not in FREE:
            self.counts[name] += 1
        return operation(*given, **(named or {}))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing counts for a while."""
        before, self.counting = self.counting, False
        yield
        self.counting = before

    def note(self, name: str) -> None:
        """One that torch does not dispatch, such as a kernel of one's own."""
        self.counts[name] += self.counting


@contextmanager
def of_the_cache(cache: CompressedCache) -> Iterator[Operations]:
    """Count what appending, attention, scores and decisions take; the model's own layers are left out."""
    operations, layers = Operations(), cache.compressed_layers()
    for layer in layers:
        layer.update, layer.attend = (_counted(operations, work) for work in (layer.update, layer.attend))
    try:
        with operations:
            yield operations
    finally:
        for layer in layers:
            del layer.update, layer.attend


def _counted(operations: Operations, work: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*given: Any, **named: Any) -> Any:
        operations.counting = True
        try:
            return work(*given, **named)
        finally:
            operations.counting = False

    return counted
