"""The residual stream as a cache follows it, for methods that score tokens by its changes.

Each of two or more depths keeps the state of the newest token only. A pass gives each new token one change a depth, and
the method's rule makes one score of them, once for all layers and heads. Layers that lie before a depth decide before
the pass gets there, so every layer uses the scores of tokens before its pass, and all layers decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.core.contract.token_scores import ROUNDING, ResidualRule, TokenScores
from kvlab.core.errors import UserError


def depths_of(rule: ResidualRule, num_layers: int, last: int) -> tuple[int, ...]:
    """Numbers of decoder layers after which the stream is read, each below the next and at most `last`.

    `last` is the index of the last compressed layer, which must still come after. Raises UserError for a model with too
    few layers before it.
    """
    depths = [round(share * num_layers) for share in rule.depths]
    for place in reversed(range(len(depths))):
        depths[place] = min(depths[place], last - (len(depths) - 1 - place))
    if depths[0] < 0 or not num_layers:
        raise UserError(
            f"This method reads the residual stream at {len(depths)} depths before the last compressed layer, and this "
            "model has too few layers: choose another method."
        )
    return tuple(depths)


@dataclass
class ResidualStream:
    """State of the residual stream over the text so far: one vector a depth, and the last `window - 1` changes."""

    rule: ResidualRule
    depths: tuple[int, ...]
    state_bytes: int  # of one row's state at one depth
    last: dict[int, Tensor] = field(default_factory=dict)  # (B, hidden) of the newest token, by depth
    arrived: dict[int, Tensor] = field(default_factory=dict)  # changes (B, q) of the pass that is under way
    changes: Tensor | None = None  # (B, depths, window - 1), newest last
    count: Tensor | None = None  # (B,) how many of these belong to tokens
    scores: list[TokenScores] = field(default_factory=list)  # of the last two passes

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes once it has been read: its states, the last changes, and their number."""
        return len(self.depths) * (self.state_bytes + 4 * (self.rule.window - 1)) + 8

    @property
    def nbytes(self) -> int:
        """Bytes of the states and changes that later passes need; scores of the last passes are not among them."""
        more = [tensor for tensor in (self.changes, self.count) if tensor is not None]
        return sum(tensor.nbytes for tensor in (*self.last.values(), *more))

    def forget(self) -> None:
        """Begin another text."""
        self.last = {}
        self.arrived = {}
        self.changes = None
        self.count = None
        self.scores = []

    def copy(self) -> ResidualStream:
        """The same, to go on apart; tensors are never changed in place."""
        return ResidualStream(
            self.rule,
            self.depths,
            self.state_bytes,
            dict(self.last),
            dict(self.arrived),
            self.changes,
            self.count,
            [*self.scores],
        )

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Select, repeat or permute rows."""
        self.last = {depth: change(state) for depth, state in self.last.items()}
        self.changes = None if self.changes is None else change(self.changes)
        self.count = None if self.count is None else change(self.count)
        self.scores = [scores.map_rows(change) for scores in self.scores]

    def scores_at(self, end: int) -> TokenScores | None:
        """The scores of the tokens of the pass that ended at logical length `end`; None if there was none."""
        return next((scores for scores in self.scores if scores.end == end), None)

    def follow(
        self, given: Sequence[tuple[int, Tensor]], real: Tensor | None, tokens_seen: Tensor, end: int, in_prompt: bool
    ) -> None:
        """Take the states (B, q, hidden) that a pass gives at some depths, and score its tokens after the last depth.

        `real` (B, q) is false for padding, `tokens_seen` (B,) includes the pass, which ends at logical length `end`.
        """
        begun = None if real is None else tokens_seen > real.sum(-1)
        for depth, states in given:
            if depth in self.depths:
                self.arrived[depth], self.last[depth] = _changes(states, self.last.get(depth), real, begun)
        if len(self.arrived) == len(self.depths):
            changes = torch.stack([self.arrived[depth] for depth in self.depths], 1)
            self.arrived = {}
            self.scores = [*self.scores[-1:], self._scored(changes, real, tokens_seen, end, in_prompt)]

    def _scored(
        self, changes: Tensor, real: Tensor | None, tokens_seen: Tensor, end: int, in_prompt: bool
    ) -> TokenScores:
        if in_prompt and not self.rule.of_prompt:
            return TokenScores(changes.new_full((len(changes), 1), torch.nan), tokens_seen - 1, end)
        rows = changes.shape[2]
        before = self.rule.window - 1
        if self.changes is None or self.count is None:
            self.changes = changes.new_zeros(*changes.shape[:2], before)
            self.count = torch.zeros(len(changes), dtype=torch.int64, device=changes.device)
        new = torch.full_like(self.count, rows) if real is None else real.sum(-1)
        own = _at_the_end(rows, new)
        old = _at_the_end(before, self.count)
        joined = torch.cat([self.changes, changes], 2)
        there = torch.cat([old, own], 1)
        if real is not None:  # what does not exist moves to the front
            order = there.to(torch.uint8).argsort(stable=True, dim=-1)
            there = there.gather(1, order)
            joined = joined.gather(2, order[:, None].expand_as(joined))
        score = self.rule.score(joined.unfold(2, before + 1, 1), there.unfold(1, before + 1, 1))
        if real is not None:
            score = score.masked_fill(~own, torch.nan)
        self.changes = joined[:, :, rows:].clone()
        self.count = (self.count + new).clamp_max(before)
        return TokenScores(score, tokens_seen - rows, end)


def _at_the_end(columns: int, count: Tensor) -> Tensor:
    """Mask (B, columns) of the last `count` (B,) columns."""
    return torch.arange(columns, 0, -1, device=count.device) <= count[:, None]


def _changes(states: Tensor, last: Tensor | None, real: Tensor | None, begun: Tensor | None) -> tuple[Tensor, Tensor]:
    """Changes (B, q) float32 of the states (B, q, hidden), those of padding first, and the newest state (B, hidden).

    `last` (B, hidden) is the state before; with padding, `begun` (B,) says which rows have one.
    """
    if states.dim() == 4:  # several streams (K, B, q, hidden), as in Gemma 3n
        states = states.movedim(0, 2).flatten(2)
    joined = torch.cat([states[:, :1] if last is None else last[:, None].to(states), states], 1)
    if real is not None and begun is not None:
        order = torch.cat([begun[:, None], real], 1).to(torch.uint8).argsort(stable=True, dim=-1)
        joined = joined.gather(1, order[..., None].expand_as(joined))
    steps = joined[:, 1:] - joined[:, :-1]
    wide = torch.promote_types(steps.dtype, torch.float32)  # a sum of squares in a wider type, never in a narrower one
    changes, lengths = (torch.linalg.vector_norm(rows, dim=-1, dtype=wide).float() for rows in (steps, joined[:, 1:]))
    changes = torch.where(changes > lengths * ROUNDING, changes, 0.0)
    if real is not None and begun is not None:
        tokens = real.sum(-1)
        followed = _at_the_end(real.shape[1], tokens - (~begun).long())  # a text's first token has none before it
        changes = torch.where(followed, changes, 0.0)
    return changes, joined[:, -1].clone()
