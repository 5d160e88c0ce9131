"""Attention Matching: what stays is fitted so that chosen queries get from it the mass and the output of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvlab.methods.core.contract import Capabilities, Selector
from kvlab.methods.core.plan import Plan, ValueShift
from kvlab.methods.core.second_pass import Rehearsal
from kvlab.methods.core.view import View
from kvlab.methods.settlers.edges import at
from kvlab.methods.settlers.residuals.observed_queries import Observed
from kvlab.stores.store import as_held

FALLBACK = 32  # last queries of the prompt, where no others are to be had
TINY = 1e-12
LEAST_RIDGE = 1e-6  # keeps systems solvable; the authors' fallback
SMALL_RIDGE = 1e-3  # below it float32's rounding decides the result


@dataclass(frozen=True)
class MatchAttention:
    """Eviction; then a log mass (bias) and a value for each slot that stays, least squares over reference queries.

    The references are `references` of the rehearsal's queries and the prompt's last `window`, each of these counting
    `window_weight` times. With A (N, S) their attention to the prompt's slots and K what stays:

    - bias: w minimises ||A_K w - 1||^2 + r ||w - 1||^2, is held within exp(-box) and exp(box), improved by `steps`
      projected gradient steps, and log w is added to log mass;
    - values: V' minimises ||X V' - A V||^2 + r ||V' - V||^2, X being A_K w with rows of sum 1.

    Each r is `ridge`, that of values `value_ridge` where given, times the mean square that a slot of K gets. The share
    `untouched` of K with the highest scores keeps its values. The `newest` slots of the prompt keep mass and value: the
    tokens to come read them as no reference does. `flat` lets a query count by the sum of its attention over its
    largest, squared, in the fit of w: what the authors' code does by dividing exp logits by the row's largest.
    """

    references: int = 256
    window: int = 0
    window_weight: float = 1.0
    bias: bool = True
    values: bool = True
    ridge: float = 0.1
    untouched: float = 0.0
    box: float = 3.0
    steps: int = 2
    flat: bool = False
    rehearsal: Rehearsal | None = None
    newest: int = 0
    value_ridge: float | None = None
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """A slot is one token; with `bias` it has a log mass of its own. Decoding evicts."""
        return Capabilities(
            prompt_rows=self.prompt_rows,
            rehearsal=self.rehearsal,
            references=self.references,
            fills_budget=True,
            merges=self.bias,
            mass_of_votes=None,
            counts_votes=False,
            still=True,
        )

    def prompt_rows(self, tokens: int) -> int:
        """The window's."""
        return self.window or FALLBACK

    def settle(self, view: View, select: Selector) -> Plan:
        """Evictions, log mass and values of what stays; while decoding nothing but evictions."""
        slots = view.slots
        victims = select.victims(view, view.excess(), view.most_excess)
        keep = victims.keep(slots.valid)
        if view.phase == "decode" or not (self.bias or self.values):
            return Plan(keep, lost=victims.votes(slots.votes))
        index = _first(keep, min(view.largest_budget, keep.shape[-1]))
        observed = observe_held(view, keep, self.references, self.window, self.window_weight)
        heard = observed.weight.sqrt()
        if self.flat:
            heard = heard / observed.mass.amax(-1).clamp_min(TINY)  # the sum of exp logits, the largest being 1
        observed = observed.of_slots(index)
        stays, values = keep.gather(2, index), at(slots.values, index).float()
        earlier = slots.position < (view.tokens_seen - self.newest)[:, None, None]
        over = (view.excess() > 0).any(-1)[:, None, None]  # a row that fits is left alone, whoever stands beside it
        fitted = stays & earlier.gather(2, index) & over
        weight = self.mass_weights(observed, heard, stays, fitted) if self.bias else torch.ones_like(values[..., 0])
        shift, log_mass = None, None
        if self.values:
            free = fitted & ~_best(slots.score.gather(2, index), stays, self.untouched)
            shift = ValueShift(index, self.amounts(values, observed, stays, free, weight))
        if self.bias:
            log_mass = slots.log_mass.scatter_add(2, index, weight.log())
        return Plan(keep, lost=victims.votes(slots.votes), value_shift=shift, log_mass=log_mass)

    def mass_weights(self, observed: Observed, heard: Tensor, stays: Tensor, fitted: Tensor) -> Tensor:
        """(B, H, K) w of those of the slots that stay that are `fitted`; 1 elsewhere.

        Queries count `heard` (B, 1 or H, N) squared.
        """
        rows = observed.mass * stays[:, :, None] * heard[..., None]
        whole, own = (1 - observed.beside) * heard[..., None], rows * fitted[:, :, None]
        gap = whole - rows.sum(-1, keepdim=True)
        low, high = torch.tensor([-self.box, self.box]).exp().tolist()
        weight = (1 + ridge_step(own, gap, self.ridge, fitted)[..., 0]).clamp(low, high)
        step = 1 / largest_eigenvalue(own)
        for _ in range(self.steps):
            wrong = (rows @ weight[..., None] - whole).mT @ own  # (B, H, 1, K)
            weight = (weight - step[..., None] * wrong[:, :, 0]).clamp(low, high)
        return torch.where(fitted, weight, 1.0)

    def amounts(self, values: Tensor, observed: Observed, stays: Tensor, free: Tensor, weight: Tensor) -> Tensor:
        """(B, H, K, d) what is added to values (B, H, K, d) of slots that are `free`, with mass weights (B, H, K)."""
        heard, mass = observed.weight.sqrt()[..., None], observed.mass * (stays * weight)[:, :, None]
        kept = mass / (mass.sum(-1, keepdim=True) + observed.beside).clamp_min(TINY)
        gap = (observed.output - kept @ values) * heard
        ridge = self.ridge if self.value_ridge is None else self.value_ridge
        return ridge_step(kept * free[:, :, None] * heard, gap, ridge, free) * free[..., None]


