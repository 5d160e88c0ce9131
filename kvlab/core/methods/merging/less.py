"""LESS: evicted tokens are absorbed into a low-rank state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, make_method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.scorers.wrappers.wrapper import SlotsAlone
from kvlab.core.methods.settlers.less import Absorb


@register
class LESS(Method):
    """An eviction method with a state of fixed size per head that absorbs what it evicts.

    Each head keeps H = sum psi(k) v^T (rank x head_dim) and z = sum psi(k) over evicted tokens. A query adds phi(q) H
    to the numerator and phi(q) z to the denominator of its attention, like one more slot with query-dependent log mass
    and value. phi and psi are small networks per head, fitted to a model by `kvlab train-less`; those for `mini` are
    included. Weights "untrained" are random, for tests and for timing. The state's bytes are counted; in recorded runs
    its tokens count as merged, not as regret, although their events say that they were evicted.

    The shipped features are exponential. The paper's, with gelu (`train-less --form gelu`), fit layer 1 of mini equally
    well (0.08 of eviction's squared error on held-out text at 10 %) and layer 3, which retrieves, worse: 0.80 after
    1,100 steps, against 0.69 after 400. For another score or allocation, compose with settle "less".
    """

    name: ClassVar[str] = "less"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "LESS"

    evictor: Literal["h2o", "window", "streaming-llm", "snapkv", "pyramidkv", "adakv"] = Field(
        "h2o", description="the eviction method that chooses the victims"
    )
    weights: str = Field("mini", description="feature maps: mini, a file of kvlab train-less, or untrained (random)")
    rank: int = Field(8, ge=1, description="features per head, the rows of its state; must match the maps")

    scores: Literal["all", "slots"] = Field(
        "all", description="attention the evictor scores by: including the state's share, or among slots only"
    )

    paper: ClassVar[str] = "https://arxiv.org/abs/2402.09398"
    presets: ClassVar[Mapping[str, Preset]] = {
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
                "10 % for Falcon); each layer's best epoch. `kvlab train-less --form gelu --hidden 512` fits the same "
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
                "10 % for Falcon); each layer's best epoch. `kvlab train-less --form gelu --hidden 512` fits the same "
                "maps for a given time, without dropout, at random budgets."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "evictor": "the paper's main tables; its others use a Lambda mask",
        "weights": "maps belong to a model's weights; those of mini are included, others come from `kvlab train-less`",
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
        return replace(plain, score=score, settle=Absorb(self.weights, self.rank))
