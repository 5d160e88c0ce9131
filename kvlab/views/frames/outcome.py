"""The outcome of a comparison or a batch in one sentence, and the texts of its runs side by side."""

from collections.abc import Sequence
from itertools import zip_longest

from kvlab.common.formatting import join_words, prompts, short
from kvlab.requests.live_texts import LiveText, LiveTexts
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
        distances = ", ".join(f"{row.label} {short(row.mean_kl)}" for row in known.itertuples())
        return f"Closest to the full cache (mean KL, nats per token): {distances}." if distances else ""
    asked = check_answer(runs, wanted)
    table = verdicts(runs, asked)
    judged = table[(table["method"] != "full") & (table["verdict"] != "unfinished")]
    if judged.empty:
        return ""
    right = correct_runs(judged)["label"].tolist()
    named = f": {join_words(right)}" if right else ""
    verb = "generate" if len(right) > 1 else "generates"
    sentence = (
        f"{len(right) or 'None'} of {len(judged)} compressed runs {verb} the expected answer “{wanted.words}”{named}."
    )
    return f"{sentence} {REFERENCE.get(asked.reference.kind, '')}".strip()


def batch_outcome(batch: Batch) -> str:
    """How often each method at each budget is right, most often first; or how close each is without answers."""
    cells = batch.cells[batch.cells["ended"] > 0]
    if cells.empty:
        return ""
    over = f"Over {prompts(len(batch.references))}"
    if batch.is_asked:
        best = cells.sort_values("right", ascending=False, kind="stable")
        shares = ", ".join(f"{row.label} {row.right} of {row.n}" for row in best.itertuples())
        full = batch.references["reference"]
        return f"{over}, right: {shares}; the full cache {full.eq('right').sum()} of {full.ne(NOT_ASKED).sum()}."
    best = cells.dropna(subset="mean_kl").sort_values("mean_kl", kind="stable")
    distances = ", ".join(f"{row.label} {short(row.mean_kl)}" for row in best.itertuples())
    return f"{over}, closest to the full cache (mean KL, nats per token): {distances}." if distances else ""


STATES = {"running": "writing", "complete": "ended", "cancelled": "cancelled", "failed": "failed"}


def own_texts(runs: Sequence[Run]) -> LiveTexts:
    """The texts of a comparison's runs, as they were shown while they were written."""
    forced = (run.tokens[run.tokens["phase"] == "forced"].sort_values("position") for run in runs)
    reference: list[int] = next((tokens["id"].tolist() for tokens in forced if len(tokens)), [])
    texts = []
    for run in runs:
        tokens = run.tokens[run.tokens["phase"] == "free"].sort_values("position")
        pieces = tokens["text"].fillna("").mask(tokens["special"], "").tolist()
        ids = tokens["id"].tolist()
        written = zip_longest(ids, reference[: len(ids)]) if reference else ()
        first = next((place for place, (token_id, full) in enumerate(written) if token_id != full), None)
        before = len("".join(pieces[: first or 0]))
        # The share of the full cache's slots after the last step, as a mean over layers.
        memory = run.memory
        held = None
        if not memory.empty:
            last = memory[memory["step"] == memory["step"].max()]
            held = float((last["live_slots"] / last["logical_tokens"]).mean())
        texts.append(
            LiveText(
                label=run.record.label,
                method=run.record.method,
                state=STATES[run.record.status],
                text="".join(pieces),
                tokens=len(ids) - int(tokens["special"].iloc[-1:].sum()),  # without the end token
                left_at=None if first is None else (before, before + len(pieces[first])),
                left_token=0 if first is None else first + 1,
                held=held,
            )
        )
    return LiveTexts(texts=tuple(texts))
