"""What queries saw of a prompt, and what they would see after merging some slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from kvlab.core.contract import Edges, Slots, View, gather, log_total
from kvlab.core.methods.scorers.sampled_queries import FutureQueries
from kvlab.core.methods.settlers.edges import ROW_BLOCK, at_rows, oldest_of_nearest, similarity


@dataclass(frozen=True)
class Observed:
    """Observed queries of one layer, N per KV head, those of its query heads adjacent.

    `logits` (B, H, N, S); `mass` (B, H, N, S), their attention; `normalizer` (B, H, N, 1), the log of its denominator;
    `beside` (B, H, N, 1), attention to a learned sink; `output` (B, H, N, d); `weight` (B, 1, N) of each query, 0 for
    padding; `places` (B, H, N, S), ALiBi's part of the logits up to a constant per query, None without ALiBi. All
    float32.
    """

    logits: Tensor
    mass: Tensor
    normalizer: Tensor
    beside: Tensor
    output: Tensor
    weight: Tensor
    held_back: Tensor  # (N,) bool: every second query, used for validation
    places: Tensor | None = None

    @classmethod
    def last_queries(cls, view: View, rows: int) -> Observed:
        """The last `rows` queries of the pass, each with weight 1."""
        layer_pass = view.layer_pass
        rows = min(rows, layer_pass.num_new)
        logits = layer_pass.last_logits(rows)  # (B, H, G, rows, S)
        # A padding query sees only itself and must have no influence.
        real = (~torch.isneginf(logits[:, 0, 0]).all(-1)).float()
        age = torch.arange(rows - 1, -1, -1, device=logits.device)
        return cls._of_logits(view, logits, real, age % 2 == 1)

    @classmethod
    def newest(cls, view: View, rows: int) -> Observed:
        """As `last_queries` after a prompt; while decoding, the recalled queries if the pipeline keeps any."""
        if view.phase == "prefill" or not view.in_lots:
            return cls.last_queries(view, rows)
        logits = view.layer_pass.recalled_logits(view.slots.position, rows)
        query_position = view.layer_pass.recalled_queries(rows)[1]
        age = torch.arange(query_position.shape[1] - 1, -1, -1, device=logits.device)
        return cls._of_logits(view, logits, (query_position >= 0).float(), age % 2 == 1)

    @staticmethod
    def asked_by(view: View, rows: int) -> Tensor:
        """The queries of `newest` in its order, (B, H, N, d) float32."""
        kept = view.phase == "decode" and view.in_lots
        query = view.layer_pass.recalled_queries(rows)[0] if kept else view.layer_pass.query[:, :, -rows:]
        return query.float().unflatten(1, (view.slots.keys.shape[1], -1)).flatten(2, 3)

    def and_future(self, view: View, future: FutureQueries, sinks: int, weight: float) -> Observed:
        """Add GVote's samples of future queries, with a total weight of `weight` times that of these.

        The samples' Gaussian excludes the first `sinks` tokens.
        """
        slots = view.slots
        layer_pass = view.layer_pass
        inner = (slots.valid & (slots.position.int() >= sinks))[:, 0]
        query = future.draw(layer_pass, inner, view.tokens_seen)
        each = weight * self.weight.sum(-1) / (query.shape[2] * query.shape[1] // slots.keys.shape[1])  # (B, 1)
        return self.with_more(Observed.of_queries(view, query, each.expand(-1, query.shape[2])))

    @classmethod
    def of_queries(cls, view: View, query: Tensor, weight: Tensor) -> Observed:
        """Arbitrary queries (B, Hq, n, d) that see all slots, with `weight` (B, n)."""
        place = torch.arange(query.shape[2], device=query.device)
        return cls._of_logits(view, view.layer_pass.logits_of(query), weight, place % 2 == 1)

    def of_slots(self, index: Tensor) -> Observed:
        """The same queries, with attention and logits of slots `index` (B, H, E) only."""
        places = None if self.places is None else at_rows(self.places, index)
        return replace(self, logits=at_rows(self.logits, index), mass=at_rows(self.mass, index), places=places)

    def with_more(self, more: Observed) -> Observed:
        """These queries and more of the same layer."""
        rows = ("logits", "mass", "normalizer", "beside", "output", *(("places",) if self.places is not None else ()))
        joined = {name: torch.cat([getattr(self, name), getattr(more, name)], 2) for name in rows}
        return replace(
            self,
            **joined,
            weight=torch.cat([self.weight, more.weight], 2),
            held_back=torch.cat([self.held_back, more.held_back]),
        )

    @classmethod
    def _of_logits(cls, view: View, logits: Tensor, weight: Tensor, held_back: Tensor) -> Observed:
        """From logits (B, H, G, n, S), weights (B, n) and the validation mask (n,)."""
        slots, sinks, (group, rows) = view.slots, view.layer_pass.sinks, logits.shape[2:4]
        whole = logits + slots.log_mass[:, :, None, None]
        total = log_total(whole, sinks)
        normalizer = total.masked_fill(torch.isinf(total), 0.0)
        beside = torch.zeros_like(total) if sinks is None else (sinks.float()[..., None, None] - total).exp()
        logits, mass, normalizer, beside = (
            part.flatten(2, 3) for part in (logits, (whole - normalizer).exp(), normalizer, beside)
        )
        every = torch.arange(logits.shape[-1], device=logits.device).expand_as(slots.position)
        places = view.layer_pass.place_bias(every)  # (B, H, G, S): up to a constant, the same for all rows
        places = None if places is None else places.repeat_interleave(rows, 2)
        counts = weight.repeat(1, group)[:, None]
        output = mass @ slots.values.float()
        return cls(logits, mass, normalizer, beside, output, counts, held_back.repeat(group), places)


@dataclass(frozen=True)
class Trial:
    """Outputs and attention of the window's queries with R residual slots."""

    output: Tensor  # (B, H, N, d)
    residual_mass: Tensor  # (B, H, N, R)

    def refit(self, observed: Observed, rows: Tensor, ridge: float) -> Tensor:
        """Amounts (B, H, R, d) to add to residual values so that the chosen queries get their true outputs.

        Closed-form ridge regression over `rows` (N,) bool; `ridge` is relative to the mean squared residual mass of a
        query. Slots without mass get nothing.
        """
        weight = (observed.weight * rows)[..., None]  # (B, 1, N, 1)
        mass = self.residual_mass * weight.sqrt()
        gap = (observed.output - self.output) * weight.sqrt()
        gram = mass @ mass.transpose(-1, -2)  # (B, H, N, N)
        used = weight.sum(2).clamp_min(1)  # (B, 1, 1): padding must not change the strength of the ridge
        scale = (gram.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) / used)[..., None].clamp_min(1e-12)
        damped = gram + ridge * scale * torch.eye(gram.shape[-1], device=gram.device)
        return mass.transpose(-1, -2) @ torch.linalg.solve(damped, gap)

    def error(self, observed: Observed, rows: Tensor, shift: Tensor | None) -> Tensor:
        """Relative output error (B, H) over the chosen queries after adding `shift` (B, H, R, d) to residual values."""
        weight = (observed.weight * rows).sqrt()[..., None]
        output = self.output if shift is None else self.output + self.residual_mass @ shift
        gap = (observed.output - output) * weight
        return gap.flatten(2).norm(dim=-1) / (observed.output * weight).flatten(2).norm(dim=-1).clamp_min(1e-12)


