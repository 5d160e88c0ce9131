"""Scorecard of the papers' claims, on each model and claim by claim, and the cards of their exhibits."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kvlab.common.formatting import model_title, prompts
from kvlab.core.errors import UserError
from kvlab.papers.evidence import DiskCache
from kvlab.papers.exhibit import RECORDED, Choice, Drawn, Exhibit, Needs
from kvlab.papers.model_exhibits import badge_of, claim_values, draw_recorded, measured_on, on_thumbnail
from kvlab.papers.registry import EXHIBITS, PAPERS
from kvlab.requests.measurement import MINI, Measurement, measurement_values, parse_measurement
from kvlab.results.shipped_folder import model_order, parse_claim, shipped_results
from kvlab.results.sources import Sources, SourceState
from kvlab.results.verdict import FAILS, HOLDS, LEAST_PROMPTS, OPEN, Claim, Verdict
from kvlab.views.base.palette import THEMES, Theme
from kvlab.views.base.thumbnail import blank, thumbnail

VERDICTS: tuple[Verdict, ...] = (HOLDS, FAILS, OPEN)
CARDS = "cards"  # kind of the files on disk
SHAPES = "the papers' shapes"  # what benchmarks time and calculators compute, in place of a model
Lines = dict[str, dict[Verdict, list[tuple[Exhibit, Claim]]]]


@dataclass(frozen=True)
class Judged:
    """A claim with the model whose data decides it."""

    model: str
    claim: Claim


def lines(judged: Iterable[tuple[Exhibit, Iterable[Claim]]]) -> Lines:
    """One model's claims of every paper by verdict, each with its deciding exhibit.

    A claim shown by several exhibits of a paper counts once: at the exhibit made for it, else at the first.
    """
    found: Lines = {paper: {verdict: [] for verdict in VERDICTS} for paper in PAPERS}
    counted: set[tuple[str, str]] = set()
    shown = [(exhibit, claim) for exhibit, claims in judged for claim in claims]
    for exhibit, claim in sorted(shown, key=lambda one: bool(one[1].judged_at)):
        if (exhibit.paper, claim.paper) not in counted:
            counted.add((exhibit.paper, claim.paper))
            found[exhibit.paper][claim.verdict].append((exhibit, claim))
    return found


def by_model(judged: Iterable[tuple[Exhibit, Iterable[Judged]]], models: Collection[str] = ()) -> dict[str, Lines]:
    """`lines` of every model, those of `models` also without a claim: in `model_order`, what benchmarks time last."""
    shown = [(exhibit, tuple(claims)) for exhibit, claims in judged]
    names = {*models, *(one.model for _, claims in shown for one in claims)}
    return {
        name: lines((exhibit, [one.claim for one in claims if one.model == name]) for exhibit, claims in shown)
        for name in sorted(names, key=lambda name: (name == SHAPES, *model_order(name)))
    }


def counts(found: Lines) -> pd.DataFrame:
    """One row per paper: paper, title, and the numbers of claims that `holds`, `fails` and are `open`."""
    rows = [(paper, title, *(len(found[paper][verdict]) for verdict in VERDICTS)) for paper, title in PAPERS.items()]
    return pd.DataFrame(rows, columns=["paper", "title", "holds", "fails", "open"])


def verdict_frame(found: Mapping[str, Lines]) -> pd.DataFrame:
    """One row per model, paper and verdict with at least one claim: columns model, paper, verdict, claims."""
    rows = [
        (model_title(model), title, verdict, len(lines[paper][verdict]))
        for model, lines in found.items()
        for paper, title in PAPERS.items()
        for verdict in VERDICTS
        if lines[paper][verdict]
    ]
    return pd.DataFrame(rows, columns=["model", "paper", "verdict", "claims"])


def verdicts_on_each(judged: Iterable[Judged], claim: str) -> str:
    """The verdicts on a paper's claim in one line, such as `holds on mini, does not hold on SmolLM2`.

    An undecided one says where prompts are too few. "" unless two models were judged.
    """
    found: dict[str, Claim] = {}
    for one in judged:
        if one.claim.paper == claim and one.model != SHAPES:
            found.setdefault(one.model, one.claim)
    if len(found) < 2:
        return ""
    texts = []
    for model in sorted(found, key=model_order):
        judgement = found[model]
        text = f"{judgement.verdict} on {model_title(model)}"
        if judgement.verdict == OPEN:
            count = judgement.interval.n if judgement.interval is not None else judgement.basis.prompts
            few = f" ({prompts(count)}; a verdict needs {LEAST_PROMPTS})" if 0 < count < LEAST_PROMPTS else ""
            text = f"undecided on {model_title(model)}{few}"
        texts.append(text)
    return ", ".join(texts)


def claims_by_model(found: Mapping[str, Lines]) -> pd.DataFrame:
    """One row per claim: paper, exhibit (where it is judged), claim, and for every model its verdict, number of prompts
    and finding, as `mini`, `mini, n` and `mini, finding`. Verdicts of several models are never combined."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    order = {exhibit.key: place for place, exhibit in enumerate(EXHIBITS)}
    places: dict[tuple[str, str], int] = {}
    for model, of_model in found.items():
        for paper, verdicts in of_model.items():
            for exhibit, claim in (pair for pairs in verdicts.values() for pair in pairs):
                key = (paper, claim.paper)
                name = model_title(model)
                first: dict[str, object] = {
                    "paper": PAPERS[exhibit.paper],
                    "exhibit": exhibit.number,
                    "claim": claim.paper,
                }
                line = rows.setdefault(key, first)
                places.setdefault(key, order.get(exhibit.key, len(order)))
                line |= {
                    name: claim.verdict,
                    f"{name}, n": claim.basis.prompts or claim.basis.repeats,
                    f"{name}, finding": claim.finding,
                }
    columns = [f"{model_title(model)}{part}" for model in found for part in ("", ", n", ", finding")]
    frame = pd.DataFrame([rows[key] for key in sorted(rows, key=lambda key: places[key])])
    return frame.reindex(columns=["paper", "exhibit", "claim", *columns])