def _first(keep: Tensor, most: int) -> Tensor:
    """(B, H, most) indices of the slots that stay, in order, and then of others."""
    return (~keep).to(torch.uint8).argsort(stable=True, dim=-1)[..., :most]


def _best(score: Tensor, stays: Tensor, share: float) -> Tensor:
    """(B, H, K) bool: the slots whose values are left as they are."""
    rank = score.masked_fill(~stays, -torch.inf).argsort(stable=True, dim=-1, descending=True).argsort(-1)
    return stays & (rank < (stays.sum(-1, keepdim=True) * share).long())


def observe(view: View, references: int, window: int, window_weight: float) -> Observed:
    """The rehearsal's queries that were kept and the prompt's last ones; these alone where there are no others."""
    kept = view.references if references else None
    if kept is None:
        return Observed.of(view, window or FALLBACK)
    observed = Observed.of_queries(view, kept.query, kept.real)
    return observed.with_more(Observed.of(view, window).weighing(window_weight)) if window else observed


def observe_held(view: View, keep: Tensor, references: int, window: int, window_weight: float) -> Observed:
    """As `observe`, with the attention to the keys of `keep` (B, H, S) as they will be held, where slots are packed."""
    observed = observe(view, references, window, window_weight)
    if not view.store.packs:
        return observed
    kept = view.slots.with_columns(valid=keep)
    keys = as_held(view.store, view.store.keys, kept.keys, kept.in_text(), kept.live())
    held = replace(view, slots=view.slots.with_columns(keys=keys), seen=view.seen.of_keys(keys))
    return observed.through(observe(held, references, window, window_weight))


def ridge_step(rows: Tensor, gap: Tensor, ridge: float, of: Tensor) -> Tensor:
    """(B, H, S, d) the W that minimises ||rows W - gap||^2 + r ||W||^2 for `rows` (B, H, N, S), `gap` (B, H, N, d).

    r is `ridge`, at least `LEAST_RIDGE`, times the mean over the slots `of` (B, H, S) of the sum of a slot's squares.
    Worked out in float64 below `SMALL_RIDGE`, where the device has it.
    """
    if ridge < SMALL_RIDGE and rows.dtype == torch.float32 and rows.device.type != "mps":
        return ridge_step(rows.double(), gap.double(), ridge, of).float()
    wide = rows.shape[-1] > rows.shape[-2]
    gram = rows @ rows.mT if wide else rows.mT @ rows
    scale = gram.diagonal(dim1=-2, dim2=-1).sum(-1) / of.sum(-1).clamp_min(1)
    damped = gram + (max(ridge, LEAST_RIDGE) * scale + TINY)[..., None, None] * torch.eye(
        gram.shape[-1], dtype=gram.dtype, device=gram.device
    )
    return rows.mT @ torch.linalg.solve(damped, gap) if wide else torch.linalg.solve(damped, rows.mT @ gap)


def largest_eigenvalue(rows: Tensor, rounds: int = 8) -> Tensor:
    """(B, H) of rows' rows, from above: power iteration from ones, whose estimate is then raised by a tenth."""
    vector = torch.ones_like(rows[..., 0, :, None])
    for _ in range(rounds):
        vector = rows.mT @ (rows @ vector)
        vector = vector / vector.norm(dim=2, keepdim=True).clamp_min(TINY)
    return 1.1 * (rows @ vector).square().sum((2, 3)).clamp_min(TINY)
