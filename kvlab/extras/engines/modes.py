"""The ways in which OpenVINO GenAI can hold a cache, and kvlab's nearest method to each."""

from dataclasses import asdict, dataclass
from typing import Any

from kvlab.core.errors import UserError

BLOCK = 32  # tokens of a block on a CPU; OpenVINO evicts whole blocks, each of all heads of a layer
# tokens that always stay at both ends, the least that it accepts
START = BLOCK
RECENT = BLOCK
FREE = 2 * BLOCK  # tokens that a comparison leaves to be chosen, at least

# kvlab's methods of the comparison: token-granular, in pages, and the full cache in 8 and 4 bits.
METHODS = (
    "h2o", "h2o:page=16", "h2o:page=32", "h2o:page=32:recent=0.2", "snapkv", "snapkv:page=16", "snapkv:page=32",
    "snapkv:page=32:window=8", "packed:store=int8", "packed:store=kivi4",
)  # fmt: skip


@dataclass(frozen=True)
class Mode:
    """One configuration. `score` None keeps all; `window` 0 scores by all of the prompt's queries, else the last ones.

    `crush_blocks` of the kept blocks are chosen by KVCrush; `rotates`: keys are turned to places without gaps; `dtype`
    of the cache. `beside` is the spec of kvlab's nearest method.
    """

    name: str
    beside: str
    score: str | None = None
    window: int = 0
    crush_blocks: int = 0
    rotates: bool = False
    dtype: str = "f32"

    def as_data(self, kept: int) -> dict[str, Any]:
        """The mode for the engine's side, with at most `kept` tokens in whole blocks."""
        return {**asdict(self), "kept": kept, "start": START, "recent": RECENT}


MODES = (
    Mode("full", "full"),
    Mode("SUM", "h2o:page=32", "SUM"),
    Mode("NORM_SUM", "h2o:page=32", "NORM_SUM"),
    Mode("SUM, window 8", "snapkv:page=32:window=8", "SUM", 8),
    Mode("NORM_SUM, window 8", "snapkv:page=32:window=8", "NORM_SUM", 8),
    Mode("NORM_SUM, window 8, KVCrush", "snapkv:page=32:window=8", "NORM_SUM", 8, crush_blocks=1),
    Mode("NORM_SUM, window 8, rotation", "snapkv:page=32:window=8", "NORM_SUM", 8, rotates=True),
    Mode("full, u8", "packed:store=int8", dtype="u8"),
    Mode("full, u4", "packed:store=kivi4", dtype="u4"),
)


def kept_tokens(budget: float | int, length: int) -> int:
    """Whole blocks of a budget, in tokens. Raises UserError if they leave too few to choose from."""
    kept = int(budget * length if isinstance(budget, float) else budget) // BLOCK * BLOCK
    least = START + RECENT + FREE
    if not least <= kept < length:
        raise UserError(
            f"A budget of {budget} keeps {kept} of {length} tokens in blocks of {BLOCK}: OpenVINO needs at least "
            f"{least} and fewer than the prompt has, so choose another --budget or --length."
        )
    return kept