def exhibit_list(
    exhibits: Sequence[Exhibit], judged: Iterable[tuple[Exhibit, Iterable[Judged]]], models: Sequence[str]
) -> pd.DataFrame:
    """One row per claim of every exhibit, and one for an exhibit without a claim so far, in the order of `exhibits`.

    Columns: key, paper, number, title, claim, and for each model its verdict, number of prompts and finding, named as
    in `claims_by_model`; missing where the model was not judged.
    """
    found: dict[str, dict[str, dict[str, object]]] = {exhibit.key: {} for exhibit in exhibits}
    for exhibit, claims in judged:
        for one in claims:
            name = model_title(one.model)
            line = found[exhibit.key].setdefault(one.claim.paper, {"claim": one.claim.paper})
            line |= {
                name: one.claim.verdict,
                f"{name}, n": one.claim.basis.prompts or one.claim.basis.repeats,
                f"{name}, finding": one.claim.finding,
            }
    rows = [
        {
            "key": exhibit.key,
            "paper": PAPERS[exhibit.paper],
            "number": exhibit.number,
            "title": exhibit.short or exhibit.title,
            **line,
        }
        for exhibit in exhibits
        for line in found[exhibit.key].values() or [{"claim": ""}]
    ]
    columns = [f"{model_title(model)}{part}" for model in models for part in ("", ", n", ", finding")]
    return pd.DataFrame(rows).reindex(columns=["key", "paper", "number", "title", "claim", *columns])


def matching(exhibits: Iterable[Exhibit], words: str, claims: Callable[[Exhibit], Iterable[Claim]]) -> list[Exhibit]:
    """The exhibits whose texts, paper or claims have words that begin with each of `words`, in any case.

    All of them without words.
    """
    wanted = [re.compile(rf"(?<!\w){re.escape(word)}") for word in words.casefold().split()]
    found = []
    for one in exhibits:
        texts = [PAPERS[one.paper], one.number, one.title, one.short, one.shows, one.look_for]
        if wanted:
            texts += [claim.paper for claim in claims(one)]
        if all(word.search(" ".join(texts).casefold()) for word in wanted):
            found.append(one)
    return found


def subject(exhibit: Exhibit, model: str) -> str:
    """The column of the scorecard that a claim of the exhibit belongs to, measured on `model`."""
    return SHAPES if exhibit.source in ("bench", "calculator") else model


def own_claims(judged: Iterable[Judged], model: str) -> tuple[Judged, ...]:
    """The claims that are judged on this model, or on no model."""
    return tuple(one for one in judged if one.model in (model, SHAPES))


@dataclass(frozen=True)
class Card:
    """Thumbnail, claims and source; without data the reason, and the measurement that records it.

    A card of shipped results, or of another model than the one in view, has the measurement for the user's own data
    too. `badge` names that other model, as on the picture.
    """

    picture: str
    origin: str = ""
    source: str = ""
    judged: tuple[Judged, ...] = ()
    missing: str = ""
    measurement: Measurement | None = None
    is_shipped: bool = False
    badge: str = ""


def draw_card(exhibit: Exhibit, sources: Sources, theme: Theme) -> Card:
    """The card, from the first recorded layer and head; from disk if it was drawn from the same data before."""
    if (kept := find_card(exhibit, sources, theme)) is not None:
        return kept
    state = exhibit.source_state(sources)
    card = _draw_card(exhibit, sources, theme)
    judged = [{"model": one.model, "claim": claim_values(one.claim)} for one in card.judged]
    content = vars(card) | {"judged": judged, "measurement": card.measurement and measurement_values(card.measurement)}
    place = (exhibit.key, theme, *state.place)
    DiskCache(sources.root, CARDS).write(place, _card_state(state), json.dumps(content).encode())
    return card


