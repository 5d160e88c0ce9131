"""Comparisons looked at as one: the runs of several over the same prompt and model, side by side in every view."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvlab.common.errors import UserError
from kvlab.trace.catalogue import ComparisonEntry, RunEntry, list_comparisons
from kvlab.trace.record import read_record

SEPARATOR = "/"  # no id of a comparison holds it
MOST = 12


def name(ids: Sequence[str]) -> str:
    """What an address calls these comparisons together."""
    return SEPARATOR.join(dict.fromkeys(ids))


def several(asked: str) -> list[str]:
    """The ids of the comparisons named by `name`; none where this names but one."""
    ids = list(dict.fromkeys(filter(None, asked.split(SEPARATOR))))
    return ids if SEPARATOR in asked else []


def check(root: Path, ids: Sequence[str]) -> None:
    """Raises UserError where these comparisons cannot stand side by side, with what differs."""
    join(root, name(ids), list_comparisons(root))


def join(root: Path, asked: str, comparisons: Sequence[ComparisonEntry]) -> ComparisonEntry:
    """The comparisons named by `name` as one: the first's full cache, then every compressed run, oldest first.

    The labels that count are those of the first. Full caches of the others stay away: they are the same run again.

    Raises:
        UserError: one is not there, there are too many, or they differ in prompt, model or the full cache's text.
    """
    by_id = {entry.comparison_id: entry for entry in comparisons}
    ids = several(asked) or [asked]
    missing = [one for one in ids if one not in by_id]
    if missing:
        raise UserError(f"There is no comparison {missing[0][:60]!r} in this folder of runs: choose others on Runs.")
    if len(ids) > MOST:
        raise UserError(f"At most {MOST} comparisons stand side by side, not {len(ids)}.")
    entries = [by_id[one] for one in ids]
    _check_alike(root, entries)
    first, *others = entries
    further = [run for entry in others for run in entry.runs if run.method != "full"]
    return ComparisonEntry(comparison_id=name(ids), runs=(*first.runs, *further))


def _check_alike(root: Path, entries: Sequence[ComparisonEntry]) -> None:
    first, *others = [_reference(entry) for entry in entries]
    known = read_record(root / first.run_id)
    for run in others:
        record = read_record(root / run.run_id)
        other = f"{record.title or record.comparison_id}"[:60]
        if record.prompt != known.prompt:
            raise UserError(
                f"{other!r} is over another prompt: token by token only runs over the same prompt compare. For means "
                "over several prompts take a batch of repeats, or an evaluation (page Quality)."
            )
        if (record.model.name, record.model.dtype, record.chat) != (known.model.name, known.model.dtype, known.chat):
            raise UserError(f"{other!r} is of another model or is spoken to in another way: such runs do not compare.")
        if record.forced_text != known.forced_text:
            raise UserError(
                f"{other!r} was compared along another continuation (its length or seed differs): make them anew with "
                "the same number of new tokens."
            )


def _reference(entry: ComparisonEntry) -> RunEntry:
    complete = [run for run in entry.runs if run.status == "complete"] or list(entry.runs)
    return next((run for run in complete if run.method == "full"), complete[0])
