"""What the page shows, kept in the URL: comparison, run, layer, head, step; and bounded caches of open runs.

A link to any view is the address in the browser. What the URL asks for and does not exist gets one sentence.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from app.parts.text import day_or_time, plain, shorten
from kvlab.atlas.sources import Sources
from kvlab.counted import ONE_PROMPT
from kvlab.errors import UserError
from kvlab.figures.palette import Theme
from kvlab.trace.catalogue import ComparisonEntry, RunEntry, list_comparisons
from kvlab.trace.reader import Run, open_run
from kvlab.trace.schema import RunRecord

OPEN_RUNS = 8
STATUS_NOTE = {"complete": "", "running": " · running", "cancelled": " · cancelled", "failed": " · failed"}


def runs_root() -> Path:
    """The folder of runs: `KVLAB_RUNS`, or `runs` in the folder the server was started from."""
    return Path(os.environ.get("KVLAB_RUNS") or "runs").absolute()


def session_id() -> str:
    """A name for this browser session, by which the queue lets sessions take turns."""
    return st.session_state.setdefault("session_id", secrets.token_hex(8))


def theme() -> Theme:
    """The theme the browser shows."""
    return "dark" if st.context.theme.type == "dark" else "light"


def current_run() -> Run | None:
    """The run named by the URL or picked in the sidebar; None, with a sentence on the page, when there is none."""
    comparison = _pick_comparison()
    if comparison is None:
        return None
    entry = _pick_run(comparison)
    run = _open_or_explain(entry) if entry else None
    if run is not None:
        say_one_prompt(run)
    return run


def current_comparison(show_batch: Callable[[RunRecord], None] = lambda _: None) -> list[Run]:
    """The readable runs of the comparison named by the URL or picked in the sidebar, in the order they were made.

    Where it is a repeat, `show_batch` draws its batch before the page says which single prompt it is about.
    """
    comparison = _pick_comparison()
    if comparison is None:
        return []
    opened = [_open_or_explain(entry) for entry in comparison.runs]
    runs = [run for run in opened if run is not None]
    if runs and runs[0].record.repeat is not None:
        show_batch(runs[0].record)
    if runs:
        say_one_prompt(runs[0])
    return runs


def say_one_prompt(run: Run) -> None:
    """One line under a page's heading: that all its numbers are of one prompt, and of which."""
    record = run.record
    named = f"{shorten(record.title, 60)}, " if record.title else ""
    told = f"{ONE_PROMPT.capitalize()} ({named}{record.prompt_tokens:,} tokens)"
    st.caption(plain(f"{told}: means here are over its heads, layers, steps or tokens."))


def current_sources() -> Sources:
    """All that an exhibit can be drawn from: the run in view, its comparison, and the results in the folder of runs."""
    comparison = _pick_comparison()
    entry = _pick_run(comparison) if comparison else None
    if comparison is None or entry is None:
        return Sources(runs_root())
    runs = [run for found in comparison.runs if (run := _open_or_explain(found)) is not None]
    chosen = next((run for run in runs if run.record.run_id == entry.run_id), None)
    return Sources(runs_root(), chosen, runs)


def pick_layer(run: Run) -> int:
    """The layer named by the URL or picked here; layers that recorded nothing are not offered."""
    model = run.record.model
    layers = [layer for layer in range(model.num_hidden_layers) if layer not in run.record.sliding_layers]
    if not layers:
        st.warning("Every layer of this model keeps its own sliding window, so nothing was recorded for any of them.")
        st.stop()
    _explain_invalid("layer", layers, f"is not a recorded layer of this run: choose one of {_span(layers)}")
    help_text = "Layers with their own sliding window record nothing." if run.record.sliding_layers else None
    return st.selectbox("Layer", layers, key="layer", bind="query-params", help=help_text)


def pick_head(run: Run) -> int:
    """The KV head named by the URL or picked here."""
    heads = list(range(run.record.model.num_key_value_heads))
    _explain_invalid("head", heads, f"is not a KV head of this run: choose one of {_span(heads)}")
    group = run.record.model.num_attention_heads // run.record.model.num_key_value_heads
    return st.selectbox("KV head", heads, key="head", bind="query-params", help=f"Serves {group} query heads.")


def pick_step(run: Run) -> int:
    """The step named by the URL or picked here; 0 is the prefill."""
    last = last_step(run)
    _explain_invalid("step", range(last + 1), f"is not a step of this run: choose one of 0 to {last}")
    if last == 0:
        return 0
    return st.slider("Step", 0, last, key="step", bind="query-params", help="0 is the prefill, then one step a token.")


def pick_token(run: Run) -> int | None:
    """The position of the token named by the URL or entered here; None where the reader named none."""
    last = max(run.record.prompt_tokens + last_step(run) - 1, 0)
    _explain_invalid("token", range(last + 1), f"is not a token of this run: choose one of 0 to {last}")
    help_text = f"Position in the text, 0 to {last}; empty lets the figure choose."
    return st.number_input("Token", 0, last, None, 1, key="token", bind="query-params", help=help_text)


