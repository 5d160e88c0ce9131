"""The results that come with kvlab: the atlas of a full run on `mini`, so that nobody's first visit is empty.

A folder (`assets/results`) with `eval/` and `bench/` as a folder of runs has them, `evidence/NAME.parquet` for claims
of recorded runs, `drawn.parquet` with their figures as they were drawn, `cards.parquet` with every exhibit's small
picture and claims, so that the index draws nothing, and `made.json`: by what, when and on what.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.assets import project_root
from kvlab.atlas.exhibit import RECORDED, Choice, Drawn, Exhibit, Needs
from kvlab.atlas.sources import Sources
from kvlab.atlas.verdict import OPEN, Basis, Claim, Threshold
from kvlab.figures.palette import Theme
from kvlab.figures.thumbnail import thumbnail
from kvlab.intervals import Interval

FOLDER = "results"
EVIDENCE, DRAWN, CARDS, MADE = "evidence", "drawn.parquet", "cards.parquet", "made.json"
MODEL = "mini"


@dataclass(frozen=True)
class ShippedCard:
    """What a card shows: a small picture, where it came from, and the claims."""

    picture: str
    origin: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Shipped:
    """The folder of shipped results."""

    root: Path

    @cached_property
    def made(self) -> dict[str, object]:
        """Versions, the model's digest, device and date."""
        return json.loads((self.root / MADE).read_text(encoding="utf-8"))

    def evidence(self, name: str) -> pd.DataFrame:
        """The rows of one `Evidence`; empty where it has none."""
        file = self.root / EVIDENCE / f"{name}.parquet"
        return pd.read_parquet(file) if file.exists() else pd.DataFrame(columns=["prompt", "label"])

    @cached_property
    def drawings(self) -> pd.DataFrame:
        """A row a figure: exhibit, name, theme, figure (JSON), frame (JSON), reading, origin, claim (JSON or empty)."""
        return pd.read_parquet(self.root / DRAWN)

    @cached_property
    def cards(self) -> dict[tuple[str, str], ShippedCard]:
        """By exhibit and theme."""
        rows = pd.read_parquet(self.root / CARDS).to_dict("records")
        return {
            (row["exhibit"], row["theme"]): ShippedCard(
                row["picture"], f"{self.words} · {row['origin']}", tuple(map(_claim_of, json.loads(row["claims"])))
            )
            for row in rows
        }

    def claims(self, exhibit: Exhibit, theme: Theme) -> tuple[Claim, ...]:
        """The exhibit's claims as they were judged when it was packed."""
        card = self.cards.get((exhibit.key, theme))
        return card.claims if card else ()

    def drawn(self, exhibit: Exhibit, sources: Sources, theme: Theme) -> tuple[Drawn, ...] | Needs:
        """The exhibit as it ships; what evaluations and benchmarks draw is drawn anew from their rows."""
        if exhibit.source not in RECORDED:
            return exhibit.draw(Sources(sources.root, shipped=self), Choice(), theme)
        rows = self.drawings
        mine = rows[(rows["exhibit"] == exhibit.key) & (rows["theme"] == theme)]
        return tuple(_read(row) for row in mine.to_dict("records")) or Needs("It is not among what ships.", "")

    @property
    def words(self) -> str:
        """Where it came from, in words: `shipped with kvlab, mini, two CPU cores`."""
        return f"shipped with kvlab, {self.made['model']}, {self.made['machine']}"


@cache
def shipped() -> Shipped | None:
    """What ships; None in a checkout where it was not made."""
    root = project_root() / "assets" / FOLDER
    return Shipped(root) if (root / MADE).exists() else None


