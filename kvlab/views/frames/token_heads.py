"""Which heads of a cache hold each token of a context, and how much an answer attended to it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from kvlab.common.atomic_write import replace_file

NO_SLOT = 0
MERGED = 1
OWN = 2
STATES = ("no slot", "merged into another token's slot", "own slot")


@dataclass(frozen=True)
class TokenHeads:
    """Per-head state and attention of every token of the context, for one branch of a live session.

    Attributes:
        turn: the number of questions answered when this was read.
        layers: (L,) int64: numbers of the compressed layers.
        states: (L, H, tokens) uint8: NO_SLOT, MERGED or OWN; NO_SLOT also for heads that a layer does not have.
        attention: (L, H, tokens) float32: mean attention of the last answer's tokens to the slot that holds the token,
            so a merged token has that of the whole slot; the mean over the query heads of a group.
    """

    turn: int
    layers: np.ndarray
    states: np.ndarray
    attention: np.ndarray

    def of_token(self, token: int) -> pd.DataFrame:
        """One row per head: layer, head, state (an index into STATES), attention."""
        layers, heads = np.indices(self.states.shape[:2])
        return pd.DataFrame(
            {
                "layer": self.layers[layers.ravel()],
                "head": heads.ravel(),
                "state": self.states[:, :, token].ravel(),
                "attention": self.attention[:, :, token].ravel(),
            }
        )

    def has(self, layer: int, head: int) -> bool:
        """Whether there is such a head."""
        return layer in self.layers and head < self.states.shape[1]

    def most_attentive(self, token: int) -> tuple[int, int]:
        """Layer and head that the token got most attention from."""
        place, head = np.unravel_index(self.attention[:, :, token].argmax(), self.attention.shape[:2])
        return int(self.layers[place]), int(head)


def write_token_heads(path: Path, heads: TokenHeads) -> None:
    """Write the arrays to a `.npz` file. Raises UserError if the disk is full."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, turn=heads.turn, layers=heads.layers, states=heads.states, attention=heads.attention)

    replace_file(path, write)


def read_token_heads(path: Path) -> TokenHeads | None:
    """The heads of a branch; None if they were not read yet, or the file is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return TokenHeads(int(arrays["turn"]), arrays["layers"], arrays["states"], arrays["attention"])
    except (OSError, ValueError, KeyError, EOFError):
        return None
