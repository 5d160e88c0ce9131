"""The same decision by one thread and by several, for a process that may keep threads."""

from __future__ import annotations

from copy import deepcopy
from unittest.mock import patch

import torch

from kvlab.core.cache.kernels import numba_inplace, numba_threads
from kvlab.core.cache.kernels.cpu import _smallest

HEADS, SLOTS, WIDTH = 2, numba_threads.SLOTS_EACH, 8


def compare(kind: int) -> None:
    """Print whether both leave the same table."""
    torch.set_num_threads(2)
    if not numba_threads.has_team():
        print("no team here")
        return
    generator = torch.Generator().manual_seed(kind)
    one = _smallest(kind, torch.randn(1, HEADS, SLOTS, WIDTH, generator=generator))
    one.mass = torch.rand(1, HEADS, SLOTS, generator=generator)
    if one.average is not None:
        one.average.copy_(one.mass.log())
    if one.residual is not None:
        one.residual[..., :9] = True
    several, walked = deepcopy(one), list[int]()
    whole = numba_threads.Walk.walk

    def told(walk: numba_threads.Walk, threads: int, *given: object) -> None:
        walked.append(threads)
        whole(walk, threads, *given)

    with patch.object(numba_threads.Walk, "walk", told):
        numba_inplace.decide(several)
        torch.set_num_threads(1)
        numba_inplace.decide(one)
    assert walked == [2, 1], walked
    assert int((one.position < 0).sum()) == HEADS
    for name in ("keys", "values", "position", "votes", "evicted_votes", "left", "merged", "average", "score"):
        ours, theirs = getattr(several, name), getattr(one, name)
        assert (ours is None) == (theirs is None) and (ours is None or torch.equal(ours, theirs)), name
    print("the same")
