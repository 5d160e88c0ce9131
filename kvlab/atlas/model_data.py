"""Draw an exhibit for the model in view: from its own data, or from another model's with a badge that names it."""

from __future__ import annotations

from dataclasses import replace

from kvlab.atlas.exhibit import Choice, Drawn, Exhibit, Needs
from kvlab.atlas.figures.model_badge import measured_on, with_badge
from kvlab.atlas.shipped_exhibits import with_shipped
from kvlab.common.errors import UserError
from kvlab.common.model_title import model_title
from kvlab.figures.base.palette import Theme
from kvlab.requests.measurement import MINI
from kvlab.results.shipped_folder import Shipped
from kvlab.results.sources import Sources


def draw_shown(
    exhibit: Exhibit, sources: Sources, choice: Choice, theme: Theme, ships: Shipped | None
) -> tuple[Drawn, ...] | Needs:
    """The exhibit as `draw_recorded`, or else from the shipped results of mini.

    Raises UserError if what it needs was not recorded.
    """
    found = draw_recorded(exhibit, sources, choice, theme, ships)
    if isinstance(found, tuple):
        return found
    theirs = with_shipped(exhibit, found, ships, sources.of_model(MINI), theme)
    if isinstance(theirs, Needs):
        return found
    return tuple(_badged(replace(one, wanted=_wanted(found, sources)), sources, theme) for one in theirs)


def draw_recorded(
    exhibit: Exhibit, sources: Sources, choice: Choice, theme: Theme, ships: Shipped | None
) -> tuple[Drawn, ...] | Needs:
    """The exhibit from the folder of runs: on the model in view, or else on mini, with what the other model lacks.

    All figures of another model, or of none, have a badge. Mini's open claims are completed by the shipped results.
    Raises UserError if what it needs was not recorded.
    """
    own = exhibit.draw(sources, choice, theme)
    if isinstance(own, tuple):
        completed = with_shipped(exhibit, own, ships, sources, theme)
        assert isinstance(completed, tuple)
        return tuple(_badged(one, sources, theme) for one in completed)
    if sources.measured_model == MINI:
        return own
    theirs = sources.of_model(MINI)
    try:  # mini may not have the layers and heads of the model in view
        drawn = exhibit.draw(theirs, Choice(numbers=choice.numbers), theme)
    except UserError:
        return own
    if isinstance(drawn, Needs):
        return own
    decided = with_shipped(exhibit, drawn, ships, theirs, theme)
    assert isinstance(decided, tuple)
    return tuple(_badged(replace(one, wanted=_wanted(own, sources)), sources, theme) for one in decided)


def _wanted(missing: Needs, sources: Sources) -> Needs | None:
    """Missing data of the model in view; None for mini, because its shipped results name their source."""
    return None if sources.measured_model == MINI else missing


def _badged(drawn: Drawn, sources: Sources, theme: Theme) -> Drawn:
    if drawn.model in ("", sources.measured_model):
        return drawn
    return replace(drawn, figure=with_badge(drawn.figure, measured_on(model_title(drawn.model)), theme))
