"""Attention of one layer in one pass as scorers read it: computed in row blocks, always float32."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.attention.layer_pass import LARGEST, SQUARES, SUMS, LayerPass
from kvlab.core.attention.low_rank_state import MassBesideState
from kvlab.core.attention.queries import output_weight, position_factor, project_queries
from kvlab.core.attention.slot_attention import probabilities, slot_logits
from kvlab.core.attention.tiles import Tiles
from kvlab.core.contract.view import Slots
from kvlab.core.errors import UserError

KEY_BLOCK = 4096


@dataclass
class PassView(LayerPass):
    """A pass as scorers read it: attention to slots, logits, projected queries, and passes derived from it."""

    def column_mass(self, rows: int | None = None, row_weight: Tensor | None = None) -> Tensor:
        """Attention (B, H, S) from the last `rows` queries (default all), weighted by `row_weight` ([B,] rows).

        Mean over the group, computed one tile of queries and slots at a time.
        """
        if self.num_new == 1 and row_weight is None:
            return self.last_mass()
        first = self._first_row(rows)
        weight = self._row_weights(first, row_weight)
        results = self.results
        together = results is not None and (results.knows(SUMS) or len(results.row_weights) > 1)
        if results is not None and together and self.row_valid is None and not self.has_state:
            # If these weights were announced, the sum is computed with all others that caches have announced.
            given = self.query.new_ones(1, self.num_new - first, dtype=torch.float32) if weight is None else weight
            place = results.place_of(pad(given[0], (first, 0))) if len(given) == 1 else None
            if place is not None:
                weights = [weight[None] for weight in results.row_weights]
                sums = self._once(SUMS, lambda: self._tiles().weighted_sums(0, weights, self._normalizers))
                return sums[place]
        return self._once(
            ("column_mass", first),
            lambda: self._statistics().weighted_sums(first, [weight], self._normalizers)[0],
            weight,
        )

    def column_max(self, rows: int | None = None, slots: int | None = None, row_weight: Tensor | None = None) -> Tensor:
        """Largest attention (B, H, S) a slot gets from any of the group's last `rows` queries (default all).

        Each query's is multiplied by its `row_weight` ([B,] rows) first. With `slots`, only for the first ones; the
        rest is undefined.
        """
        first = self._first_row(rows)
        weight = self._row_weights(first, row_weight)
        return self._once(
            (LARGEST, first, slots),
            lambda: self._statistics().column_max(first, weight, self._normalizers, slots),
            weight,
        )

    def column_rms(self, rows: int | None = None, slots: int | None = None) -> Tensor:
        """Root mean square (B, H, S) of the attention from the last `rows` real queries; `slots` as in `column_max`."""
        first = self._first_row(rows)
        real = self._row_weights(first)
        squares = self._once(
            (SQUARES, first, slots),
            lambda: self._statistics().weighted_sums(first, [real], self._normalizers, True, slots)[0],
        )
        count = self.num_new - first if real is None else real.sum(-1).clamp_min(1)[:, None, None]
        return (squares / count).sqrt()

    def _statistics(self) -> Tiles | MassBesideState:
        """The tiles that compute statistics of the slots. A cache with a low-rank state shares no results."""
        return MassBesideState(self.share, self.num_new) if self.has_state else self._tiles()

    def _first_row(self, rows: int | None) -> int:
        return self.num_new - min(rows or self.num_new, self.num_new)

    def _row_weights(self, first: int, given: Tensor | None = None) -> Tensor | None:
        """Weights (B or 1, q - first) float32 of the queries from row `first` on, 0 for padding; None if all are 1."""
        weight = None if given is None else given.reshape(-1, given.shape[-1])[:, first - self.num_new :]
        if self.row_valid is None:
            return weight
        real = self.row_valid[:, first:].float()
        return real if weight is None else weight * real

    def last_logits(self, rows: int = 1) -> Tensor:
        """Logits (B, H, G, rows, S) of the last `rows` queries without log mass.

        -inf at hidden slots, and in rows of padding, which in a later turn could see all older slots.
        """
        return self._once(("last_logits", rows), lambda: self._visible_logits(rows))

    def _visible_logits(self, rows: int) -> Tensor:
        logits = self._last_logits if rows == 1 else None
        if logits is None:
            logits = self._logits(self._first_row(rows), self.num_new)
        if self.bias is not None:
            logits = logits.masked_fill(torch.isneginf(self.bias)[:, :, :, None], float("-inf"))
        if self.row_valid is not None:
            logits = logits.masked_fill(~self.row_valid[:, None, None, -logits.shape[3] :, None], float("-inf"))
        return logits

    def project_queries(self, hidden_states: Tensor, position: Tensor | None = None) -> Tensor:
        """Queries (B, Hq, n, d) projected from `hidden_states` (B, n, hidden), not rotated.

        Includes the position-dependent factor of some models for queries at `position` (B,).
        """
        if self.module is None:
            raise UserError("This method projects queries with the model's weights, so it only runs inside a model.")
        query = project_queries(self.module, hidden_states)
        factor = None if position is None else position_factor(self.module, position)
        return query if factor is None else query * factor[:, None, None, None].to(query.dtype)

    def recalled_queries(self, rows: int) -> tuple[Tensor, Tensor]:
        """The `rows` newest queries (B, Hq, r, d) and their positions (B, r), negative before the text."""
        assert self.recalled is not None, "only kept if the pipeline's `recalled` is positive"
        query, query_position = self.recalled
        return query[:, :, -rows:], query_position[:, -rows:]

    def recalled_logits(self, position: Tensor, rows: int) -> Tensor:
        """Their logits (B, H, G, r, S), -inf for a query before the slot's `position` (B, H, S)."""
        query, query_position = self.recalled_queries(rows)
        logits = self.logits_of(query)
        query_position = query_position[:, None, None, :, None]
        return logits.masked_fill((position[:, :, None, None] > query_position) | (query_position < 0), float("-inf"))

    def recalled_mass(self, position: Tensor, rows: int) -> Tensor:
        """Their attention (B, H, G, r, S) now; 0 for rows before the text."""
        return probabilities(self.recalled_logits(position, rows), self.bias, self.sinks).nan_to_num(0.0)

    def output_weight(self) -> Tensor:
        """Slice (B or 1, Hq, d, hidden) of the output projection for each query head."""
        if self.module is None:
            raise UserError("This method uses the model's output projection, so it only runs inside a model.")
        if self.members is None:
            return output_weight(self.module, self.query.shape[1])[None]
        members, total = self.members()
        group = self.query.shape[1] // members.shape[1]
        of_groups = output_weight(self.module, total * group).unflatten(0, (total, group))
        return self.of_heads(of_groups).flatten(1, 2)

    @property
    def layer_heads(self) -> int:
        """Number of KV heads of the layer, those in other tables included."""
        return self.key.shape[1] if self.members is None else self.members()[1]

    def of_heads(self, numbers: Tensor) -> Tensor:
        """Rows (B or 1, H, ...) of `numbers` (KV heads of the layer, ...) for the heads of this pass."""
        return numbers[None] if self.members is None else numbers[self.members()[0]]

    def logits_of(self, query: Tensor) -> Tensor:
        """Logits (B, H, G, n, S) of arbitrary queries (B, Hq, n, d), without log mass, -inf at invalid slots.

        There is no causal order, and all queries have the position of the last one; with ALiBi, later queries would get
        the same attention. Keys are processed in blocks.
        """
        blocks = [
            slot_logits(query, key, first=0, rows=1, scaling=self.scaling, softcap=self.softcap)
            for key in self.key.split(KEY_BLOCK, dim=2)
        ]
        logits = torch.cat(blocks, -1)
        if self.alibi is not None:
            logits = logits + replace(self.alibi, queries=self.alibi.queries[:, :, -1:]).rows(0, 1) * self.scaling
        hidden = None if self.bias is None else torch.isneginf(self.bias)[:, :, :, None]
        return logits if hidden is None else logits.masked_fill(hidden, float("-inf"))

    def of_keys(self, key: Tensor) -> PassView:
        """The same pass with other keys (B, H, S, d) in the slots."""
        return replace(self, key=key, _last_logits=None, _last_mass=None)

    def logits_at(self, key: Tensor, position: Tensor) -> Tensor:
        """Logits (B, H, G, 1, S) of the last query at other keys (B, H, S, d) with `position` (B, H, S)."""
        query = self.query[:, :, -1:]
        alibi = None
        blocks = []
        for part, place in zip(key.split(KEY_BLOCK, 2), position.split(KEY_BLOCK, 2), strict=True):
            if self.alibi is not None:
                alibi = replace(self.alibi, slots=place, queries=self.alibi.queries[:, :, -1:])
            blocks.append(
                slot_logits(query, part, first=0, rows=1, scaling=self.scaling, softcap=self.softcap, alibi=alibi)
            )
        return torch.cat(blocks, -1) if blocks[1:] else blocks[0]

    def logits_at_slots(self, slots: Slots) -> Tensor:
        """Logits (B, H, G, 1, S) of the last query at a table of these heads, without log mass."""
        return self.logits_at(slots.keys, slots.position)

    def kept_logits(self, slots: int) -> Tensor | None:
        """Logits (B, H, G, 1, S) of a single query at this pass's `slots` if attention kept them; else None."""
        kept = self._last_logits
        return kept if kept is not None and kept.shape[-1] == slots and self.alibi is None else None

    def kept_mass(self, slots: int) -> Tensor | None:
        """Attention (B, H, S) of a single query to this pass's `slots` if attention kept it; else None.

        None too for a query that also attends to a low-rank state.
        """
        if self.num_new > 1 or self.has_state:
            return None
        kept = self._last_mass if self.read is None else self.last_mass()
        return kept if kept is not None and kept.shape[-1] == slots else None

    def share_read(self) -> Tensor | None:
        """Share (B, H, S) of the group's query heads that read each slot; None if all slots were read."""
        return None if self.read is None else self.read.share_read(self.key.shape[2])

    def place_bias(self, index: Tensor, rows: int = 1) -> Tensor | None:
        """ALiBi bias (B, H, G * rows, E) of the last queries at slots `index` (B, H, E); None without ALiBi."""
        if self.alibi is None:
            return None
        there = replace(self.alibi, slots=self.alibi.slots.gather(2, index))
        return there.rows(self.num_new - rows, self.num_new).flatten(2, 3) * self.scaling

    @property
    def moves_logits(self) -> bool:
        """Whether a slot's position changes its logits (ALiBi)."""
        return self.alibi is not None

    def up_to(self, tokens: int) -> PassView:
        """The pass as if the text had ended after `tokens` tokens without evictions; log mass is left out."""
        states = self.hidden_states
        alibi = self.alibi
        rows = self.num_new - (self.key.shape[2] - tokens)
        return replace(
            self,
            query=self.query[:, :, :rows],
            key=self.key[:, :, :tokens],
            hidden_states=None if states is None else states[:, :rows],
            bias=None,
            alibi=alibi and replace(alibi, slots=alibi.slots[:, :, :tokens], queries=alibi.queries[:, :, :rows]),
            _last_logits=None,
            _last_mass=None,
        )

    def newest(self, rows: int) -> PassView:
        """A copy with the last `rows` queries only, which frees the others."""
        if rows >= self.num_new:
            return replace(self)
        alibi = self.alibi
        valid = self.row_valid
        return replace(
            self,
            query=self.query[:, :, -rows:].clone(),
            row_valid=None if valid is None else valid[:, -rows:],
            alibi=None if alibi is None else replace(alibi, queries=alibi.queries[:, :, -rows:]),
        )

    def last_mass(self) -> Tensor:
        """Attention (B, H, S) of the last query, mean over the group; 0 at slots that sparse attention left out."""
        if self._last_mass is None and self.read is not None:
            self._last_mass = self.read.mass_of(self.key.shape[2])
        if self._last_mass is None:
            row = self.num_new - 1
            if self.has_state:
                self._last_mass = self.share(row, row + 1).slots[:, :, :, 0].mean(2)
            else:
                self._last_mass = self._once(
                    "last_mass",
                    lambda: probabilities(self._logits(row, row + 1), self.bias, self.sinks)[:, :, :, 0].mean(2),
                )
        return self._last_mass

    def of_slots(self) -> PassView:
        """The same pass without the low-rank state, so that attention sums to 1 over the slots."""
        return replace(self, low_rank=None, _last_mass=None) if self.has_state else self

    def rows_seen(self, rows: int | None = None) -> Tensor:
        """Number (B or 1, 1, S) of the last `rows` real queries that could see each slot."""
        return self._once(("rows_seen", rows), lambda: self._count_rows(rows))

    def _count_rows(self, rows: int | None) -> Tensor:
        rows = min(rows or self.num_new, self.num_new)
        real = self._row_weights(self.num_new - rows)
        real = torch.ones(1, rows, device=self.key.device) if real is None else real
        columns = torch.arange(self.key.shape[2], device=self.key.device)
        first_row = (columns - (self.key.shape[2] - rows)).clamp_min(0)
        from_row_on = real.flip(-1).cumsum(-1).flip(-1)  # (B, rows): real rows at or after each row
        return from_row_on[:, first_row][:, None]
