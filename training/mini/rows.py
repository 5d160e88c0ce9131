"""One training row: BOS, tokens, and a mark for every target (text, an answer, or ignored)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED = 0  # targets that are unpredictable (a stated value) or teach nothing (the words of a question)
TEXT = -1  # real text; answers are numbered 1, 2, ... within their row

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """`tokens` has length + 1 entries; `marks[i]` is the mark of predicting tokens[i + 1]."""

    task: str
    tokens: Tokens
    marks: NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Rows of equal length stacked: tokens (B, T + 1), marks (B, T), one task name per row."""

    tasks: tuple[str, ...]
    tokens: Tokens
    marks: NDArray[np.int64]


class RowBuilder:
    """Collects pieces of tokens with their marks and cuts them to one length."""

    def __init__(self, task: str, bos_token_id: int) -> None:
        self.task = task
        self._tokens: list[int] = [bos_token_id]
        self._marks: list[int] = []
        self._answers = 0

    def add(self, tokens: Sequence[int] | Tokens, mark: int = IGNORED) -> None:
        """Append tokens with the same mark."""
        self._tokens.extend(int(token) for token in tokens)
        self._marks.extend([mark] * len(tokens))

    def add_answer(self, tokens: Sequence[int] | Tokens) -> None:
        """Append the tokens of the next answer."""
        self._answers += 1
        self.add(tokens, self._answers)

    def __len__(self) -> int:
        return len(self._marks)

    def finish(self, length: int) -> Row:
        """The row cut to `length` targets; raises ValueError if there are fewer."""
        if len(self) < length:
            raise ValueError(f"a {self.task} row has {len(self)} targets, {length} are needed")
        return Row(self.task, np.array(self._tokens[: length + 1]), np.array(self._marks[:length]))


def stack(rows: Sequence[Row]) -> Batch:
    """Rows of equal length as one batch."""
    return Batch(
        tuple(row.task for row in rows), np.stack([row.tokens for row in rows]), np.stack([row.marks for row in rows])
    )
