"""What the bar on top of a page says of the runs it looks at, and what its list of prompts calls them."""

from __future__ import annotations

from collections.abc import Sequence

from app.base.text import day_or_time, shorten
from app.navigation import context_bar as bar
from kvlab.analysis.comparison.compare import headline
from kvlab.analysis.comparison.labels import parse_label
from kvlab.common.formatting import ONE_PROMPT, prompts
from kvlab.figures.base.words import number
from kvlab.library import side_by_side
from kvlab.trace.catalogue import ComparisonEntry, RunEntry
from kvlab.trace.reader import Run


def say_run(run: Run) -> None:
    """The line of the bar about one run: one prompt, model, method, budget and changed settings."""
    record, made = run.record, parse_label(run.record)
    bar.say(bar.one_line(_prompt_words(run), record.model.name, made.method, made.budget, made.changed))
    bar.prompt_text(record.prompt)


def say_runs(runs: Sequence[Run]) -> None:
    """The line of the bar about a comparison: one prompt, model, and the methods, budgets and changed settings."""
    changed = ", ".join(dict.fromkeys(word for run in runs if (word := parse_label(run.record).changed)))
    bar.say(bar.one_line(_prompt_words(runs[0]), runs[0].record.model.name, runs_words(runs), changed))
    bar.prompt_text(runs[0].record.prompt)


def runs_words(runs: Sequence[Run]) -> str:
    """The runs by their budgets, such as `4 runs: 2 at 20 % (h2o, d2o), gvote at its own (45 %), full cache`."""
    made = [(parse_label(run.record), run) for run in runs]
    given = [one for one, _ in made if one.budget]
    methods, budgets = (
        ", ".join(dict.fromkeys(words)) for words in ([one.method for one in given], [one.budget for one in given])
    )
    own = [(one.method, run) for one, run in made if not one.budget and one.method != "full"]
    held = headline(runs).set_index("run_id")["live_ratio"] if own else {}
    said = [f"{len(given)} at {budgets} ({methods})"] if given else []
    said += [f"{method} at its own{_share(held[run.record.run_id])}" for method, run in own]
    said += ["full cache"] if any(one.method == "full" for one, _ in made) else []
    return f"{len(runs)} runs: {', '.join(said)}" if len(runs) > 1 else f"one run: {said[0]}"


def _share(share: float | None) -> str:
    """A share of the full cache's bytes in parentheses after a space; "" where it is not known."""
    return "" if share is None or share != share else f" ({number(100 * share, 2)} %)"


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
    together = len(side_by_side.split_joint_id(comparison.comparison_id))
    count = f" · {together} together" if together else f" · {prompts(numbers)}" if numbers > 1 else ""
    return f"{shorten(comparison.text or comparison.comparison_id, 28)}{count} · {day_or_time(comparison.created)}"


def failure(entry: RunEntry) -> str:
    """That a run failed, and why, in a sentence."""
    text = entry.message.strip() or "no reason was recorded"
    reason = text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
    return f"{entry.label} failed: {reason} What it had saved is shown."
