"""GRKV: evict, and refit the kept slots so that the newest queries get their previous outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.core.contract import Capabilities, NewKeys, Plan, Selector, ValueShift, View, gather, log_total
from kvlab.core.methods.settlers.edges import first_of
from kvlab.core.methods.settlers.observed_queries import Observed


@dataclass(frozen=True)
class GlobalRidge:
    """Eviction, then one ridge regression per head over the kept slots (GRKV).

    O are the previous outputs of the last `rows` queries, X (N, c) their attention to the c kept slots. Values become V
    + X' (X X' + `ridge` I)^-1 (O - X V): the smallest change, in that norm, that restores O. The share `untouched` of
    the kept slots with the highest scores keeps values and keys. With `refit_keys`, keys move first by a step of the
    same kind, with a linearized softmax: for each query the smallest change of its logits that restores O, then the
    smallest change of keys for these. Keys are unchanged with soft-capped logits.
    """

    rows: int = 32
    ridge: float = 0.01
    untouched: float = 0.1
    refit_keys: bool = True
    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            prompt_rows=lambda tokens: self.rows, recalls=self.rows, fills_budget=True, by_selector=True
        )

    def settle(self, view: View, select: Selector) -> Plan:
        """Evict, and set new values (and keys) of kept slots."""
        slots = view.slots
        victims = select.victims(view, view.excess(), view.most_excess)
        keep = victims.keep(slots.valid)
        index, there = first_of(keep, min(view.largest_budget, keep.shape[-1]))  # (B, H, E): the kept slots
        free = there & ~top_share(gather(slots.score, index), there, self.untouched)
        observed = Observed.newest(view, self.rows)
        roots = observed.weight.sqrt()[..., None]  # 0 for padding
        columns = index[:, :, None].expand(-1, -1, observed.logits.shape[2], -1)
        logits = (observed.logits + slots.log_mass[:, :, None]).gather(3, columns)
        logits = logits.masked_fill(~there[:, :, None], -torch.inf)
        value = gather(slots.values, index).float()
        new_keys = None
        if self.refit_keys and view.layer_pass.softcap is None:
            query = Observed.asked_by(view, self.rows) * view.layer_pass.scaling
            mass = self._mass(view, logits)
            now = mass @ value  # (B, H, N, d)
            # Changing a logit by x changes the output by x * mass * (value - now), one matrix (d, E) per query.
            second = mass.square()
            inner = (second[..., None, :] * value.mT[:, :, None]) @ value[:, :, None]
            crossed = (second @ value)[..., None] * now[..., None, :]
            gram = inner - crossed - crossed.mT + second.sum(-1)[..., None, None] * now[..., None] * now[..., None, :]
            solved = _solve(gram, self.ridge, (observed.output - now)[..., None])[..., 0]  # (B, H, N, d)
            wanted = mass * (solved @ value.mT - (solved * now).sum(-1, keepdim=True))  # (B, H, N, E) of logits
            moved = ridge_step(query * roots, wanted * roots, self.ridge).mT  # changes of keys (B, H, E, d)
            shift = moved * free[..., None]
            new_keys = NewKeys(index, gather(slots.keys, index).float() + shift)
            logits = logits + query @ shift.mT
        mass = self._mass(view, logits)
        gap = (observed.output - mass @ value) * roots
        amount = ridge_step(mass * roots * free[:, :, None], gap, self.ridge)
        return Plan(keep, lost=victims.votes(slots.votes), value_shift=ValueShift(index, amount), new_keys=new_keys)

    def _mass(self, view: View, logits: Tensor) -> Tensor:
        """Attention (B, H, N, E) of queries with these logits, including a learned sink."""
        group = view.layer_pass.query.shape[1] // logits.shape[1]
        total = log_total(logits.unflatten(2, (group, -1)), view.layer_pass.sinks).flatten(2, 3)
        return (logits - total).exp().nan_to_num(0.0)


def top_share(score: Tensor, kept: Tensor, share: float) -> Tensor:
    """The given share of the `kept` slots (B, H, E) that has the highest scores."""
    rank = score.masked_fill(~kept, -torch.inf).argsort(stable=True, dim=-1, descending=True).argsort(-1)
    return kept & (rank < (kept.sum(-1, keepdim=True) * share).long())


def ridge_step(rows: Tensor, gap: Tensor, ridge: float) -> Tensor:
    """W (..., c, d) that minimizes ||rows W - gap||^2 + ridge ||W||^2: `rows` (..., N, c), `gap` (..., N, d)."""
    return rows.mT @ _solve(rows @ rows.mT, ridge, gap)


def _solve(gram: Tensor, ridge: float, gap: Tensor) -> Tensor:
    """(gram + ridge I)^-1 gap in float64, because similar queries with a small ridge are too ill-conditioned for
    float32.
    """
    damped = gram.double() + ridge * torch.eye(gram.shape[-1], dtype=torch.float64, device=gram.device)
    return torch.linalg.solve(damped, gap.double()).float()
