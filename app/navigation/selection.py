"""The comparison and run that a page shows, chosen by the URL or by the pickers of the bar; `place` has the rest.

The URL of a view is a link to it. A value that does not exist gets one sentence. Without a choice the page opens a run
where there is something to see (`kvlab.views.frames.starting_point`), and the picker says why. Choices stay when
the page changes. The pickers are in the bar at the top of the page (`app.navigation.context_bar`).
"""

import secrets
from collections.abc import Callable, Sequence

import streamlit as st

from app.base.text import code, day_or_time, plain, shorten
from app.navigation import context_bar as bar
from app.session import url_state
from app.session.open_runs import open_cached, run_to_open, runs_root
from kvlab.common.formatting import ONE_PROMPT, prompts
from kvlab.core.errors import UserError
from kvlab.library import items
from kvlab.results.sources import Sources
from kvlab.trace.catalogue import ComparisonEntry, RunEntry, by_batch, list_comparisons
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import Labels
from kvlab.views.base.words import number
from kvlab.views.frames.board import expected_answer
from kvlab.views.frames.compare import headline
from kvlab.views.frames.labels import distinct_names, number_duplicates, parse_label
from kvlab.views.frames.starting_point import Prefer


def show_run(run: Run, *words: str) -> None:
    """Put the prompt and model of a run into the bar, with these words, and the prompt's text, answer and facts.

    Without words: its method, budget and changed settings.
    """
    label = parse_label(run.record)
    words = words or (label.method, label.budget, label.changed)
    repeat = run.record.repeat
    title = run.record.title
    # The title of one of several prompts begins with its number, which follows anyway.
    title = title if repeat is None else title.removeprefix(f"{repeat.number} of {repeat.of}: ")
    prefix = f"{shorten(title, 60)}, " if title else ""
    which = ONE_PROMPT.capitalize() if repeat is None else f"Prompt {repeat.number} of {repeat.of}"
    prompt = f"{which} ({prefix}{run.record.prompt_tokens:,} tokens)"
    bar.caption(prompt, run.record.model.title, *words, model=run.record.model.name)
    wanted = expected_answer([run], Labels())
    bar.prompt_text(run.record.prompt, *(() if wanted is None else (wanted.words, wanted.facts)))


def runs_words(runs: Sequence[Run]) -> str:
    """The runs by budget, such as `4 runs: 2 at 20 % (h2o, d2o), gvote at its own (45 %), full cache`."""
    labels = [parse_label(run.record) for run in runs]
    with_budget = [label for label in labels if label.budget]
    methods, budgets = (
        ", ".join(dict.fromkeys(getattr(label, name) for label in with_budget)) for name in ("method", "budget")
    )
    without_budget = [
        (label.method, run.record.run_id)
        for label, run in zip(labels, runs, strict=True)
        if not label.budget and label.method != "full"
    ]
    ratios = headline(runs).set_index("run_id")["live_ratio"] if without_budget else {}
    words = [f"{len(with_budget)} at {budgets} ({methods})"] if with_budget else []
    for method, run_id in without_budget:
        # The share of the full cache's bytes; unknown without that cache's run.
        share = ratios[run_id]
        known = share is not None and share == share
        words.append(f"{method} at its own ({number(100 * share, 2)} %)" if known else f"{method} at its own")
    words += ["full cache"] if any(label.method == "full" for label in labels) else []
    return f"{len(runs)} runs: {', '.join(words)}" if len(runs) > 1 else f"one run: {words[0]}"


STATUS_NOTE = {"complete": "", "running": " · running", "cancelled": " · cancelled", "failed": " · failed"}
NO_RUN = "none"  # of a difference
# the run a page opened by default; other pages have other defaults
OPENED = "opened_run"
OPENED_WHY = "opened_run_why"


def session_id() -> str:
    """The id of this browser session, by which the queue lets sessions take turns."""
    return st.session_state.setdefault("session_id", secrets.token_hex(8))


