"""The scorecard of the papers: which claims hold on this model, which do not, and which cannot be said yet."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.atlas.exhibit import BADGES
from app.base.links import link
from app.base.text import plain
from app.figures.export_menu import Offer, titled
from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.registry import PAPERS
from kvlab.atlas.scorecard import VERDICTS, Lines, lines
from kvlab.report.views import Table
from kvlab.results.verdict import Claim

WIDTHS = (1.2, 2.4, 2, 2.4)


def scorecard(place: DeltaGenerator, judged: Iterable[tuple[Exhibit, Iterable[Claim]]], query: dict[str, str]) -> None:
    """A row a paper, a column a verdict: how many claims, and a link to the exhibit behind each."""
    found = lines(judged)
    with place.container(border=True, gap="small"):
        reading = "How many claims of each paper hold here, and the figures and tables that decide them."
        titled(Offer("What is said of the papers' claims on this model", lambda: _table(found), reading), "scorecard")
        heads = st.columns(WIDTHS, gap="small")
        for head, verdict in zip(heads[1:], VERDICTS, strict=True):
            colour, icon = BADGES[verdict]
            head.badge(verdict, color=colour, icon=icon)  # type: ignore[arg-type]
        for paper, title in PAPERS.items():
            row = st.columns(WIDTHS, gap="small", vertical_alignment="center")
            row[0].markdown(plain(title))
            for cell, verdict in zip(row[1:], VERDICTS, strict=True):
                claims = found[paper][verdict]
                with cell, st.container(horizontal=True, gap="small", vertical_alignment="center"):
                    st.markdown(f"**{len(claims)}**", width="content")
                    for exhibit, claim in claims:
                        help_text = f"{claim.paper} {claim.basis.words}".strip()
                        link(paper.replace("-", "_"), exhibit.number, help=help_text, exhibit=exhibit.slug, **query)


def _table(found: Lines) -> Table:
    rows = (
        (title, *(_cell([exhibit.number for exhibit, _ in found[paper][verdict]]) for verdict in VERDICTS))
        for paper, title in PAPERS.items()
    )
    return Table(columns=("paper", *VERDICTS), rows=tuple(rows))


def _cell(numbers: list[str]) -> str:
    return f"{len(numbers)}: {', '.join(numbers)}" if numbers else "0"
