"""Finch: keep what the question at the prompt's end attends to, at new positions."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.finch import QuestionAttention
from kvlab.core.methods.scorers.wrappers.wrapper import PromptOnly
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.close_gaps import EvictAndCloseGaps
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class Finch(Method):
    """Keeps the prompt tokens that the question attends to, each of its queries weighed by how many tokens it saw.

    The question is the last `window` tokens of the prompt. `positions="cache"`, as published, turns the remaining keys
    so that they stand next to each other. Acts once, after the prompt; the paper's chunks of the document are not here.
    """

    name: ClassVar[str] = "finch"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Finch"

    window: int = Field(32, ge=1, description="tokens of the question at the prompt's end; they always stay")
    positions: Literal["original", "cache"] = Field(
        "original", description="positions of tokens in the text, or of slots inside the cache (as published)"
    )

    paper: ClassVar[str] = "https://direct.mit.edu/tacl/article/doi/10.1162/tacl_a_00716/125280"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the whole document at once, positions counted inside the cache",
            {
                "positions": ("cache", "kvpress, finch_press.py, rerotate_keys"),
            },
            beyond=(
                "Set `window` to the question's tokens. The paper reads the document in chunks and compresses after "
                "each."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "window": "our choice, SnapKV's; the question of a prompt is rarely longer",
        "positions": "as with all other methods here, and for models without rotary positions",
    }

    def pipeline(self) -> Pipeline:
        settle = EvictAndCloseGaps() if self.positions == "cache" else Evict()
        score, select = PromptOnly(QuestionAttention(self.window)), LowestScore(recent=self.window)
        return Pipeline(score, Uniform(), select, settle, decode=False)

    @property
    def own_window(self) -> int:
        """The question."""
        return self.window
