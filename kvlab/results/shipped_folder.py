"""Results shipped with kvlab (`assets/results`): the atlas of a full run, so that a first visit is not empty.

`assets/results` has the results of `mini`, `assets/results/models/NAME` those of another model. Such a folder holds
`eval/` and `bench/` like a runs folder, `evidence/NAME.parquet` for claims of recorded runs, `drawn.parquet` with their
figures, `cards.parquet` with thumbnail and claims of every exhibit, and `made.json` with versions, date and machine.
Benchmarks time no model and are in `assets/results` alone. `kvlab.papers.model_exhibits` shows them.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvlab.common.formatting import model_title
from kvlab.common.intervals import Interval
from kvlab.core.assets import project_root
from kvlab.requests.measurement import MINI
from kvlab.results.verdict import Basis, Claim, Threshold

FOLDER = "results"
MODELS = "models"
EVIDENCE = "evidence"
DRAWN = "drawn.parquet"
CARDS = "cards.parquet"
MADE = "made.json"


@dataclass(frozen=True)
class ShippedCard:
    """A card's thumbnail, origin and claims."""

    picture: str
    origin: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Shipped:
    """The folder of one model's shipped results."""

    root: Path

    @cached_property
    def made(self) -> dict[str, object]:
        """Versions, the model's digest, device and date."""
        return json.loads((self.root / MADE).read_text(encoding="utf-8"))

    @property
    def model(self) -> str:
        """The model that was measured, by the name it is loaded by."""
        return str(self.made["model"])

    @cached_property
    def stamp(self) -> str:
        """State of the results: it changes when they are packed again."""
        return hashlib.sha256((self.root / MADE).read_bytes() + (self.root / CARDS).read_bytes()).hexdigest()[:16]

    def evidence(self, name: str) -> pd.DataFrame:
        """The rows of one `Evidence`; empty if not shipped."""
        file = self.root / EVIDENCE / f"{name}.parquet"
        return pd.read_parquet(file) if file.exists() else pd.DataFrame(columns=["prompt", "label"])

    def drawings(self, exhibit: str, theme: str) -> list[dict[str, str]]:
        """One row per figure: exhibit, name, theme, figure (JSON), frame (JSON), caption, origin, claim (JSON or "").

        In the file a frame may be with one theme alone. Reads only the row groups that hold the exhibit and caches
        nothing, because all figures take 44 MB.
        """
        file = pq.ParquetFile(self.root / DRAWN)
        wanted = pc.field("exhibit") == exhibit
        groups = range(file.num_row_groups)
        there = [one for one in groups if len(file.read_row_group(one, ["exhibit"]).filter(wanted))]
        rows = [row for one in there for row in file.read_row_group(one).filter(wanted).to_pylist()]
        frames = {row["name"]: row["frame"] for row in rows if row["frame"]}
        return [row | {"frame": row["frame"] or frames[row["name"]]} for row in rows if row["theme"] == theme]

    @cached_property
    def cards(self) -> dict[tuple[str, str], ShippedCard]:
        """The cards by exhibit and theme."""
        rows = pd.read_parquet(self.root / CARDS).to_dict("records")
        return {
            (row["exhibit"], row["theme"]): ShippedCard(
                row["picture"],
                f"{self.description} · {row['origin']}",
                tuple(map(parse_claim, json.loads(row["claims"]))),
            )
            for row in rows
        }

    def claims(self, exhibit: str, theme: str) -> tuple[Claim, ...]:
        """The claims of an exhibit as judged when packed."""
        card = self.cards.get((exhibit, theme))
        return card.claims if card else ()

    @property
    def description(self) -> str:
        """Origin as text: `shipped with kvlab, mini, two CPU cores`."""
        return f"shipped with kvlab, {model_title(self.model)}, {self.made['machine']}"


@cache
def shipped_results(folder: Path | None = None) -> dict[str, Shipped]:
    """The shipped results by model, mini's first; empty in a checkout without them. `folder`: in place of kvlab's."""
    root = folder or project_root() / "assets" / FOLDER
    folders = (root, *sorted((root / MODELS).glob("*")))
    found = [Shipped(one) for one in folders if (one / MADE).exists()]
    return {one.model: one for one in found}


def shipped(model: str = MINI) -> Shipped | None:
    """The shipped results of one model; None if there are none."""
    return shipped_results().get(model)


def model_order(name: str) -> tuple[int, str]:
    """Sort key of models: those with shipped results first, mini before the others, then by name."""
    known = list(dict.fromkeys((MINI, *shipped_results())))
    return (known.index(name) if name in known else len(known), name)


def parse_claim(values: dict[str, Any]) -> Claim:
    """A claim from its JSON."""
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    fields = {**values, **lists, "settle": None}
    for name, kind in {"basis": Basis, "interval": Interval, "threshold": Threshold}.items():
        if values.get(name):
            parts = values[name].items()
            fields[name] = kind(**{part: tuple(one) if isinstance(one, list) else one for part, one in parts})
    return Claim(**fields)
