"""CurDKV: keep the tokens with long keys and long values, compared with their neighbours'."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.key_value.leverage import SquaredLengths
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class CurDKV(Method):
    """Keeps the tokens of highest leverage, approximated by squared lengths of key and value. Uses no queries.

    Leverage scores choose the rows of a CUR decomposition. Follows kvpress (cur_press.py): squared lengths are divided
    by their sum over each `part` tokens of the text, and key and value are multiplied. Acts once, after the prompt.
    """

    name: ClassVar[str] = "cur"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "CurDKV"

    of: Literal["product", "mean", "key", "value"] = Field("product", description="leverage of keys, values, or both")
    part: int = Field(16, ge=1, description="tokens among which lengths are compared")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")

    paper: ClassVar[str] = "https://arxiv.org/abs/2509.15038"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the class of kvpress with its defaults",
            {
                "of": ("product", "kvpress, cur_press.py, leverage_type kv_product"),
                "part": (16, "kvpress, cur_press.py, local_window_size"),
                "sinks": (4, "kvpress, cur_press.py, num_sinks"),
            },
            beyond="The random projection before lengths are taken, an option of kvpress that is off, is left out.",
        ),
    }

    def pipeline(self) -> Pipeline:
        score = SquaredLengths(self.of, self.part)
        return Pipeline(score, Uniform(), LowestScore(self.sinks), Evict(), decode=False)
