"""What the harness asks, in tokens: contexts with the continuations that are scored after them. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvlab.common.errors import UserError

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """A context and the continuations that are scored after it, with where in the list of requests each one stood."""

    context: Tokens
    continuations: tuple[Tokens, ...]
    places: tuple[int, ...]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the context and the longest continuation."""
        return len(self.context) + max(map(len, self.continuations))


def in_window(context: Sequence[int], continuation: Sequence[int], window: int) -> tuple[Tokens, Tokens]:
    """The pair with the context's start cut off where both do not fit: the last token is only predicted, never read.

    The harness's own rule. Raises UserError for a continuation that leaves no room for a context.
    """
    if len(continuation) > window:
        raise UserError(
            f"A continuation of {len(continuation):,} tokens does not fit the model's window of {window:,}: "
            "choose another task or model."
        )
    most = window + 1 - len(continuation)
    return tuple(context[max(0, len(context) - most) :]), tuple(continuation)


def together(pairs: Sequence[tuple[Tokens, Tokens]]) -> list[Asked]:
    """Continuations of one context together, contexts in the order of their first request."""
    places: dict[Tokens, list[int]] = {}
    for place, (context, _) in enumerate(pairs):
        places.setdefault(context, []).append(place)
    return [Asked(context, tuple(pairs[i][1] for i in found), tuple(found)) for context, found in places.items()]


def of_one_text(pairs: Sequence[tuple[Tokens, Tokens]]) -> list[Asked]:
    """Requests that feed the same tokens together: those whose continuations differ in the last token only."""
    places: dict[tuple[Tokens, Tokens], list[int]] = {}
    for place, (context, continuation) in enumerate(pairs):
        places.setdefault((context, continuation[:-1]), []).append(place)
    return [Asked(pairs[found[0]][0], tuple(pairs[i][1] for i in found), tuple(found)) for found in places.values()]


def of_equal_length(asked: Sequence[Asked], whole: bool, rows: int) -> Iterator[list[Asked]]:
    """Batches of at most `rows` whose contexts are of one length, the longest first; `whole`: context and continuation.

    The longest first, so that memory runs out at once if it does.
    """
    lengths: dict[int, list[Asked]] = {}
    for one in asked:
        lengths.setdefault(one.prompt_tokens if whole else len(one.context), []).append(one)
    for _, alike in sorted(lengths.items(), reverse=True):
        yield from (alike[start : start + rows] for start in range(0, len(alike), rows))
