"""The texts of a comparison side by side, one column per run, while they are written and afterwards."""

import html

import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.figures.export_menu import Offer, show_title
from app.session.open_runs import BY_STAMP, open_cached, runs_root
from kvlab.browser import read_static
from kvlab.core.errors import UserError
from kvlab.jobs import JobStatus
from kvlab.report.views import Passages
from kvlab.requests.compare import CompareRequest
from kvlab.requests.live_texts import LiveTexts
from kvlab.trace.catalogue import list_repeats, list_runs
from kvlab.trace.user_labels import load_labels
from kvlab.views.base import Theme, of_comparison, percent, run_styles
from kvlab.views.frames.outcome import batch_outcome, outcome, own_texts
from kvlab.views.frames.repeats import build_batch, repeat_table
from kvlab.views.frames.textdiff import Segment


def show_outcome(status: JobStatus, request: CompareRequest) -> None:
    """The outcome in a sentence and the texts of a job that has ended; nothing if it recorded no readable run."""
    try:
        if request.is_batch:
            # The outcome over all prompts of a batch, and the texts of each of the first prompts.
            tables = []
            races = []
            for entry in list_repeats(runs_root(), request.batch or status.job_id):
                if runs := [open_cached(runs_root() / one.run_id) for one in entry.runs]:
                    tables.append(_repeat(runs, load_labels(runs_root(), entry.comparison_id)))
                    place = runs[0].record.repeat
                    title = f"{place.number} of {place.of}: {place.description}" if place else entry.title
                    races.append(_texts(runs).model_copy(update={"title": title}))
            if tables:
                if words := batch_outcome(build_batch(tables)):
                    st.markdown(f"**{plain(words)}**")
                for race in races[:MOST_RACES]:
                    show_race(race, with_reading=False)
                st.caption(READING)
        else:
            entries = reversed(list_runs(runs_root(), comparison_id=status.job_id))
            runs = [open_cached(runs_root() / one.run_id) for one in entries]
            if runs:
                if words := _outcome(runs, load_labels(runs_root(), status.job_id)):
                    st.markdown(f"**{plain(words)}**")
                texts = _texts(runs)
                show_title(
                    Offer("The text of each run", lambda: as_passages(texts), READING, of_comparison(runs)), "race"
                )
                show_race(texts)
    except UserError as error:  # a run that is damaged, or was removed in the meantime
        st.warning(plain(str(error)))


_outcome = st.cache_data(max_entries=16, show_spinner="Scoring the runs", hash_funcs=BY_STAMP)(outcome)
_texts = st.cache_data(max_entries=16, show_spinner=False, hash_funcs=BY_STAMP)(own_texts)
_repeat = st.cache_data(max_entries=512, show_spinner="Scoring the prompts", hash_funcs=BY_STAMP)(repeat_table)


READING = (
    "Each column is one run's own text. The marked token is the first that differs from the full cache's text at the "
    "same position (■: the text ends there). The bar shows how much of the full cache the run holds."
)
LONGEST_TEXT = 3_000  # characters of a column
MOST_RACES = 6  # prompts of a batch whose texts are drawn after its end
STATES = {
    "waiting": "waits for its turn", "reading": "reading the prompt", "writing": "writing", "ended": "",
    "cancelled": "cancelled", "failed": "failed",
}  # fmt: skip


def show_race(live: LiveTexts, with_reading: bool = True) -> None:
    """Draw the columns, with the prompt's title and end above them; `with_reading`: and below them how to read them."""
    ends = f"the prompt ends “… {plain(live.prompt_end)}”" if live.prompt_end else ""
    named = f"**{plain(live.title)}**" if live.title else ""
    if named or ends:
        st.caption(": ".join(filter(None, (named, ends))))
    st.html(f"<style>{read_static('race.css')}</style>{race_html(live, page_theme())}")
    if with_reading:
        st.caption(READING)


def race_html(live: LiveTexts, theme: Theme = "light") -> str:
    """The columns as escaped HTML: what is held of the cache, the text, and its state."""
    styles = run_styles(((one.label, one.method) for one in live.texts), theme)
    columns = []
    for one in live.texts:
        held = "" if one.held is None else f"{percent(min(one.held, 1.0))} of the cache"
        width = 0 if one.held is None else 100 * min(one.held, 1.0)
        state = [STATES[one.state]]
        if one.tokens:
            state.append(f"{one.tokens} tokens")
            if one.left_at is not None:
                state.append(f"differs from token {one.left_token}")
            elif one.method != "full":
                state.append("as the full cache so far" if one.state == "writing" else "as the full cache")
        # The text with the first differing token marked; of a long one the end, after an ellipsis.
        start, stop = one.left_at or (len(one.text), len(one.text))
        first = max(0, len(one.text) - LONGEST_TEXT)
        before = html.escape(one.text[first:start])
        after = html.escape(one.text[max(first, stop) :])
        mark = ""
        if one.left_at is not None and stop >= first:
            token = one.text[max(first, start) : stop]
            # A token of white space alone, or the end of the text, is drawn as a sign.
            visible = html.escape(token) if token.strip() else f"␣{html.escape(token)}" if token else "■"
            mark = f'<mark title="The first token that differs from the full cache\'s text">{visible}</mark>'
        caret = '<b class="kv-caret"></b>' if one.state == "writing" else ""
        text = f"{'… ' if first else ''}{before}{mark}{after}{caret}"
        columns.append(
            f'<section role="listitem" class="kv-race-{one.state}" style="--hue: {styles[one.label].colour}">'
            f'<h2>{html.escape(one.label)}</h2><div class="kv-held" aria-hidden="true">'
            f'<i style="width: {width:.1f}%"></i></div><small>{held}</small><p><span>{text}</span></p>'
            f"<small>{html.escape(', '.join(filter(None, state)))}</small></section>"
        )
    return f'<div class="kv-race" role="list">{"".join(columns)}</div>'


def as_passages(live: LiveTexts) -> Passages:
    """The texts for a slide, each with its first differing token marked."""
    passages = []
    for one in live.texts:
        start, stop = one.left_at or (len(one.text), len(one.text))
        parts = (
            Segment("same", one.text[:start]),
            Segment("own", one.text[start:stop]),
            Segment("same", one.text[stop:]),
        )
        passages.append((one.label, tuple(part for part in parts if part.text)))
    return Passages(passages=tuple(passages))
