"""Groups of caches that read contexts together, and the results of those whose method did not raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kvlab.cache import CompressedCache
from kvlab.cache.fan_out.fan_out_layer import Branch
from kvlab.evaluate.shared_prompt import SharedPrompt, sharing_groups

Result = TypeVar("Result")


def in_groups(
    caches: Sequence[CompressedCache], measure: Callable[[list[CompressedCache]], list[Result]]
) -> list[Result]:
    """The results of all caches in their order; `measure` gets those that share passes together."""
    found: dict[int, Result] = {}
    for group in sharing_groups(caches):
        found |= zip(group, measure([caches[number] for number in group]), strict=True)
    return [found[number] for number in range(len(caches))]


def results(shared: SharedPrompt, found: Mapping[Branch, Result]) -> list[Result | Exception]:
    """The result of each branch, or its error."""
    return [found[branch] if branch.error is None else branch.error for branch in shared.branches]
