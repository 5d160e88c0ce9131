"""The content of an exhibit's card in the overview: thumbnail, verdicts and source; kept on disk by its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvlab.atlas.disk_cache import DiskCache
from kvlab.atlas.exhibit import RECORDED, Choice, Drawn, Exhibit, Needs
from kvlab.atlas.model_data import badge_of, draw_recorded, measured_on, on_thumbnail
from kvlab.atlas.registry import EXHIBITS
from kvlab.atlas.scorecard import SHAPES, Judged, Lines, by_model, claims_of, own_claims, subject
from kvlab.atlas.shipped_exhibits import claim_values
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.requests.measurement import MINI, Measurement, measurement_values, parse_measurement
from kvlab.results.shipped_folder import Shipped, model_order, parse_claim, shipped_results
from kvlab.results.sources import Seen, Sources
from kvlab.views.base.palette import THEMES, Theme
from kvlab.views.base.thumbnail import blank, thumbnail


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
    seen = exhibit.seen(sources)
    card = _draw(exhibit, sources, theme)
    _store(sources).write_text((exhibit.key, theme, *seen.place), _state(seen), json.dumps(_values(card)))
    return card


def find_card(exhibit: Exhibit, sources: Sources, theme: Theme) -> Card | None:
    """The card on disk; None if it was not drawn from this data yet."""
    seen = exhibit.seen(sources)
    text = _store(sources).read_text((exhibit.key, theme, *seen.place), _state(seen))
    try:
        return None if text is None else _parse(json.loads(text))
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


def _store(sources: Sources) -> DiskCache:
    return DiskCache(sources.root, "cards")


def _state(seen: Seen) -> str:
    """State of what a card is drawn from: the user's data and the shipped results."""
    return " ".join((seen.stamp, *(ships.stamp for ships in shipped_results().values())))


def _draw(exhibit: Exhibit, sources: Sources, theme: Theme) -> Card:
    sliding = sources.run.record.sliding_layers if sources.run else ()
    layer = next((index for index in range(len(sliding) + 1) if index not in sliding), 0)
    ships = shipped_results()
    drawn: tuple[Drawn, ...] | Needs
    try:
        drawn = draw_recorded(exhibit, sources, Choice(layer=layer), theme, ships)
    except UserError as error:
        drawn = Needs(str(error))
    if isinstance(drawn, Needs):
        return _of_shipped(exhibit, drawn, ships, sources, theme)
    first = drawn[0]
    badge = badge_of(drawn[0].figure)
    picture = thumbnail(first.figure, theme)
    judged = _with_shipped_claims(exhibit, claims_of(exhibit, drawn), sources.measured_model)
    return Card(
        on_thumbnail(picture, badge, theme) if badge else picture,
        str(first.origin),
        first.origin.short,
        judged,
        measurement=first.wanted.measurement if first.wanted else None,
        badge=badge,
    )


def _with_shipped_claims(exhibit: Exhibit, own: tuple[Judged, ...], model: str) -> tuple[Judged, ...]:
    """The claims of the user's figures, and the shipped ones of figures that the user's data does not make."""
    known = {(one.model, one.claim.paper) for one in own}
    return (*own, *(one for one in shipped_claims(exhibit, model) if (one.model, one.claim.paper) not in known))


def _of_shipped(exhibit: Exhibit, missing: Needs, ships: Mapping[str, Shipped], sources: Sources, theme: Theme) -> Card:
    """The card that ships with kvlab, of the model in view or else of mini; without one why there is none."""
    here = sources.measured_model
    key = (exhibit.key, theme)
    model = next((model for model in (here, MINI) if model in ships and key in ships[model].cards), None)
    if model is None:
        empty = "not recorded yet" if missing.measurement else "not recorded"
        return Card(blank(empty, theme), missing=missing.sentence, measurement=missing.measurement)
    theirs = ships[model].cards[key]
    is_other = exhibit.source == "bench" or model != here
    badge = measured_on(SHAPES if exhibit.source == "bench" else model_title(model)) if is_other else ""
    return Card(
        on_thumbnail(theirs.picture, badge, theme) if badge else theirs.picture,
        theirs.origin,
        ships[model].words,
        tuple(Judged(subject(exhibit, model), claim) for claim in theirs.claims),
        missing.sentence,
        missing.measurement,
        is_shipped=True,
        badge=badge,
    )


def _values(card: Card) -> dict[str, Any]:
    judged = [{"model": one.model, "claim": claim_values(one.claim)} for one in card.judged]
    return vars(card) | {"judged": judged, "measurement": card.measurement and measurement_values(card.measurement)}


def _parse(values: dict[str, Any]) -> Card:
    judged = tuple(Judged(one["model"], parse_claim(one["claim"])) for one in values["judged"])
    measurement = values["measurement"] and parse_measurement(values["measurement"])
    return Card(**{**values, "judged": judged, "measurement": measurement})
