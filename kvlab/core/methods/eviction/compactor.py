"""Compactor: keep keys of high leverage, and those that their surroundings attend to."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.key_value.leverage import ChunkLeverage
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class Compactor(Method):
    """Keeps tokens by the leverage of their keys before rotation, plus attention within chunks that looks both ways.

    Independent of the question. Follows kvpress (compactor_press.py, leverage_press.py, non_causal_attention_press.py),
    whose logits are not divided by sqrt(d) and whose blend is the share evicted; here they are, and it is a number.
    Scores are scaled over a row's layer, there over the batch. Acts once, after the prompt.
    """

    name: ClassVar[str] = "compactor"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Compactor"

    blend: float = Field(0.35, ge=0, description="weight of leverage beside attention")
    sketch: int = Field(48, ge=0, le=4096, description="columns of the random sketch of keys; 0: exact leverage")
    chunk: int = Field(256, ge=2, description="tokens that attend to each other")
    sinks: int = Field(8, ge=0, description="first tokens that always stay")
    recent: int = Field(4, ge=1, description="last tokens that always stay")

    paper: ClassVar[str] = "https://arxiv.org/abs/2507.08143"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the class of kvpress with its defaults",
            {
                "blend": (0.35, "kvpress, compactor_press.py, score: blending if there is no ratio"),
                "sketch": (48, "kvpress, leverage_press.py, sketch_dimension"),
                "chunk": (256, "kvpress, non_causal_attention_press.py, chunk_size"),
                "sinks": (8, "kvpress, compactor_press.py, sink_size_start"),
                "recent": (4, "kvpress, compactor_press.py, sink_size_end"),
            },
            beyond="kvpress blends by the share of tokens evicted, with .35 where it is unknown.",
        ),
    }

    def pipeline(self) -> Pipeline:
        score = ChunkLeverage(self.blend, self.sketch, self.chunk, self.sinks, self.recent)
        return Pipeline(score, Uniform(), LowestScore(self.sinks, self.recent), Evict(), decode=False)
