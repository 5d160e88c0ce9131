"""Difference of two runs: the tokens A and B keep, where their texts diverge, and their distance from full."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.base.lazy_views import after_first_chart
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.components.tokentext import along_text, difference_classes, tokentext
from app.figures.figure import show
from app.navigation.selection import current_comparison, current_pair
from app.run_views import page, view
from app.run_views.require_level import warn_of_reference
from app.session.open_runs import BY_STAMP
from app.session.streamlit_internals import is_fragment_run, wait_until_sent
from kvlab.analysis.comparison import difference
from kvlab.analysis.comparison.labels import distinct_names
from kvlab.figures import difference as figures
from kvlab.figures.base.head_map import read_focus
from kvlab.results.provenance import Provenance, joined
from kvlab.trace.reader import Run


def main() -> None:
    page.heading(
        "Difference of two runs",
        "Two methods or budgets over the same text: which tokens only one of them keeps, how similar their choices "
        "are in every head (**Jaccard index**), and where their outputs diverge.",
    )
    runs = current_comparison()
    if not runs:
        return
    if len(runs) < 2:
        st.info("This comparison has only one run: compare at least two.", icon=":material/info:")
        return
    warn_of_reference(runs)
    a, b = current_pair(runs)
    if a is b:
        st.warning("A and B are the same run, so there is no difference.")
    outputs(a, b)
    if a.record.level != "full" or b.record.level != "full":
        page.explain_level(
            a if a.record.level != "full" else b, "single events, so it is unknown which tokens were kept"
        )
        return
    if not (view.nothing_recorded(a) or view.nothing_recorded(b)):
        view.at_place(a, partial(tokens, a, b))


def outputs(a: Run, b: Run) -> None:
    part = difference.divergences(a, b)
    facts = (
        ("A diverges from the full cache", part["a"]),
        ("B diverges from the full cache", part["b"]),
        ("A and B diverge", part["each_other"]),
    )
    for column, (label, token) in zip(st.columns(3), facts, strict=True):
        column.metric(label, "never" if token is None else f"at token {token}", help="In their own continuations.")
    table = difference.kl_of_both(a, b)
    labels = names(a, b)
    figure = along_text(figures.kl_of_both(table, labels, page_theme(), hues(a, b)), offset=a.record.prompt_tokens - 1)
    reading = f"{figures.read_kl_of_both(table)} {figures.read_hues(a.record.method, b.record.method)}".strip()
    show(figure, table, reading, "difference-kl", "kl-of-both", origin(a, b))


@st.fragment
def tokens(a: Run, b: Run, layer: int, head: int) -> None:
    st.subheader("Kept tokens")
    step = view.run_scrubber(a)
    theme, (by_head, along) = page_theme(), compared(a, b, step)
    left, right = page.map_columns(a, (2, 3))
    with left:
        figure = figures.jaccard_by_head(by_head, theme, (layer, head))
        reading = read_focus(figures.read_jaccard_by_head(by_head), figure, (layer, head))
        show(figure, by_head, reading, "difference-jaccard", "jaccard-by-head", origin(a, b))
    with right:
        figure = along_text(figures.along_positions(along, theme, hues(a, b)))
        show(figure, along, figures.read_along_positions(along), "difference-along", "kept-along-text", origin(a, b))
    after_first_chart(f"difference-{a.record.run_id}-{b.record.run_id}", words, a, b, step, layer, head)
    if is_fragment_run():
        wait_until_sent()


def words(a: Run, b: Run, step: int, layer: int, head: int) -> None:
    texts = page.token_texts_of(a, difference.tokens_read(a))
    of_a, of_b = (difference.kept_at(run, step, gone(run)[layer, head][None, None]) for run in (a, b))
    codes = difference.classes(of_a, of_b, 0, 0, len(texts))
    first, second = names(a, b)
    st.caption(f"A is {plain(first)}, B is {plain(second)}; layer {layer}, head {head}")
    title = f"Tokens that A ({first}) and B ({second}) hold"
    tokentext(
        texts, codes, difference_classes(hues(a, b)), identity=str(a.path), key="difference-text",
        title=title, source=origin(a, b),
    )  # fmt: skip


def names(a: Run, b: Run) -> tuple[str, str]:
    first, second = distinct_names([a.record, b.record])
    return first, second


def hues(a: Run, b: Run) -> figures.Hues:
    return figures.hues_of(a.record.method, b.record.method)


def origin(a: Run, b: Run) -> Provenance:
    return joined(page.source(a).at("A"), page.source(b).at("B"), separator=" | ")


@st.cache_resource(max_entries=4, hash_funcs=BY_STAMP, show_spinner=False)
def gone(run: Run) -> difference.DepartureSteps:
    return difference.departure_steps(run)


@st.cache_data(max_entries=64, hash_funcs=BY_STAMP, show_spinner=False)
def compared(a: Run, b: Run, step: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The overlap of kept tokens at a step, by head and along the text."""
    kept_a, kept_b = (difference.kept_at(run, step, gone(run)) for run in (a, b))
    layers = difference.recorded_layers(a, b)
    return difference.jaccard(kept_a, kept_b, layers), difference.along_positions(kept_a, kept_b, layers)


main()
