"""The comparison, run, layer, head and step that a page shows, chosen by the URL or by the pickers of the bar.

The URL of a view is a link to it. A value that does not exist gets one sentence. Without a choice the page opens where
there is something to see (`kvlab.analysis.lineage.starting_point`), and the picker says why. Choices stay when the page
changes. The pickers are in the bar at the top of the page (`app.navigation.context_bar`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import streamlit as st

from app.base.text import code, plain
from app.navigation import context_bar as bar
from app.navigation.run_titles import comparison_label, failure, show_run, show_runs
from app.session.open_runs import open_cached, run_to_open, runs_root, telling_head, telling_step
from app.session.url_state import (
    choose,
    chosen_value,
    forget,
    get_param,
    go_to_and_redraw,
    in_url,
    params,
    parse_number,
    pending_value,
    remember,
    set_page_param_from,
    set_param,
    url_value,
)
from kvlab.analysis.comparison.labels import distinct_names, numbered
from kvlab.analysis.lineage.starting_point import Prefer
from kvlab.common.errors import UserError
from kvlab.library import side_by_side
from kvlab.results.sources import Sources
from kvlab.trace.catalogue import ComparisonEntry, RunEntry, by_batch, list_comparisons
from kvlab.trace.reader import Run

STATUS_NOTE = {"complete": "", "running": " · running", "cancelled": " · cancelled", "failed": " · failed"}
NO_RUN = "none"  # of a difference
OPENED, OPENED_WHY = "opened_run", "opened_run_why"  # the run a page opened by default; other pages have other defaults


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
    run = _open_or_explain(entry) if entry else None
    if run is not None:
        show_run(run)
    return run


def current_comparison() -> list[Run]:
    """The readable runs of the comparison in the URL or the bar, oldest first."""
    comparison = _pick_comparison()
    if comparison is None:
        return []
    runs = _open_all(comparison)
    if runs:
        show_runs(runs)
    return runs


def other_run(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run of the comparison that `b` in the URL or the bar sets beside `run`; None if there is none."""
    by_id = {one.record.run_id: one for one in runs if one is not run}
    if not by_id:
        return None
    names = dict(zip(by_id, distinct_names([one.record for one in by_id.values()]), strict=True))
    requested = url_value("b")
    if requested not in (None, NO_RUN, *by_id):
        st.warning(f"This comparison has no other run {code(requested)}: choose another.")
    st.session_state["pick_b"] = requested if requested in by_id else NO_RUN
    help_text = "Shows which tokens only one of the two runs has kept."
    words = {NO_RUN: "no other run", **names}
    bar.picker("b", "Difference with", list(words), words.__getitem__, help_text, on_change=_choose_other)
    return by_id.get(requested or "")


def _choose_other() -> None:
    set_page_param_from("b", "pick_b")


def current_sources(prefer: Prefer = "any") -> Sources:
    """The sources of exhibits: the run shown, its comparison, and the results in the folder of runs.

    `prefer` is the kind of run that the page opens with by default.
    """
    comparison = _pick_comparison()
    entry = _pick_run(comparison, prefer) if comparison else None
    if comparison is None or entry is None:
        return Sources(runs_root())
    runs = _open_all(comparison)
    chosen = next((run for run in runs if run.record.run_id == entry.run_id), None)
    if chosen is not None:
        show_run(chosen)
    return Sources(runs_root(), chosen, runs)


def pick_layer(run: Run) -> int:
    """The layer in the URL or the bar; layers without a recording are not offered."""
    layers = recorded_layers(run)
    if not layers:
        st.warning("Every layer of this model uses sliding-window attention, so nothing was recorded.")
        st.stop()
    sentence = f"is not a recorded layer of this run: choose one of {_span(layers)}"
    layer, reason = _place(run, "layer", layers, sentence)
    st.session_state["pick_layer"] = layer
    return bar.picker("layer", "Layer", layers, str, reason, on_change=_choose, args=(("layer", "head"),))


def pick_head(run: Run) -> int:
    """The KV head in the URL or the bar."""
    heads = list(range(run.record.model.num_key_value_heads))
    head, reason = _place(run, "head", heads, f"is not a KV head of this run: choose one of {_span(heads)}")
    group = run.record.model.num_attention_heads // run.record.model.num_key_value_heads
    help_text = f"Serves {group} query heads. {reason or ''}"
    st.session_state["pick_head"] = head
    return bar.picker("head", "KV head", heads, str, help_text, on_change=_choose, args=(("layer", "head"),))


