"""What the bar on top of a page says of the runs it looks at, and what its list of prompts calls them."""

from __future__ import annotations

from collections.abc import Sequence

from app.parts import context_bar as bar
from app.parts.text import day_or_time, shorten
from kvlab.analysis.labels import parts
from kvlab.counted import ONE_PROMPT, prompts
from kvlab.library import joined
from kvlab.trace.catalogue import ComparisonEntry, RunEntry
from kvlab.trace.reader import Run


def say_run(run: Run) -> None:
    """The line of the bar about one run: one prompt, model, method, budget and changed settings."""
    record, made = run.record, parts(run.record)
    bar.say(bar.one_line(_prompt_words(run), record.model.name, made.method, made.budget, made.changed))
    bar.prompt_text(record.prompt)


def say_runs(runs: Sequence[Run]) -> None:
    """The line of the bar about a comparison: one prompt, model, and the methods, budgets and changed settings."""
    made = [parts(run.record) for run in runs]
    methods, budgets, changed = (
        ", ".join(dict.fromkeys(word for word in words if word))
        for words in zip(*((one.method, one.budget, one.changed) for one in made), strict=True)
    )
    count = f"{len(runs)} runs" if len(runs) > 1 else "one run"
    at = f" at {budgets}" if budgets else ""
    bar.say(bar.one_line(_prompt_words(runs[0]), runs[0].record.model.name, f"{count}{at}: {methods}", changed))
    bar.prompt_text(runs[0].record.prompt)


def _prompt_words(run: Run) -> str:
    repeat, title = run.record.repeat, run.record.title
    # The title of one of several prompts begins with its number, which is said here anyway.
    title = title if repeat is None else title.removeprefix(f"{repeat.number} of {repeat.of}: ")
    named = f"{shorten(title, 60)}, " if title else ""
    which = ONE_PROMPT.capitalize() if repeat is None else f"Prompt {repeat.number} of {repeat.of}"
    return f"{which} ({named}{run.record.prompt_tokens:,} tokens)"


def comparison_label(group: Sequence[ComparisonEntry]) -> str:
    """The prompt of a batch, how many there are of it, and when: two comparisons of one prompt differ in their time."""
    comparison, numbers = group[0], len({entry.number for entry in group})
    together = len(joined.several(comparison.comparison_id))
    count = f" · {together} together" if together else f" · {prompts(numbers)}" if numbers > 1 else ""
    return f"{shorten(comparison.text or comparison.comparison_id, 28)}{count} · {day_or_time(comparison.created)}"


def failure(entry: RunEntry) -> str:
    """That a run failed, and why, in a sentence."""
    text = entry.message.strip() or "no reason was recorded"
    reason = text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
    return f"{entry.label} failed: {reason} What it had saved is shown."
