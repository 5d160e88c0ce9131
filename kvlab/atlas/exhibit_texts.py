"""Exhibits as `exhibits.toml` in the folder of their paper describes them, joined with what draws them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvlab.atlas.exhibit import Draw, Entry, Exhibit, Paper


def exhibits_of(
    paper: Paper, drawings: Mapping[str, Draw], entries: Mapping[str, tuple[Entry, ...]] | None = None
) -> tuple[Exhibit, ...]:
    """The exhibits of the file of `paper`, in its order; `drawings` and the calculators' `entries` go by slug."""
    file = Path(__file__).parent / paper.replace("-", "_") / "exhibits.toml"
    described = tomllib.loads(file.read_text(encoding="utf-8"))
    assert described.keys() == drawings.keys(), described.keys() ^ drawings.keys()
    return tuple(
        Exhibit(paper, slug, drawing=drawings[slug], entries=(entries or {}).get(slug, ()), **_fields(told))
        for slug, told in described.items()
    )


def _fields(told: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an exhibit, texts on one line however the file breaks them."""
    texts = {name: " ".join(told[name].split()) for name in ("title", "shows", "look_for")}
    return texts | {"source": told["source"], "controls": tuple(told.get("controls", ()))}
