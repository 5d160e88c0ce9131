"""The training curve: rows appended to a CSV during training, drawn as one figure at the end."""

from __future__ import annotations

import csv
import logging
import time
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from transformers import LlamaForCausalLM

from training.mini import measures, task_rows
from training.mini.checkpoint import Progress
from training.mini.presets import Phase
from training.mini.text import Text

_COLUMNS = ("phase", "step", "seconds", "tokens", "text_tokens", "measure", "value")
_LOSSES = {"text_loss": "text", "answer_loss": "answers"}
_ACCURACIES = ("pairs", "repeat", "needle", "key_value", "labels", "variables", "multi_query", "arithmetic")


def append_row(path: Path, progress: Progress, measures: Mapping[str, float]) -> None:
    """Append one line per measure (long format) to the curve, after a header if the file is new."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(_COLUMNS)
        for name, value in measures.items():
            place = (progress.phase_name, progress.step, round(progress.seconds, 1), progress.tokens)
            writer.writerow((*place, progress.text_tokens, name, round(value, 5)))


def read_curve(path: Path) -> pd.DataFrame:
    """The curve in time order; if a killed run repeated steps after resuming, the later row counts."""
    frame = pd.read_csv(path)
    return frame.drop_duplicates(["phase", "step", "measure"], keep="last").sort_values("seconds", kind="stable")


def _trace(frame: pd.DataFrame, measure: str, name: str, mode: str = "lines") -> go.Scatter:
    chosen = frame[frame.measure == measure]
    return go.Scatter(x=chosen.seconds / 60, y=chosen.value, name=name, mode=mode)


def curve_figure(frame: pd.DataFrame) -> go.Figure:
    """Losses, training accuracies and held-out bits per byte over the minutes of training."""
    titles = ("loss (nats per token)", "share of training answers fully right", "bits per byte, validation books")
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.07, subplot_titles=titles)
    for measure, name in _LOSSES.items():
        figure.add_trace(_trace(frame, measure, name), row=1, col=1)
    for measure in _ACCURACIES:
        figure.add_trace(_trace(frame, measure, measure.replace("_", " ")), row=2, col=1)
    figure.add_trace(_trace(frame, "heldout_bits_per_byte", "held-out text", "lines+markers"), row=3, col=1)
    starts = frame.groupby("phase", sort=False).seconds.min() / 60
    for phase, minute in starts.items():
        figure.add_vline(x=minute, line_width=1, line_dash="dot", line_color="grey")
        figure.add_annotation(x=minute, y=1.0, yref="paper", text=str(phase), showarrow=False, textangle=-90, xshift=8)
    figure.update_xaxes(title_text="minutes of training", row=3, col=1)
    figure.update_layout(template="plotly_white", title_text="Training of mini", legend_tracegroupgap=10)
    return figure


log = logging.getLogger(__name__)
_SAMPLES = 16
_WINDOWS = 24
_SEED = 1


class Milestones:
    """Measure a model every `seconds` at most and append the result to the curve."""

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
        """Milestones by name; accuracies are shares, text is in bits per byte."""
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
