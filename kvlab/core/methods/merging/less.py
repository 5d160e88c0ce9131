"""LESS: evicted tokens are absorbed into a low-rank state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import gelu

from kvlab.core.contract import Capabilities, Pipeline, Plan, Preset, Selector, TensorFields, View, gather
from kvlab.core.contract.method import Method, make_method, register
from kvlab.core.errors import UserError
from kvlab.core.methods.scorers.wrapper import SlotsAlone

Form = Literal["exponential", "gelu"]
HIGHEST = 30.0  # largest exponent: sums of feature products over a million tokens still fit in float32
UNTRAINED_HIDDEN = 64
UNTRAINED = "untrained"
# Per-head state.
NUMERATOR = "low_rank_numerator"  # (B, H, R, d) float32: sum of psi(k) v over absorbed tokens
NORMALIZER = "low_rank_normalizer"  # (B, H, R) float32: sum of psi(k)
HEAD = "low_rank_head"  # (B, H): index of the head in the layer, which selects its maps


@dataclass(frozen=True)
class FeatureMaps(TensorFields):
    """Maps of one layer: H KV heads, G query heads per group, d head_dim, m hidden units, R the rank.

    `exponential`: phi(q) = exp(gelu(q W1) W2 + b), psi(k) likewise, so that a product of features is the exponential of
    a sum, as in attention's own kernel. `gelu` is the paper's: phi(q) = |gelu(gelu(q W1) W2)| and, with u = s
    gelu(gelu(k W1) W2), psi(k) = |u + u M|, where s = exp(b). Every head has its own weights.
    """

    form: Form
    query_in: Tensor  # (H, G, d, m)
    query_out: Tensor  # (H, G, m, R)
    query_bias: Tensor  # (H, G, R)
    key_in: Tensor  # (H, d, m)
    key_out: Tensor  # (H, m, R)
    key_bias: Tensor  # (H, R)
    key_mix: Tensor | None = None  # (H, R, R), form gelu only

    @property
    def rank(self) -> int:
        """Rank R."""
        return self.key_bias.shape[-1]

    def of_queries(self, query: Tensor) -> Tensor:
        """phi (B, H, G, q, R), float32, of queries (B, H, G, q, d)."""
        features = _two_layers(query.float(), self.query_in, self.query_out)
        bias = self.query_bias[..., None, :]
        return gelu(features).abs() if self.form == "gelu" else (features + bias).clamp(-HIGHEST, HIGHEST).exp()

    def of_keys(self, key: Tensor) -> Tensor:
        """psi (B, H, S, R), float32, of keys (B, H, S, d)."""
        features = _two_layers(key.float(), self.key_in, self.key_out)
        bias = self.key_bias[..., None, :]
        if self.key_mix is None:
            return (features + bias).clamp(-HIGHEST, HIGHEST).exp()
        scaled = gelu(features) * bias.clamp(-HIGHEST, HIGHEST).exp()
        return (scaled + scaled @ self.key_mix).abs()


def _two_layers(states: Tensor, into: Tensor, out: Tensor) -> Tensor:
    """gelu(states into) out, of states (B, ..., n, d); weights (..., d, m), (..., m, R), shared or per batch row."""
    if into.dim() == states.dim():
        return gelu(states @ into) @ out
    # Batch rows are concatenated: a broadcasting product would copy the weights for each.
    batch = states.shape[0]
    rows = states.shape[-2]
    beside = states.movedim(0, -3).flatten(-3, -2)  # (..., B * n, d)
    return (gelu(beside @ into) @ out).unflatten(-2, (batch, rows)).movedim(-3, 0)


def new_maps(
    form: Form,
    heads: int,
    group: int,
    head_dim: int,
    hidden: int,
    rank: int,
    generator: torch.Generator,
    query_size: float = 1.0,
    key_size: float = 1.0,
) -> FeatureMaps:
    """Random maps for queries and keys with these root mean squares; products are small, as a start for fitting.

    `generator` is a CPU generator, whatever the model's device.
    """

    def normal(*shape: int, size: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator) / (shape[-2] ** 0.5 * size)

    is_gelu = form == "gelu"
    return FeatureMaps(
        form=form,
        query_in=normal(heads, group, head_dim, hidden, size=query_size),
        query_out=normal(heads, group, hidden, rank),
        query_bias=torch.full((heads, group, rank), 0.0 if is_gelu else -3.0),
        key_in=normal(heads, head_dim, hidden, size=key_size),
        key_out=normal(heads, hidden, rank),
        key_bias=torch.full((heads, rank), -4.5 if is_gelu else -1.0),
        key_mix=normal(heads, rank, rank) * 1e-4 if is_gelu else None,
    )


def random_feature_maps(layer: int, heads: int, group: int, head_dim: int, rank: int) -> FeatureMaps:
    """Random maps determined by the arguments, for tests and for timing models without trained maps."""
    generator = torch.Generator().manual_seed(layer)
    return new_maps("exponential", heads, group, head_dim, UNTRAINED_HIDDEN, rank, generator)


@dataclass(frozen=True)
class Absorb:
    """Evict slots and add their content to two sums, which queries read through phi.

    `fitted`: maps of every compressed layer, set by the cache, which knows the model.
    """

    keeps_state: ClassVar[bool] = True
    begun: ClassVar[str] = HEAD
    capabilities: ClassVar[Capabilities] = Capabilities(fills_budget=True, by_selector=True)

    weights: str = UNTRAINED
    rank: int = 8
    state: Mapping[str, float] = field(default_factory=dict, hash=False)
    fitted: tuple[FeatureMaps, ...] | None = field(default=None, repr=False, compare=False)
    _placed: dict[int, FeatureMaps] = field(default_factory=dict, repr=False, compare=False)

    def column(self, layer: int, head_state: Mapping[str, Tensor], query: Tensor) -> tuple[Tensor, Tensor]:
        """logit = log(phi(q) z), value = phi(q) H / phi(q) z; the logit is -inf for a head that absorbed nothing."""
        head = head_state[HEAD]
        normalizer = head_state[NORMALIZER]
        features = self.maps(layer, head, query).of_queries(query.unflatten(1, (head.shape[1], -1)))
        group = features.shape[2:4]
        beside = features.flatten(2, 3)  # the queries of a group read the same state without copying it
        total = (beside @ normalizer[..., None]).unflatten(2, group)
        values = (beside @ head_state[NUMERATOR]).unflatten(2, group)
        return total[..., 0].log(), values / total.clamp_min(torch.finfo(total.dtype).tiny)

    def settle(self, view: View, select: Selector) -> Plan:
        """Move everything over budget into the state; raises UserError without fitted maps."""
        slots = view.slots
        noted = view.head_state
        victims = select.victims(view, view.excess(), view.most_excess)
        head = noted.get(HEAD)
        if head is None:
            head = torch.arange(slots.keys.shape[1], device=slots.keys.device).repeat(slots.keys.shape[0], 1)
        features = self.maps(view.layer_idx, head, view.layer_pass.query).of_keys(gather(slots.keys, victims.index))
        features = features if victims.certain else features * victims.active[..., None]
        numerator = features.transpose(-1, -2) @ gather(slots.values, victims.index).float()
        normalizer = features.sum(-2)
        if HEAD in noted:
            numerator = noted[NUMERATOR] + numerator
            normalizer = noted[NORMALIZER] + normalizer
        state = {NUMERATOR: numerator, NORMALIZER: normalizer, HEAD: head}
        return Plan(keep=victims.keep(slots.valid), head_state=state, lost=victims.votes(slots.votes))

    def head_bytes(self, keys: Tensor, values: Tensor, select: Selector) -> int:
        """Bytes of a head's two sums and its index."""
        rank = self.fitted[0].rank if self.fitted else self.rank
        return 4 * rank * (values.shape[-1] + 1) + 8

    def maps(self, layer: int, head: Tensor, query: Tensor) -> FeatureMaps:
        """Feature maps of a layer for its KV heads `head` (B, W), on the device of its queries (B, Hq, q, d).

        They are moved there once. A layer's first decision covers all heads; a cache that was kept and restored reads
        its state before one.
        """
        heads = head.shape[1]
        if layer not in self._placed:
            if self.fitted is not None:
                maps = self.fitted[layer]
            elif self.weights == UNTRAINED:
                maps = random_feature_maps(layer, heads, query.shape[1] // heads, query.shape[-1], self.rank)
            else:
                raise UserError("LESS needs feature maps fitted to a model: create its cache with make_cache.")
            self._placed[layer] = maps.map(lambda tensor: tensor.to(query.device))
        whole = self._placed[layer]
        return whole if heads == len(whole.key_bias) else whole.map(lambda tensor: tensor[head])


@register
class LESS(Method):
    """An eviction method with a state of fixed size per head that absorbs what it evicts.

    Each head keeps H = sum psi(k) v^T (rank x head_dim) and z = sum psi(k) over evicted tokens. A query adds phi(q) H
    to the numerator and phi(q) z to the denominator of its attention, like one more slot with query-dependent log mass
    and value. phi and psi are small networks per head, fitted to a model by `kvlab fit`; those for `mini` are
    included. Weights "untrained" are random, for tests and for timing. The state's bytes are counted; in recorded runs
    its tokens count as merged, not as regret, although their events say that they were evicted.

    The shipped features are exponential. The paper's, with gelu (`kvlab fit --method less --set form=gelu`), fit layer
    1 of mini equally well (0.08 of eviction's squared error on held-out text at 10 %) and layer 3, which retrieves,
    worse: 0.80 after 1,100 steps, against 0.69 after 400. For another score or allocation, compose with settle "less".
    """

    name = "less"
    family = "merging"
    title = "LESS"

    evictor: Literal["h2o", "window", "streaming-llm", "snapkv", "pyramidkv", "adakv"] = Field(
        "h2o", description="the eviction method that chooses the victims"
    )
    weights: str = Field("mini", description="feature maps: mini, a file of kvlab fit, or untrained (random)")
    rank: int = Field(8, ge=1, description="features per head, the rows of its state; must match the maps")

    scores: Literal["all", "slots"] = Field(
        "all", description="attention the evictor scores by: including the state's share, or among slots only"
    )

    paper = "https://arxiv.org/abs/2402.09398"
    presets = {
        "paper": Preset(
            "LESS with H2O, rank 8",
            {
                "evictor": ("h2o", "example_scripts: the main tables; the others use a Lambda mask"),
                "rank": (8, "example_scripts, ker_dim"),
                "scores": ("slots", "src/inference/generative/llama_gen.py: softmax over the kept tokens"),
            },
            beyond=(
                "The original fits its maps by src/train_kernels.py: the gelu form with 512 hidden units and dropout "
                "0.3; 512 windows of C4 as long as the model's context (1,024 windows for Falcon), a tenth held back; "
                "40 epochs of Adam at 0.001, halved every 10, in batches of 2; the squared error after the output "
                "projection from the budget's length on, at the budget the maps are then used with (5 % for Llama 2, "
                "10 % for Falcon); each layer's best epoch. `kvlab fit --set form=gelu` fits the same "
                "maps for a given time, without dropout, at random budgets."
            ),
        ),
        "lambda": Preset(
            "LESS with a Lambda mask: first tokens and a window",
            {
                "evictor": ("streaming-llm", "example_scripts/train/llama2_7b/llama2_7b_lambda.sh, 0.1 % and 4.9 %"),
                "rank": (8, "llama2_7b_lambda.sh, ker_dim"),
            },
            beyond=(
                "The original fits its maps by src/train_kernels.py: the gelu form with 512 hidden units and dropout "
                "0.3; 512 windows of C4 as long as the model's context (1,024 windows for Falcon), a tenth held back; "
                "40 epochs of Adam at 0.001, halved every 10, in batches of 2; the squared error after the output "
                "projection from the budget's length on, at the budget the maps are then used with (5 % for Llama 2, "
                "10 % for Falcon); each layer's best epoch. `kvlab fit --set form=gelu` fits the same "
                "maps for a given time, without dropout, at random budgets."
            ),
        ),
    }
    reasons = {
        "evictor": "the paper's main tables; its others use a Lambda mask",
        "weights": "maps belong to a model's weights; those of mini are included, others come from `kvlab fit`",
        "scores": (
            "equally good and one softmax per step cheaper: on mini, 8 prompts of 700 tokens and 48 more, KL .0949 "
            "with both at 20 %, .165 against .164 (slots) at 5 %"
        ),
    }

    def notes(self, budget_slots: int, prompt_tokens: int) -> list[str]:
        return make_method(self.evictor).notes(budget_slots, prompt_tokens)

    @property
    def own_window(self) -> int:
        return make_method(self.evictor).own_window

    def pipeline(self) -> Pipeline:
        plain = make_method(self.evictor).pipeline()
        score = plain.score if self.scores == "all" else SlotsAlone(plain.score)
        return replace(plain, score=score, settle=Absorb(weights=self.weights, rank=self.rank))