def last_step(run: Run) -> int:
    """The last recorded step of a run; 0 when it recorded none."""
    steps = run.select("memory", columns=["step"])["step"]
    return int(steps.max()) if len(steps) else 0


def open_cached(path: Path) -> Run:
    """The open run at `path`; at most a few stay open, and a run still being written is read anew as it grows.

    Raises:
        UserError: as `kvlab.trace.open_run`.
    """
    stamps = [file.stat().st_mtime_ns for name in ("run.json", "parts.json") if (file := path / name).exists()]
    return _open(str(path), tuple(stamps))


@st.cache_resource(max_entries=OPEN_RUNS, show_spinner=False)
def _open(path: str, stamps: tuple[int, ...]) -> Run:
    # The stamps are part of the key only: a name with a leading underscore would leave them out of it.
    return open_run(Path(path))


def _open_or_explain(entry: RunEntry) -> Run | None:
    try:
        run = open_cached(runs_root() / entry.run_id)
    except UserError as error:
        st.error(str(error))
        return None
    if entry.status == "failed":
        st.warning(f"{entry.label} failed: {_sentence(entry.message)} What it had saved is shown.")
    for problem in run.problems:
        st.warning(f"{entry.label}: {problem}")
    return run


def _pick_comparison() -> ComparisonEntry | None:
    try:
        comparisons = list_comparisons(runs_root())
    except UserError as error:
        st.error(str(error))
        return None
    if not comparisons:
        st.info("There are no runs yet. Make one on the page **New run**, or with `kvlab compare` on the command line.")
        return None
    by_id = {comparison.comparison_id: comparison for comparison in comparisons}
    wanted = _wanted_comparison(comparisons) or comparisons[0].comparison_id
    chosen = _sidebar_choice("comparison", list(by_id), wanted, lambda name: _comparison_label(by_id[name]))
    return by_id[chosen] if chosen else None


def _wanted_comparison(comparisons: Sequence[ComparisonEntry]) -> str | None:
    """What the URL asks for, else what this session looked at last; naming a run names its comparison."""
    owner = {run.run_id: comparison.comparison_id for comparison in comparisons for run in comparison.runs}
    remembered = {name: st.session_state.get(f"chosen_{name}") for name in ("run", "comparison")}
    asked: Mapping[str, Any]
    for asked in (st.query_params, remembered):
        run, comparison = asked.get("run"), asked.get("comparison")
        if run in owner:
            return owner[run]
        if comparison:
            return comparison
    return None


def _pick_run(comparison: ComparisonEntry) -> RunEntry | None:
    by_id = {run.run_id: run for run in comparison.runs}
    # The full cache drops nothing, so a page about what was dropped starts with another run.
    first = next((run.run_id for run in comparison.runs if run.method != "full"), comparison.runs[0].run_id)
    remembered = st.session_state.get("chosen_run")
    wanted = st.query_params.get("run") or (remembered if remembered in by_id else first)
    chosen = _sidebar_choice(
        "run", list(by_id), wanted, lambda name: by_id[name].label + STATUS_NOTE[by_id[name].status]
    )
    return by_id[chosen] if chosen else None


def _sidebar_choice(name: str, options: Sequence[str], wanted: str, label: Callable[[str], str]) -> str | None:
    """The option the URL names, changeable in the sidebar; None with a sentence when it does not exist."""
    known = wanted in options
    if not known:
        st.error(f"There is no {name} `{wanted}` in {runs_root()}: pick another in the sidebar.")
    widget = f"pick_{name}"
    st.session_state[widget] = wanted if known else None
    st.sidebar.selectbox(
        name.capitalize(),
        options,
        index=0 if known else None,
        format_func=label,
        key=widget,
        on_change=_choose,
        args=(name, widget),
    )
    if known:
        _remember(name, wanted)
    return wanted if known else None


def _choose(name: str, widget: str) -> None:
    """Called before the script runs again: the choice becomes the URL, which the script then follows."""
    if name == "comparison":
        _forget("run")
    if st.session_state[widget]:
        _remember(name, st.session_state[widget])


def _remember(name: str, value: str) -> None:
    st.session_state[f"chosen_{name}"] = value  # the menu drops the query string, the session does not
    if st.query_params.get(name) != value:
        st.query_params[name] = value


def _forget(name: str) -> None:
    st.session_state.pop(f"chosen_{name}", None)
    st.query_params.pop(name, None)


def _explain_invalid(name: str, allowed: Sequence[int], sentence: str) -> None:
    """Say why the URL's value is not shown; read before the widget exists, as the widget then drops it."""
    asked = st.query_params.get(name)
    if asked is not None and asked not in {str(value) for value in allowed}:
        st.warning(f"{name.capitalize()} `{asked}` {sentence}.")


def _span(numbers: Sequence[int]) -> str:
    contiguous = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if contiguous else ", ".join(map(str, numbers))


def _sentence(message: str) -> str:
    text = message.strip() or "no reason was recorded"
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _comparison_label(comparison: ComparisonEntry) -> str:
    # As much as the narrow sidebar shows; two comparisons of one prompt differ in their time.
    return f"{shorten(comparison.title or comparison.comparison_id, 20)} · {day_or_time(comparison.created)}"
