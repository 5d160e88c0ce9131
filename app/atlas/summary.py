"""The atlas summary: how many claims of each paper hold on each model, and all exhibits as a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app.atlas.verdict_card import BADGES
from app.base.links import go
from app.base.text import plain
from app.figures.export_menu import Offer, show_title
from kvlab.atlas.registry import PAPERS
from kvlab.atlas.scorecard import SHAPES, VERDICTS, Lines
from kvlab.common.formatting import model_title
from kvlab.report.views import Table, table_of
from kvlab.views.base import export

TITLE = "Figures, tables and verdicts, by model"
READING = (
    "✓ the claim holds, ✗ it does not hold, ? not enough to say; n is the number of prompts. Every verdict is of one "
    "model; there is no mean over models. Choose a row to open its figure or table."
)
HEIGHT = 800  # pixels; reserved, so that the page does not grow while verdicts come in
LIST_HEIGHT = 420
HEAD = 40
ROW = 35
KEY = "atlas-summary"
STYLE = f"<style>.st-key-{KEY}{{min-height:{HEIGHT}px}}</style>"
PAPER_WIDTH = 1.4
MODEL_WIDTH = 1.6
SHAPES_WIDTH = 1.6
MARKS = {"holds": "✓ holds", "does not hold": "✗ fails", "not enough to say": "? open"}
WIDTHS = {"paper": 100, "number": 85, "title": 190}  # pixels; of a model's column:
# the least, and of a character of the model's name
VERDICT_WIDTH = 130
HEAD_CHARACTER = 7.6
MOST_ON_SLIDE = 400  # cells


def summary(found: Mapping[str, Lines], frame: pd.DataFrame, query: Mapping[str, str], searched: bool) -> None:
    """One row per paper, one column per model, then the list; a chosen row opens its exhibit.

    `frame` is an `exhibit_list`. After a search (`searched`) only the list is shown.
    """
    st.html(f"<style>.st-key-{KEY}{{min-height:0}}</style>")  # all verdicts are in: nothing is reserved
    rows = _rows(frame, [model_title(model) for model in found])
    show_title(Offer(TITLE, lambda: _slide(rows), READING), "scorecard")
    st.caption(READING)
    if not searched:
        _counts(found)
    # Other rows are another table: a selection does not carry over.
    key = f"atlas-list-{hash(tuple(frame['key']))}"
    event = st.dataframe(rows, key=key, on_select="rerun", selection_mode="single-row", **_look(rows))
    if places := event["selection"]["rows"]:
        paper, slug = str(frame["key"].iloc[places[0]]).split("/")
        go(paper.replace("-", "_"), exhibit=slug, **query)
    st.download_button(
        "CSV with findings",
        lambda: export.csv(frame.drop(columns="key")),
        "atlas.csv",
        key="atlas-csv",
        on_click="ignore",
        icon=":material/download:",
        type="tertiary",
    )


def incomplete(found: Mapping[str, Lines], frame: pd.DataFrame, known: int, of: int, searched: bool) -> None:
    """The same while `known` of `of` exhibits are judged; without widgets, which can be made only once."""
    st.markdown(f"**{TITLE}**")
    rest = "the others are being drawn" if known < of else "other models are being judged"
    st.progress(known / of, f"{known} of {of} exhibits judged; {rest}.")
    if not searched:
        _counts(found)
    rows = _rows(frame, [model_title(model) for model in found])
    st.dataframe(rows, **_look(rows))


def _counts(found: Mapping[str, Lines]) -> None:
    """A row per paper: how many of its claims hold on each model, do not, and are open."""
    widths = (PAPER_WIDTH, *(SHAPES_WIDTH if model == SHAPES else MODEL_WIDTH for model in found))
    heads = st.columns(widths, gap="small")
    for head, model in zip(heads[1:], found, strict=True):
        head.markdown(f"**{plain(model_title(model))}**", help=plain(model))
    for paper, title in PAPERS.items():
        row = st.columns(widths, gap="small", vertical_alignment="center")
        row[0].markdown(plain(title))
        for cell, (model, lines) in zip(row[1:], found.items(), strict=True):
            with cell, st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
                for verdict in VERDICTS:
                    if count := len(lines[paper][verdict]):
                        colour, icon = BADGES[verdict]
                        words = f"{count}: {verdict} on {plain(model_title(model))}"
                        st.badge(f"{count}", color=colour, icon=icon, help=words)


def _rows(frame: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
    """The list as it is shown: a column per model with verdict and n, and the claim last, as it is the widest."""
    shown = frame[["paper", "number", "title"]].copy()
    for model in models:
        shown[model] = [_cell(verdict, n) for verdict, n in zip(frame[model], frame[f"{model}, n"], strict=True)]
    return shown.assign(claim=frame["claim"])


def _look(rows: pd.DataFrame) -> dict[str, Any]:
    """Arguments of the list: its height, and the widths of its columns."""
    width = {name: WIDTHS.get(name, max(VERDICT_WIDTH, round(HEAD_CHARACTER * len(name)))) for name in rows}
    columns = {name: st.column_config.TextColumn(width=width[name] if name != "claim" else "large") for name in rows}
    height = min(LIST_HEIGHT, HEAD + ROW * max(1, len(rows)))
    return {"hide_index": True, "alt": TITLE, "placeholder": "", "height": height, "column_config": columns}


def _cell(verdict: object, n: object) -> str:
    if not isinstance(verdict, str):
        return "–"
    return f"{MARKS[verdict]} (n = {n:.0f})" if isinstance(n, int | float) and n else MARKS[verdict]


def _slide(rows: pd.DataFrame) -> Table:
    return table_of(rows.drop(columns="claim"), MOST_ON_SLIDE)