@dataclass(frozen=True)
class Grouping:
    """Assignment of sources (B, H, E) to R residual slots, each around a pivot (B, H, R)."""

    source: Tensor
    active: Tensor  # the source merges
    leaves: Tensor  # the source leaves, merged or evicted
    residual: Tensor  # (B, H, E) index of its residual slot, below R
    pivot: Tensor  # (B, H, R)
    exists: Tensor  # (B, H, R) whether this head has the residual slot

    def shares(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(share of each source (B, H, E), share of each pivot (B, H, R)) in its slot, by `weight` (B, H, S)."""
        source = gather(weight, self.source) * self.active
        pivot = gather(weight, self.pivot)
        total = pivot.scatter_add(2, self.residual, source)
        return source / total.gather(2, self.residual), pivot / total

    def pool(self, of_source: Tensor, of_pivot: Tensor) -> Tensor:
        """Sum each residual slot's parts: (B, H, E, n) and (B, H, R, n) give (B, H, R, n)."""
        index = self.residual[..., None].expand_as(of_source)
        return of_pivot.scatter_add(2, index, of_source * self.active[..., None])

    def trial(
        self, observed: Observed, keep: Tensor, values: Tensor, weight: Tensor, most: Tensor | None = None
    ) -> tuple[Trial, Tensor]:
        """(simulated result over the window, log mass (B, H, R)), with exact mass over the window.

        The log mass is the log of the parts' mass minus that of their mean key, both summed over the window, so that
        the slot gets what its parts got; `most` (B, H, R) bounds it. `keep` (B, H, S) are the unchanged slots.
        """
        share, share_pivot = self.shares(weight)
        logits = self._columns(observed.logits, share, share_pivot)  # (B, H, N, R) of the mean keys
        if observed.places is not None:  # a merged slot has its pivot's position
            there = gather(observed.places.transpose(-1, -2), self.pivot).transpose(-1, -2)
            logits = logits + there - self._columns(observed.places, share, share_pivot)
        parts = self._columns(observed.mass, self.active.float(), torch.ones_like(share_pivot))
        weight_of = observed.weight[..., None]
        normalizer = observed.normalizer
        held = (parts * weight_of).sum(2)
        bare = ((logits - normalizer).exp().nan_to_num() * weight_of).sum(2)
        log_mass = (held.clamp_min(1e-30) / bare.clamp_min(1e-30)).log()
        log_mass = torch.where(self.exists, log_mass if most is None else log_mass.minimum(most), -torch.inf)
        merged = self.pool(
            share[..., None] * gather(values, self.source).float(),
            share_pivot[..., None] * gather(values, self.pivot).float(),
        )
        kept = observed.mass * keep[:, :, None]
        residual = (logits - normalizer + log_mass[:, :, None]).exp().nan_to_num()
        total = (kept.sum(-1, keepdim=True) + residual.sum(-1, keepdim=True) + observed.beside).clamp_min(1e-30)
        output = (kept @ values.float() + residual @ merged) / total
        return Trial(output, residual / total), log_mass

    def edges(self, view: View, weight: Tensor, log_mass: Tensor) -> Edges:
        """The merges, averaged by `weight` (B, H, S), with new log mass (B, H, R)."""
        slots = view.slots
        share, share_pivot = self.shares(weight)
        target = self.pivot.gather(2, self.residual)
        target_weight = share_pivot.gather(2, self.residual)
        keys, target_keys = (gather(slots.keys, ends).float() for ends in (self.source, target))
        return Edges(
            source=self.source,
            target=target,
            active=self.active,
            key_weight=share,
            value_weight=share,
            self_key_weight=target_weight,
            self_value_weight=target_weight,
            votes_after=self.sums(slots.votes).gather(2, self.residual),
            log_mass_after=log_mass.gather(2, self.residual),
            score_after=self.sums(slots.score).gather(2, self.residual),
            similarity=cosine_similarity(keys, target_keys, dim=-1),
        )

    def sums(self, values: Tensor) -> Tensor:
        """Sums (B, H, R) of `values` (B, H, S) over each residual slot's parts."""
        return self.pool(gather(values, self.source)[..., None], gather(values, self.pivot)[..., None])[..., 0]

    def _columns(self, rows: Tensor, share: Tensor, share_pivot: Tensor) -> Tensor:
        """Weighted column sums (B, H, N, R) of (B, H, N, S) for each residual slot."""
        columns = torch.where(torch.isneginf(rows), 0.0, rows).transpose(-1, -2)
        pooled = self.pool(
            share[..., None] * gather(columns, self.source),
            share_pivot[..., None] * gather(columns, self.pivot),
        )
        return pooled.transpose(-1, -2)


def nearest_pivot(slots: Slots, source: Tensor, pivot: Tensor, exists: Tensor) -> Tensor:
    """Index (B, H, E) of the pivot (B, H, R) with the key most similar (cosine) to each source's, in row blocks."""
    candidates = gather(slots.keys, pivot)
    position = gather(slots.position, pivot)
    blocks = []
    for block in source.split(ROW_BLOCK, 2):
        cosines = similarity(gather(slots.keys, block), candidates, "cosine")
        blocks.append(oldest_of_nearest(cosines.masked_fill(~exists[:, :, None], -torch.inf), position))
    return torch.cat(blocks, 2)
