"""The texts of recorded runs side by side: what each wrote itself, and where it leaves the full cache's text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from kvlab.requests.live_texts import LiveText, LiveTexts
from kvlab.trace.reader import Run

STATES = {"running": "writing", "complete": "ended", "cancelled": "cancelled", "failed": "failed"}


def own_texts(runs: Sequence[Run]) -> LiveTexts:
    """The texts of a comparison's runs, as they were shown while they were written."""
    reference = next((ids for run in runs if (ids := _ids(run, "forced"))), [])
    return LiveTexts(texts=tuple(_text(run, reference) for run in runs))


def _text(run: Run, reference: Sequence[int]) -> LiveText:
    tokens = run.tokens[run.tokens["phase"] == "free"].sort_values("position")
    pieces = tokens["text"].fillna("").mask(tokens["special"], "").tolist()
    ids = tokens["id"].tolist()
    written = zip_longest(ids, reference[: len(ids)]) if reference else ()
    first = next((place for place, (own, full) in enumerate(written) if own != full), None)
    before = len("".join(pieces[: first or 0]))
    return LiveText(
        label=run.record.label,
        method=run.record.method,
        state=STATES[run.record.status],
        text="".join(pieces),
        tokens=len(ids) - int(tokens["special"].iloc[-1:].sum()),  # without the end token
        left_at=None if first is None else (before, before + len(pieces[first])),
        left_token=0 if first is None else first + 1,
        held=_held(run),
    )


def _ids(run: Run, phase: str) -> list[int]:
    tokens = run.tokens[run.tokens["phase"] == phase].sort_values("position")
    return tokens["id"].tolist()


def _held(run: Run) -> float | None:
    """The share of the full cache's slots after the last recorded step, as a mean over layers."""
    memory = run.memory
    if memory.empty:
        return None
    last = memory[memory["step"] == memory["step"].max()]
    return float((last["live_slots"] / last["logical_tokens"]).mean())
