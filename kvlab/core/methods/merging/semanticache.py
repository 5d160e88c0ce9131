"""SemantiCache: split the text into chunks at delimiters, and merge clusters of similar keys within each."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Recent, Sinks, View, gather, register
from kvlab.core.methods.scorers.recency import Recency
from kvlab.core.methods.settlers.consecutive import Sets
from kvlab.core.methods.settlers.gaussian_sets import AnyPivot, GaussianSets, Weights
from kvlab.core.methods.settlers.log_mass import MASS_HELP, SPACE_HELP, Mass, MassRule, Space

HALVINGS = 7  # bisection steps of the threshold: 0.0156


@lru_cache(maxsize=4)
def ending(tokenizer: Any, delimiters: str) -> Tensor:
    """Tokens (V,) bool whose text, without trailing spaces, ends with one of the characters."""
    texts = tokenizer.batch_decode([[number] for number in range(len(tokenizer))])
    return torch.tensor([text.rstrip(" ").endswith(tuple(delimiters)) for text in texts])


@dataclass(frozen=True)
class SeedClusters(GaussianSets):
    """Greedy seed-based clustering within chunks (SemantiCache); a cluster's mean replaces its seed.

    A chunk ends with a token of `ends` or after `longest_set` tokens. Among a chunk's mergeable slots, the first free
    one is a seed and takes every later one whose key has a cosine above theta with its own. `theta` None: each head
    bisects between 1 and `loosest` for the largest threshold that meets its budget. The rest is as for consecutive
    sets.
    """

    reads_text: ClassVar[bool] = True  # chunk boundaries depend on it

    pivot: AnyPivot = "anchor"
    weights: Weights = "average"
    delimiters: str = ""
    ends: Tensor | None = field(default=None, compare=False, repr=False)  # (V,) bool, by token id

    def with_tokenizer(self, tokenizer: Any) -> "SeedClusters":
        """Set the tokens that end a chunk."""
        return replace(self, ends=ending(tokenizer, self.delimiters))

    def sets(self, view: View, order: Tensor, may_merge: Tensor, places: Tensor) -> Sets:
        """Clusters of the slots in `order` (B, H, S), at most `places` (B, H)."""
        # Slots (B, H, S), in `order`, that end a chunk. Padding comes first, and no chunk reaches into it.
        valid = gather(view.slots.valid, order)
        breaks = torch.zeros_like(valid)
        breaks[..., :-1] = ~valid[..., :-1] & valid[..., 1:]
        if view.token_ids is not None and self.ends is not None:
            ends = self.ends.to(order.device)
            known = ends[view.token_ids.clamp(0, len(ends) - 1)]
            breaks = breaks | known[:, None].expand_as(order).gather(2, order)
        # Chunks end with the next break, that slot included, or after the longest.
        place = torch.arange(breaks.shape[-1], device=breaks.device).expand_as(breaks)
        begins = torch.ones_like(breaks)
        begins[..., 1:] = breaks[..., :-1]
        inside = (place - torch.where(begins, place, 0).cummax(-1).values) % self.longest_set
        number = (inside == 0).cumsum(-1) - 1
        cell = number * self.longest_set + inside
        chunks = Chunks(cell, int(number[..., -1].max()) + 1, self.longest_set)
        # Cosines (B, H, C, L, L) of the keys, 0 for empty cells.
        unit = normalize(gather(view.slots.keys, order).float(), dim=-1)
        room = unit.new_zeros(*unit.shape[:2], chunks.count * chunks.length, unit.shape[-1])
        table = room.scatter(2, cell[..., None].expand_as(unit), unit).unflatten(2, (chunks.count, chunks.length))
        cosine = table @ table.transpose(-1, -2)
        cells = torch.zeros_like(table[..., 0], dtype=torch.bool).flatten(2)
        active = cells.scatter(2, cell, may_merge).unflatten(2, (chunks.count, chunks.length))
        if self.theta is not None:
            theta = torch.full(places.shape, self.theta, device=places.device)
            return chunks.sets(seeds(cosine, active, theta), may_merge, theta)
        low = torch.full(places.shape, self.loosest, device=places.device)  # the loosest that is known to fit
        high = torch.ones_like(low)
        for _ in range(HALVINGS):
            theta = (low + high) / 2
            found = seeds(cosine, active, theta)
            is_seed = (found == torch.arange(chunks.length, device=found.device)).flatten(2).gather(2, cell)
            fits = (is_seed & may_merge).sum(-1) <= places
            low = torch.where(fits, theta, low)
            high = torch.where(fits, high, theta)
        return chunks.sets(seeds(cosine, active, low), may_merge, low)


@dataclass(frozen=True)
class Chunks:
    """Position of each slot (B, H, S) in a table of C chunks of at most L slots."""

    cell: Tensor  # (B, H, S) int64: chunk * L + place in it
    count: int
    length: int

    def sets(self, seed: Tensor, may_merge: Tensor, theta: Tensor) -> Sets:
        """The clusters, with each slot's seed as anchor."""
        place = torch.arange(may_merge.shape[-1], device=seed.device).expand_as(self.cell)
        of_cell = place.new_zeros(*place.shape[:2], self.count * self.length).scatter(2, self.cell, place)
        chunk = torch.div(self.cell, self.length, rounding_mode="floor") * self.length
        anchor = of_cell.gather(2, chunk + seed.flatten(2).gather(2, self.cell))
        anchor = torch.where(may_merge, anchor, place)
        return Sets(anchor, (anchor == place) & may_merge, theta)


