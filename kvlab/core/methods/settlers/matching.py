"""Attention Matching: fit kept slots so that reference queries get the mass and output of the whole prompt."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from kvlab.core.contract import Capabilities, Plan, SecondPassRequest, Selector, ValueShift, View, gather
from kvlab.core.methods.settlers.edges import first_of
from kvlab.core.methods.settlers.global_ridge import top_share
from kvlab.core.methods.settlers.observed_queries import Observed
from kvlab.core.stores.store import QUERY_SQUARES, keys_as_held

FALLBACK = 32  # last queries of the prompt used without other references
TINY = 1e-12
LEAST_RIDGE = 1e-6  # keeps systems solvable; the authors' fallback
POWER_ROUNDS = 8  # of the iteration for the largest eigenvalue
SMALL_RIDGE = 1e-3  # below it float32 rounding decides the result


@dataclass(frozen=True)
class MatchAttention:
    """Eviction, then a least-squares log mass (bias) and value per kept slot over reference queries.

    References are `references` of the second pass's queries and the prompt's last `window`, each of the latter counting
    `window_weight` times. With A (N, S) their attention to the prompt's slots and K the kept slots:

    - bias: w minimizes ||A_K w - 1||^2 + r ||w - 1||^2, clamped to [exp(-box), exp(box)] and improved by `steps`
      projected gradient steps; log w is added to log mass;
    - values: V' minimizes ||X V' - A V||^2 + r ||V' - V||^2, with X = A_K w normalized to rows of sum 1.

    Each r is `ridge` (for values `value_ridge` if given) times the mean square of a kept slot's column. The share
    `untouched` of K with the highest scores keeps its values. The `newest` slots of the prompt keep mass and value,
    because future tokens attend to them unlike any reference. `flat` weights a query in the fit of w by the squared
    ratio of its attention's sum to its maximum, as the authors' code does by dividing exp logits by the row's maximum.
    """

    counts_votes: ClassVar[bool] = False
    still: ClassVar[bool] = True

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
    second_pass: SecondPassRequest | None = None
    newest: int = 0
    value_ridge: float | None = None
    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        """A slot is one token; with `bias` it has its own log mass. Decoding evicts."""
        return Capabilities(
            prompt_rows=lambda tokens: self.window or FALLBACK,
            second_pass=self.second_pass,
            fills_budget=True,
            by_selector=True,
            merges=self.bias,
            mass_of_votes=None,
        )

    def settle(self, view: View, select: Selector) -> Plan:
        """Evict, and fit log mass and values of kept slots; decoding only evicts."""
        slots = view.slots
        victims = select.victims(view, view.excess(), view.most_excess)
        keep = victims.keep(slots.valid)
        if view.phase == "decode" or not (self.bias or self.values):
            return Plan(keep, lost=victims.votes(slots.votes))
        index, stays = first_of(keep, min(view.largest_budget, keep.shape[-1]))
        observed = observe(view, self.references, self.window, self.window_weight)
        if view.store.packs:  # the same queries and outputs, with attention to the quantized keys
            kept = slots.with_columns(valid=keep)
            rotary = view.layer_pass.rotary
            squares = view.head_state.get(QUERY_SQUARES)
            turn = None if rotary is None else rotary.turn
            keys = keys_as_held(view.store, kept.keys, kept.in_text(), kept.live(), turn, kept.position, squares)
            held = replace(view, slots=slots.with_columns(keys=keys), layer_pass=view.layer_pass.of_keys(keys))
            others = observe(held, self.references, self.window, self.window_weight)
            observed = replace(observed, mass=others.mass * (others.normalizer - observed.normalizer).exp())
        roots = observed.weight.sqrt()
        if self.flat:
            roots = roots / observed.mass.amax(-1).clamp_min(TINY)  # the sum of exp logits with maximum 1
        observed = observed.of_slots(index)
        values = gather(slots.values, index).float()
        earlier = slots.position < (view.tokens_seen - self.newest)[:, None, None]
        # a row within its budget is unchanged, whatever the other rows
        over = (view.excess() > 0).any(-1)[:, None, None]
        fitted = stays & earlier.gather(2, index) & over
        weight = self.mass_weights(observed, roots, stays, fitted) if self.bias else torch.ones_like(values[..., 0])
        shift = None
        log_mass = None
        if self.values:
            free = fitted & ~top_share(slots.score.gather(2, index), stays, self.untouched)
            shift = ValueShift(index, self.amounts(values, observed, stays, free, weight))
        if self.bias:
            log_mass = slots.log_mass.scatter_add(2, index, weight.log())
        return Plan(keep, lost=victims.votes(slots.votes), value_shift=shift, log_mass=log_mass)

    def mass_weights(self, observed: Observed, roots: Tensor, stays: Tensor, fitted: Tensor) -> Tensor:
        """Weights w (B, H, K) of the kept slots that are `fitted`; 1 elsewhere.

        Queries count `roots` (B, 1 or H, N) squared.
        """
        rows = observed.mass * stays[:, :, None] * roots[..., None]
        whole = (1 - observed.beside) * roots[..., None]
        fitted_rows = rows * fitted[:, :, None]
        gap = whole - rows.sum(-1, keepdim=True)
        low, high = torch.tensor([-self.box, self.box]).exp().tolist()
        weight = (1 + ridge_step(fitted_rows, gap, self.ridge, fitted)[..., 0]).clamp(low, high)
        # Upper estimate of the largest eigenvalue of the rows' products: power iteration from ones, plus a tenth.
        vector = torch.ones_like(fitted_rows[..., 0, :, None])
        for _ in range(POWER_ROUNDS):
            vector = fitted_rows.mT @ (fitted_rows @ vector)
            vector = vector / vector.norm(dim=2, keepdim=True).clamp_min(TINY)
        step = 1 / (1.1 * (fitted_rows @ vector).square().sum((2, 3)).clamp_min(TINY))
        for _ in range(self.steps):
            wrong = (rows @ weight[..., None] - whole).mT @ fitted_rows  # (B, H, 1, K)
            weight = (weight - step[..., None] * wrong[:, :, 0]).clamp(low, high)
        return torch.where(fitted, weight, 1.0)

    def amounts(self, values: Tensor, observed: Observed, stays: Tensor, free: Tensor, weight: Tensor) -> Tensor:
        """Amounts (B, H, K, d) added to values (B, H, K, d) of `free` slots, given mass weights (B, H, K)."""
        roots = observed.weight.sqrt()[..., None]
        mass = observed.mass * (stays * weight)[:, :, None]
        kept = mass / (mass.sum(-1, keepdim=True) + observed.beside).clamp_min(TINY)
        gap = (observed.output - kept @ values) * roots
        ridge = self.ridge if self.value_ridge is None else self.value_ridge
        return ridge_step(kept * free[:, :, None] * roots, gap, ridge, free) * free[..., None]


def observe(view: View, references: int, window: int, window_weight: float) -> Observed:
    """The kept second pass queries and the prompt's last ones; the latter only if there are no others."""
    kept = view.references if references else None
    if kept is None:
        return Observed.last_queries(view, window or FALLBACK)
    observed = Observed.of_queries(view, kept.query, kept.real)
    if not window:
        return observed
    newest = Observed.last_queries(view, window)
    return observed.with_more(replace(newest, weight=newest.weight * window_weight))


def ridge_step(rows: Tensor, gap: Tensor, ridge: float, fitted: Tensor) -> Tensor:
    """W (B, H, S, d) that minimizes ||rows W - gap||^2 + r ||W||^2 for `rows` (B, H, N, S), `gap` (B, H, N, d).

    r is `ridge`, at least `LEAST_RIDGE`, times the mean over the slots `fitted` (B, H, S) of a slot's sum of squares.
    Computed in float64 below `SMALL_RIDGE` if the device supports it.
    """
    if ridge < SMALL_RIDGE and rows.dtype == torch.float32 and rows.device.type != "mps":
        return ridge_step(rows.double(), gap.double(), ridge, fitted).float()
    wide = rows.shape[-1] > rows.shape[-2]
    gram = rows @ rows.mT if wide else rows.mT @ rows
    scale = gram.diagonal(dim1=-2, dim2=-1).sum(-1) / fitted.sum(-1).clamp_min(1)
    damped = gram + (max(ridge, LEAST_RIDGE) * scale + TINY)[..., None, None] * torch.eye(
        gram.shape[-1], dtype=gram.dtype, device=gram.device
    )
    return rows.mT @ torch.linalg.solve(damped, gap) if wide else torch.linalg.solve(damped, rows.mT @ gap)
