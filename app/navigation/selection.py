"""What a page looks at: comparison, run, layer, head and step, kept in the URL and over a change of page.

A link to any view is the address in the browser. What the URL asks for and does not exist gets one sentence. Where
nobody chose, the page opens at a place that tells something (`kvlab.analysis.lineage.starting_point`), and the picker
says why. The pickers stand in the bar on top of the page (`app.navigation.context_bar`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from app.base.text import code, plain
from app.navigation import context_bar as bar
from app.navigation.run_titles import comparison_label, failure, say_run, say_runs
from app.session.open_runs import open_cached, run_to_open, runs_root, telling_head, telling_pair, telling_step
from app.session.url_state import asked_for, choose, forget, go_there, on_the_way, remember
from kvlab.analysis.comparison.labels import distinct_names
from kvlab.analysis.lineage.starting_point import Prefer
from kvlab.common.errors import UserError
from kvlab.library import side_by_side
from kvlab.results.sources import Sources
from kvlab.trace.catalogue import ComparisonEntry, RunEntry, by_batch, list_comparisons
from kvlab.trace.reader import Run

STATUS_NOTE = {"complete": "", "running": " · running", "cancelled": " · cancelled", "failed": " · failed"}
OPENED, OPENED_WHY = "opened_run", "opened_run_why"  # what a page opened by itself: another may open with another run


def session_id() -> str:
    """A name for this browser session, by which the queue lets sessions take turns."""
    return st.session_state.setdefault("session_id", secrets.token_hex(8))


def current_run(prefer: Prefer = "any") -> Run | None:
    """The run named by the URL or picked in the bar; None, with a sentence on the page, when there is none.

    `prefer` is the kind of run that the page opens with where nobody chose one.
    """
    comparison = _pick_comparison()
    if comparison is None:
        return None
    entry = _pick_run(comparison, prefer)
    run = _open_or_explain(entry) if entry else None
    if run is not None:
        say_run(run)
    return run


def current_comparison() -> list[Run]:
    """The readable runs of the comparison named by the URL or picked in the bar, in the order they were made."""
    comparison = _pick_comparison()
    if comparison is None:
        return []
    runs = [run for found in comparison.runs if (run := _open_or_explain(found)) is not None]
    if runs:
        say_runs(runs)
    return runs


def current_pair(runs: Sequence[Run]) -> tuple[Run, Run]:
    """The two of `runs` that the address names as `a` and `b`, or that are picked in the bar."""
    by_id = {run.record.run_id: run for run in runs}
    names = dict(zip(by_id, distinct_names([run.record for run in runs]), strict=True))
    telling = telling_pair(runs)
    ids, reason = telling or (tuple(by_id)[-2:], "the last two")
    chosen = []
    for key, first in zip(("a", "b"), ids, strict=True):
        asked = _asked(key, by_id, f"This comparison has no run {code(st.query_params.get(key))}: choose another.")
        st.session_state[f"pick_{key}"] = asked or first
        why = None if asked else f"Opened with this pair: {reason}."
        label = f"Run {key.upper()}"
        bar.choice(key, label, list(by_id), names.__getitem__, why, on_change=_choose, args=((key,),))
        chosen.append(by_id[asked or first])
    return chosen[0], chosen[1]


def current_sources() -> Sources:
    """All that an exhibit can be drawn from: the run in view, its comparison, and the results in the folder of runs."""
    comparison = _pick_comparison()
    entry = _pick_run(comparison, "any") if comparison else None
    if comparison is None or entry is None:
        return Sources(runs_root())
    runs = [run for found in comparison.runs if (run := _open_or_explain(found)) is not None]
    chosen = next((run for run in runs if run.record.run_id == entry.run_id), None)
    if chosen is not None:
        say_run(chosen)
    return Sources(runs_root(), chosen, runs)


def pick_layer(run: Run) -> int:
    """The layer named by the URL or picked in the bar; layers that recorded nothing are not offered."""
    layers = recorded_layers(run)
    if not layers:
        st.warning("Every layer of this model keeps its own sliding window, so nothing was recorded for any of them.")
        st.stop()
    sentence = f"is not a recorded layer of this run: choose one of {_span(layers)}"
    layer, reason = _place(run, "layer", layers, sentence)
    st.session_state["pick_layer"] = layer
    return bar.choice("layer", "Layer", layers, str, reason, on_change=_choose, args=(("layer", "head"),))


def pick_head(run: Run) -> int:
    """The KV head named by the URL or picked in the bar."""
    heads = list(range(run.record.model.num_key_value_heads))
    head, reason = _place(run, "head", heads, f"is not a KV head of this run: choose one of {_span(heads)}")
    group = run.record.model.num_attention_heads // run.record.model.num_key_value_heads
    serves = f"Serves {group} query heads. {reason or ''}"
    st.session_state["pick_head"] = head
    return bar.choice("head", "KV head", heads, str, serves, on_change=_choose, args=(("layer", "head"),))


def pick_step(run: Run) -> int:
    """The step named by the URL or picked in the bar; 0 is the prefill."""
    steps = list(range(last_step(run) + 1))
    step = chosen_step(run, steps)
    st.session_state["pick_step"] = step
    told = f"0 is the prefill, then one step a token. {step_reason(run)}"
    return bar.choice("step", "Step", steps, str, told, on_change=_choose, args=(("step",),))


def pick_token(run: Run) -> int | None:
    """The position of the token named by the URL or entered here; None where the reader named none."""
    last = max(run.record.prompt_tokens + last_step(run) - 1, 0)
    _explain_invalid("token", range(last + 1), f"is not a token of this run: choose one of 0 to {last}")
    help_text = f"Position in the text, 0 to {last}; empty lets the figure choose."
    with bar.place():
        return st.number_input(
            "Token", 0, last, None, 1, key="token", bind="query-params", help=help_text, width=bar.WIDTHS["step"]
        )


def place_of(run: Run) -> tuple[int, int]:
    """The layer and head in view, asked in a callback: the session knows them before the address does."""
    layer, head = (on_the_way(name) or st.session_state.get(f"chosen_{name}") for name in ("layer", "head"))
    return telling_head(run)[:2] if layer is None or head is None else (int(layer), int(head))


def recorded_layers(run: Run) -> list[int]:
    """The layers of which the run recorded something."""
    return [layer for layer in range(run.record.model.num_hidden_layers) if layer not in run.record.sliding_layers]


def chosen_step(run: Run, steps: Sequence[int]) -> int:
    """The step of `steps` that the address names, else the one chosen on another page, else a telling one."""
    known = {str(step): step for step in steps}
    asked = asked_for("step")
    if asked is not None and asked not in known:
        st.warning(f"Step {code(asked)} is not a step of this run: choose one of {steps[0]} to {steps[-1]}.")
        return steps[-1]
    kept = asked or st.session_state.get("chosen_step")
    if kept in known:
        remember("step", str(known[kept]))
        return known[kept]
    first = telling_step(run).step
    return first if first in known.values() else steps[-1]


def step_reason(run: Run) -> str:
    """Why the page opened at its step; "" where the reader chose it."""
    if "step" in st.query_params:
        return ""
    step, reason = telling_step(run)
    return f"Opened at step {step}: {reason}."


def last_step(run: Run) -> int:
    """The last recorded step of a run; 0 when it recorded none."""
    steps = run.select("memory", columns=["step"])["step"]
    return int(steps.max()) if len(steps) else 0


def _place(run: Run, name: str, known: Sequence[int], sentence: str) -> tuple[int, str | None]:
    """The layer or head to look at, and, where nobody chose one, why it is this one."""
    _explain_invalid(name, known, sentence)
    pair = ("layer", "head")
    if not any(part in st.query_params for part in pair):
        kept = {part: st.session_state.get(f"chosen_{part}") for part in pair}
        if None in kept.values() or kept[name] not in {str(value) for value in known}:
            telling = telling_head(run)
            return getattr(telling, name), f"Opened here: {telling.reason}."
        for part, value in kept.items():
            remember(part, str(value))
    # A link that names one of the two means the first of the other.
    asked = st.query_params.get(name)
    value = int(asked) if asked in {str(one) for one in known} else known[0]
    if asked in (None, str(value)):
        remember(name, str(value))
    else:
        st.session_state[f"chosen_{name}"] = str(value)  # what the address asks for wrongly stays in it, and is said
    return value, None


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
        st.info("There are no runs yet. Make one on the page **New run**, or with `kvlab compare` on the command line.")
        return None
    wanted = _wanted_comparison(comparisons) or comparisons[0].comparison_id
    comparisons = _with_joined(comparisons, wanted)
    by_id = {comparison.comparison_id: comparison for comparison in comparisons}
    # The repeats of a batch are one entry, which stands for the one in view.
    groups = {(by_id[wanted] if by_id.get(wanted) in group else group[0]).comparison_id: group
              for group in by_batch(comparisons)}  # fmt: skip
    words = {name: comparison_label(group) for name, group in groups.items()}
    chosen = _bar_choice("comparison", "Prompt", list(groups), wanted, words.__getitem__)
    if chosen:
        _pick_repeat(wanted, groups[wanted])
        remember("comparison", wanted)
        bar.prompt_room()
        bar.clicks(lambda place: go_there(**place))
    return by_id[chosen] if chosen else None


def _with_joined(comparisons: list[ComparisonEntry], wanted: str) -> list[ComparisonEntry]:
    """The comparisons, and before them those that the address wants to see as one."""
    if not side_by_side.split_joint_id(wanted):
        return comparisons
    try:
        return [side_by_side.join_comparisons(runs_root(), wanted, comparisons), *comparisons]
    except UserError as error:
        st.error(plain(str(error)))
        return comparisons


def _pick_repeat(wanted: str, group: Sequence[ComparisonEntry]) -> None:
    """Which of a batch's repeats is looked at; nothing where the prompt was not repeated."""
    if len(group) == 1:
        return
    numbers = {entry.comparison_id: entry.number for entry in group}
    st.session_state["pick_repeat"] = wanted
    words = lambda name: f"{numbers[name]} of {len(set(numbers.values()))}"  # noqa: E731
    help_text = "One of the prompts that were asked for together; Compare shows all of them together."
    bar.choice("repeat", "Which prompt", list(numbers), words, help_text, on_change=_choose_repeat)


