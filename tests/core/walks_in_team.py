"""The same decision by one thread and by several, for a process that may keep threads."""

from __future__ import annotations

from copy import deepcopy
from unittest.mock import patch

import torch

from kvlab.cache import decision_compiled, walks
from kvlab.cache.on_host import _smallest

HEADS, SLOTS, WIDTH = 2, walks.SLOTS_EACH, 8


def compare(kind: int) -> None:
    """Print whether both leave the same table."""
    torch.set_num_threads(2)
    if not walks.has_team():
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
    whole = walks.Walk.walk

    def told(walk: walks.Walk, threads: int, *given: object) -> None:
        walked.append(threads)
        whole(walk, threads, *given)

    with patch.object(walks.Walk, "walk", told):
        decision_compiled.decide(several)
        torch.set_num_threads(1)
        decision_compiled.decide(one)
    assert walked == [2, 1], walked
    assert int((one.position < 0).sum()) == HEADS
    for name in ("keys", "values", "position", "votes", "dropped", "left", "merged", "average", "score"):
        ours, theirs = getattr(several, name), getattr(one, name)
        assert (ours is None) == (theirs is None) and (ours is None or torch.equal(ours, theirs)), name
    print("the same")
