"""How many of each paper's claims hold on this model, do not, or cannot be said yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.registry import EXHIBITS, PAPERS
from kvlab.atlas.shipped import merged, shipped
from kvlab.atlas.sources import Sources
from kvlab.atlas.verdict import FAILS, HOLDS, OPEN, Claim
from kvlab.trace.catalogue import list_comparisons
from kvlab.trace.reader import open_run

COLUMNS = ["paper", "title", "holds", "fails", "open"]


def counted(claims: Mapping[str, Iterable[Claim]]) -> pd.DataFrame:
    """A row a paper, columns `COLUMNS`, from the claims of every exhibit (`paper/slug`).

    A claim that several of a paper's exhibits decide, as three walls of maps do, counts once.
    """
    rows = []
    for paper, title in PAPERS.items():
        mine = [claim for key, found in claims.items() if key.startswith(f"{paper}/") for claim in found]
        by_words = {claim.paper: claim.verdict for claim in mine}
        count = {verdict: list(by_words.values()).count(verdict) for verdict in (HOLDS, FAILS, OPEN)}
        rows.append((paper, title, count[HOLDS], count[FAILS], count[OPEN]))
    return pd.DataFrame(rows, columns=COLUMNS)


def claims_of(drawn: Iterable[Drawn]) -> list[Claim]:
    """Every claim of an exhibit's figures."""
    return [one.claim for one in drawn if one.claim is not None]


def scorecard(root: Path) -> pd.DataFrame:
    """`counted` of what the folder of runs or, where it has less, what comes with kvlab says."""
    newest = next(iter(list_comparisons(root, limit=1)), None)
    runs = [open_run(root / run.run_id) for run in newest.runs] if newest else []
    sources = Sources(root, runs[0] if runs else None, runs)
    found = {}
    for exhibit in EXHIBITS:
        own = exhibit.draw(sources, Choice(), "light")
        theirs = shipped()
        shown = merged(exhibit, own, theirs, sources, "light")
        found[exhibit.key] = [] if isinstance(shown, Needs) else claims_of(shown)
    return counted(found)
