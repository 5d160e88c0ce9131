"""The results that come with kvlab: the atlas of a full run on `mini`, so that nobody's first visit is empty.

A folder (`assets/results`) with `eval/` and `bench/` as a folder of runs has them, `evidence/NAME.parquet` for claims
of recorded runs, `drawn.parquet` with their figures as they were drawn, `cards.parquet` with every exhibit's small
picture and claims, so that the index draws nothing, and `made.json`: by what, when and on what. What is shown of it:
`kvlab.atlas.shipped_exhibits`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvlab.common.assets import project_root
from kvlab.common.intervals import Interval
from kvlab.results.verdict import Basis, Claim, Threshold

FOLDER = "results"
EVIDENCE, DRAWN, CARDS, MADE = "evidence", "drawn.parquet", "cards.parquet", "made.json"


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

    def drawings(self, exhibit: str, theme: str) -> list[dict[str, str]]:
        """A row a figure: exhibit, name, theme, figure (JSON), frame (JSON), reading, origin, claim (JSON or empty).

        Only the groups of rows that hold it are read, and nothing is kept: all figures take 44 MB.
        """
        file = pq.ParquetFile(self.root / DRAWN)
        wanted = (pc.field("exhibit") == exhibit) & (pc.field("theme") == theme)
        groups = range(file.num_row_groups)
        there = [one for one in groups if len(file.read_row_group(one, ["exhibit", "theme"]).filter(wanted))]
        return [row for one in there for row in file.read_row_group(one).filter(wanted).to_pylist()]

    @cached_property
    def cards(self) -> dict[tuple[str, str], ShippedCard]:
        """By exhibit and theme."""
        rows = pd.read_parquet(self.root / CARDS).to_dict("records")
        return {
            (row["exhibit"], row["theme"]): ShippedCard(
                row["picture"], f"{self.words} · {row['origin']}", tuple(map(claim_of, json.loads(row["claims"])))
            )
            for row in rows
        }

    def claims(self, exhibit: str, theme: str) -> tuple[Claim, ...]:
        """The claims of the exhibit of this key as they were judged when it was packed."""
        card = self.cards.get((exhibit, theme))
        return card.claims if card else ()

    @property
    def words(self) -> str:
        """Where it came from, in words: `shipped with kvlab, mini, two CPU cores`."""
        return f"shipped with kvlab, {self.made['model']}, {self.made['machine']}"


@cache
def shipped() -> Shipped | None:
    """What ships; None in a checkout where it was not made."""
    root = project_root() / "assets" / FOLDER
    return Shipped(root) if (root / MADE).exists() else None


def claim_of(values: dict[str, Any]) -> Claim:
    """A claim from its JSON."""
    kinds = {"basis": Basis, "interval": Interval, "threshold": Threshold}
    fields = {name: kinds[name](**value) if name in kinds and value else value for name, value in values.items()}
    return Claim(**{**fields, "settle": None})
