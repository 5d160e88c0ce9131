"""Difference of two runs: what A and B keep head by head, where their outputs part, how far each is from full."""

from __future__ import annotations

import streamlit as st

from app.parts import page, view
from app.parts.figure import show
from app.parts.keys import page_keys
from app.parts.reference import warn_of_reference
from app.parts.text import plain
from app.parts.tokentext import along_text, difference_classes, tokentext
from app.state import current_comparison, pick_head, pick_layer
from app.state import theme as page_theme
from kvlab.analysis import difference
from kvlab.analysis.compare import unique_labels
from kvlab.analysis.lineage.tables import token_texts
from kvlab.figures import difference as figures
from kvlab.trace.reader import Run


def main() -> None:
    page.heading(
        "Difference of two runs",
        "Two methods or budgets over the same text: which tokens only one of them still has, how alike their choices "
        "are in every head (**Jaccard index**), and where their outputs part.",
    )
    runs = current_comparison()
    if not runs:
        return
    if len(runs) < 2:
        st.info("This comparison has one run only: compare at least two.", icon=":material/info:")
        return
    warn_of_reference(runs)
    a, b = pick_two(runs)
    outputs(a, b)
    if a.record.level != "full" or b.record.level != "full":
        page.explain_level(a if a.record.level != "full" else b, "the single events, so which tokens stayed is unknown")
        return
    if not (view.nothing_recorded(a) or view.nothing_recorded(b)):
        tokens(a, b)


def pick_two(runs: list[Run]) -> tuple[Run, Run]:
    """The runs the address names as `a` and `b`; the last two where it names none."""
    by_id = {run.record.run_id: run for run in runs}
    names = dict(zip(by_id, unique_labels(runs), strict=True))
    columns = st.columns([2, 2, 1], vertical_alignment="bottom")
    chosen = []
    for column, key, place in zip(columns, ("a", "b"), (-2, -1), strict=False):
        asked = st.query_params.get(key)
        if asked is not None and asked not in by_id:
            st.warning(f"This comparison has no run `{asked}`: choose another.")
        widget = f"difference-{key}"
        st.session_state[widget] = asked if asked in by_id else list(by_id)[place]
        with column:
            label = f"Run {key.upper()}"
            found = st.selectbox(
                label, list(by_id), key=widget, format_func=names.__getitem__, on_change=remember, args=(key, widget)
            )
            chosen.append(found)
    if chosen[0] == chosen[1]:
        st.warning("A and B are the same run: everything is in both.")
    with columns[2]:
        page_keys(by_id[chosen[0]])
    return by_id[chosen[0]], by_id[chosen[1]]


def remember(name: str, widget: str) -> None:
    st.query_params[name] = st.session_state[widget]


def outputs(a: Run, b: Run) -> None:
    part = difference.where_they_part(a, b)
    facts = (
        ("A leaves the full cache's text", part["a"]),
        ("B leaves the full cache's text", part["b"]),
        ("A and B part", part["each_other"]),
    )
    for column, (label, token) in zip(st.columns(3), facts, strict=True):
        column.metric(label, "never" if token is None else f"at token {token}", help="In their own continuations.")
    table = difference.kl_of_both(a, b)
    labels = (a.record.label, b.record.label)
    figure = along_text(figures.kl_of_both(table, labels, page_theme(), hues(a, b)), offset=a.record.prompt_tokens - 1)
    show(figure, table, figures.read_kl_of_both(table), "difference-kl", "kl-of-both", origin(a, b))


@st.fragment
def tokens(a: Run, b: Run) -> None:
    st.subheader("Tokens they keep")
    step = view.run_scrubber(a)
    kept_a, kept_b = (kept(run, *page.stamp(run), step) for run in (a, b))
    layers, theme = difference.recorded_layers(a, b), page_theme()
    left, right = st.columns([2, 3], gap="large")
    with left:
        table = difference.jaccard(kept_a, kept_b, layers)
        figure, reading = figures.jaccard_by_head(table, theme), figures.read_jaccard_by_head(table)
        show(figure, table, reading, "difference-jaccard", "jaccard-by-head", origin(a, b))
    with right:
        table = difference.along_positions(kept_a, kept_b, layers)
        figure = along_text(figures.along_positions(table, theme, hues(a, b)))
        show(figure, table, figures.read_along_positions(table), "difference-along", "kept-along-text", origin(a, b))
    words(a, b, kept_a, kept_b)


def words(a: Run, b: Run, kept_a: difference.Kept, kept_b: difference.Kept) -> None:
    first, second, _ = st.columns([1, 1, 4], vertical_alignment="bottom")
    with first:
        layer = pick_layer(a)
    with second:
        head = pick_head(a)
    texts = token_texts(a.tokens, difference.tokens_read(a))
    codes = difference.classes(kept_a, kept_b, layer, head, len(texts))
    st.caption(f"A is {plain(a.record.label)}, B is {plain(b.record.label)}; layer {layer}, head {head}")
    tokentext(texts, codes, difference_classes(page_theme(), hues(a, b)), identity=str(a.path), key="difference-text")


def hues(a: Run, b: Run) -> figures.Hues:
    return figures.hues_of(a.record.method, b.record.method)


def origin(a: Run, b: Run) -> str:
    return f"A: {page.source(a)} | B: {page.source(b)}"


@st.cache_resource(max_entries=24, show_spinner=False)
def kept(_run: Run, path: str, written: int, step: int) -> difference.Kept:
    return difference.kept_at(_run, step)


main()
