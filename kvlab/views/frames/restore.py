"""Results of a restore search as sentences and frames. Torch-free."""

import numpy as np
import pandas as pd

from kvlab.common.formatting import join_words
from kvlab.core import UserError, head_words, spans
from kvlab.trace.reader import Run
from kvlab.trace.restore_results import RestoreResult, SearchResult
from kvlab.views.frames.facts import fact_fates

MOST_BUDGETS = 7  # tried by bisection of whole percents
LEAST_MASS = 2e-3  # tokens with less attention in every series are not shown
SEARCHES = {
    "unread fact": "read the fact's slots in every head",
    "unread tokens": "read the slots that the answer attended to and that were not read, in every head",
    "unread heads": "read these slots in as few heads as possible",
    "reading everything": "read every slot in some heads",
    "tokens": "keep the fact's tokens in every head",
    "more tokens": "keep the tokens the answer attended to in every head",
    "reading heads": "keep these tokens in as few heads as possible",
    "heads": "use the full cache in some heads",
    "evict": "undo merges: evict instead of merging",
    "apart": "undo merges: tokens merged by the prompt's decision keep their own slots",
}


def cheapest(result: RestoreResult) -> SearchResult | None:
    """The change that restores the answer with the fewest slots, at equal cost with named tokens and heads; None if
    nothing does."""
    return min(
        (found for found in result.found if found.restores),
        key=lambda found: (
            found.slots,
            found.returned.kind == "read" and not found.returned.tokens,
            found.returned.heads is None,
            found.search,
        ),
        default=None,
    )


def search_table(result: RestoreResult) -> pd.DataFrame:
    """One row per search (key of `SEARCHES`): what, outcome (a sentence), restores, slots, tried, mean_kl, text."""
    rows = [
        (
            found.search,
            SEARCHES.get(found.search, found.search),
            outcome(found),
            found.restores,
            found.slots,
            found.tried,
            float(np.mean(found.kl)) if found.kl else np.nan,
            found.text,
        )
        for found in result.found
    ]
    columns = ["search", "what", "outcome", "restores", "slots", "tried", "mean_kl", "text"]
    return pd.DataFrame(rows, columns=columns)


def outcome(found: SearchResult) -> str:
    """One search's result as a sentence."""
    if not found.restores:
        return "not even all of it restores the answer" if found.complete else "no set tried restores the answer"
    unsure = "" if found.complete else " (its reruns ended before the smallest was sure)"
    # Whether the restored tokens take a plural verb.
    back = found.returned
    restores = "restore" if (len(back.tokens) > 1 or (back.kind == "apart")) else "restores"
    return f"{found.returned.description.removeprefix('+ ')} {restores} the answer{unsure}"


def sentence(result: RestoreResult, run: Run) -> str:
    """Why the run fails, and the cheapest change that restores its answer."""
    best = cheapest(result)
    if best is None:
        return f"{result.label} fails, and nothing that was tried in {result.reruns} reruns restores “{result.answer}”."
    # The reason, and the change that fixes it.
    back = best.returned
    count = len(back.tokens)
    where = "every head"
    if back.heads is not None:
        where = f"{len(back.heads)} head{'s' if len(back.heads) != 1 else ''}" if count else head_words(back.heads)
    if count and back.kind == "read":
        these = "its slot" if count == 1 else f"their {count} slots"
        left_out = quote_tokens(run, back.tokens)
        why = f"because its sparse attention left out {left_out}; reading {these} in {where} restores"
    elif count:
        these = "this token" if count == 1 else f"these {count} tokens"
        why = f"because {culprit(result, best, run)}; keeping {these} in {where} restores"
    elif back.kind == "read":
        why = f"by what {where} did not read; reading everything there restores"
    elif back.kind == "heads":
        why = f"by what {where} lost; the full cache there restores"
    else:
        how = "evicting what it merges" if back.kind == "evict" else "keeping what it merges in slots of its own"
        why = f"by merging; {how} in {where} restores"
    return f"{result.label} fails {why} the answer, costing {slot_count_text(best.slots)}."


def budget_sentence(result: RestoreResult) -> str:
    """Whether a larger budget would have kept the answer, and the slots of the reading head then; "" if unknown."""
    needed = result.budget
    if needed is None:
        return ""
    wrong = f"{result.label} is still wrong at {100 * needed.wrong_at:.0f} %"
    if needed.right_at == 1:
        return f"More budget alone does not help: {wrong} of the tokens."
    head = ""
    if needed.of_head is not None and result.reader is not None:
        layer, number = result.reader
        head = f", when layer {layer} head {number}, which reads it, has slots for {100 * needed.of_head:.0f} % of them"
    return f"More budget would have kept it: {100 * needed.right_at:.0f} % of the tokens{head}; {wrong}."


def slot_count_text(slots: int) -> str:
    """`1 slot`, `96 slots`."""
    return "no slot more" if slots == 0 else f"{slots:,} slot{'s' if slots != 1 else ''}"


def culprit(result: RestoreResult, best: SearchResult, run: Run) -> str:
    """Which head dropped or merged which of the tokens, and when."""
    tokens = best.returned.tokens
    heads = best.returned.heads
    reader = result.reader
    # Where no head reads the answer, some are given back.
    layer, head = reader if heads is None or reader in heads else heads[0]  # type: ignore[misc]
    words = quote_tokens(run, tokens)
    try:
        # At the prompt's end, and later.
        fates = [fact_fates(run, np.array(sorted(tokens)), at) for at in (0, run.record.max_new_tokens)]
    except UserError:
        return f"layer {layer} head {head} lost {words}"
    for table, when in zip(fates, ("when the prompt was compressed", "while decoding"), strict=True):
        here = table[(table["layer"] == layer) & (table["head"] == head)]
        for fate, did in (("dropped", "dropped"), ("merged", "merged away")):
            gone = tuple(here.loc[here["fate"] == fate, "token"])
            if gone:
                return f"layer {layer} head {head} {did} {quote_tokens(run, gone)} {when}"
    return f"{words} left all but a few heads"


def quote_tokens(run: Run, tokens: tuple[int, ...]) -> str:
    """The text of some prompt tokens, neighbours joined: “48” and “13”."""
    read = run.tokens[run.tokens["phase"] == "prompt"].set_index("position")["text"].fillna("")
    groups = [part.split("-") for part in spans(tokens).split(", ")]
    words = ["".join(read.loc[int(group[0]) : int(group[-1])]).strip() for group in groups]
    more = [f"{len(words) - 3} more"] if len(words) > 3 else []
    return join_words([*(f"“{word}”" for word in words[:3]), *more])


def estimate_seconds(run: Run, most_reruns: int) -> float | None:
    """Upper estimate of a search's duration from the run's own timings; None if it was not timed.

    Counts four texts and two readings of the prompt besides the reruns, and one of each for a budget, but not loading
    the model.
    """
    record = run.record
    if record.seconds_prefill is None or not record.decode_tokens_per_second:
        return None
    text = record.max_new_tokens / record.decode_tokens_per_second
    return (2 + MOST_BUDGETS) * record.seconds_prefill + (most_reruns + 4 + MOST_BUDGETS) * text
