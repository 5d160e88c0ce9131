"""The outcome of a comparison or a batch in one sentence: which runs got the answer, or stayed closest."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.common.formatting import join_words, prompts, short
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import Labels
from kvlab.views.frames.board import check_answer, correct_runs, expected_answer, verdicts
from kvlab.views.frames.compare import headline
from kvlab.views.frames.repeats import NOT_ASKED, Batch

REFERENCE = {
    "right": "The full cache generates it.",
    "nearly": "The full cache only nearly generates it, so wrong runs need not be the fault of a method.",
    "wrong": "The full cache does not generate it, so wrong runs need not be the fault of a method.",
}


def outcome(runs: Sequence[Run], labels: Labels | None = None) -> str:
    """The outcome of a comparison; `labels` may name another answer. Empty without a finished compressed run."""
    wanted = expected_answer(runs, labels or Labels())
    if wanted is None:
        table = headline(runs)
        known = table[(table["method"] != "full") & table["mean_kl"].notna()].sort_values("mean_kl", kind="stable")
        told = ", ".join(f"{row.label} {short(row.mean_kl)}" for row in known.itertuples())
        return f"Closest to the full cache (mean KL, nats per token): {told}." if told else ""
    asked = check_answer(runs, wanted)
    table = verdicts(runs, asked)
    judged = table[(table["method"] != "full") & (table["verdict"] != "unfinished")]
    if judged.empty:
        return ""
    right = correct_runs(judged)["label"].tolist()
    named = f": {join_words(right)}" if right else ""
    verb = "generate" if len(right) > 1 else "generates"
    told = (
        f"{len(right) or 'None'} of {len(judged)} compressed runs {verb} the expected answer “{wanted.words}”{named}."
    )
    return f"{told} {REFERENCE.get(asked.reference.kind, '')}".strip()


def batch_outcome(batch: Batch) -> str:
    """How often each method at each budget is right, most often first; or how close each is without answers."""
    cells = batch.cells[batch.cells["ended"] > 0]
    if cells.empty:
        return ""
    over = f"Over {prompts(len(batch.references))}"
    if batch.is_asked:
        best = cells.sort_values("right", ascending=False, kind="stable")
        told = ", ".join(f"{row.label} {row.right} of {row.n}" for row in best.itertuples())
        full = batch.references["reference"]
        return f"{over}, right: {told}; the full cache {full.eq('right').sum()} of {full.ne(NOT_ASKED).sum()}."
    best = cells.dropna(subset="mean_kl").sort_values("mean_kl", kind="stable")
    told = ", ".join(f"{row.label} {short(row.mean_kl)}" for row in best.itertuples())
    return f"{over}, closest to the full cache (mean KL, nats per token): {told}." if told else ""