def _choose_repeat() -> None:
    st.session_state["pick_comparison"] = st.session_state["pick_repeat"]
    _choose(("comparison",))


def _wanted_comparison(comparisons: Sequence[ComparisonEntry]) -> str | None:
    """What the URL asks for, else what this session looked at last; naming a run names its comparison."""
    owner = {run.run_id: comparison.comparison_id for comparison in comparisons for run in comparison.runs}
    remembered = {name: st.session_state.get(f"chosen_{name}") for name in ("run", "comparison")}
    asked: Mapping[str, Any]
    for asked in (st.query_params, remembered):
        run, comparison = asked.get("run"), asked.get("comparison")
        # A run of one of several comparisons that are looked at together leaves them together.
        if run in owner and owner[run] not in side_by_side.split_joint_id(comparison or ""):
            return owner[run]
        if comparison:
            return comparison
    return None


def _pick_run(comparison: ComparisonEntry, prefer: Prefer) -> RunEntry | None:
    by_id = {run.run_id: run for run in comparison.runs}
    names = dict(zip(by_id, distinct_names(comparison.runs), strict=True))
    asked, kept, reason = st.query_params.get("run"), st.session_state.get("chosen_run"), None
    if asked is not None and asked != st.session_state.get(OPENED):
        wanted = asked
        st.session_state.pop(OPENED, None)
    elif kept in by_id:
        wanted = kept
    else:
        wanted, told = run_to_open(comparison, prefer) if asked not in by_id else (asked, st.session_state[OPENED_WHY])
        reason = f"Opened with this run: {told}."
        st.session_state[OPENED], st.session_state[OPENED_WHY] = wanted, told
    words = lambda name: names[name] + STATUS_NOTE[by_id[name].status]  # noqa: E731
    chosen = _bar_choice("run", "Run", list(by_id), wanted, words, reason)
    if chosen and reason is None:
        remember("run", wanted)
    elif chosen and asked != wanted:
        st.query_params["run"] = wanted
    return by_id[chosen] if chosen else None


