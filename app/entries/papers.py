"""Papers: what the five papers and newer methods claim, and what holds here; the paper is a filter.

Verdicts by paper and model, all exhibits as a list, and cards of those of one paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base.links import RUN, from_url, go, link
from app.base.text import code, plain, shorten
from app.base.theme import theme as page_theme
from app.figures.export_menu import Offer, show_title
from app.figures.figure import show
from app.navigation import page
from app.navigation.selection import current_sources
from app.papers.exhibit import BADGES, FigureCache, describe_failure, show_exhibit
from app.papers.measure_button import measure_all, measure_button
from app.session.url_state import clear_page_param, in_url, set_page_param, url_value
from kvlab.common.formatting import model_title
from kvlab.papers import scorecard
from kvlab.papers.exhibit import Exhibit
from kvlab.papers.registry import EXHIBITS, JOINED, PAPERS
from kvlab.papers.verdict_figure import verdict_bars, verdicts_sentence
from kvlab.report.views import table_of
from kvlab.requests.measurement import command_line
from kvlab.results.shipped_folder import shipped
from kvlab.results.sources import Sources
from kvlab.views.base import PUBLISHED, Theme, export
from kvlab.views.base.thumbnail import blank

CACHE_BYTES = 16_000_000  # of thumbnails and texts: some 30 atlases
CARD_WIDTH = 238  # pixels: four in a row at 1440, three at 1024
CARD_HEIGHT = 400  # pixels; reserved, so that the page does not grow while cards are drawn
STYLE = (
    f"<style>[class*=st-key-atlas-card]{{min-height:{CARD_HEIGHT}px}}"
    "[class*=st-key-atlas-card] [data-testid=stPageLink] p{white-space:normal}</style>"
)


@dataclass(frozen=True)
class Place:
    """The placeholders of a card whose content is not drawn yet."""

    exhibit: Exhibit
    picture: DeltaGenerator
    line: DeltaGenerator
    each: DeltaGenerator
    button: DeltaGenerator


def place_card(exhibit: Exhibit) -> Place:
    """A card with its link and title; `show_card` adds the thumbnail and the rest."""
    key = f"atlas-card-{exhibit.key.replace('/', '-')}"
    with st.container(border=True, width=CARD_WIDTH, gap="small", key=key):
        picture = st.empty()
        picture.image(blank("drawing …", page_theme()), width="stretch", alt="")
        label = f"**{exhibit.label}**"
        title = exhibit.title if exhibit.short else None
        link("papers", label, help=title, paper=exhibit.paper, exhibit=exhibit.slug, **from_url(RUN))
        return Place(exhibit, picture, st.empty(), st.empty(), st.empty())


def known_card(exhibit: Exhibit, sources: Sources, in_any_theme: bool = False) -> scorecard.Card | None:
    """The card if it need not be drawn: it is in memory or on disk.

    `in_any_theme`: or else the one of the other theme, whose verdicts are the same.
    """
    theme = page_theme()
    found = _cache().known((exhibit.key, theme), exhibit.source_state(sources))
    found = found or scorecard.find_card(exhibit, sources, theme)
    if found is None and in_any_theme:
        other: Theme = "dark" if theme == "light" else "light"
        return scorecard.find_card(exhibit, sources, other)
    return found


def drawn_card(exhibit: Exhibit, sources: Sources) -> scorecard.Card:
    """The card, from the cache (`FigureCache`) or drawn now."""
    theme = page_theme()
    try:
        return _cache().get(
            (exhibit.key, theme), exhibit.source_state(sources), lambda: scorecard.draw_card(exhibit, sources, theme)
        )
    except Exception as error:  # other cards must not fail with this one; errors are not cached
        return scorecard.Card(blank("failed", theme), missing=describe_failure(exhibit, error))


def show_card(place: Place, card: scorecard.Card, model: str) -> None:
    """Fill a card of the overview; `model` is the one in view."""
    place.picture.image(card.picture, width="stretch", alt=f"Thumbnail of {place.exhibit.label}")
    with place.line.container(gap="small"):
        if card.judged:
            judged = card.judged[0]
            colour, icon = BADGES[judged.claim.verdict]
            where = "" if judged.model in (model, scorecard.SHAPES) else f" on {model_title(judged.model)}"
            words = f"{judged.claim.verdict}{where}"
            st.badge(words, color=colour, icon=icon, help=plain(judged.claim.finding))
            if judged.claim.basis.description:
                st.caption(plain(f"on {judged.claim.basis.description}"))
        setting = card.judged[0].claim.setting if card.judged else ""
        if setting and not setting.startswith(PUBLISHED):
            st.caption(f"judged {plain(shorten(setting, 60))}", help=plain(setting))
        if card.origin:
            words = card.source if card.is_shipped else f"drawn from {shorten(card.source, 60)}"
            st.caption(plain(words), help=plain(card.origin))
        elif card.measurement:
            command = command_line(card.measurement)
            st.caption(f"needs `{shorten(command, 90)}`", help=f"{plain(card.missing)}\n\n`{command}`")
        else:
            st.caption(plain(card.missing))


@st.cache_resource(show_spinner=False)
def _cache() -> FigureCache[scorecard.Card]:
    return FigureCache(CACHE_BYTES, size=lambda card: len(repr(card)), is_useful=lambda card: bool(card.origin))


TITLE = "Figures, tables and verdicts, by model"
READING = (
    "✓ the claim holds, ✗ it does not hold, ? not enough to say; n is the number of prompts. Every verdict is of one "
    "model; there is no mean over models. Choose a row to open its figure or table."
)
LIST_HEIGHT = 420
HEAD = 40
ROW = 35
MARKS = {"holds": "✓ holds", "does not hold": "✗ fails", "not enough to say": "? open"}
WIDTHS = {"paper": 100, "number": 85, "title": 190}  # pixels; of a model's column:
# the least, and of a character of the model's name
VERDICT_WIDTH = 130
HEAD_CHARACTER = 7.6
MOST_ON_SLIDE = 400  # cells


def show_list(found: Mapping[str, scorecard.Lines], frame: pd.DataFrame, known: int, total: int) -> None:
    """All exhibits as a list, with a column per model; a chosen row opens its exhibit. `frame` is an `exhibit_list`.

    While `known` of `total` exhibits are judged it has no widgets, which can be made only once.
    """
    rows = _rows(frame, [model_title(model) for model in found])
    width = {name: WIDTHS.get(name, max(VERDICT_WIDTH, round(HEAD_CHARACTER * len(name)))) for name in rows}
    look: dict[str, Any] = {
        "hide_index": True,
        "alt": TITLE,
        "placeholder": "",
        "height": min(LIST_HEIGHT, HEAD + ROW * max(1, len(rows))),
        "column_config": {
            name: st.column_config.TextColumn(width=width[name] if name != "claim" else "large") for name in rows
        },
    }
    if known < total:
        st.markdown(f"**{TITLE}**")
        st.progress(known / total, f"{known} of {total} exhibits judged; the others are being drawn.")
        st.dataframe(rows, **look)
        return
    show_title(Offer(TITLE, lambda: table_of(rows.drop(columns="claim"), MOST_ON_SLIDE), READING), "scorecard")
    st.caption(READING)
    # Other rows are another table: a selection does not carry over.
    key = f"atlas-list-{hash(tuple(frame['key']))}"
    event = st.dataframe(rows, key=key, on_select="rerun", selection_mode="single-row", **look)
    if places := event["selection"]["rows"]:
        paper, slug = str(frame["key"].iloc[places[0]]).split("/")
        go("papers", paper=paper, exhibit=slug, **from_url(RUN))
    st.download_button(
        "CSV with findings",
        lambda: export.csv(frame.drop(columns="key")),
        "papers.csv",
        key="atlas-csv",
        on_click="ignore",
        icon=":material/download:",
        type="tertiary",
    )


def _rows(frame: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
    """The list as it is shown: a column per model with verdict and n, and the claim last, as it is the widest."""
    shown = frame[["paper", "number", "title"]].copy()
    for model in models:
        cells = []
        for verdict, n in zip(frame[model], frame[f"{model}, n"], strict=True):
            mark = MARKS[verdict] if isinstance(verdict, str) else "–"
            is_counted = isinstance(verdict, str) and isinstance(n, int | float) and n
            cells.append(f"{mark} (n = {n:.0f})" if is_counted else mark)
        shown[model] = cells
    return shown.assign(claim=frame["claim"])


def show_overview(sources: Sources, exhibits: list[Exhibit], with_cards: bool) -> None:
    """The verdicts on every model as a picture, the list, and with `with_cards` a card per exhibit.

    The picture is of verdicts that are known: judged before, or shipped. The rest is judged below it, and all is drawn
    again at the end.
    """
    here = sources.measured_model
    of_model = {model: sources.judging(model) for model in scorecard.models_to_judge(sources)}
    judged: dict[tuple[Exhibit, str], tuple[scorecard.Judged, ...]] = {}
    cards_known = {one: card for one in exhibits if (card := known_card(one, sources)) is not None}
    for model, model_sources in of_model.items():
        for exhibit in exhibits:
            card = known_card(exhibit, model_sources, in_any_theme=True)
            if card is not None:
                judged[exhibit, model] = scorecard.own_claims(card.judged, model)
            else:
                judged[exhibit, model] = scorecard.shipped_claims(exhibit, model)
    picture = st.empty()
    table = st.empty()
    buttons = st.container(horizontal=True, vertical_alignment="center")
    counts = st.empty()
    places = {}
    if with_cards:
        st.html(STYLE)
        with st.container(horizontal=True, gap="small"):
            places = {exhibit: place_card(exhibit) for exhibit in exhibits}

    def summarise(known: int) -> None:
        lines = scorecard.by_model(
            [(pair[0], claims) for pair, claims in judged.items()], (*of_model, scorecard.SHAPES)
        )
        frame = scorecard.exhibit_list(exhibits, [(pair[0], claims) for pair, claims in judged.items()], list(lines))
        verdicts = scorecard.verdict_frame(lines)
        figure = verdict_bars(verdicts, page_theme())
        with picture.container():
            if known == len(exhibits):
                show(figure, verdicts, verdicts_sentence(verdicts), "verdicts", "verdicts", "")
            else:
                st.plotly_chart(figure, key=f"verdicts-{known}")
        with table.container(gap="small"):
            show_list(lines, frame, known, len(exhibits))

    drawn: dict[Exhibit, scorecard.Card] = {}
    waiting = sorted(exhibits, key=lambda one: (one not in cards_known, scorecard.is_slow(one, sources)))
    if len(cards_known) < len(exhibits):
        summarise(len(cards_known))
    for exhibit in waiting:
        card = cards_known.get(exhibit) or drawn_card(exhibit, sources)
        drawn[exhibit] = card
        if of_model.get(here) is sources or not judged.get((exhibit, here)):
            judged[exhibit, here] = scorecard.own_claims(card.judged, here)
        if exhibit in places:
            show_card(places[exhibit], card, here)
    for model, model_sources in of_model.items():
        # Rows of a model that is not in view are judged now, which takes seconds; its recorded runs would take minutes.
        if model_sources is not sources and len(model_sources.model_evaluations):
            for exhibit in exhibits:
                if scorecard.is_slow(exhibit, model_sources):
                    continue
                if known_card(exhibit, model_sources, in_any_theme=True) is None:
                    judged[exhibit, model] = scorecard.own_claims(drawn_card(exhibit, model_sources).judged, model)
    summarise(len(exhibits))
    shipped_cards = sum(card.is_shipped for card in drawn.values())
    counts.caption(
        plain(
            f"{sum(bool(card.origin) for card in drawn.values())} of {len(exhibits)} can be drawn for "
            f"{model_title(here)}, {shipped_cards} of them from the results shipped with kvlab."
        )
    )
    for exhibit, place in places.items():
        # Estimates wait for a second process, once for each server, so the buttons come last.
        every = [one for model in of_model for one in judged.get((exhibit, model), ())]
        # A line with the verdicts on the card's claim on every model, and the button that queues what it needs.
        card = drawn[exhibit]
        if card.judged and (words := scorecard.verdicts_on_each(every, card.judged[0].claim.paper)):
            place.each.caption(plain(words))
        if card.measurement:
            with place.button.container():
                measure_button(card.measurement, exhibit.key)
    with buttons:
        measure_all([card.measurement for card in drawn.values() if card.measurement], here)


PAPER = "pick_paper"
PICKED = "pick_exhibit"
ALL = ""


def papers_page() -> None:
    """The overview, or the exhibit that the URL names by `paper` and `exhibit`."""
    page.heading("Papers", "What the papers claim, and what holds here, on your runs or on the results that ship.")
    # The paper in the URL, as pills; all without one.
    requested = url_value("paper") or ALL
    if requested and requested not in PAPERS:
        st.warning(f"There is no paper {code(requested)}: choose one below.")
        requested = ALL
    # Not `in_url`, which puts labels into the URL.
    st.session_state[PAPER] = requested
    names = {ALL: "All"} | {str(name): title for name, title in PAPERS.items()}
    st.pills(
        "Paper",
        list(names),
        key=PAPER,
        format_func=names.__getitem__,
        required=True,
        on_change=_remember,
        args=("paper", PAPER),
    )
    paper = st.session_state[PAPER]
    exhibits = [exhibit for exhibit in EXHIBITS if paper in (ALL, exhibit.paper)]
    chosen = None
    if paper:
        # The exhibit in the URL, with a picker to change it; none for the overview.
        of_slug = {exhibit.slug: exhibit for exhibit in exhibits}
        linked = url_value("exhibit")
        slug = JOINED.get(f"{paper}/{linked}", linked)
        if slug and slug not in of_slug:
            st.warning(f"Exhibit {code(slug)} is not in this paper: choose one below.")
        st.session_state[PICKED] = slug if slug in of_slug else None
        st.selectbox(
            "Figure or table",
            list(of_slug),
            key=PICKED,
            format_func=lambda slug: of_slug[slug].label,
            placeholder="All of them",
            on_change=_remember,
            args=("exhibit", PICKED),
        )
        chosen = of_slug.get(st.session_state[PICKED])
    sources = current_sources()
    if sources.runs:
        page.warn_of_reference(sources.runs)
    if chosen is not None:
        show_exhibit(chosen, sources, PAPERS[chosen.paper])
        return
    words = st.text_input(
        "Search", placeholder="Words of the title, the claim or the paper, such as votes or GVote", **in_url("search")
    ).strip()
    ships = shipped()
    theme = page_theme()
    # Claims that ship are known before an exhibit is drawn.
    found = scorecard.matching(exhibits, words, lambda one: ships.claims(one.key, theme) if ships else ())
    if words:
        st.caption(f"{len(found)} of {len(exhibits)} figures and tables have {plain(words)}.")
    if found:
        show_overview(sources, found, with_cards=bool(paper or words))


def _remember(name: str, key: str) -> None:
    """Callback: put the value of a picker into the URL; another paper has other exhibits."""
    if name == "paper":
        clear_page_param("exhibit")
    if st.session_state[key]:
        set_page_param(name, st.session_state[key])
    else:
        clear_page_param(name)