def pick_step(run: Run) -> int:
    """The step in the URL or the bar; 0 is the prefill."""
    steps = list(range(last_step(run) + 1))
    step = chosen_step(run, steps)
    st.session_state["pick_step"] = step
    help_text = f"0 is the prefill, then one step per token. {step_reason(run)}"
    return bar.picker("step", "Step", steps, str, help_text, on_change=_choose, args=(("step",),))


def pick_token(run: Run) -> int | None:
    """The position of the token in the URL or entered here; None without one."""
    last = max(run.record.prompt_tokens + last_step(run) - 1, 0)
    requested = get_param("token")
    number = parse_number(requested)
    if requested is not None and (number is None or str(number) != requested or number > last):
        st.warning(f"Token {code(requested)} is not a token of this run: choose one of 0 to {last}.")
    help_text = f"Position in the text, 0 to {last}; if empty, the figure chooses."
    with bar.row():
        return st.number_input("Token", 0, last, None, 1, **in_url("token"), help=help_text, width=bar.WIDTHS["step"])


def place_of(run: Run) -> tuple[int, int]:
    """The layer and head shown, for callbacks: the session has them before the URL does."""
    layer, head = (pending_value(name) or chosen_value(name) for name in ("layer", "head"))
    return telling_head(run)[:2] if layer is None or head is None else (int(layer), int(head))


def head_in_view(run: Run) -> tuple[int, int]:
    """The layer and head to outline on a page without pickers for them: the chosen ones, if this run has them."""
    layer, head = (
        parse_number(pending_value(name) or get_param(name) or chosen_value(name)) for name in ("layer", "head")
    )
    known = layer in recorded_layers(run) and head in range(run.record.model.num_key_value_heads)
    return (layer, head) if known and layer is not None and head is not None else telling_head(run)[:2]


def recorded_layers(run: Run) -> list[int]:
    """The layers that the run recorded: all but those with sliding-window attention."""
    return [layer for layer in range(run.record.model.num_hidden_layers) if layer not in run.record.sliding_layers]


def chosen_step(run: Run, steps: Sequence[int]) -> int:
    """The step of `steps` in the URL, else the one chosen on another page, else the one to show first."""
    by_text = {str(step): step for step in steps}
    requested = url_value("step")
    if requested is not None and requested not in by_text:
        st.warning(f"Step {code(requested)} is not a step of this run: choose one of {steps[0]} to {steps[-1]}.")
        return steps[-1]
    text = requested or chosen_value("step")
    if text in by_text:
        remember("step", text)
        return by_text[text]
    first = telling_step(run).step
    return first if first in steps else steps[-1]


def step_reason(run: Run) -> str:
    """Why the page opened at its step; "" if the user chose it."""
    if "step" in params():
        return ""
    step, reason = telling_step(run)
    return f"Opened at step {step}: {reason}."


def last_step(run: Run) -> int:
    """The last recorded step of a run; 0 if it recorded none."""
    steps = run.select("memory", columns=["step"])["step"]
    return int(steps.max()) if len(steps) else 0


def _place(run: Run, name: str, values: Sequence[int], sentence: str) -> tuple[int, str | None]:
    """The layer or head to show, and the reason if the user chose none."""
    texts = {str(value) for value in values}
    requested = get_param(name)
    if requested is not None and requested not in texts:
        st.warning(f"{name.capitalize()} {code(requested)} {sentence}.")
    if params().keys().isdisjoint(("layer", "head")):
        stored = {part: chosen_value(part) for part in ("layer", "head")}
        if None in stored.values() or stored[name] not in texts:
            telling = telling_head(run)
            return getattr(telling, name), f"Opened here: {telling.reason}."
        for part, text in stored.items():
            remember(part, str(text))
        requested = get_param(name)
    # A link that names only one of the two means the first of the other.
    value = int(requested) if requested in texts else values[0]
    remember(name, str(value), url=requested in (None, str(value)))  # a wrong value stays in the URL with its warning
    return value, None


def _open_all(comparison: ComparisonEntry) -> list[Run]:
    return [run for entry in comparison.runs if (run := _open_or_explain(entry)) is not None]


def _open_or_explain(entry: RunEntry) -> Run | None:
    try:
        run = open_cached(runs_root() / entry.run_id)
    except UserError as error:
        st.error(plain(str(error)))
        return None
    if entry.status == "failed":
        st.warning(plain(failure(entry)))
    for problem in run.problems:
        st.warning(plain(f"{entry.label}: {problem}"))
    return run


