"""Show shipped results for exhibits where the user has no data, or less than shipped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.atlas.exhibit import RECORDED, Choice, Drawn, Exhibit, Needs
from kvlab.results.shipped_folder import Shipped, parse_claim
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, is_exception
from kvlab.views.base.caption import FigureCaption, simple_of
from kvlab.views.base.packed_arrays import decode_arrays
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import Provenance
from kvlab.views.base.thumbnail import thumbnail

DIGITS = 6  # of the numbers behind a figure
OWN = "Own data"  # begins the finding of a claim that is judged on shipped data beside the user's


def draw_shipped(ships: Shipped, exhibit: Exhibit, sources: Sources, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """The exhibit from shipped results; evaluations and benchmarks are redrawn from their rows."""
    if exhibit.source not in RECORDED:
        return exhibit.draw(Sources(sources.root, shipped=ships, named=ships.model), Choice(), theme)
    found = tuple(replace(_read(row), model=ships.model) for row in ships.drawings(exhibit.key, theme))
    return found or Needs("It is not among what ships.")


def with_shipped(
    exhibit: Exhibit, own: tuple[Drawn, ...] | Needs, theirs: Shipped | None, sources: Sources, theme: Theme
) -> tuple[Drawn, ...] | Needs:
    """The user's data, completed by the shipped results if missing or less decisive.

    Shipped results of another model than that of `sources` are ignored.
    """
    if theirs is None or sources.measured_model != theirs.model or exhibit.source == "calculator":
        return own
    if isinstance(own, tuple):
        left = list(theirs.claims(exhibit.key, theme))
        return tuple(replace(one, claim=_decided(one.claim, left, theirs)) for one in own)
    found = draw_shipped(theirs, exhibit, sources, theme)
    if isinstance(found, Needs):
        return own
    return tuple(replace(one, origin=one.origin.at(theirs.words)) for one in found)


def _decided(own: Claim | None, left: list[Claim], ships: Shipped) -> Claim | None:
    """The user's claim, or the shipped one beside it where that rests on more prompts, or decides what the user's does
    not count in prompts.

    An exception that the user found to a claim about every case stands. Of several shipped claims with the same text
    the first in `left` is used and removed.
    """
    other = next((claim for claim in left if own and claim.paper == own.paper), None)
    if other is not None:
        left.remove(other)
    if own is None or other is None or is_exception(own) or not _rests_on_more(other, own):
        return own
    mine = f"{OWN} ({own.basis.words}){' is' if own.verdict == OPEN else ':'} {own.verdict}"
    if not own.basis.words:
        mine = f"{OWN} has no measurement of it"
    return replace(other, finding=f"{mine}; judged on what is {ships.words}. {other.finding}", settle=own.settle)


def _rests_on_more(other: Claim, own: Claim) -> bool:
    if other.basis.prompts != own.basis.prompts:
        return other.basis.prompts > own.basis.prompts
    return not own.basis.prompts and own.verdict == OPEN != other.verdict


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
            "caption": str(one.caption),
            "simple": simple_of(one.caption),
            "origin": str(one.origin),
            "claim": "" if one.claim is None else json.dumps(claim_values(one.claim)),
        }
        for one in figures
    ]


def _round_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `DIGITS` significant digits, which take less than half the room."""
    floats = frame.select_dtypes(np.floating)
    return frame.assign(**{name: _significant(values.to_numpy(np.float64)) for name, values in floats.items()})


def _significant(values: np.ndarray) -> np.ndarray:
    finite = np.isfinite(values) & (values != 0)
    size = np.floor(np.log10(np.abs(values, where=finite, out=np.ones_like(values))))
    unit = 10.0 ** (size - DIGITS + 1)
    return np.where(finite, np.round(values / unit) * unit, values)


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


def _read(row: dict[str, str]) -> Drawn:
    figure = go.Figure(decode_arrays(json.loads(row["figure"])), skip_invalid=True)
    frame = pd.read_json(StringIO(row["frame"]), orient="table", precise_float=True)
    claim = parse_claim(json.loads(row["claim"])) if row["claim"] else None
    caption = FigureCaption(row.get("caption") or row["reading"], row.get("simple") or "")  # `reading` in older files
    return Drawn(row["name"], figure, frame, caption, Provenance(row["origin"]), claim)


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
