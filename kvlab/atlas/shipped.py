"""The results that come with kvlab: the atlas of a full run on `mini`, so that nobody's first visit is empty.

A folder (`assets/results`) with `eval/` and `bench/` as a folder of runs has them, `evidence/NAME.parquet` for claims
of recorded runs, `drawn.parquet` with their figures as they were drawn, and `made.json`: by what, when and on what.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from io import StringIO
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio

from kvlab.assets import project_root
from kvlab.atlas.exhibit import RECORDED, Choice, Drawn, Exhibit, Needs
from kvlab.atlas.sources import Sources
from kvlab.atlas.verdict import OPEN, Basis, Claim, Threshold
from kvlab.figures.palette import Theme
from kvlab.intervals import Interval

FOLDER = "results"
EVIDENCE, DRAWN, MADE = "evidence", "drawn.parquet", "made.json"
WORDS = "shipped with kvlab, mini, two CPU cores"
MODEL = "mini"


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

    def drawn(self, exhibit: Exhibit, theme: Theme) -> tuple[Drawn, ...] | Needs:
        """The exhibit as it ships; what evaluations and benchmarks draw is drawn anew from their rows."""
        if exhibit.source not in RECORDED:
            return exhibit.draw(Sources(self.root, shipped=self), Choice(), theme)
        rows = self.drawings
        mine = rows[(rows["exhibit"] == exhibit.key) & (rows["theme"] == theme)]
        return tuple(_read(row) for row in mine.to_dict("records")) or Needs("It is not among what ships.", "")


@cache
def shipped() -> Shipped | None:
    """What ships; None in a checkout where it was not made."""
    root = project_root() / "assets" / FOLDER
    return Shipped(root) if (root / MADE).exists() else None


def stands_in(own: tuple[Drawn, ...] | Needs, model: str) -> bool:
    """Whether what ships is shown instead of what the reader has: nothing yet, and no other model in view."""
    return isinstance(own, Needs) and model in ("", MODEL)


def judged(drawn: Sequence[Drawn]) -> Claim | None:
    """The first claim of an exhibit, which its card shows."""
    return next((one.claim for one in drawn if one.claim), None)


def better_judged(own: Claim | None, theirs: Claim | None, model: str) -> bool:
    """Whether what ships says more of a claim than the reader's own data, which is of the same model."""
    if theirs is None or theirs.verdict == OPEN or model not in ("", MODEL):
        return False
    return own is None or (own.verdict == OPEN and own.basis.prompts < theirs.basis.prompts)


def with_shipped_claims(own: tuple[Drawn, ...], theirs: tuple[Drawn, ...] | Needs, model: str) -> tuple[Drawn, ...]:
    """The reader's own figures, each with the shipped verdict where the own data is too little for one."""
    if isinstance(theirs, Needs):
        return own
    by_paper = {one.claim.paper: one.claim for one in theirs if one.claim}

    def better(one: Drawn) -> Drawn:
        claim = by_paper.get(one.claim.paper) if one.claim else None
        if not better_judged(one.claim, claim, model):
            return one
        assert claim is not None and one.claim is not None
        of_own = f"Own data: {one.claim.basis.words or 'nothing'}, not enough to say. Judged on what was {WORDS}: "
        return replace(one, claim=replace(claim, finding=of_own + claim.finding, settle=one.claim.settle))

    return tuple(better(one) for one in own)


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
            "claim": "" if one.claim is None else _claim_text(one.claim),
        }
        for one in drawn
    ]


def _read(row: dict[str, str]) -> Drawn:
    figure = go.Figure(pio.from_json(row["figure"], skip_invalid=True))
    frame = pd.read_json(StringIO(row["frame"]), orient="table", precise_float=True)
    claim = _claim_of(row["claim"]) if row["claim"] else None
    return Drawn(row["name"], figure, frame, row["reading"], row["origin"], claim)


def _claim_text(claim: Claim) -> str:
    parts = {name: None if one is None else vars(one) for name, one in (
        ("basis", claim.basis), ("interval", claim.interval), ("threshold", claim.threshold),
    )}  # fmt: skip
    return json.dumps(vars(claim) | parts)


def _claim_of(text: str) -> Claim:
    values = json.loads(text)
    kinds = {"basis": Basis, "interval": Interval, "threshold": Threshold}
    return Claim(**{name: kinds[name](**value) if name in kinds and value else value for name, value in values.items()})