def merged(
    exhibit: Exhibit, own: tuple[Drawn, ...] | Needs, theirs: Shipped | None, sources: Sources, theme: Theme
) -> tuple[Drawn, ...] | Needs:
    """What is shown of an exhibit: the reader's own data, and what ships where that is nothing or decides less.

    What ships is of `mini` and says nothing of another model in view.
    """
    if theirs is None or sources.model not in ("", MODEL) or exhibit.source == "calculator":
        return own
    if isinstance(own, tuple):
        left = list(theirs.claims(exhibit, theme))
        return tuple(replace(one, claim=_decided(one.claim, left, theirs)) for one in own)
    found = theirs.drawn(exhibit, sources, theme)
    if isinstance(found, Needs):
        return own
    return tuple(replace(one, origin=f"{theirs.words} · {one.origin}") for one in found)


def card_of(exhibit: Exhibit, theirs: Shipped | None, sources: Sources, theme: Theme) -> ShippedCard | None:
    """The card of an exhibit that the reader has nothing of; None where what ships says nothing of the model."""
    if theirs is None or sources.model not in ("", MODEL):
        return None
    return theirs.cards.get((exhibit.key, theme))


def _decided(own: Claim | None, left: list[Claim], ships: Shipped) -> Claim | None:
    """The reader's claim, or the shipped one where the reader's rests on fewer prompts and is left open.

    Of several shipped claims in the same words the first that is `left` belongs to it, and is taken off.
    """
    other = next((claim for claim in left if own and claim.paper == own.paper), None)
    if other is not None:
        left.remove(other)
    if own is None or other is None or own.verdict != OPEN or other.verdict == OPEN:
        return own
    if own.basis.prompts >= other.basis.prompts > 0:
        return own
    mine = f"Own data ({own.basis.words or 'nothing'}) is not enough to say; judged on what is {ships.words}. "
    return replace(other, finding=mine + other.finding, settle=own.settle)


def rows_of(exhibit: Exhibit, drawn: Sequence[Drawn], theme: Theme) -> list[dict[str, str]]:
    """What `Shipped.drawn` reads back."""
    return [
        {
            "exhibit": exhibit.key,
            "name": one.name,
            "theme": theme,
            "figure": one.figure.to_json(),
            "frame": one.frame.to_json(orient="table", index=False, double_precision=6),
            "reading": one.reading,
            "origin": one.origin,
            "claim": "" if one.claim is None else json.dumps(vars_of(one.claim)),
        }
        for one in drawn
    ]


def card_row(exhibit: Exhibit, drawn: Sequence[Drawn], theme: Theme) -> dict[str, str]:
    """What `Shipped.cards` reads back."""
    claims = [vars_of(one.claim) for one in drawn if one.claim is not None]
    return {
        "exhibit": exhibit.key,
        "theme": theme,
        "picture": thumbnail(drawn[0].figure, theme),
        "origin": drawn[0].origin,
        "claims": json.dumps(claims),
    }


def _read(row: dict[str, str]) -> Drawn:
    figure = go.Figure(_decoded(json.loads(row["figure"])), skip_invalid=True)
    frame = pd.read_json(StringIO(row["frame"]), orient="table", precise_float=True)
    claim = _claim_of(json.loads(row["claim"])) if row["claim"] else None
    return Drawn(row["name"], figure, frame, row["reading"], row["origin"], claim)


def _decoded(value: object) -> object:
    """Plotly's packed arrays as arrays again."""
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if {"bdata", "dtype"} <= set(value):
        flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
        shape = [int(size) for size in str(value.get("shape", len(flat))).split(",")]
        return flat.reshape(shape)
    return {name: _decoded(one) for name, one in value.items()}


def vars_of(claim: Claim) -> dict[str, object]:
    """A claim as JSON takes it; `settle` is left out, as its folder is not the reader's."""
    parts = {name: None if one is None else vars(one) for name, one in (
        ("basis", claim.basis), ("interval", claim.interval), ("threshold", claim.threshold),
    )}  # fmt: skip
    return vars(claim) | parts | {"settle": ""}


def _claim_of(values: dict[str, Any]) -> Claim:
    kinds = {"basis": Basis, "interval": Interval, "threshold": Threshold}
    return Claim(**{name: kinds[name](**value) if name in kinds and value else value for name, value in values.items()})
