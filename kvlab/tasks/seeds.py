"""Seeds: one random stream a sample, and none that the embedded model was trained on."""

from __future__ import annotations

from random import Random

from kvlab.common.errors import UserError
from kvlab.models.mini.phrasing import TRAINING_SEED_START


def check_seed(seed: int) -> int:
    """Return the seed; raises UserError for one that training uses."""
    if not 0 <= seed < TRAINING_SEED_START:
        raise UserError(f"Seed {seed} is out of range: evaluation takes 0 to {TRAINING_SEED_START - 1:,}.")
    return seed


def sample_random(task: str, length: int, seed: int, index: int) -> Random:
    """Return the random stream of one sample; depth is left out, so that a sample only moves its needle with depth."""
    return Random(f"{task}|{length}|{check_seed(seed)}|{index}")