def _pick_comparison() -> ComparisonEntry | None:
    try:
        comparisons = list_comparisons(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return None
    if not comparisons:
        st.info(
            "There are no runs yet. Start one on the page **New run**, or with `kvlab compare` on the command line."
        )
        return None
    wanted = _wanted_comparison(comparisons) or comparisons[0].comparison_id
    comparisons = _with_joined(comparisons, wanted)
    by_id = {comparison.comparison_id: comparison for comparison in comparisons}
    # A batch is one entry, represented by the repeat shown.
    groups = {(by_id[wanted] if by_id.get(wanted) in group else group[0]).comparison_id: group
              for group in by_batch(comparisons)}  # fmt: skip
    # The browser names an option by its label, so two comparisons of one title and minute need different ones.
    names = numbered([comparison_label(group) for group in groups.values()])
    labels = dict(zip(groups, names, strict=True))
    if not _bar_picker("comparison", "Prompt", list(groups), wanted, labels.__getitem__):
        return None
    _pick_repeat(wanted, groups[wanted])
    remember("comparison", wanted)
    bar.reserve_prompt()
    bar.clicks(lambda place: go_to_and_redraw(**place))
    return by_id[wanted]


def _with_joined(comparisons: list[ComparisonEntry], wanted: str) -> list[ComparisonEntry]:
    """The comparisons, preceded by the joined one if `wanted` names several."""
    if not side_by_side.split_joint_id(wanted):
        return comparisons
    try:
        return [side_by_side.join_comparisons(runs_root(), wanted, comparisons), *comparisons]
    except UserError as error:
        st.error(plain(str(error)))
        return comparisons


def _pick_repeat(wanted: str, group: Sequence[ComparisonEntry]) -> None:
    """The picker of a batch's repeats; nothing for a prompt without repeats."""
    if len(group) == 1:
        return
    numbers = {entry.comparison_id: entry.number for entry in group}
    st.session_state["pick_repeat"] = wanted
    label = lambda name: f"{numbers[name]} of {len(set(numbers.values()))}"  # noqa: E731
    help_text = "One prompt of this batch; the page Compare shows all of them together."
    bar.picker("repeat", "Which prompt", list(numbers), label, help_text, on_change=_choose_repeat)


def _choose_repeat() -> None:
    st.session_state["pick_comparison"] = st.session_state["pick_repeat"]
    _choose(("comparison",))


def _wanted_comparison(comparisons: Sequence[ComparisonEntry]) -> str | None:
    """The comparison in the URL, directly or by its run, else the one this session showed last."""
    owner = {run.run_id: comparison.comparison_id for comparison in comparisons for run in comparison.runs}
    for value_of in (get_param, chosen_value):
        run, comparison = value_of("run"), value_of("comparison")
        # A run of one of several joined comparisons leaves them joined.
        if run in owner and owner[run] not in side_by_side.split_joint_id(comparison or ""):
            return owner[run]
        if comparison:
            return comparison
    return None


def _pick_run(comparison: ComparisonEntry, prefer: Prefer) -> RunEntry | None:
    by_id = {run.run_id: run for run in comparison.runs}
    names = dict(zip(by_id, distinct_names(comparison.runs), strict=True))
    requested, stored, reason = get_param("run"), chosen_value("run"), None
    if requested is not None and requested != st.session_state.get(OPENED):
        wanted = requested
        st.session_state.pop(OPENED, None)
    elif stored in by_id:
        wanted = stored
    else:
        if requested is not None and requested in by_id:
            wanted, why = requested, st.session_state[OPENED_WHY]
        else:
            wanted, why = run_to_open(comparison, prefer)
        reason = f"Opened with this run: {why}."
        st.session_state[OPENED], st.session_state[OPENED_WHY] = wanted, why
    label = lambda name: names[name] + STATUS_NOTE[by_id[name].status]  # noqa: E731
    if not _bar_picker("run", "Run", list(by_id), wanted, label, reason):
        return None
    if reason is None:
        remember("run", wanted)
    else:
        set_param("run", wanted)
    return by_id[wanted]


def _bar_picker(
    name: str, label: str, options: Sequence[str], wanted: str, words: Callable[[str], str], why: str | None = None
) -> bool:
    """A picker of the bar; whether `wanted` exists, else with a sentence."""
    exists = wanted in options
    if not exists:
        st.error(f"There is no {name} {code(wanted)} in this folder of runs: choose another above.")
    st.session_state[f"pick_{name}"] = wanted if exists else None
    bar.picker(name, label, list(options), words, why, on_change=_choose, args=((name,),))
    return exists


def _choose(names: tuple[str, ...]) -> None:
    """Callback of the pickers: put their values into the URL."""
    if "comparison" in names:
        for name in ("run", "b", "step", "token"):
            forget(name)
    if "run" in names:
        st.session_state.pop(OPENED, None)
    choose({name: st.session_state.get(f"pick_{name}") for name in names})


def _span(numbers: Sequence[int]) -> str:
    contiguous = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if contiguous else ", ".join(map(str, numbers))