def current_run(prefer: Prefer = "any") -> Run | None:
    """The run in the URL or the bar; None, with a sentence on the page, if there is none.

    `prefer` is the kind of run that the page opens with by default.
    """
    comparison = _pick_comparison()
    if comparison is None:
        return None
    entry = _pick_run(comparison, prefer)
    run = next(iter(_open_or_explain([entry] if entry else [])), None)
    if run is not None:
        show_run(run)
    return run


def current_comparison() -> list[Run]:
    """The readable runs of the comparison in the URL or the bar, oldest first."""
    comparison = _pick_comparison()
    if comparison is None:
        return []
    runs = _open_or_explain(comparison.runs)
    if runs:
        # Put prompt, model, methods, budgets and changed settings of a comparison into the bar.
        changed = ", ".join(dict.fromkeys(changes for run in runs if (changes := parse_label(run.record).changed)))
        show_run(runs[0], runs_words(runs), changed)
    return runs


def other_run(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run of the comparison that `b` in the URL or the bar sets beside `run`, else the first; None without one."""
    by_id = {one.record.run_id: one for one in runs if one is not run}
    if not by_id:
        return None
    names = dict(zip(by_id, distinct_names([one.record for one in by_id.values()]), strict=True))
    requested = url_state.url_value("b")
    if requested not in (None, NO_RUN, *by_id):
        st.warning(f"This comparison has no other run {code(requested)}: choose another.")
    shown = requested if requested in by_id else next(iter(by_id))
    st.session_state["pick_b"] = shown
    help_text = "Shows which tokens only one of the two runs has kept."
    bar.picker(
        "b",
        "B, compared with it",
        list(by_id),
        names.__getitem__,
        help_text,
        on_change=url_state.set_page_param_from,
        args=("b", "pick_b"),
    )
    return by_id[shown]


def current_sources(prefer: Prefer = "any") -> Sources:
    """The sources of exhibits: the run shown, its comparison, and the results in the folder of runs.

    `prefer` is the kind of run that the page opens with by default.
    """
    comparison = _pick_comparison()
    entry = _pick_run(comparison, prefer) if comparison else None
    if comparison is None or entry is None:
        return Sources(runs_root())
    runs = _open_or_explain(comparison.runs)
    chosen = next((run for run in runs if run.record.run_id == entry.run_id), None)
    if chosen is not None:
        show_run(chosen)
    return Sources(runs_root(), chosen, runs)


def _open_or_explain(entries: Sequence[RunEntry]) -> list[Run]:
    """The readable of these runs, with an error for each other, and warnings of what is wrong with a run."""
    runs = []
    for entry in entries:
        try:
            run = open_cached(runs_root() / entry.run_id)
        except UserError as error:
            st.error(plain(str(error)))
            continue
        if entry.status == "failed":
            reason = entry.message.strip() or "no reason was recorded"
            reason = reason[0].upper() + reason[1:] + ("" if reason.endswith((".", "!", "?")) else ".")
            st.warning(plain(f"{entry.label} failed: {reason} What it had saved is shown."))
        for problem in run.problems:
            st.warning(plain(f"{entry.label}: {problem}"))
        runs.append(run)
    return runs


def _pick_comparison() -> ComparisonEntry | None:
    try:
        comparisons = list_comparisons(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return None
    if not comparisons:
        st.info("There are no runs yet. Start one on the page **New**, or with `kvlab compare` on the command line.")
        return None
    wanted = wanted_comparison(comparisons) or comparisons[0].comparison_id
    if items.split_joint_id(wanted):
        try:
            comparisons = [items.join_comparisons(runs_root(), wanted, comparisons), *comparisons]
        except UserError as error:
            st.error(plain(str(error)))
    by_id = {comparison.comparison_id: comparison for comparison in comparisons}
    # A batch is one entry, represented by the repeat shown.
    groups = {
        (by_id[wanted] if by_id.get(wanted) in group else group[0]).comparison_id: group
        for group in by_batch(comparisons)
    }
    # The browser names an option by its label, so two comparisons of one title and minute need different ones.
    titles = []
    for group in groups.values():
        # The prompt, the number of prompts, and the time, which tells equal prompts apart.
        first = group[0]
        several = len({entry.number for entry in group})
        together = len(items.split_joint_id(first.comparison_id))
        count = f" · {together} together" if together else f" · {prompts(several)}" if several > 1 else ""
        titles.append(f"{shorten(first.text or first.comparison_id, 28)}{count} · {day_or_time(first.created)}")
    names = number_duplicates(titles)
    labels = dict(zip(groups, names, strict=True))
    if not _bar_picker("comparison", "Prompt", list(groups), wanted, labels.__getitem__):
        return None
    if len(groups[wanted]) > 1:
        # The picker of a batch's repeats.
        numbers = {entry.comparison_id: entry.number for entry in groups[wanted]}
        st.session_state["pick_repeat"] = wanted
        every = len(set(numbers.values()))
        repeats = {name: f"{place} of {every}" for name, place in numbers.items()}
        help_text = "One prompt of this batch; the page Result shows all of them together."
        bar.picker(
            "repeat",
            "Which prompt",
            list(repeats),
            repeats.__getitem__,
            help_text,
            on_change=take_choice,
            args=(("repeat",),),
        )
    url_state.remember("comparison", wanted)
    bar.prompt_place()
    bar.clicks(lambda place: url_state.go_to_and_redraw(**place))
    return by_id[wanted]


def wanted_comparison(comparisons: Sequence[ComparisonEntry]) -> str | None:
    """The comparison in the URL, directly or by its run, else the one this session showed last."""
    owner = {run.run_id: comparison.comparison_id for comparison in comparisons for run in comparison.runs}
    for value_of in (url_state.get_param, url_state.chosen_value):
        run = value_of("run")
        comparison = value_of("comparison")
        # A run of one of several joined comparisons leaves them joined.
        if run in owner and owner[run] not in items.split_joint_id(comparison or ""):
            return owner[run]
        if comparison:
            return comparison
    return None


def _pick_run(comparison: ComparisonEntry, prefer: Prefer) -> RunEntry | None:
    by_id = {run.run_id: run for run in comparison.runs}
    names = dict(zip(by_id, distinct_names(comparison.runs), strict=True))
    requested = url_state.get_param("run")
    stored = url_state.chosen_value("run")
    reason = None
    if requested is not None and requested != st.session_state.get(OPENED):
        wanted = requested
        st.session_state.pop(OPENED, None)
    elif stored in by_id:
        wanted = stored
    else:
        if requested is not None and requested in by_id:
            wanted = requested
            why = st.session_state[OPENED_WHY]
        else:
            wanted, why = run_to_open(comparison, prefer)
        reason = f"Opened with this run: {why}."
        st.session_state[OPENED] = wanted
        st.session_state[OPENED_WHY] = why
    labels = {name: names[name] + STATUS_NOTE[run.status] for name, run in by_id.items()}
    if not _bar_picker("run", "Run", list(labels), wanted, labels.__getitem__, reason):
        return None
    if reason is None:
        url_state.remember("run", wanted)
    else:
        url_state.set_param("run", wanted)
    return by_id[wanted]


def _bar_picker(
    name: str, label: str, options: Sequence[str], wanted: str, words: Callable[[str], str], why: str | None = None
) -> bool:
    """A picker of the bar; whether `wanted` exists, else with a sentence."""
    exists = wanted in options
    if not exists:
        st.error(f"There is no {name} {code(wanted)} in this folder of runs: choose another above.")
    st.session_state[f"pick_{name}"] = wanted if exists else None
    bar.picker(name, label, list(options), words, why, on_change=take_choice, args=((name,),))
    return exists


def take_choice(names: tuple[str, ...]) -> None:
    """Callback of the pickers: put their values into the URL. A repeat of a batch is a comparison."""
    if "repeat" in names:
        st.session_state["pick_comparison"] = st.session_state["pick_repeat"]
        names = ("comparison",)
    if "comparison" in names:
        for name in ("run", "b", "step", "token"):
            url_state.forget(name)
    if "run" in names:
        st.session_state.pop(OPENED, None)
    url_state.choose({name: st.session_state.get(f"pick_{name}") for name in names})
