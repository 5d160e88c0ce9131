"""Milestones measured while training: recall on books never trained on, bits per byte, sinks and induction."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from transformers import LlamaForCausalLM

from training.mini import measures, task_rows
from training.mini.checkpoint import Progress
from training.mini.curve import append_row
from training.mini.presets import Phase
from training.mini.text import Text

log = logging.getLogger(__name__)

_SAMPLES = 16
_WINDOWS = 24
_SEED = 1


class Milestones:
    """Measures a model every `seconds` at most and appends the result to the curve."""

    def __init__(self, text: Text, curve: Path, seconds: float = 600.0) -> None:
        self._text = text
        self._curve = curve
        self._seconds = seconds
        self._measured_at = time.monotonic()

    def __call__(self, model: LlamaForCausalLM, phase: Phase, progress: Progress) -> None:
        """Measure if it is time."""
        if time.monotonic() - self._measured_at < self._seconds:
            return
        self._measured_at = time.monotonic()
        model.eval()
        found = self.measure(model, phase)
        log.info("milestones: %s", {name: round(value, 3) for name, value in found.items()})
        append_row(self._curve, progress, found)

    def measure(self, model: LlamaForCausalLM, phase: Phase) -> dict[str, float]:
        """Return the milestones by name; accuracies are shares, text is in bits per byte."""
        text, length = self._text, phase.length
        found = {
            "heldout_one_needle": measures.recall(
                model, lambda rng: task_rows.needle_row(rng, text, phase, count=1), _SAMPLES, _SEED
            ),
            "heldout_key_value": measures.recall(
                model, lambda rng: task_rows.key_value_row(rng, text, phase), _SAMPLES, _SEED
            ),
            "heldout_bits_per_byte": measures.bits_per_byte(model, text, length, _WINDOWS),
            "largest_sink": float(measures.sink_scores(model, text).max()),
            "best_induction": float(measures.induction_scores(model, text.bos_token_id).max()),
        }
        if length >= 512:
            found["heldout_eight_needles"] = measures.recall(
                model, lambda rng: task_rows.needle_row(rng, text, phase, count=8), _SAMPLES // 4, _SEED
            )
        return found
