"""Pooling in windows: as many passes as it takes, window after window."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from kvlab.core.methods.merging.pyramid_pool import pool_windows


def pooled_slowly(there: int, need: int, window: int) -> list[list[int]]:
    """The groups that are left of `there` slots, one pass at a time."""
    groups = [[rank] for rank in range(there)]
    while need > 0 and len(groups) > 1:
        whole = min(-(-need // (window - 1)), len(groups) // window)
        size, count = (window, whole) if whole else (min(need + 1, len(groups)), 1)
        joined = [list(chain(*groups[place * size : (place + 1) * size])) for place in range(count)]
        need -= count * (size - 1)
        groups = joined + groups[count * size :]
    return groups


@pytest.mark.parametrize("window", [2, 3, 4, 7])
@pytest.mark.parametrize("width", [1, 2, 5, 8, 21])
def test_windows_are_pooled_until_as_few_are_left_as_asked_for(width: int, window: int) -> None:
    cases = [(there, need) for there in range(width + 1) for need in range(width + 3)]
    exists = torch.arange(width) < torch.tensor([there for there, _ in cases])[None, :, None]
    need = torch.tensor([need for _, need in cases])[None]
    found = pool_windows(exists, need, window)
    for place, (there, wanted) in enumerate(cases):
        groups = pooled_slowly(there, wanted, window)
        assert found.group[0, place, :there].tolist() == [
            number for number, ranks in enumerate(groups) for _ in ranks
        ], (there, wanted)
        weight = found.plain_weight[0, place]
        assert all(float(weight[ranks].sum()) == pytest.approx(1.0) for ranks in groups)
