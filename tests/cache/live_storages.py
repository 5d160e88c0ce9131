"""What the tables of a cache take at their worst moment, from the storages that torch makes and frees, operation by
operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvlab.core.cache import CompressedCache


@dataclass
class _Storage:
    reference: StorageWeakRef
    bytes: int
    born: int
    died: int | None = None
    of_cache: bool = False


class LiveStorages(TorchDispatchMode):
    """Notes, while it is entered, when each storage was made and freed, and which ones were ever part of `cache`.

    A table that is being filled counts from its first tensor on, one that was replaced until torch frees it.
    """

    def __init__(self, cache: CompressedCache) -> None:
        super().__init__()
        self.caches = WeakSet([cache])  # copies of the cache may be added
        self.now = 0
        self.storages: list[_Storage] = []
        self.alive: dict[int, _Storage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._look(result)
        return result

    def peak(self) -> int:
        """The most bytes of storages of the cache that were alive at once; called after the mode was left."""
        self._look(())
        cached = [one for one in self.storages if one.of_cache]
        changes = sorted(
            [(one.born, 1, one.bytes) for one in cached]
            + [(one.died, 0, -one.bytes) for one in cached if one.died is not None]
        )
        most = held = 0
        for _, _, change in changes:
            held += change
            most = max(most, held)
        return most

    def _look(self, made: Any) -> None:
        self.now += 1
        for key, one in list(self.alive.items()):
            if one.reference.expired():
                one.died = self.now
                del self.alive[key]
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._known(tensor)
        for cache in list(self.caches):
            for tensor in _tensors_of(cache):
                self._known(tensor).of_cache = True

    def _known(self, tensor: Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference.cdata not in self.alive:
            self.alive[reference.cdata] = _Storage(reference, storage.nbytes(), self.now)
            self.storages.append(self.alive[reference.cdata])
        return self.alive[reference.cdata]


def _tensors_of(cache: CompressedCache) -> Iterator[Tensor]:
    """Tensors of all tables: keys, values, metadata, codes and per-head state."""
    for layer in cache.compressed_layers():
        for table in layer.tables:
            for value in vars(table).values():
                yield from _tensors_in(value)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors_in(part)
    elif hasattr(value, "varying_columns") and hasattr(value, "position"):
        for part in vars(value).values():
            yield from _tensors_in(part)
