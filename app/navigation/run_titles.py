"""Titles of runs and comparisons: the line of the bar at the top of a page, and the options of its prompt picker."""

from __future__ import annotations

from collections.abc import Sequence

from app.base.text import day_or_time, shorten
from app.navigation import context_bar as bar
from kvlab.common.formatting import ONE_PROMPT, model_title, prompts
from kvlab.library import side_by_side
from kvlab.trace.catalogue import ComparisonEntry, RunEntry
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import Labels
from kvlab.views.base.words import number
from kvlab.views.frames.board import expected_answer
from kvlab.views.frames.compare import headline
from kvlab.views.frames.labels import parse_label


def show_run(run: Run) -> None:
    """Put prompt, model, method, budget and changed settings of one run into the bar."""
    label = parse_label(run.record)
    model = run.record.model.name
    bar.caption(_prompt_words(run), model_title(model), label.method, label.budget, label.changed, model=model)
    _prompt_text(run)


def show_runs(runs: Sequence[Run]) -> None:
    """Put prompt, model, methods, budgets and changed settings of a comparison into the bar."""
    changed = ", ".join(dict.fromkeys(changes for run in runs if (changes := parse_label(run.record).changed)))
    model = runs[0].record.model.name
    bar.caption(_prompt_words(runs[0]), model_title(model), runs_words(runs), changed, model=model)
    _prompt_text(runs[0])


def _prompt_text(run: Run) -> None:
    """The prompt, with the answer and facts that were recorded with it."""
    wanted = expected_answer([run], Labels())
    bar.prompt_text(run.record.prompt, *(() if wanted is None else (wanted.words, wanted.facts)))


def runs_words(runs: Sequence[Run]) -> str:
    """The runs by budget, such as `4 runs: 2 at 20 % (h2o, d2o), gvote at its own (45 %), full cache`."""
    labels = [parse_label(run.record) for run in runs]
    with_budget = [label for label in labels if label.budget]
    methods, budgets = (
        ", ".join(dict.fromkeys(getattr(label, name) for label in with_budget)) for name in ("method", "budget")
    )
    own = [
        (label.method, run.record.run_id)
        for label, run in zip(labels, runs, strict=True)
        if not label.budget and label.method != "full"
    ]
    ratios = headline(runs).set_index("run_id")["live_ratio"] if own else {}
    words = [f"{len(with_budget)} at {budgets} ({methods})"] if with_budget else []
    words += [f"{method} at its own{_share(ratios[run_id])}" for method, run_id in own]
    words += ["full cache"] if any(label.method == "full" for label in labels) else []
    return f"{len(runs)} runs: {', '.join(words)}" if len(runs) > 1 else f"one run: {words[0]}"


def _share(share: float | None) -> str:
    """A share of the full cache's bytes in parentheses after a space; "" if unknown."""
    return "" if share is None or share != share else f" ({number(100 * share, 2)} %)"


def _prompt_words(run: Run) -> str:
    repeat = run.record.repeat
    title = run.record.title
    # The title of one of several prompts begins with its number, which follows anyway.
    title = title if repeat is None else title.removeprefix(f"{repeat.number} of {repeat.of}: ")
    prefix = f"{shorten(title, 60)}, " if title else ""
    which = ONE_PROMPT.capitalize() if repeat is None else f"Prompt {repeat.number} of {repeat.of}"
    return f"{which} ({prefix}{run.record.prompt_tokens:,} tokens)"


def comparison_label(group: Sequence[ComparisonEntry]) -> str:
    """The prompt of a comparison or batch, the number of prompts, and the time, which tells equal prompts apart."""
    comparison = group[0]
    numbers = len({entry.number for entry in group})
    together = len(side_by_side.split_joint_id(comparison.comparison_id))
    count = f" · {together} together" if together else f" · {prompts(numbers)}" if numbers > 1 else ""
    return f"{shorten(comparison.text or comparison.comparison_id, 28)}{count} · {day_or_time(comparison.created)}"


def failure(entry: RunEntry) -> str:
    """The sentence on a failed run."""
    text = entry.message.strip() or "no reason was recorded"
    reason = text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
    return f"{entry.label} failed: {reason} What it had saved is shown."
