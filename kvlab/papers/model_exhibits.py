"""An exhibit for the model in view: from its own data, from what ships, or from mini's with a badge that names it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape, unescape
from io import StringIO

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.papers.exhibit import RECORDED, Choice, Drawn, Exhibit, Needs
from kvlab.requests.measurement import MINI
from kvlab.results.shipped_folder import Shipped, parse_claim
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, is_exception
from kvlab.views.base import HUES, SURFACES, Provenance, Theme, pick
from kvlab.views.base.export import decode_arrays
from kvlab.views.base.thumbnail import HEIGHT, WIDTH, thumbnail

DIGITS = 6  # of the numbers behind a figure
OWN = "Own data"  # begins the finding of a claim that is judged on shipped data beside the user's


def draw_shipped(ships: Shipped, exhibit: Exhibit, sources: Sources, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """The exhibit from shipped results; evaluations and benchmarks are redrawn from their rows."""
    if exhibit.source not in RECORDED:
        return exhibit.draw(Sources(sources.root, shipped=ships, named=ships.model), Choice(), theme)
    found = []
    for row in ships.drawings(exhibit.key, theme):
        figure = go.Figure(decode_arrays(json.loads(row["figure"])), skip_invalid=True)
        frame = pd.read_json(StringIO(row["frame"]), orient="table", precise_float=True)
        claim = parse_claim(json.loads(row["claim"])) if row["claim"] else None
        caption = row.get("simple") or row["caption"]  # files of before have a second, exact sentence as `caption`
        found.append(Drawn(row["name"], figure, frame, caption, Provenance(row["origin"]), claim, model=ships.model))
    return tuple(found) or Needs("It is not among what ships.")


def with_shipped(
    exhibit: Exhibit, ours: tuple[Drawn, ...] | Needs, theirs: Shipped | None, sources: Sources, theme: Theme
) -> tuple[Drawn, ...] | Needs:
    """The user's data, completed by the shipped results if missing or less decisive.

    A shipped claim stands in for the user's where it rests on more prompts, or decides what the user's does not count
    in prompts; an exception that the user found to a claim about every case stands. Shipped results of another model
    than that of `sources` are ignored.
    """
    if theirs is None or sources.measured_model != theirs.model or exhibit.source == "calculator":
        return ours
    if isinstance(ours, tuple):
        left = list(theirs.claims(exhibit.key, theme))
        drawn = []
        for one in ours:
            claim = one.claim
            drawn.append(one)
            # Of several shipped claims with the same text each is used once, in order.
            other = next((known for known in left if claim and known.paper == claim.paper), None)
            if claim is None or other is None:
                continue
            left.remove(other)
            more = other.basis.prompts - claim.basis.prompts
            is_uncounted = not claim.basis.prompts and claim.verdict == OPEN != other.verdict
            if is_exception(claim) or more < 0 or (more == 0 and not is_uncounted):
                continue
            mine = f"{OWN} ({claim.basis.description}){' is' if claim.verdict == OPEN else ':'} {claim.verdict}"
            if not claim.basis.description:
                mine = f"{OWN} has no measurement of it"
            finding = f"{mine}; judged on what is {theirs.description}. {other.finding}"
            drawn[-1] = replace(one, claim=replace(other, finding=finding, settle=claim.settle))
        return tuple(drawn)
    found = draw_shipped(theirs, exhibit, sources, theme)
    if isinstance(found, Needs):
        return ours
    return tuple(replace(one, origin=one.origin.at(theirs.description)) for one in found)


def rows_of(exhibit: Exhibit, figures: Sequence[Drawn], theme: Theme) -> list[dict[str, str]]:
    """Rows from which `draw_shipped` restores the figures."""
    return [
        {
            "exhibit": exhibit.key,
            "name": one.name,
            "theme": theme,
            "figure": one.figure.to_json(),
            # As many decimals as there may be, because shares may be tiny.
            "frame": _round_frame(one.frame).to_json(orient="table", index=False, double_precision=15),
            "caption": one.caption,
            "origin": str(one.origin),
            "claim": "" if one.claim is None else json.dumps(claim_values(one.claim)),
        }
        for one in figures
    ]


def _round_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `DIGITS` significant digits, which take less than half the room."""
    rounded = {}
    for name, column in frame.select_dtypes(np.floating).items():
        values = column.to_numpy(np.float64)
        finite = np.isfinite(values) & (values != 0)
        size = np.floor(np.log10(np.abs(values, where=finite, out=np.ones_like(values))))
        unit = 10.0 ** (size - DIGITS + 1)
        rounded[str(name)] = np.where(finite, np.round(values / unit) * unit, values)
    return frame.assign(**rounded)


def card_row(exhibit: Exhibit, figures: Sequence[Drawn], theme: Theme) -> dict[str, str]:
    """Row from which `Shipped.cards` restores the card."""
    claims = [claim_values(one.claim) for one in figures if one.claim is not None]
    return {
        "exhibit": exhibit.key,
        "theme": theme,
        "picture": thumbnail(figures[0].figure, theme),
        "origin": str(figures[0].origin),
        "claims": json.dumps(claims),
    }


