"""Atlas: the overview of all figures and tables of the five papers, drawn from the user's runs."""

from __future__ import annotations

import time

import streamlit as st

from app.atlas import cards, summary
from app.atlas.cards import Place
from app.atlas.measure_button import measure_all
from app.base.links import run_in_url
from app.base.text import plain
from app.navigation.selection import current_sources
from app.run_views import page
from app.run_views.require_level import warn_of_reference
from app.session.url_state import in_url
from kvlab.atlas.cards import Card, is_slow, models_to_judge
from kvlab.atlas.exhibit import Exhibit, Paper
from kvlab.atlas.registry import EXHIBITS, PAPERS
from kvlab.atlas.scorecard import SHAPES, Judged, by_model, exhibit_list, matching, own_claims
from kvlab.common.model_title import model_title
from kvlab.figures.base.words import plural
from kvlab.results.sources import Sources

PRINTED = 46
REDRAWN_SECONDS = 3.0  # between two drawings of an incomplete summary


def main() -> None:
    page.heading(
        "Atlas",
        "Every figure and table of the five papers, drawn from the comparison chosen above and from the evaluations "
        "and benchmarks of its model in this folder. What this model lacks is drawn from the results shipped with "
        "kvlab, or else from mini, with a badge on the picture. A badge says whether the paper's claim holds, over all "
        "heads, merges and prompts; a button queues the jobs that a card needs.",
    )
    sources = current_sources()
    if sources.runs:
        warn_of_reference(sources.runs)
    words = st.text_input(
        "Search", placeholder="Words of the title, the claim or the paper, such as votes or GVote", **in_url("search")
    )
    chosen = matching(EXHIBITS, words, cards.shipped_claims)
    st.html(cards.STYLE + ("" if words.strip() else summary.STYLE))
    if words.strip():
        st.caption(f"{len(chosen)} of {len(EXHIBITS)} figures and tables have {plain(words.strip())}.")
    if not chosen:
        return
    counts = st.empty()
    others = [sources.of_model(model) for model in models_to_judge(sources) if model != sources.measured_model]
    every_model = any(other.run is not None for other in others) and st.toggle(
        "Judge the recorded runs of the other models too", **in_url("every_model"),
        help="Otherwise their claims are shown as far as they are known. The first time takes minutes.",
    )  # fmt: skip
    with st.container(border=True, key=summary.KEY):
        verdicts = st.empty()
    missing = st.container(horizontal=True, vertical_alignment="center")
    # All cards appear at once; each is filled as it is drawn, those that are known first.
    places = [place for paper in PAPERS for place in row_of_cards(paper, [one for one in chosen if one.paper == paper])]
    states, waiting = draw(places, sources, verdicts, bool(words.strip()), every_model)
    drawn, shipped = sum(bool(card.origin) for card in states), sum(card.is_shipped for card in states)
    badged = sum(bool(card.badge) for card in states)
    badges = f" {badged} of them are of another model or of the papers' shapes, as the badge on the picture says."
    left_out = f" {plural(waiting, 'claim')} on recorded runs of other models were not judged."
    counts.caption(
        plain(
            f"{drawn} of {len(places)} can be drawn for {model_title(sources.measured_model)}, {shipped} of them from "
            f"the results shipped with kvlab.{badges if badged else ''} The papers have {PRINTED} figures and tables; "
            f"figures of several panels have one card per panel.{left_out if waiting else ''}"
        )
    )
    # Estimates wait for a second process, once for each server, so the buttons come last.
    for place, card in zip(places, states, strict=True):
        cards.show_button(place, card)
    with missing:
        measure_all([card.measurement for card in states if card.measurement], sources.measured_model)


def row_of_cards(paper: Paper, exhibits: list[Exhibit]) -> list[Place]:
    """The cards of one paper under its name; nothing without an exhibit."""
    if not exhibits:
        return []
    st.header(PAPERS[paper], anchor=paper)
    with st.container(horizontal=True, gap="small"):
        return [cards.place_card(exhibit) for exhibit in exhibits]


def draw(
    places: list[Place],
    sources: Sources,
    verdicts: st.delta_generator.DeltaGenerator,
    searched: bool,
    every_model: bool,
) -> tuple[list[Card], int]:
    """Fill all cards, and judge the claims on every other model with data; the summary grows with them.

    Without `every_model`, what would be drawn from recorded runs of other models is left out unless it is known; the
    second value counts these.
    """
    here, query = sources.measured_model, run_in_url()
    exhibits = [place.exhibit for place in places]
    of_model = {model: sources if model == here else sources.of_model(model) for model in models_to_judge(sources)}

    def slow(exhibit: Exhibit, model: str) -> bool:
        return is_slow(exhibit, of_model[model])

    wanted = sorted(
        ((exhibit, model) for model in sorted(of_model, key=lambda model: model != here) for exhibit in exhibits),
        key=lambda pair: slow(*pair),
    )
    place_of = {place.exhibit: place for place in places}
    found: dict[tuple[Exhibit, str], Card] = {}
    judged: dict[tuple[Exhibit, str], tuple[Judged, ...]] = {}

    def take(exhibit: Exhibit, model: str, card: Card) -> None:
        found[exhibit, model] = card
        judged[exhibit, model] = own_claims(card.judged, model)
        if model == here:
            cards.show_card(place_of[exhibit], card, here)

    def summarise(is_whole: bool = False) -> None:
        # A column for every model from the start: until the page is drawn, the browser shows in an empty cell what
        # was there before, which would be another model's if columns moved.
        known = [(pair[0], judged[pair]) for pair in wanted if pair in judged]
        lines = by_model(known, (*of_model, SHAPES))
        rows = exhibit_list(exhibits, known, list(lines))
        with verdicts.container(gap="small"):
            if is_whole:
                summary.summary(lines, rows, query, searched)
            else:
                summary.incomplete(lines, rows, sum(model == here for _, model in judged), len(exhibits), searched)

    for exhibit, model in wanted:
        if (card := cards.known_card(exhibit, of_model[model])) is not None:
            take(exhibit, model, card)
        elif (card := cards.known_verdicts(exhibit, of_model[model])) is not None:
            judged[exhibit, model] = own_claims(card.judged, model)
            if model != here:
                found[exhibit, model] = card
    left_out = [pair for pair in wanted if pair not in judged and pair[1] != here and slow(*pair) and not every_model]
    wanted = [pair for pair in wanted if pair not in left_out]
    is_whole = len(judged) == len(wanted)
    summarise(is_whole)
    shown = time.monotonic()
    for exhibit, model in wanted:
        if (exhibit, model) not in found:
            take(exhibit, model, cards.drawn_card(exhibit, of_model[model]))
            if not is_whole and time.monotonic() - shown >= REDRAWN_SECONDS:
                summarise()
                shown = time.monotonic()
    if not is_whole:
        summarise(is_whole=True)
    for exhibit in exhibits:
        each = [one for model in of_model for one in judged.get((exhibit, model), ())]
        cards.show_each(place_of[exhibit], found[exhibit, here], each)
    return [found[exhibit, here] for exhibit in exhibits], len(left_out)


main()