def find_card(exhibit: Exhibit, sources: Sources, theme: Theme) -> Card | None:
    """The card on disk; None if it was not drawn from this data yet."""
    state = exhibit.source_state(sources)
    text = DiskCache(sources.root, CARDS).read((exhibit.key, theme, *state.place), _card_state(state))
    try:
        if text is None:
            return None
        values = json.loads(text)
        judged = tuple(Judged(one["model"], parse_claim(one["claim"])) for one in values["judged"])
        measurement = values["measurement"] and parse_measurement(values["measurement"])
        return Card(**{**values, "judged": judged, "measurement": measurement})
    except (KeyError, TypeError, ValueError):  # written by another version
        return None


def models_to_judge(sources: Sources) -> list[str]:
    """The models with data, in the folder or shipped: those with shipped results first, then others by name."""
    return sorted({*sources.models, *shipped_results(), sources.measured_model}, key=model_order)


def is_slow(exhibit: Exhibit, sources: Sources) -> bool:
    """Whether drawing takes seconds, from recorded runs; from rows or shipped results it takes milliseconds."""
    return exhibit.source in RECORDED and sources.run is not None


def judge_on_each(exhibit: Exhibit, sources: Sources) -> list[Judged]:
    """The exhibit's claims on every model with data, one model after the other.

    Where judging would take seconds and was not done before, the shipped verdicts stand.
    """
    found: list[Judged] = []
    for model in models_to_judge(sources):
        here = sources.judging(model)
        card = next((card for theme in THEMES if (card := find_card(exhibit, here, theme)) is not None), None)
        if card is None and is_slow(exhibit, here):
            found += shipped_claims(exhibit, model)
        else:
            found += own_claims((card or draw_card(exhibit, here, "light")).judged, model)
    return found


def shipped_claims(exhibit: Exhibit, model: str) -> tuple[Judged, ...]:
    """The exhibit's claims as judged on the model's shipped results."""
    ships = shipped_results().get(model)
    claims = ships.claims(exhibit.key, "light") if ships else ()
    return tuple(Judged(subject(exhibit, model), claim) for claim in claims)


def scorecard(root: Path) -> dict[str, Lines]:
    """`by_model` for a runs folder, completed by the shipped results."""
    sources = Sources(root)
    judged: list[tuple[Exhibit, tuple[Judged, ...]]] = []
    for model in models_to_judge(sources):
        here = sources.judging(model)
        judged += [(exhibit, own_claims(draw_card(exhibit, here, "light").judged, model)) for exhibit in EXHIBITS]
    return by_model(judged)


def _card_state(state: SourceState) -> str:
    """State of what a card is drawn from: the user's data and the shipped results."""
    return " ".join((state.stamp, *(ships.stamp for ships in shipped_results().values())))


def _draw_card(exhibit: Exhibit, sources: Sources, theme: Theme) -> Card:
    sliding = sources.run.record.sliding_layers if sources.run else ()
    layer = next((index for index in range(len(sliding) + 1) if index not in sliding), 0)
    ships = shipped_results()
    drawn: tuple[Drawn, ...] | Needs
    try:
        drawn = draw_recorded(exhibit, sources, Choice(layer=layer), theme, ships)
    except UserError as error:
        drawn = Needs(str(error))
    if isinstance(drawn, Needs):
        # The card that ships with kvlab, of the model in view or else of mini.
        here = sources.measured_model
        key = (exhibit.key, theme)
        model = next((model for model in (here, MINI) if model in ships and key in ships[model].cards), None)
        if model is None:
            empty = "not recorded yet" if drawn.measurement else "not recorded"
            return Card(blank(empty, theme), missing=drawn.sentence, measurement=drawn.measurement)
        theirs = ships[model].cards[key]
        is_other = exhibit.source == "bench" or model != here
        badge = measured_on(SHAPES if exhibit.source == "bench" else model_title(model)) if is_other else ""
        return Card(
            on_thumbnail(theirs.picture, badge, theme) if badge else theirs.picture,
            theirs.origin,
            ships[model].description,
            tuple(Judged(subject(exhibit, model), claim) for claim in theirs.claims),
            drawn.sentence,
            drawn.measurement,
            is_shipped=True,
            badge=badge,
        )
    first = drawn[0]
    badge = badge_of(drawn[0].figure)
    picture = thumbnail(first.figure, theme)
    claims = tuple(Judged(subject(exhibit, one.model), one.claim) for one in drawn if one.claim is not None)
    known = {(one.model, one.claim.paper) for one in claims}
    judged = (
        *claims,
        *(one for one in shipped_claims(exhibit, sources.measured_model) if (one.model, one.claim.paper) not in known),
    )
    return Card(
        on_thumbnail(picture, badge, theme) if badge else picture,
        str(first.origin),
        first.origin.short,
        judged,
        measurement=first.wanted.measurement if first.wanted else None,
        badge=badge,
    )
