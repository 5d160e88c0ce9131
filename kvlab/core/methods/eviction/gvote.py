"""GVote: sampled future queries choose how much each head keeps; no budget is given."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import AttentionPass, LowestScore, Method, Pipeline, Preset, Slots, Uniform, View, register
from kvlab.core.contract.parts import NONE, Allocator, Capabilities, Scorer, Selector
from kvlab.core.errors import UserError
from kvlab.core.methods.scorers.sampled_queries import FutureQueries

BALLOTS = "ballots"
TINY = 1e-30


@dataclass(frozen=True)
class Ballots:
    """Score_j = ballots_j = number of sampled queries with slot j in their top k (GVote, Algorithm 1).

    k is the step budget: the smallest number of slots that hold `p_nuc` of the last query's attention, per query head,
    at least `minimum`, averaged over the last `step_queries` queries and rounded. Unless `count_sinks`, the first
    `sinks` tokens take part neither in the nucleus nor in the top k: one sink can hold 95 % of the mass and would leave
    k = 1. `union`: a sample chooses what any query head of the group chooses; `mean`: attention is averaged over the
    group first, for k and for each sample. The samples' Gaussian always excludes the sinks. For a prompt of at most
    `sinks` + 2 tokens, every sample chooses everything.
    """

    costs_no_step: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = NONE

    future: FutureQueries = field(default_factory=FutureQueries)
    p_nuc: float = 0.95
    sinks: int = 4
    minimum: int = 1
    count_sinks: bool = False
    step_queries: int = 1
    group: Literal["union", "mean"] = "union"
    every_step: bool = False
    needs_hidden_states: bool = True
    state: Mapping[str, float] = field(default_factory=lambda: {BALLOTS: 0.0}, hash=False)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` and `ballots` (B, H, S) float32 on the first prefill; later tokens have none."""
        if not first:
            return {}
        # heads have equal slots before the first decision
        valid = slots.valid[:, 0]
        position = slots.position[:, 0].int()
        inner = valid & (position >= self.sinks)  # (B, S)
        tokens = valid.sum(-1)
        eligible = valid if self.count_sinks else inner
        count = self.step_budget(layer_pass, valid, eligible)
        ballots = torch.zeros_like(slots.score)
        for choice in self.choices(layer_pass, self.future.draw(layer_pass, inner, tokens), eligible, count):
            ballots += choice
        short = (tokens <= self.sinks + 2)[:, None, None]
        ballots = torch.where(short, valid[:, None].float() * self.future.samples, ballots)
        return {"score": ballots, BALLOTS: ballots}

    def step_budget(self, layer_pass: AttentionPass, valid: Tensor, eligible: Tensor) -> Tensor:
        """k (B, H, G) int64 of each query head (G is 1 for `mean`), at most the number of eligible slots (B, S)."""
        mass = self._attention(layer_pass.last_logits(self.step_queries), eligible)  # (B, H, G, r, S)
        sizes = nucleus_size(mass, self.p_nuc).float()
        real = valid[:, None, None, -mass.shape[3] :].float()  # the last slots belong to the last queries
        average = (sizes * real).sum(-1) / real.sum(-1).clamp_min(1)
        return average.round().long().clamp_min(self.minimum).minimum(eligible.sum(-1)[:, None, None])

    def choices(self, layer_pass: AttentionPass, query: Tensor, eligible: Tensor, count: Tensor) -> Iterator[Tensor]:
        """Chosen slots (B, H, S) of each sample in turn, one at a time to limit memory."""
        largest = int(count.max())
        hidden = ~eligible[:, None, None, None]
        for sample in range(query.shape[2]):
            logits = layer_pass.logits_of(query[:, :, sample : sample + 1])  # (B, H, G, 1, S)
            score = self._attention(logits, eligible) if self.group == "mean" else logits
            yield choose_highest(score.masked_fill(hidden, -torch.inf)[:, :, :, 0], count, largest).any(2)

    def _attention(self, logits: Tensor, eligible: Tensor) -> Tensor:
        """Shares (B, H, G, r, S) of the attention to eligible slots; for `mean` the group's mean, with G 1."""
        hidden = ~eligible[:, None, None, None]
        if self.group == "union":
            return torch.softmax(logits.masked_fill(hidden, -torch.inf), -1).nan_to_num(0.0)
        mass = torch.softmax(logits, -1).nan_to_num(0.0).mean(2, keepdim=True).masked_fill(hidden, 0.0)
        return mass / mass.sum(-1, keepdim=True).clamp_min(TINY)


def nucleus_size(mass: Tensor, share: float) -> Tensor:
    """Smallest number (...) of entries of `mass` (..., S) that together hold `share`, including the one that crosses
    it.
    """
    largest = mass.sort(-1, descending=True).values
    before = largest.cumsum(-1) - largest
    return ((before < share) & (largest > 0)).sum(-1)