def _bar_choice(
    name: str, label: str, options: Sequence[str], wanted: str, words: Callable[[str], str], why: str | None = None
) -> str | None:
    """The option the URL names, changeable in the bar; None with a sentence when it does not exist."""
    known = wanted in options
    if not known:
        st.error(f"There is no {name} {code(wanted)} in this folder of runs: pick another above.")
    st.session_state[f"pick_{name}"] = wanted if known else None
    bar.choice(name, label, list(options), words, why, on_change=_choose, args=((name,),))
    return wanted if known else None


def _choose(names: tuple[str, ...]) -> None:
    """Called before the script runs again: the choice becomes the URL, which the script then follows."""
    if "comparison" in names:
        for name in ("run", "a", "b", "step", "token"):
            forget(name)
    if "run" in names:
        st.session_state.pop(OPENED, None)
    choose({name: st.session_state.get(f"pick_{name}") for name in names})


def _asked(name: str, known: Mapping[str, Any], sentence: str) -> str | None:
    """What the URL asks for, else what was chosen on this page before; None, with the sentence, where it is unknown."""
    asked = st.query_params.get(name) or st.session_state.get(f"chosen_{name}")
    if asked in known:
        remember(name, str(asked))
        return asked
    if st.query_params.get(name) is not None:
        st.warning(sentence)
    return None


def _explain_invalid(name: str, allowed: Sequence[int], sentence: str) -> None:
    """Say why the URL's value is not shown."""
    asked = st.query_params.get(name)
    if asked is not None and asked not in {str(value) for value in allowed}:
        st.warning(f"{name.capitalize()} {code(asked)} {sentence}.")


def _span(numbers: Sequence[int]) -> str:
    contiguous = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if contiguous else ", ".join(map(str, numbers))
