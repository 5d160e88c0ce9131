"""A mode under which nothing may be read from the device, and no shape may depend on what lies there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"_local_scalar_dense", "item", "equal", "is_nonzero"}
DATA_DEPENDENT = {"nonzero", "masked_select", "unique", "_unique2", "unique_consecutive", "bincount", "nonzero_numpy"}

PINS = {"_pin_memory", "pin_memory", "is_pinned"}
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class NoReading(TorchDispatchMode):
    """Raises AssertionError for operations that wait for the device or whose result's shape depends on values.

    On a GPU the first would stall the host and neither could be captured in a CUDA graph; nor could numbers drawn at
    random, whose state lies on the host, nor memory pinned. Also keeps the shapes of everything computed in `shapes`,
    to be compared between steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], given: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        name = operation.overloadpacket.__name__
        assert name not in READS, f"{name} reads a number from the device"
        assert name not in DATA_DEPENDENT, f"the shape of what {name} gives depends on values"
        # A dropout of nothing, as every model in eval mode has, draws nothing.
        idle = "scaled_dot_product" in name or (name == "dropout" and (given[1] == 0 or not given[2]))
        seeded = torch.Tag.nondeterministic_seeded in operation.tags and not idle
        assert not seeded, f"{name} draws from a generator's state"
        assert name not in PINS and not (named or {}).get("pin_memory"), f"{name} takes pinned memory"
        if operation._overloadname in ("Tensor", "self_Tensor") and name == "repeat_interleave":
            assert (named or {}).get("output_size") is not None, f"the shape of what {name} gives depends on values"
        if name in INDEXES:
            kinds = [index.dtype for index in given[1] if isinstance(index, torch.Tensor)]
            assert not {torch.bool, torch.uint8} & set(kinds), "indexing with a mask looks for where it is true"
        result = operation(*given, **(named or {}))
        if isinstance(result, torch.Tensor):
            self.shapes.append((name, tuple(result.shape)))
        return result