def choose_highest(score: Tensor, count: Tensor, largest: int) -> Tensor:
    """Mask (..., S) of the `count` (...) highest of `score` (..., S); `largest`: host-side bound on the counts."""
    index = score.argsort(dim=-1, descending=True, stable=True)[..., :largest]  # of equal ones the older
    meant = torch.arange(largest, device=score.device) < count[..., None]
    return torch.zeros_like(score, dtype=torch.bool).scatter(-1, index, meant)


@dataclass(frozen=True)
class ChosenSlots(Uniform):
    """Each head gets as many slots as were chosen at least once or are protected; needs no budget."""

    protect: LowestScore = field(default_factory=LowestScore)

    def fitted_to(self, score: Scorer, select: Selector, method_score: Scorer) -> tuple[Scorer, Allocator]:
        """Only with a score that counts ballots."""
        if BALLOTS not in score.state:
            raise UserError(
                "gvote's allocation needs the votes of its own score: use score 'gvote' with it, or another allocation."
            )
        return score, self

    def head_budgets(self, view: View) -> Tensor:
        """Size (B, H) of the union of all choices, including protected slots."""
        chosen = (view.slots.extra[BALLOTS] > 0) | self.protect.protected(view)
        return (chosen & view.slots.valid).sum(-1)


@dataclass(frozen=True)
class BallotProbe:
    """The method's decision after the prompt, and the attention of the queries after it, for a recorded comparison."""

    score: Ballots
    protect: LowestScore
    sinks: int
    rows: int

    def arrays(
        self, slots: Slots, layer_pass: Any, prompt_tokens: int, inner_states: tuple[Tensor, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """As `Method.query_probe` says.

        `slots` are those of prompt and continuation; `seen` has the continuation's queries and at least the last of
        the prompt's; `inner_states` are mean and deviation of the prompt's hidden states (of `dtype`) without the
        sinks. T: prompt tokens, S: samples. Attention is over the prompt only and sums to one. By KV head (H), means
        over its query heads: `true` (H, T) of the first query after the prompt, `synthetic` (H, T) mean over the
        samples, `ballots` (H, T); `overlap` and `usage` (H, S): true attention to each sample's nucleus of `p_nuc`, and
        that nucleus's share of the prompt (figure 3a), `true_usage` (H,) the same of the true query; `inner_...` the
        same without the sinks; `step_budget` (H,) the share of the prompt that one sample may choose; `union` and
        `covered` (H, S + 1): the kept set's share of the prompt and of the true attention after 0 to S samples (0: the
        protected slots alone); `future` (H, m): attention of each later query to the final kept set.
        """
        score = self.score
        slots = slots.map(lambda tensor: tensor[:, :, :prompt_tokens])
        prompt = layer_pass.up_to(prompt_tokens)
        inner = slots.position[:, 0].int() >= score.sinks  # (1, T)
        eligible = torch.ones_like(inner) if score.count_sinks else inner
        tokens = torch.tensor([prompt_tokens], device=inner.device)
        mean, deviation = (one[None].float().to(inner.device) for one in inner_states)
        queries = score.future.draw_from(prompt, mean, deviation, dtype, tokens)  # (1, Hq, S, d)
        count = score.step_budget(prompt, torch.ones_like(inner), eligible)
        budget = torch.full(slots.valid.shape[:2], prompt_tokens, device=tokens.device)
        view = View(slots, prompt, budget, tokens, "prefill", 0, prompt_tokens, False, 0, 1)
        guarded = self.protect.protected(view)[0]  # (H, T)
        choices = torch.stack([choice[0] for choice in score.choices(prompt, queries, eligible, count)])  # (S, H, T)
        future = torch.softmax(prompt.logits_of(layer_pass.query[:, :, prompt.num_new :])[0], -1)  # (H, G, m, T)
        sampled = torch.softmax(prompt.logits_of(queries)[0], -1)  # (H, G, S, T)
        arrays = {
            "true": future[:, :, 0].mean(1),
            "synthetic": sampled.mean((1, 2)),
            "ballots": choices.float().sum(0),
            "step_budget": count[0].float().mean(-1) / prompt_tokens,
        }
        arrays |= _overlaps(future[:, :, 0], sampled, score.p_nuc, "")
        arrays |= _overlaps(_inside(future[:, :, 0], inner), _inside(sampled, inner), score.p_nuc, "inner_")
        # The kept set sample by sample.
        kept = torch.cat([guarded[None], guarded | (choices.cumsum(0) > 0)])  # (S + 1, H, T)
        true = future.mean(1)  # (H, m, T)
        return arrays | {
            "union": kept.float().mean(-1).T,
            "covered": (true[:, 0] * kept).sum(-1).T,
            "future": (true * kept[-1][:, None]).sum(-1),
        }


def _inside(mass: Tensor, inner: Tensor) -> Tensor:
    """Attention (H, G, ..., T) restricted to the `inner` (1, T) tokens and renormalised."""
    mass = mass.masked_fill(~inner[0], 0.0)
    return mass / mass.sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)


def _overlaps(true: Tensor, sampled: Tensor, share: float, prefix: str) -> dict[str, Tensor]:
    """True attention (H, G, T) inside each sample's nucleus, and the sizes of the nuclei.

    Query heads without mass have no nucleus and are left out; NaN where no query head has one.
    """
    sizes = nucleus_size(sampled, share)
    wanted = nucleus_size(true, share)
    sets = choose_highest(sampled, sizes, int(sizes.max()))  # (H, G, S, T)
    tokens = true.shape[-1]
    overlap = (true[:, :, None] * sets).sum(-1).masked_fill((sizes == 0) | (wanted == 0)[..., None], torch.nan)
    usage, true_usage = (count.float().masked_fill(count == 0, torch.nan) / tokens for count in (sizes, wanted))
    return {
        f"{prefix}overlap": overlap.nanmean(1),
        f"{prefix}usage": usage.nanmean(1),
        f"{prefix}true_usage": true_usage.nanmean(1),
    }


@register
class GVote(Method):
    """Keeps the union of what sampled future queries would attend to; layers and heads find their own budgets.

    Samples are queries drawn from a Gaussian of the attention module's inputs. Each chooses as many slots as the last
    query needs for 95 % of its attention, and a slot is kept if any sample chose it. The chosen numbers are the layer's
    `budget`. By default the sinks and the last 32 tokens are kept and sink mass does not count in the 95 %;
    `preset=paper` has neither. Acts once, after the prompt: generated tokens are kept in addition.
    """

    name = "gvote"
    family = "budget-free"
    title = "GVote"
    needs_budget = False

    p_nuc: float = Field(0.95, gt=0, le=1, description="share of the last query's attention that sets the step budget")
    samples: int = Field(8, ge=1, le=1024, description="sampled future queries (S)")
    n_future: int = Field(64, ge=1, description="positions after the prompt that the samples represent")
    rope_mode: Literal["average", "sampled"] = Field(
        "average", description="rotate samples by averaged cosines and sines (paper), or each at its own position"
    )
    group: Literal["union", "mean"] = Field(
        "union", description="query heads of a group choose separately, or by their mean"
    )
    step_queries: int = Field(1, ge=1, description="last queries the step budget is averaged over")
    minimum: int = Field(1, ge=1, description="smallest step budget")
    sinks: int = Field(4, ge=0, description="first tokens excluded from the Gaussian, and kept with `floors`")
    recent: int = Field(32, ge=0, description="last tokens kept with `floors`; the newest always stays")
    floors: bool = Field(True, description="the sinks and the recent tokens always stay")
    count_sinks: bool = Field(False, description="sink mass counts towards `p_nuc`, as printed")

    paper = "https://arxiv.org/abs/2509.03136"
    presets = {
        "paper": Preset(
            "algorithm 1 with the recommended values",
            {
                "p_nuc": (0.95, "section 3.5 (recommended)"),
                "samples": (8, "section 3.5 (8 or more)"),
                "rope_mode": ("average", "algorithm 1, lines 6 and 7"),
                "step_queries": (1, "algorithm 1, lines 1 to 3: the current query"),
                "minimum": (1, "algorithm 1, line 3: the step budget is the candidate set's size, whatever it is"),
                "floors": (False, "algorithm 1, lines 10 and 11: only the union is kept"),
                "count_sinks": (True, "algorithm 1, lines 1 and 2: top-p of all of the attention"),
            },
            beyond=(
                "The paper does not give the number of future positions and of first tokens excluded from the "
                "Gaussian. Here the newest token is always kept."
            ),
        ),
    }
    reasons = {
        "n_future": "not given; measured: 8 .0295, 64 .0288, 512 .0292",
        "group": "not given; union .0288 (3,110), mean .0372 (2,824)",
        "sinks": "not given; 4 as in ExpectedAttention, which the paper cites",
        "recent": "our choice, only used with `floors`: 8 .0324 (3,074), 32 .0288 (3,110), 64 .0282 (3,161)",
        "floors": (
            "as printed the last tokens, the end of the question, can be lost: .0373 (3,041) instead of .0288 (3,110)"
        ),
        "count_sinks": "as printed the step budget is 1 if a sink holds the mass: .0556 (3,018) instead of .0288",
    }

    def query_probe(self) -> BallotProbe:
        pipeline = self.pipeline()
        assert isinstance(pipeline.score, Ballots) and isinstance(pipeline.select, LowestScore)
        return BallotProbe(pipeline.score, pipeline.select, self.sinks, self.step_queries)

    def pipeline(self) -> Pipeline:
        protect = LowestScore(self.sinks, self.recent) if self.floors else LowestScore()
        future = FutureQueries(self.samples, self.n_future, self.rope_mode)
        score = Ballots(
            future=future,
            p_nuc=self.p_nuc,
            sinks=self.sinks,
            minimum=self.minimum,
            count_sinks=self.count_sinks,
            step_queries=self.step_queries,
            group=self.group,
        )
        return Pipeline(score, ChosenSlots(protect), protect, decode=False)
