"""The card of a verdict: its evidence as a figure, one sentence beside it, and what would change it."""

from __future__ import annotations

from typing import Literal

import streamlit as st

from app.atlas.measure_button import measure_button
from app.base.links import link, run_in_url
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.figures.figure import note, show
from kvlab.atlas.exhibit import Drawn, Exhibit
from kvlab.atlas.figures.verdict_card import caption_card, card_frame
from kvlab.atlas.figures.verdict_card import verdict_card as card_figure
from kvlab.atlas.model_data import measured_on, with_badge
from kvlab.atlas.registry import PAPERS, find
from kvlab.atlas.shipped_exhibits import OWN
from kvlab.common.formatting import model_title
from kvlab.results.shipped_folder import shipped
from kvlab.results.verdict import Claim, basis_sentences, verdict_sentence, what_would_change

BADGES: dict[str, tuple[Literal["green", "red", "gray"], str]] = {
    "holds": ("green", ":material/check_circle:"),
    "does not hold": ("red", ":material/cancel:"),
    "not enough to say": ("gray", ":material/help:"),
}


def verdict_card(exhibit: Exhibit, drawn: Drawn, key: str, model: str, each: str) -> None:
    """Draw the card of the claim of `drawn`; without a claim nothing is drawn.

    `model` is the one in view; `each` has the verdicts on every model (`verdicts_on_each`).
    """
    claim = drawn.claim
    if claim is None:
        return
    with st.container(border=True, gap="small"):
        if claim.judged_at:
            _repeated(claim, drawn.model)
            return
        frame = card_frame(claim, exhibit.number_of(drawn.name, claim), exhibit.printed_of(drawn.name, claim))
        title = claim_title(exhibit, claim)
        sentence = verdict_sentence(claim, model_title(drawn.model))
        if frame.empty:
            _badge(claim)
            st.markdown(f"**{plain(title)}**")
            _words(claim, sentence, each, key)
            return
        left, right = st.columns([3, 2], gap="medium")
        with left:
            chart = card_figure(frame, page_theme(), title)
            if drawn.model not in ("", model):
                chart = with_badge(chart, measured_on(model_title(drawn.model)), page_theme())
            ships = shipped(drawn.model)
            # As text: a verdict is not about the run in view alone, and its slide is not named after it.
            source = ships.words if ships and claim.finding.startswith(OWN) else str(drawn.origin)
            marks = caption_card(frame)
            show(chart, frame, marks.within(before=sentence), f"{key}-evidence", f"{key}-evidence", source, noted=marks)
        with right:
            _badge(claim)
            _words(claim, sentence, each, key)


def claim_title(exhibit: Exhibit, claim: Claim) -> str:
    """The claim after the name of its paper, unless it begins with the name."""
    paper = "" if exhibit.paper == "beyond" else PAPERS[exhibit.paper]
    return claim.paper if not paper or claim.paper.startswith(paper) else f"{paper}: {claim.paper}"


def card_lines(claim: Claim | None, model: str, each: str) -> tuple[str, ...]:
    """The card as lines of text, for exports of the page; `each` as in `verdict_card`."""
    if claim is None:
        return ()
    change = what_would_change(claim)
    return (
        f"The paper: {claim.paper}",
        verdict_sentence(claim, model_title(model)),
        claim.finding,
        *basis_sentences(claim),
        *([f"Model by model: {each}."] if each else []),
        *([f"What would change the verdict: {change}"] if change else []),
    )


def _badge(claim: Claim) -> None:
    colour, icon = BADGES[claim.verdict]
    st.badge(claim.verdict, color=colour, icon=icon)


def _words(claim: Claim, sentence: str, each: str, key: str) -> None:
    st.markdown(f"**{plain(sentence)}**")
    if each:
        st.markdown(f"**Model by model.** {plain(each)}.")
    note(claim.finding)
    note(" ".join(basis_sentences(claim)))
    if change := what_would_change(claim):
        st.markdown(f"**What would change the verdict.** {plain(change)}")
    if claim.settle:
        measure_button(claim.settle, f"settle-{key}", is_whole=True)


def _repeated(claim: Claim, model: str) -> None:
    """The verdict in one line, with a link to the exhibit that judges the claim."""
    assert claim.judged_at
    paper, slug = claim.judged_at.split("/")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _badge(claim)
        st.markdown(f"**The paper:** {plain(claim.paper)}", width="stretch")
        link(paper.replace("-", "_"), f"judged on {find(paper, slug).number}", exhibit=slug, **run_in_url())
    note(verdict_sentence(claim, model_title(model)))
