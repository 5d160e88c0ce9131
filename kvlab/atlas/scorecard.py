"""Scorecard of the papers' claims on this model: how many hold, fail, or are open."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from kvlab.atlas.exhibit import Choice, Drawn, Exhibit, Needs
from kvlab.atlas.registry import EXHIBITS, PAPERS
from kvlab.atlas.shipped_exhibits import card_of, with_shipped
from kvlab.common.errors import UserError
from kvlab.results.shipped_folder import shipped
from kvlab.results.sources import Sources
from kvlab.results.verdict import FAILS, HOLDS, OPEN, Claim, Verdict
from kvlab.trace.catalogue import list_comparisons
from kvlab.trace.reader import open_run

VERDICTS: tuple[Verdict, ...] = (HOLDS, FAILS, OPEN)
Lines = dict[str, dict[Verdict, list[tuple[Exhibit, Claim]]]]


def lines(judged: Iterable[tuple[Exhibit, Iterable[Claim]]]) -> Lines:
    """The claims of every paper by verdict, each with its deciding exhibit.

    A claim shown by several exhibits of a paper counts once: at the exhibit made for it, else at the first.
    """
    found: Lines = {paper: {verdict: [] for verdict in VERDICTS} for paper in PAPERS}
    seen: set[tuple[str, str]] = set()
    shown = [(exhibit, claim) for exhibit, claims in judged for claim in claims]
    for exhibit, claim in sorted(shown, key=lambda one: bool(one[1].judged_at)):
        if (exhibit.paper, claim.paper) not in seen:
            seen.add((exhibit.paper, claim.paper))
            found[exhibit.paper][claim.verdict].append((exhibit, claim))
    return found


def counts(found: Lines) -> pd.DataFrame:
    """One row per paper: paper, title, and the numbers of claims that `holds`, `fails` and are `open`."""
    rows = [(paper, title, *(len(found[paper][verdict]) for verdict in VERDICTS)) for paper, title in PAPERS.items()]
    return pd.DataFrame(rows, columns=["paper", "title", "holds", "fails", "open"])


def claims_of(drawn: tuple[Drawn, ...] | Needs) -> tuple[Claim, ...]:
    """All claims of an exhibit's figures."""
    return () if isinstance(drawn, Needs) else tuple(one.claim for one in drawn if one.claim is not None)


def scorecard(root: Path) -> pd.DataFrame:
    """`counts` for a runs folder, completed by the shipped results."""
    newest = next(iter(list_comparisons(root, limit=1)), None)
    runs = [open_run(root / run.run_id) for run in newest.runs] if newest else []
    sources, ships = Sources(root, runs[0] if runs else None, runs), shipped()
    judged = []
    for exhibit in EXHIBITS:
        own, card = _drawn(exhibit, sources), card_of(exhibit, ships, sources, "light")
        shown = with_shipped(exhibit, own, ships, sources, "light") if isinstance(own, tuple) else own
        judged.append((exhibit, card.claims if card and isinstance(own, Needs) else claims_of(shown)))
    return counts(lines(judged))


def _drawn(exhibit: Exhibit, sources: Sources) -> tuple[Drawn, ...] | Needs:
    """The exhibit, or why there is none; errors from an incomplete run must not end the list."""
    try:
        return exhibit.draw(sources, Choice(), "light")
    except UserError as error:
        return Needs(str(error))
