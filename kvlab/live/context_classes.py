"""Classes of the tokens of a context by what one lane holds of them, as words and numbers. Torch-free."""

from __future__ import annotations

import textwrap

import numpy as np

from kvlab.live.transcript import LaneState

SHARES = (0.1, 0.3, 0.6, 0.999)  # upper ends of the classes of held shares; the last class is all heads
NAMES = (
    "in no slot", "merged into others' slots only", "a slot of its own in up to 10 % of heads", "in up to 30 %",
    "in up to 60 %", "in most heads", "in all heads",
)  # fmt: skip
MOST_NOTES = 8192  # tokens of a text whose tokens say what they were merged into


def codes_of(lane: LaneState) -> np.ndarray:
    """(context tokens,) uint8: the class of `NAMES` of each token."""
    held = lane.held
    merged = lane.merged
    assert held is not None
    classes = np.searchsorted(SHARES, held - 1e-6, side="left") + 2
    alive = np.zeros_like(held, bool) if merged is None else merged > 0
    return np.where(held > 0, classes, alive).astype(np.uint8)


def merge_notes(lane: LaneState, texts: list[str]) -> list[str]:
    """Per token what most heads that merged it merged it into; empty if nothing was merged."""
    if lane.into is None or lane.merged is None or len(texts) > MOST_NOTES:
        return []
    notes = []
    for share, owner in zip(lane.merged, lane.into, strict=True):
        word = textwrap.shorten(texts[owner], 90, placeholder=" …")
        into = f"mostly into {owner} “{word}”"
        notes.append(f"merged in {100 * share:.0f} % of heads, {into}" if share > 0 else "")
    return notes


def what_is_left_sentence(lane: LaneState) -> str:
    """How much of the text has no slot, and how much a head holds on average."""
    codes = codes_of(lane)
    assert lane.held is not None
    gone, merged = (100 * float((codes == code).mean()) for code in (0, 1))
    others = f", {merged:.0f} % are only in slots that they were merged into" if lane.merged is not None else ""
    return f"{gone:.0f} % of the tokens are in no slot{others}; a head holds {100 * lane.held.mean():.0f} % on average."
