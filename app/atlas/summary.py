"""The atlas summary: how many claims of each paper hold on each model, and claim by claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app.atlas.verdict_card import BADGES
from app.base.links import link
from app.base.text import plain
from app.figures.export_menu import Offer, titled
from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.registry import PAPERS
from kvlab.atlas.scorecard import SHAPES, VERDICTS, Lines, claims_by_model
from kvlab.common.formatting import listed
from kvlab.common.model_title import model_title
from kvlab.figures.base import export
from kvlab.report.views import Table
from kvlab.results.verdict import Claim

TITLE = "Verdicts on the papers' claims, by model"
READING = (
    "How many claims of each paper hold on each model, and the figures and tables that they are judged on. "
    "Every verdict is of one model; there is no mean over models."
)
HEIGHT = 940  # pixels; reserved, so that the page does not grow while verdicts come in
TABLE_HEIGHT = 260
KEY = "atlas-summary"
STYLE = (
    f"<style>.st-key-{KEY}{{min-height:{HEIGHT}px}}"
    f".st-key-{KEY} [data-testid=stPageLink] a{{padding:0 2px;min-height:0}}"
    f".st-key-{KEY} [data-testid=stPageLink] p{{white-space:nowrap}}</style>"
)
LOOK: dict[str, Any] = {
    "hide_index": True, "height": TABLE_HEIGHT, "alt": TITLE,
    "column_config": {"claim": st.column_config.TextColumn(width="large")},
}  # fmt: skip
PAPER_WIDTH, MODEL_WIDTH, SHAPES_WIDTH = 1.0, 3.0, 1.1
MARKS = {"holds": "✓ holds", "does not hold": "✗ does not hold", "not enough to say": "? not enough to say"}


def summary(found: Mapping[str, Lines], query: Mapping[str, str]) -> None:
    """One row per paper, one column per model, then one row per claim."""
    st.html(f"<style>.st-key-{KEY}{{min-height:0}}</style>")  # all verdicts are in: nothing is reserved
    titled(Offer(TITLE, lambda: _table(found), READING), "scorecard")
    st.caption(READING)
    _rows(found, query)
    _claims(claims_by_model(found), [model_title(model) for model in found])


def incomplete(found: Mapping[str, Lines], known: int, of: int, query: Mapping[str, str]) -> None:
    """The rows and claims while `known` of `of` exhibits are judged; without widgets, which can be made only once."""
    st.markdown(f"**{TITLE}**")
    st.progress(known / of, f"{known} of {of} exhibits judged; the others are being drawn.")
    _rows(found, query)
    if len(claims := claims_by_model(found)):
        st.dataframe(_claim_rows(claims, [*map(model_title, found)]), **LOOK)
    else:
        st.caption(f"The verdicts on the claims of {listed([*PAPERS.values()])} come in as their figures are drawn.")


def _rows(found: Mapping[str, Lines], query: Mapping[str, str]) -> None:
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
                    _verdict(verdict, lines[paper][verdict], model_title(model), query)


def _verdict(verdict: str, claims: Sequence[tuple[Exhibit, Claim]], model: str, query: Mapping[str, str]) -> None:
    """The number of claims with this verdict, and links to their exhibits; nothing without a claim."""
    if not claims:
        return
    colour, icon = BADGES[verdict]
    st.badge(f"{len(claims)}", color=colour, icon=icon, help=f"{len(claims)}: {verdict} on {plain(model)}")
    for exhibit, claim in claims:
        help_text = f"{claim.paper} {claim.basis.words}".strip()
        link(exhibit.paper.replace("-", "_"), exhibit.number, help=help_text, exhibit=exhibit.slug, **query)


def _claims(frame: pd.DataFrame, models: Sequence[str]) -> None:
    """Claim by claim, searchable, with a CSV of all models."""
    st.dataframe(_claim_rows(frame, models), key="atlas-claims", **LOOK)
    st.download_button(
        "Claims by model (CSV)", lambda: export.csv(frame), "claims-by-model.csv", key="atlas-claims-csv",
        on_click="ignore", icon=":material/download:", type="tertiary",
    )  # fmt: skip


def _claim_rows(frame: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
    shown = frame[["paper", "exhibit", "claim"]].copy()
    for model in models:
        shown[model] = [_cell(verdict, n) for verdict, n in zip(frame[model], frame[f"{model}, n"], strict=True)]
    return shown


def _cell(verdict: object, n: object) -> str:
    if not isinstance(verdict, str):
        return "–"
    return f"{MARKS[verdict]} (n = {n:.0f})" if isinstance(n, int | float) and n else MARKS[verdict]


def _table(found: Mapping[str, Lines]) -> Table:
    rows = tuple(
        (title, *("; ".join(f"{verdict}: {_numbers(lines[paper][verdict])}" for verdict in VERDICTS if
                            lines[paper][verdict]) or "–" for lines in found.values()))
        for paper, title in PAPERS.items()
    )  # fmt: skip
    return Table(columns=("paper", *map(model_title, found)), rows=rows)


def _numbers(claims: Sequence[tuple[Exhibit, Claim]]) -> str:
    return f"{len(claims)} ({', '.join(exhibit.number for exhibit, _ in claims)})"
