"""View several comparisons over the same prompt and model as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvlab.core.errors import UserError
from kvlab.trace.catalogue import ComparisonEntry, RunEntry, list_comparisons
from kvlab.trace.record import read_record

SEPARATOR = "/"  # not part of any comparison id
MOST = 12


def joint_id(ids: Sequence[str]) -> str:
    """URL name of these comparisons together."""
    return SEPARATOR.join(dict.fromkeys(ids))


def split_joint_id(text: str) -> list[str]:
    """The ids in a `joint_id` of several comparisons; empty for a single one."""
    ids = list(dict.fromkeys(filter(None, text.split(SEPARATOR))))
    return ids if SEPARATOR in text else []


def check_joinable(root: Path, ids: Sequence[str]) -> None:
    """Raise UserError with the difference if these comparisons cannot be joined."""
    join_comparisons(root, joint_id(ids), list_comparisons(root))


def join_comparisons(root: Path, asked: str, comparisons: Sequence[ComparisonEntry]) -> ComparisonEntry:
    """Join the comparisons in `joint_id`: the first's full cache, then all compressed runs, oldest first.

    The first comparison's labels apply. The other full caches are left out as duplicates.

    Raises:
        UserError: one is missing, there are too many, or they differ in prompt, model or the full cache's text.
    """
    by_id = {entry.comparison_id: entry for entry in comparisons}
    ids = split_joint_id(asked) or [asked]
    missing = [one for one in ids if one not in by_id]
    if missing:
        raise UserError(f"There is no comparison {missing[0][:60]!r} in this folder of runs: choose others on Runs.")
    if len(ids) > MOST:
        raise UserError(f"At most {MOST} comparisons can be viewed together, not {len(ids)}.")
    entries = [by_id[one] for one in ids]
    _check_alike(root, entries)
    first, *others = entries
    further = [run for entry in others for run in entry.runs if run.method != "full"]
    return ComparisonEntry(comparison_id=joint_id(ids), runs=(*first.runs, *further))


def _check_alike(root: Path, entries: Sequence[ComparisonEntry]) -> None:
    first, *others = map(_reference, entries)
    known = read_record(root / first.run_id)
    for run in others:
        record = read_record(root / run.run_id)
        other = f"{record.title or record.comparison_id}"[:60]
        if record.prompt != known.prompt:
            raise UserError(
                f"{other!r} is over another prompt: only runs over the same prompt can be compared by token. For means "
                "over several prompts use a batch of repeats, or an evaluation (page Quality)."
            )
        if (record.model.name, record.model.dtype, record.chat) != (known.model.name, known.model.dtype, known.chat):
            raise UserError(f"{other!r} has another model or chat template, so the runs cannot be compared.")
        if record.forced_text != known.forced_text:
            raise UserError(
                f"{other!r} was compared along another continuation (its length or seed differs): run them again with "
                "the same number of new tokens."
            )


def _reference(entry: ComparisonEntry) -> RunEntry:
    complete = [run for run in entry.runs if run.status == "complete"] or list(entry.runs)
    return next((run for run in complete if run.method == "full"), complete[0])