def seeds(cosine: Tensor, active: Tensor, theta: Tensor) -> Tensor:
    """Seed of each cell, (B, H, C, L) int64, as a place in its chunk; its own for seeds and cells not `active`.

    Chunks and heads are processed in parallel; only the places of a chunk are sequential.
    """
    length = active.shape[-1]
    places = torch.arange(length, device=active.device)
    seed = places.expand(active.shape).clone()
    free = active.clone()
    alike = cosine > theta[..., None, None, None]
    for place in range(length - 1):
        later = places > place
        taken = free[..., place, None] & free & alike[..., place, :] & later
        seed = torch.where(taken, place, seed)
        free = free & ~taken
    return seed


@register
class SemantiCache(Method):
    """Merges tokens with similar keys within a sentence, consecutive or not, into a slot that counts for all of them.

    A seed is the first free token of its sentence; it takes all later ones with keys similar enough to its own. Keys
    and values are averaged, and attention to the slot is raised by the log of its token count (proportional attention).
    Acts once, after the prompt; if even whole sentences are too many, the oldest are evicted.
    """

    name = "semanticache"
    family = "merging"
    title = "SemantiCache"

    theta: float | None = Field(
        None, ge=-1, le=1, description="cosine with its seed above which a token joins a cluster; none: solved per head"
    )
    loosest: float = Field(-1.0, ge=-1, le=1, description="lowest threshold that the search may reach")
    delimiters: str = Field(".!?;:\n", min_length=1, description="characters that end a chunk of the text")
    longest: int = Field(64, ge=2, le=512, description="most tokens of a chunk")
    mass: MassRule = Field("votes", description=MASS_HELP)
    alpha: float = Field(0.6, ge=0, le=1, description="mass `alpha`: its factor")
    space: Space = Field("rotated", description=SPACE_HELP)
    sinks: Sinks = 4
    recent: Recent = 16

    paper = "https://arxiv.org/abs/2603.14303"
    presets = {
        "paper": Preset(
            "greedy seed-based clustering with proportional attention",
            {
                "mass": ("votes", "abstract: proportional attention compensates for merging"),
            },
            beyond=(
                "Based on the abstract: thresholds, delimiters and protected tokens are unknown, and no code is "
                "available. Here generated tokens are kept."
            ),
        ),
    }
    reasons = {
        "theta": "not given; solved per head, so that methods are compared at equal budgets",
        "loosest": "our choice: clustering meets the budget as long as sentences fit",
        "delimiters": "the abstract mentions natural boundaries; these end a sentence or a line",
        "longest": "our choice: bounds the memory of the similarities",
        "alpha": "zsmerge's; only used with mass `alpha`",
        "space": "keys are averaged as stored, as in most papers",
        "sinks": "as for the other methods here",
        "recent": "as for the other methods here: keeps the end of the question",
    }

    def pipeline(self) -> Pipeline:
        settle = SeedClusters(
            theta=self.theta,
            loosest=self.loosest,
            heavy=0.0,
            longest_set=self.longest,
            mass=Mass(self.mass, self.alpha),
            space=self.space,
            delimiters=self.delimiters,
        )
        return Pipeline(Recency(), select=LowestScore(self.sinks, self.recent), settle=settle, decode=False)
