"""GRKV: what must go is dropped, and all that stays is refitted so that the newest queries get back what they had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.methods.core.contract import Capabilities, Selector
from kvlab.methods.core.plan import NewKeys, Plan, ValueShift
from kvlab.methods.core.slot_columns import log_total
from kvlab.methods.core.view import View
from kvlab.methods.settlers.edges import at
from kvlab.methods.settlers.residuals.observed_queries import Observed


@dataclass(frozen=True)
class GlobalRidge:
    """Eviction, then one ridge regression a head over the survivors (GRKV).

    O are the outputs of the last `rows` queries before, X (N, c) their attention to the c survivors. Values become
    V + X' (X X' + `ridge` I)^-1 (O - X V): the smallest change, in that norm, that gives O back. The share `untouched`
    of the survivors with the highest scores keeps its values and keys. With `refit_keys` keys move first by one step of
    the same kind, the softmax taken as linear where it is: for each query the smallest change of its logits that gives
    O back, and for these the smallest change of keys. Logits that are capped leave keys alone.
    """

    rows: int = 32
    ridge: float = 0.01
    untouched: float = 0.1
    refit_keys: bool = True
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """The queries that are to get back what they had, of the prompt and while decoding."""
        return Capabilities(prompt_rows=self.prompt_rows, recalls=self.rows, fills_budget=True)

    def prompt_rows(self, tokens: int) -> int:
        """The queries that are to get back what they had."""
        return self.rows

    def settle(self, view: View, select: Selector) -> Plan:
        """Evictions, and new values (and keys) of what stays."""
        slots = view.slots
        victims = select.victims(view, view.excess(), view.most_excess)
        keep = victims.keep(slots.valid)
        most = min(view.largest_budget, keep.shape[-1])
        index = (~keep).to(torch.uint8).argsort(stable=True, dim=-1)[..., :most]  # (B, H, E): the survivors
        there = keep.gather(2, index)
        free = there & ~self._best(at(slots.score, index), there)
        observed = Observed.newest(view, self.rows)
        heard = observed.weight.sqrt()[..., None]  # padding is not
        columns = index[:, :, None].expand(-1, -1, observed.logits.shape[2], -1)
        logits = (observed.logits + slots.log_mass[:, :, None]).gather(3, columns)
        logits = logits.masked_fill(~there[:, :, None], -torch.inf)
        value, new_keys = at(slots.values, index).float(), None
        if self.refit_keys and view.seen.softcap is None:
            query = Observed.asked_by(view, self.rows) * view.seen.scaling
            moved = self._of_keys(self._mass(view, logits), value, observed.output, query, heard)
            shift = moved * free[..., None]
            new_keys = NewKeys(index, at(slots.keys, index).float() + shift)
            logits = logits + query @ shift.mT
        mass = self._mass(view, logits)
        gap = (observed.output - mass @ value) * heard
        amount = ridge_step(mass * heard * free[:, :, None], gap, self.ridge)
        return Plan(keep, lost=victims.votes(slots.votes), value_shift=ValueShift(index, amount), new_keys=new_keys)

    def _mass(self, view: View, logits: Tensor) -> Tensor:
        """(B, H, N, E): attention of queries with these logits; a learned sink takes its part."""
        group = view.seen.query.shape[1] // logits.shape[1]
        total = log_total(logits.unflatten(2, (group, -1)), view.seen.sinks).flatten(2, 3)
        return (logits - total).exp().nan_to_num(0.0)

    def _best(self, score: Tensor, there: Tensor) -> Tensor:
        """(B, H, E) bool: the survivors that are left as they are."""
        rank = score.masked_fill(~there, -torch.inf).argsort(stable=True, dim=-1, descending=True).argsort(-1)
        return rank < (there.sum(-1, keepdim=True) * self.untouched).long()

    def _of_keys(self, mass: Tensor, value: Tensor, output: Tensor, query: Tensor, heard: Tensor) -> Tensor:
        """(B, H, E, d): changes of keys; `query` (B, H, N, d) has the scaling in it."""
        now = mass @ value  # (B, H, N, d)
        # A logit's change by x changes the output by x * mass * (value - now), one matrix (d, E) for each query.
        second = mass.square()
        inner = (second[..., None, :] * value.mT[:, :, None]) @ value[:, :, None]
        crossed = (second @ value)[..., None] * now[..., None, :]
        gram = inner - crossed - crossed.mT + second.sum(-1)[..., None, None] * now[..., None] * now[..., None, :]
        solved = _solved(gram, self.ridge, (output - now)[..., None])[..., 0]  # (B, H, N, d)
        wanted = mass * (solved @ value.mT - (solved * now).sum(-1, keepdim=True))  # (B, H, N, E) of logits
        return ridge_step(query * heard, wanted * heard, self.ridge).mT


def ridge_step(rows: Tensor, gap: Tensor, ridge: float) -> Tensor:
    """(..., c, d) the W that minimises ||rows W - gap||^2 + ridge ||W||^2: `rows` (..., N, c), `gap` (..., N, d)."""
    return rows.mT @ _solved(rows @ rows.mT, ridge, gap)


def _solved(gram: Tensor, ridge: float, gap: Tensor) -> Tensor:
    """(gram + ridge I)^-1 gap, float32. Queries that are alike and a small ridge are more than float32 can solve."""
    damped = gram.double() + ridge * torch.eye(gram.shape[-1], dtype=torch.float64, device=gram.device)
    return torch.linalg.solve(damped, gap.double()).float()
