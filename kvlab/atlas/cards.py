"""The content of an exhibit's card in the overview: thumbnail, verdicts and source; kept on disk by its data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvlab.atlas.disk_cache import DiskCache
from kvlab.atlas.exhibit import Choice, Drawn, Exhibit, Needs
from kvlab.atlas.model_data import badge_of, draw_recorded, measured_on, on_thumbnail
from kvlab.atlas.registry import EXHIBITS
from kvlab.atlas.scorecard import SHAPES, Judged, Lines, by_model, claims_of, own_claims, subject
from kvlab.atlas.shipped_exhibits import card_of, claim_values
from kvlab.common.errors import UserError
from kvlab.figures.base.palette import Theme
from kvlab.figures.base.thumbnail import blank, thumbnail
from kvlab.requests.measurement import MINI, Measurement, measurement_values, parse_measurement
from kvlab.results.shipped_folder import Shipped, parse_claim, shipped
from kvlab.results.sources import Sources
from kvlab.trace.catalogue import list_comparisons
from kvlab.trace.reader import open_run


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
    _store(sources).write_text((exhibit.key, theme, *seen.place), seen.stamp, json.dumps(_values(card)))
    return card


def find_card(exhibit: Exhibit, sources: Sources, theme: Theme) -> Card | None:
    """The card on disk; None if it was not drawn from this data yet."""
    seen = exhibit.seen(sources)
    text = _store(sources).read_text((exhibit.key, theme, *seen.place), seen.stamp)
    try:
        return None if text is None else _parse(json.loads(text))
    except (KeyError, TypeError, ValueError):  # written by another version
        return None


def models_to_judge(sources: Sources) -> list[str]:
    """The models with data, in the folder or shipped: mini first, then others by name."""
    names = {*sources.models, *([MINI] if shipped() is not None else []), sources.measured_model}
    return sorted(names, key=lambda name: (name != MINI, name))


def scorecard(root: Path) -> dict[str, Lines]:
    """`by_model` for a runs folder, completed by the shipped results."""
    newest = next(iter(list_comparisons(root, limit=1)), None)
    runs = [open_run(root / run.run_id) for run in newest.runs] if newest else []
    sources = Sources(root, runs[0] if runs else None, runs)
    judged: list[tuple[Exhibit, tuple[Judged, ...]]] = []
    for model in models_to_judge(sources):
        here = sources.of_model(model)
        judged += [(exhibit, own_claims(draw_card(exhibit, here, "light").judged, model)) for exhibit in EXHIBITS]
    return by_model(judged)


def _store(sources: Sources) -> DiskCache:
    return DiskCache(sources.root, "cards")


def _draw(exhibit: Exhibit, sources: Sources, theme: Theme) -> Card:
    sliding = sources.run.record.sliding_layers if sources.run else ()
    layer = next((index for index in range(len(sliding) + 1) if index not in sliding), 0)
    ships = shipped()
    drawn: tuple[Drawn, ...] | Needs
    try:
        drawn = draw_recorded(exhibit, sources, Choice(layer=layer), theme, ships)
    except UserError as error:
        drawn = Needs(str(error))
    if isinstance(drawn, Needs):
        return _of_shipped(exhibit, drawn, ships, sources, theme)
    first, badge = drawn[0], badge_of(drawn[0].figure)
    picture = thumbnail(first.figure, theme)
    return Card(
        on_thumbnail(picture, badge, theme) if badge else picture, str(first.origin), first.origin.short,
        claims_of(exhibit, drawn), measurement=first.wanted.measurement if first.wanted else None, badge=badge,
    )  # fmt: skip


def _of_shipped(exhibit: Exhibit, missing: Needs, ships: Shipped | None, sources: Sources, theme: Theme) -> Card:
    """The card that ships with kvlab; without one why there is none."""
    theirs = card_of(exhibit, ships, theme)
    if ships is None or theirs is None:
        empty = "not recorded yet" if missing.measurement else "not recorded"
        return Card(blank(empty, theme), missing=missing.sentence, measurement=missing.measurement)
    is_other = exhibit.source == "bench" or sources.measured_model != MINI
    badge = measured_on(SHAPES if exhibit.source == "bench" else MINI) if is_other else ""
    return Card(
        on_thumbnail(theirs.picture, badge, theme) if badge else theirs.picture, theirs.origin, ships.words,
        tuple(Judged(subject(exhibit, MINI), claim) for claim in theirs.claims), missing.sentence,
        missing.measurement, is_shipped=True, badge=badge,
    )  # fmt: skip


def _values(card: Card) -> dict[str, Any]:
    judged = [{"model": one.model, "claim": claim_values(one.claim)} for one in card.judged]
    return vars(card) | {"judged": judged, "measurement": card.measurement and measurement_values(card.measurement)}


def _parse(values: dict[str, Any]) -> Card:
    judged = tuple(Judged(one["model"], parse_claim(one["claim"])) for one in values["judged"])
    measurement = values["measurement"] and parse_measurement(values["measurement"])
    return Card(**{**values, "judged": judged, "measurement": measurement})
