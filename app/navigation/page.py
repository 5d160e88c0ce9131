"""What pages about a run share: heading, figures with their source, place and step in view, cached histories."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base.component import component, on_value
from app.base.text import plain
from app.components import SentTexts, state_classes, tokentext
from app.figures.export_menu import ITEMS
from app.figures.figure import SHOWN
from app.navigation import context_bar as bar
from app.navigation.place import Keys, chosen_step, last_step, page_keys, pick_head, pick_layer, step_reason
from app.navigation.selection import Prefer, current_run, current_sources
from app.session.open_runs import BY_STAMP, is_as_opened, runs_root
from app.session.streamlit_internals import is_fragment_run, wait_until_sent
from app.session.url_state import PLACE_FRAGMENT, apply_pending, go_to, in_url, mark_drawn
from kvlab.browser import read_static
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import load_labels
from kvlab.views import timeline
from kvlab.views.base.head_map import takes_whole_width
from kvlab.views.base.provenance import of_run
from kvlab.views.frames import board as analysis
from kvlab.views.frames.lineage import Lineage, fold, states_at, step_labels, steps_with_events, token_texts
from kvlab.views.frames.verdict import NO_REFERENCE

OPEN_HEADS = 24
OPEN_TEXTS = 8


def heading(title: str, description: str) -> None:
    """Begin a page: its title and what it shows."""
    # The figures and items of the page before are forgotten.
    st.session_state[SHOWN] = {}
    st.session_state[ITEMS] = {}
    st.title(title)
    st.markdown(description)


def verdict(sentence: str) -> None:
    """The first line below the title: what the page found in the run in view."""
    st.markdown(f"#### {plain(sentence)}")


def explain_level(run: Run, what: str) -> None:
    """One sentence on what this run did not record, and how to record it."""
    st.info(
        f"This run was recorded at level **{run.record.level}**, without {what}. Record it again at level **full**: on "
        "the page New, or with `kvlab compare --level full`.",
        icon=":material/info:",
    )


def explain_status(run: Run) -> None:
    """One sentence on a run that was cancelled or is still running."""
    if run.record.status in ("cancelled", "running"):
        words = {"cancelled": "was cancelled", "running": "is still running"}[run.record.status]
        st.info(f"This run {words}: what it has recorded so far is shown.", icon=":material/info:")


def map_columns(run: Run, widths: Sequence[int] = (1, 1)) -> list[DeltaGenerator]:
    """Two columns for figures with a map of layers and heads; below each other if the map takes the whole width."""
    if takes_whole_width(run.record.model.num_hidden_layers - len(run.record.sliding_layers)):
        return [st.container(), st.container()]
    return st.columns(widths, gap="large")


def metrics(values: Iterable[tuple[str, str, str]]) -> None:
    """A row of numbers, each with label and tooltip. Columns of equal width would cut long ones."""
    with st.container(horizontal=True, gap="large"):
        for label, value, explanation in values:
            st.metric(label, "–" if value == "not recorded" else value, help=explanation, width="content")


def reads_all(run: Run, layers: Sequence[int], limit: int, label: str, key: str = "read") -> bool:
    """Whether to read the vectors of all tokens and heads in these layers; over `limit`, a switch decides."""
    vectors = run.record.prompt_tokens * len(layers) * run.record.model.num_key_value_heads
    return vectors <= limit or st.toggle(label.format(vectors=vectors), **in_url(key))


_cache_heads = partial(st.cache_resource, max_entries=OPEN_HEADS, show_spinner=False, hash_funcs=BY_STAMP)


@_cache_heads()
def head_history(run: Run, layer: int, head: int) -> tuple[Lineage, pd.DataFrame, list[str]]:
    """Lineage, events and token texts of one layer and KV head."""
    events = run.head_events(layer, head)
    lineage = fold(events, head_steps(run, layer, head))
    return lineage, events, token_texts_of(run, lineage.tokens)


@_cache_heads()
def head_steps(run: Run, layer: int, head: int) -> pd.DataFrame:
    """The rows of `steps` of one layer and KV head."""
    return run.select("steps", layer, head)


@st.cache_resource(max_entries=OPEN_TEXTS, show_spinner=False, hash_funcs=BY_STAMP)
def token_texts_of(run: Run, count: int) -> SentTexts:
    """The texts of the first `count` tokens, of the prompt and decoded."""
    return SentTexts(token_texts(run.tokens, count))


def masses_at(run: Run, layer: int, head: int, step: int) -> timeline.Masses | None:
    """`kvlab.views.timeline.masses_at`."""
    return timeline.masses_at(run, head_history(run, layer, head)[0], layer, head, step)


def explain_no_masses(run: Run, layer: int, head: int, step: int) -> None:
    """One sentence on why `masses_at` is None for a run of level full."""
    every = run.attention_every
    sentence = f"Attention rows were recorded at every {every} steps only: choose step {step - step % every}."
    try:
        run.attention_row(layer, head, 0)
    except UserError as error:
        sentence = str(error)
    st.info(plain(sentence), icon=":material/info:")


KEY = "scrubber"

_component = component("scrubber", read_static("scrubber.html"), "step-bar.css")


def at_place(run: Run, draw: Callable[[int, int], None], *, steps: bool = True, more: Keys = ()) -> None:
    """Call `draw` with the chosen layer and head; when they change, only this fragment is rerun.

    `steps` is whether the page has steps, `more` its additional keyboard shortcuts.
    """
    bar.row()  # so that the fragment finds it
    _at_place(bar.CONTAINERS.get(), run, draw, steps, more)


@st.fragment(key=PLACE_FRAGMENT)
def _at_place(
    containers: dict[str, DeltaGenerator], run: Run, draw: Callable[[int, int], None], steps: bool, more: Keys
) -> None:
    is_fragment = is_fragment_run()
    bar.CONTAINERS.set(containers)
    if is_fragment:
        apply_pending()
        if not is_as_opened(run):
            st.rerun()
    layer = pick_layer(run)
    head = pick_head(run)
    page_keys(run, steps=steps, more=more)
    draw(layer, head)
    if is_fragment:
        mark_drawn()
        wait_until_sent()


def run_scrubber(run: Run) -> int:
    """The chosen step, from the scrubber in the bar; its events are those of all heads.

    Call it in the fragment that draws the step: the scrubber sticks below the bar.
    """
    steps, events, words = _steps(run)
    step = chosen_step(run, steps)
    # `events` are the steps with evictions or merges, `texts` a word or two about each step, `why` the reason for a
    # default step. The URL parameter `step` follows the user.
    data = {
        "steps": steps,
        "events": events,
        "texts": words,
        "identity": str(run.path),
        "step": step,
        "why": step_reason(run),
    }
    with st.container(key="context-step"):
        _component(key=KEY, data=data, on_step_change=partial(on_value, KEY, "step", lambda at: go_to(step=int(at))))
    return step


def head_text(run: Run, layer: int, head: int, step: int, key: str, shown: int | None = None) -> None:
    """The text with the state of every token in this head at this step; `shown` is outlined and scrolled into view."""
    lineage, _, texts = head_history(run, layer, head)
    codes = states_at(lineage, step)
    chosen = None if shown is None else (shown, shown)
    title = f"{run.record.label}: the fate of each token by step {step}"
    tokentext(
        texts,
        codes,
        state_classes(),
        identity=str(run.path),
        key=key,
        chosen=chosen,
        scroll=shown,
        title=title,
        source=of_run(run),
    )


def nothing_recorded(run: Run) -> bool:
    """Whether a run of level full has no steps, with a sentence on why."""
    empty = run.select("steps", columns=["step"]).empty
    if empty:
        lost = "steps" in " ".join(run.problems)
        words = "The steps of this run were lost." if lost else "Nothing is recorded yet."
        st.info(words, icon=":material/info:")
    return empty


@st.cache_data(max_entries=16, show_spinner=False, hash_funcs=BY_STAMP)
def _steps(run: Run) -> tuple[list[int], list[int], list[str]]:
    steps, events = steps_with_events(run.select("steps", columns=["step", "evicted", "merged"]))
    steps = steps or list(range(last_step(run) + 1))  # the table was lost, or the level records no steps
    return steps, events, step_labels(run.tokens, run.record.prompt_tokens, steps)


def full_run(prefer: Prefer, missing: str) -> Run | None:
    """The run to show, if recorded at level full; None, with a sentence, if it lacks `missing`."""
    run = current_run(prefer)
    if run is None:
        return None
    explain_status(run)
    if run.record.level != "full":
        explain_level(run, missing)
        return None
    return None if nothing_recorded(run) else run


def run_with_steps(prefer: Prefer = "any") -> tuple[Run, tuple[Run, ...]] | None:
    """The run to show, if it has steps, and all runs of its comparison; None, with a sentence, if it has none."""
    sources = current_sources(prefer)
    run = sources.run
    if run is None:
        return None
    explain_status(run)
    if run.steps.empty:
        explain_level(run, "everything this page shows")
        return None
    return run, tuple(sources.runs)


CLEAR_REFERENCE = f"{NO_REFERENCE[0].upper()}{NO_REFERENCE[1:]}."


def warn_of_reference(runs: Sequence[Run]) -> None:
    """Warn if the expected answer is missing in the full cache's own text."""
    try:
        wanted = analysis.expected_answer(runs, load_labels(runs_root(), runs[0].record.comparison_id))
    except UserError:
        return  # the page Result shows the error
    if wanted is not None and _fails(runs, wanted.answers):
        st.warning(CLEAR_REFERENCE, icon=":material/warning:")


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=BY_STAMP)
def _fails(runs: Sequence[Run], answers: tuple[str, ...]) -> bool:
    return analysis.judge_any(analysis.reference_texts(runs), answers).kind in ("nearly", "wrong")
