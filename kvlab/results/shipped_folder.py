"""Results shipped with kvlab (`assets/results`): the atlas of a full run on `mini`, so that a first visit is not empty.

The folder holds `eval/` and `bench/` like a runs folder, `evidence/NAME.parquet` for claims of recorded runs,
`drawn.parquet` with their figures, `cards.parquet` with thumbnail and claims of every exhibit, and `made.json` with
versions, date and machine. `kvlab.atlas.shipped_exhibits` shows them.
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
    """A card's thumbnail, origin and claims."""

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
        """The rows of one `Evidence`; empty if not shipped."""
        file = self.root / EVIDENCE / f"{name}.parquet"
        return pd.read_parquet(file) if file.exists() else pd.DataFrame(columns=["prompt", "label"])

    def drawings(self, exhibit: str, theme: str) -> list[dict[str, str]]:
        """One row per figure: exhibit, name, theme, figure (JSON), frame (JSON), caption, origin, claim (JSON or "").

        Reads only the row groups that hold it and caches nothing, because all figures take 44 MB.
        """
        file = pq.ParquetFile(self.root / DRAWN)
        wanted = (pc.field("exhibit") == exhibit) & (pc.field("theme") == theme)
        groups = range(file.num_row_groups)
        there = [one for one in groups if len(file.read_row_group(one, ["exhibit", "theme"]).filter(wanted))]
        return [row for one in there for row in file.read_row_group(one).filter(wanted).to_pylist()]

    @cached_property
    def cards(self) -> dict[tuple[str, str], ShippedCard]:
        """The cards by exhibit and theme."""
        rows = pd.read_parquet(self.root / CARDS).to_dict("records")
        return {
            (row["exhibit"], row["theme"]): ShippedCard(
                row["picture"], f"{self.words} · {row['origin']}", tuple(map(parse_claim, json.loads(row["claims"])))
            )
            for row in rows
        }

    def claims(self, exhibit: str, theme: str) -> tuple[Claim, ...]:
        """The claims of an exhibit as judged when packed."""
        card = self.cards.get((exhibit, theme))
        return card.claims if card else ()

    @property
    def words(self) -> str:
        """Origin as text: `shipped with kvlab, mini, two CPU cores`."""
        return f"shipped with kvlab, {self.made['model']}, {self.made['machine']}"


@cache
def shipped() -> Shipped | None:
    """The shipped results; None in a checkout without them."""
    root = project_root() / "assets" / FOLDER
    return Shipped(root) if (root / MADE).exists() else None


def parse_claim(values: dict[str, Any]) -> Claim:
    """A claim from its JSON."""
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    fields = {**values, **lists, "settle": None}
    for name, kind in {"basis": Basis, "interval": Interval, "threshold": Threshold}.items():
        if values.get(name):
            parts = values[name].items()
            fields[name] = kind(**{part: tuple(one) if isinstance(one, list) else one for part, one in parts})
    return Claim(**fields)
