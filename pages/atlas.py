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
from kvlab.atlas.cards import Card, is_slow, models_to_judge, shipped_claims
from kvlab.atlas.exhibit import Exhibit, Paper
from kvlab.atlas.registry import EXHIBITS, PAPERS
from kvlab.atlas.scorecard import SHAPES, Judged, by_model, exhibit_list, matching, own_claims
from kvlab.common.formatting import model_title
from kvlab.results.sources import Sources
from kvlab.views.base.words import plural

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
    of_model = {model: sources.judging(model) for model in models_to_judge(sources)}
    others = [one for one in of_model.values() if one is not sources]
    every_model = any(other.run is not None for other in others) and st.toggle(
        "Judge the recorded runs that are not in view too",
        **in_url("every_model"),
        help="Otherwise their claims are judged on the results shipped with kvlab, unless they were judged before. The "
        "first time takes minutes.",
    )
    with st.container(border=True, key=summary.KEY):
        verdicts = st.empty()
    missing = st.container(horizontal=True, vertical_alignment="center")
    # All cards appear at once; each is filled as it is drawn, those that are known first.
    places = [place for paper in PAPERS for place in row_of_cards(paper, [one for one in chosen if one.paper == paper])]
    states, waiting = draw(places, sources, of_model, verdicts, bool(words.strip()), every_model)
    drawn = sum(bool(card.origin) for card in states)
    shipped = sum(card.is_shipped for card in states)
    badged = sum(bool(card.badge) for card in states)
    badges = f" {badged} of them are of another model or of the papers' shapes, as the badge on the picture says."
    left_out = f" For {plural(waiting, 'claim')} shipped results are judged in place of recorded runs not in view."
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
    of_model: dict[str, Sources],
    verdicts: st.delta_generator.DeltaGenerator,
    searched: bool,
    every_model: bool,
) -> tuple[list[Card], int]:
    """Fill all cards from what is in view, and judge the claims on every model with data (`of_model`).

    The summary grows with them, and does not depend on what is in view.

    Without `every_model`, shipped verdicts stand for those on recorded runs that are neither in view nor judged before;
    the second value counts these.
    """
    here = sources.measured_model
    query = run_in_url()
    exhibits = [place.exhibit for place in places]
    place_of = {place.exhibit: place for place in places}
    pairs = [(exhibit, model) for model in sorted(of_model, key=lambda model: model != here) for exhibit in exhibits]
    found: dict[Exhibit, Card] = {}
    judged: dict[tuple[Exhibit, str], tuple[Judged, ...]] = {}

    def take(exhibit: Exhibit, card: Card) -> None:
        found[exhibit] = card
        cards.show_card(place_of[exhibit], card, here)
        if of_model[here] is sources or not judged.get((exhibit, here)):
            judged[exhibit, here] = own_claims(card.judged, here)

    def summarise(is_whole: bool = False) -> None:
        # A column for every model from the start: until the page is drawn, the browser shows in an empty cell what
        # was there before, which would be another model's if columns moved.
        known = [(pair[0], judged[pair]) for pair in pairs if pair in judged]
        lines = by_model(known, (*of_model, SHAPES))
        rows = exhibit_list(exhibits, known, list(lines))
        with verdicts.container(gap="small"):
            if is_whole:
                summary.summary(lines, rows, query, searched)
            else:
                summary.incomplete(lines, rows, len(found), len(exhibits), searched)

    left_out = 0
    for exhibit, model in pairs:
        if (card := cards.known_verdicts(exhibit, of_model[model])) is not None:
            judged[exhibit, model] = own_claims(card.judged, model)
        elif of_model[model] is not sources and is_slow(exhibit, of_model[model]) and not every_model:
            judged[exhibit, model] = shipped_claims(exhibit, model)
            left_out += 1
    for exhibit in exhibits:
        if (card := cards.known_card(exhibit, sources)) is not None:
            take(exhibit, card)
    waiting = sorted((one for one in exhibits if one not in found), key=lambda one: is_slow(one, sources))
    is_whole = not waiting and len(judged) == len(pairs)
    summarise(is_whole)
    shown = time.monotonic()
    for exhibit, model in [*((exhibit, "") for exhibit in waiting), *(pair for pair in pairs if pair not in judged)]:
        if not model:
            take(exhibit, cards.drawn_card(exhibit, sources))
        elif (exhibit, model) not in judged:
            judged[exhibit, model] = own_claims(cards.drawn_card(exhibit, of_model[model]).judged, model)
        if not is_whole and time.monotonic() - shown >= REDRAWN_SECONDS:
            summarise()
            shown = time.monotonic()
    if not is_whole:
        summarise(is_whole=True)
    for exhibit in exhibits:
        each = [one for model in of_model for one in judged.get((exhibit, model), ())]
        cards.show_each(place_of[exhibit], found[exhibit], each)
    return [found[exhibit] for exhibit in exhibits], left_out


main()
