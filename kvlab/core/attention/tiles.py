"""Attention statistics of a pass computed in tiles, without a queries x slots tensor.

Tiles above the diagonal are skipped, no tile is computed twice, and memory is one tile for any text length.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.attention.alibi import Alibi
from kvlab.core.stores.quantized_states import PackedStates, States, products, weighted_sum

NEVER = float("-inf")
# Query rows and elements per tile: on a CPU it should fit a core's cache.
TILE = {"cpu": (128, 2**18)}
LARGE_TILE = 1024, 2**26
FEWEST_COLUMNS = 64
# Attention with its statistics holds whole rows of attention: two tensors of so many numbers, at least of these rows.
ROW_NUMBERS = 2**20
FEWEST_ROWS = 16


Statistic = tuple[Tensor | list[Tensor] | None, float]  # with the seconds that it took; None: not wanted


@dataclass(frozen=True)
class Tiles:
    """q queries over S slots, the last q of which are the queries' own; query i sees slots up to S - q + i."""

    query: Tensor  # (B, Hq, q, d)
    key: States  # (B, H, S, d)
    bias: Tensor | None  # (B, H, 1 or G, S) float32, -inf where a slot is invalid
    scaling: float
    softcap: float | None = None
    alibi: Alibi | None = None
    sinks: Tensor | None = None  # (B, H, G) logits of learned sinks

    def weighted_sums(
        self,
        first: int,
        weights: Sequence[Tensor | None],
        normalizers: Tensor | None,
        squared: bool = False,
        slots: int | None = None,
    ) -> list[Tensor]:
        """Attention (B, H, S) float32 each slot gets from queries from row `first` on, mean over the group.

        One sum for each of `weights` (B or 1, q - first), which multiply each query's, of tiles that are computed once.
        `normalizers` (B, H, G, q) are log-sum-exps from the fused kernel; computed first if None. `squared`: sums of
        squares. With `slots`, only for the first ones: 0 elsewhere.

        Tiles begin at multiples of their height, so that a sum is the same whichever others are computed with it.
        """
        group = self.query.shape[1] // self.key.shape[1]
        start = first - first % self._shape[0] if any(weight is not None for weight in weights) else first
        whole = [weight if weight is None else pad(weight, (first - start, 0)) for weight in weights]
        batch, heads, columns_of_all = self.key.shape[:3]
        totals = [torch.zeros(batch, heads, 1, columns_of_all, device=self.key.device) for _ in weights]
        for rows, columns, mass in self._masses(start, normalizers, slots):
            mass = mass.square_() if squared else mass
            for total, weight in zip(totals, whole, strict=True):
                share = mass.new_full((1, 1, 1, mass.shape[2]), 1 / group)
                if weight is not None:
                    share = (weight[:, rows.start - start : rows.stop - start] / group).repeat(1, group)[:, None, None]
                    share = share.to(mass.dtype)
                total[..., columns] += share.expand(*mass.shape[:2], -1, -1) @ mass
        return [total[:, :, 0] for total in totals]

    def column_max(
        self, first: int, real: Tensor | None, normalizers: Tensor | None, slots: int | None = None
    ) -> Tensor:
        """Largest attention (B, H, S) float32 each slot gets from one query of the group, from row `first` on.

        Only `real` queries (B or 1, q - first) count; with `slots`, only the first ones: 0 elsewhere.
        """
        batch, heads, columns_of_all = self.key.shape[:3]
        most = torch.zeros(batch, heads, 1, columns_of_all, device=self.key.device)
        group = self.query.shape[1] // self.key.shape[1]
        for rows, columns, mass in self._masses(first, normalizers, slots):
            if real is not None:
                mass *= real[:, rows.start - first : rows.stop - first].repeat(1, group)[:, None, :, None]
            torch.maximum(most[..., columns], mass.amax(2, keepdim=True), out=most[..., columns])
        return most[:, :, 0]

    def _masses(
        self, first: int, normalizers: Tensor | None, slots: int | None
    ) -> Iterator[tuple[slice, slice, Tensor]]:
        """(rows, columns, attention (B, H, G * r, c)) of each tile from row `first` on, over the first `slots`."""
        wide = None  # keys (B, H, d + 1, S) float32 with a coordinate of 1, where the product can subtract
        if self.softcap is None and not isinstance(self.key, PackedStates) and not _in_own_type(self.key):
            ones = self.key.new_ones(*self.key.shape[:3], 1, dtype=torch.float32)
            wide = torch.cat([self.key.float(), ones], -1).transpose(-1, -2)
        for rows in self._rows(first):
            if normalizers is None:
                parts = [torch.logsumexp(self.logits(rows, columns), -1) for columns in self._columns(rows)]
                whole = torch.logsumexp(torch.stack(parts), 0)
            else:
                whole = normalizers[..., rows]
            whole = self._beside(whole).flatten(2)[..., None].float()  # (B, H, G * r, 1)
            for columns in self._columns(rows, slots):
                yield rows, columns, self.logits(rows, columns, whole, wide).flatten(2, 3).exp_()

    def attention(self, value: States) -> tuple[Tensor, Tensor]:
        """(output (B, Hq, q, d), log-sum-exps (B, H, G, q) float32 without learned sinks), one tile at a time.

        Tiles are combined with an online softmax, as in FlashAttention.
        """
        outputs = []
        normalizers = []
        for rows in self._rows(0):
            total = whole = None
            for columns in self._columns(rows):
                logits = self.logits(rows, columns)
                block = torch.logsumexp(logits, -1, keepdim=True)
                mass = (logits - block.masked_fill(torch.isneginf(block), 0.0)).exp_()
                part = weighted_sum(mass.flatten(2, 3), value, columns).unflatten(2, mass.shape[2:4])
                if total is None or whole is None:
                    total = part
                    whole = block
                else:
                    both = torch.logaddexp(whole, block)
                    shift = both.masked_fill(torch.isneginf(both), 0.0)
                    total = total * (whole - shift).exp() + part * (block - shift).exp()
                    whole = both
            assert total is not None and whole is not None
            beside = self._beside(whole[..., 0])
            shift = whole.masked_fill(torch.isneginf(whole), 0.0) - beside[..., None]
            outputs.append((total * shift.exp()).flatten(1, 2).to(self.query.dtype))
            normalizers.append(whole[..., 0])
        return torch.cat(outputs, 2), torch.cat(normalizers, -1)

    def attention_with_statistics(
        self,
        value: Tensor,
        weights: Sequence[Tensor],
        largest: int | None,
        squares: int | None,
        now: Callable[[], float],
    ) -> tuple[Tensor, tuple[Statistic, Statistic, Statistic]]:
        """Attention (B, Hq, q, d), and what scorers want to know of it, from rows of attention that are computed once.

        Sums (B, H, S) float32 by `weights`, (q,) each, mean over the group; the largest (B, H, `largest`) of each of so
        many first slots, over the group too; their sums of squares (B, H, `squares`), its mean. For float32 states on a
        CPU without bias, soft-capping, ALiBi and sinks. Of prompts of 1,024 to 4,096 tokens (one thread, 9 query and 3
        KV heads of width 64) it takes 1.0 to 1.3 times as long as the fused kernel, which with sums in tiles takes 1.9.
        """
        assert isinstance(self.key, Tensor), "packed states have no rows to multiply"
        batch, heads, columns_of_all, _ = self.key.shape
        rows_of_all = self.query.shape[2]
        group = self.query.shape[1] // heads
        offset = columns_of_all - rows_of_all
        query = self.query.unflatten(1, (heads, group)).flatten(0, 1) * self.scaling  # (B * H, G, q, d)
        keys = self.key.flatten(0, 1).transpose(-1, -2)
        values = value.flatten(0, 1)
        output = query.new_empty(*query.shape[:3], values.shape[-1])
        factors = torch.stack([weight.to(query.dtype) for weight in weights]) / group if weights else None  # (n, q)
        sums = query.new_zeros(batch * heads, len(weights), columns_of_all)
        most = query.new_zeros(batch * heads, 1, largest or 0)
        squared = query.new_zeros(batch * heads, 1, squares or 0)
        seconds = [0.0, 0.0, 0.0]
        step = max(ROW_NUMBERS // (batch * heads * group * columns_of_all), FEWEST_ROWS)
        for first in range(0, rows_of_all, step):
            last = min(first + step, rows_of_all)
            reach = offset + last
            logits = query[:, :, first:last].flatten(1, 2) @ keys[..., :reach]
            later = torch.ones(last - first, last - first, dtype=torch.bool, device=query.device).triu_(1)
            logits.unflatten(1, (group, -1))[..., offset + first :].masked_fill_(later, NEVER)
            mass = torch.softmax(logits, -1)  # (B * H, G * r, reach)
            output[:, :, first:last] = (mass @ values[:, :reach]).unflatten(1, (group, -1))
            times = [now()]
            if factors is not None:
                share = factors[:, first:last].repeat(1, group).expand(batch * heads, -1, -1)
                sums[..., :reach].baddbmm_(share, mass)
            times.append(now())
            if largest is not None:
                end = min(largest, reach)
                torch.maximum(most[..., :end], mass[..., :end].amax(1, keepdim=True), out=most[..., :end])
            times.append(now())
            if squares is not None:
                end = min(squares, reach)
                share = mass.new_full((batch * heads, 1, mass.shape[1]), 1 / group)
                squared[..., :end].baddbmm_(share, mass[..., :end].square())
            times.append(now())
            seconds = [total + end - begun for total, begun, end in zip(seconds, times, times[1:], strict=False)]
        found = (
            [one.unflatten(0, (batch, heads)) for one in sums.unbind(1)] or None,
            None if largest is None else most[:, 0].unflatten(0, (batch, heads)),
            None if squares is None else squared[:, 0].unflatten(0, (batch, heads)),
        )
        of_sums, of_largest, of_squares = zip(found, seconds, strict=True)
        return output.unflatten(0, (batch, heads)).flatten(1, 2), (of_sums, of_largest, of_squares)

    def _beside(self, normalizers: Tensor) -> Tensor:
        """Add learned sinks, and replace -inf so that a query without visible slots attends to nothing."""
        if self.sinks is not None:
            normalizers = torch.logaddexp(normalizers, self.sinks.float()[..., None])
        return normalizers.masked_fill(torch.isneginf(normalizers), torch.inf)

    def logits(self, rows: slice, columns: slice, less: Tensor | None = None, wide: Tensor | None = None) -> Tensor:
        """Logits (B, H, G, r, c) float32 with log mass, -inf above the diagonal, minus `less` (B, H, G * r, 1).

        With `wide` keys, whose last coordinate is 1, the matrix product subtracts `less`, which saves a pass over the
        tile.
        """
        block_query = self.query[:, :, rows].unflatten(1, (self.key.shape[1], -1))  # (B, H, G, r, d)
        if wide is not None and less is not None:
            logits = torch.cat([block_query.flatten(2, 3).float() * self.scaling, -less], -1) @ wide[..., columns]
        else:
            rows_of_heads = block_query.flatten(2, 3)
            if isinstance(self.key, PackedStates) or not _in_own_type(rows_of_heads):
                logits = products(rows_of_heads.float() * self.scaling, self.key, columns)
            else:  # 16-bit states on a GPU are multiplied in 16 bits, summed in float32
                keys = self.key[:, :, columns].flatten(0, 1).transpose(-1, -2)
                logits = torch.bmm(rows_of_heads.flatten(0, 1), keys, out_dtype=torch.float32).mul_(self.scaling)
                logits = logits.unflatten(0, rows_of_heads.shape[:2])
        if self.softcap is not None:
            logits = logits.div_(self.softcap).tanh_().mul_(self.softcap)
        if less is not None and wide is None:
            logits -= less
        logits = logits.unflatten(2, block_query.shape[2:4])
        if self.alibi is not None:
            logits += (
                replace(self.alibi, slots=self.alibi.slots[:, :, columns]).rows(rows.start, rows.stop) * self.scaling
            )
        if self.bias is not None:
            logits += self.bias[:, :, :, None, columns]
        offset = self.key.shape[2] - self.query.shape[2]
        if columns.stop > offset + rows.start + 1:  # on the diagonal
            row = torch.arange(rows.start, rows.stop, device=logits.device)[:, None] + offset
            logits.masked_fill_(torch.arange(columns.start, columns.stop, device=logits.device) > row, NEVER)
        return logits

    def _rows(self, first: int) -> Iterator[slice]:
        last = self.query.shape[2]
        step = self._shape[0]
        for start in range(first, last, step):
            yield slice(start, min(start + step, last))

    def _columns(self, rows: slice, slots: int | None = None) -> Iterator[slice]:
        end = self.key.shape[2] - self.query.shape[2] + rows.stop
        end = end if slots is None else min(end, slots)
        for start in range(0, end, self._shape[1]):
            yield slice(start, min(start + self._shape[1], end))

    @property
    def _shape(self) -> tuple[int, int]:
        rows, numbers = TILE.get(self.key.device.type, LARGE_TILE)
        rows = min(rows, self.query.shape[2])
        return rows, max(numbers // (self.query.shape[0] * self.query.shape[1] * rows), FEWEST_COLUMNS)


def _in_own_type(states: Tensor) -> bool:
    return states.device.type == "cuda" and states.dtype in (torch.float16, torch.bfloat16)