def claim_values(claim: Claim) -> dict[str, object]:
    """A claim as JSON takes it; without `settle`, whose folder is not the reader's."""
    parts = {
        name: None if one is None else vars(one)
        for name, one in (
            ("basis", claim.basis),
            ("interval", claim.interval),
            ("threshold", claim.threshold),
        )
    }
    return vars(claim) | parts | {"settle": ""}


NAME = "measured-on"  # of the annotation
TITLES_FROM = 0.95  # of the height: panel titles lie above


def measured_on(model: str) -> str:
    """The words of the badge."""
    return f"measured on {model}"


def with_badge(figure: go.Figure, words: str, theme: Theme) -> go.Figure:
    """A copy of the figure with a badge in its top right corner: above the plot, or inside where panels have titles.

    The badge is part of the figure, so that pictures and slides have it too.
    """
    titled = any(one.yref == "paper" and (one.y or 0) >= TITLES_FROM for one in figure.layout.annotations)
    ink = pick(HUES["red"], theme)
    return go.Figure(figure).add_annotation(
        name=NAME,
        text=f"<b>{escape(words)}</b>",
        showarrow=False,
        xref="paper",
        yref="paper",
        x=1,
        y=1,
        xanchor="right",
        yanchor="top" if titled else "bottom",
        yshift=-2 if titled else 3,
        font={"size": 11, "color": ink},
        bgcolor=SURFACES[theme],
        bordercolor=ink,
        borderwidth=1,
        borderpad=2,
    )


def badge_of(figure: go.Figure) -> str:
    """The words of the figure's badge; "" without one."""
    texts = (one.text for one in figure.layout.annotations if one.name == NAME)
    return unescape(next(texts, "").removeprefix("<b>").removesuffix("</b>"))


def on_thumbnail(svg: str, words: str, theme: Theme) -> str:
    """The thumbnail with faded marks, under the same words."""
    ink = pick(HUES["red"], theme)
    wide = min(WIDTH - 12, 12 + 6.2 * len(words))
    begin = svg.index(">") + 1
    box = f'x="{WIDTH - wide - 4:g}" y="{HEIGHT - 24}" width="{wide:g}" height="18" rx="3"'
    place = f'x="{WIDTH - 4 - wide / 2:g}" y="{HEIGHT - 11}" text-anchor="middle"'
    badge = (
        f'<rect {box} fill="{SURFACES[theme]}" stroke="{ink}"/><text {place} fill="{ink}" font-size="11" '
        f'font-family="Inter, system-ui, sans-serif">{escape(words)}</text>'
    )
    marks = svg[begin:].removesuffix("</svg>")
    return f'{svg[:begin]}<g opacity="0.45">{marks}</g>{badge}</svg>'


def draw_shown(
    exhibit: Exhibit, sources: Sources, choice: Choice, theme: Theme, ships: Mapping[str, Shipped]
) -> tuple[Drawn, ...] | Needs:
    """The exhibit as `draw_recorded`, or else from the shipped results of the model in view, or of mini.

    `ships` are the shipped results by model. Raises UserError if what it needs was not recorded.
    """
    found = draw_recorded(exhibit, sources, choice, theme, ships)
    if isinstance(found, tuple):
        return found
    here = sources.measured_model
    for model in dict.fromkeys((here, MINI)):
        theirs = with_shipped(exhibit, found, ships.get(model), sources.of_model(model), theme)
        if isinstance(theirs, tuple):
            wanted = None if model == here else found
            return tuple(_badged(replace(one, wanted=wanted), sources, theme) for one in theirs)
    return found


def draw_recorded(
    exhibit: Exhibit, sources: Sources, choice: Choice, theme: Theme, ships: Mapping[str, Shipped]
) -> tuple[Drawn, ...] | Needs:
    """The exhibit from the folder of runs: on the model in view, or else on mini, with what the other model lacks.

    Mini's are left out if the model in view has shipped results of the exhibit. All figures of another model, or of
    none, have a badge. Open claims are completed by the shipped results of their model.
    Raises UserError if what it needs was not recorded.
    """
    here = sources.measured_model
    recorded = exhibit.draw(sources, choice, theme)
    if isinstance(recorded, tuple):
        completed = with_shipped(exhibit, recorded, ships.get(here), sources, theme)
        assert isinstance(completed, tuple)
        return tuple(_badged(one, sources, theme) for one in completed)
    if here == MINI or (here in ships and (exhibit.key, theme) in ships[here].cards):
        return recorded
    theirs = sources.of_model(MINI)
    try:  # mini may not have the layers and heads of the model in view
        drawn = exhibit.draw(theirs, Choice(numbers=choice.numbers), theme)
    except UserError:
        return recorded
    if isinstance(drawn, Needs):
        return recorded
    decided = with_shipped(exhibit, drawn, ships.get(MINI), theirs, theme)
    assert isinstance(decided, tuple)
    return tuple(_badged(replace(one, wanted=recorded), sources, theme) for one in decided)


def _badged(drawn: Drawn, sources: Sources, theme: Theme) -> Drawn:
    if drawn.model in ("", sources.measured_model):
        return drawn
    return replace(drawn, figure=with_badge(drawn.figure, measured_on(model_title(drawn.model)), theme))
