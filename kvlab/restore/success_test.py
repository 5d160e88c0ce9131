"""What a rerun has to write for its answer to count as restored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvlab.analysis.comparison.verdict import answer_tokens, judge
from kvlab.common.answer_match import find_answer


@dataclass(frozen=True)
class Wanted:
    """`answer`, or one of `others`, anywhere; or, without one, the first tokens `ids` of the full cache's text."""

    answer: str | None
    ids: tuple[int, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """All that is right."""
        return () if self.answer is None else (self.answer, *self.others)

    def is_there(self, ids: list[int], texts: list[str]) -> bool:
        """Whether this continuation holds what is wanted."""
        if self.answer is not None:
            return any(judge(texts, one).kind == "right" for one in self.answers)
        return tuple(ids[: len(self.ids)]) == self.ids

    def ended(self, decode: Callable[[list[int]], str]) -> Callable[[list[int]], bool]:
        """Says of a continuation so far that more of it can change nothing."""

        def ended(ids: list[int]) -> bool:
            if self.answer is None:
                return tuple(ids) != self.ids[: len(ids)] or len(ids) >= len(self.ids)
            text = decode(ids)
            found = filter(None, (find_answer(text, one) for one in self.answers))
            return any(stop < len(text.rstrip("\ufffd")) for _, stop in found)

        return ended

    def rows(self, texts: list[str]) -> tuple[int, int]:
        """(first, last) token of the full cache's continuation that its answer is."""
        last = max(len(self.ids) - 1, 0)
        return next(filter(None, (answer_tokens(texts, one) for one in self.answers)), (last, last))


def first_difference(own: list[int], reference: list[int]) -> int | None:
    """Index of the first token in which a continuation leaves the full cache's; None where it does not."""
    pairs = enumerate(zip(own, reference, strict=False))
    short = min(len(own), len(reference))
    place = next((index for index, (mine, theirs) in pairs if mine != theirs), short)
    return None if place == len(reference) else place
