"""Exhibits: the paper figure or table each reproduces, the data it reads, and the figures it returns."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.errors import UserError
from kvlab.common.formatting import ONE_PROMPT_BEGINS
from kvlab.figures.base.palette import Theme
from kvlab.requests.measurement import ExhibitFill, Measurement
from kvlab.results.provenance import Provenance
from kvlab.results.sources import Seen, Sources
from kvlab.results.verdict import OPEN, Claim
from kvlab.server.users import viewer

Paper = Literal["zsmerge", "kvmerger", "pyramid-pool", "keepkv", "gvote", "beyond"]
# What an exhibit reads: one run, all runs of a comparison, results of `kvlab eval` or `kvlab bench`, or numbers entered
# on the page (a calculator).
Source = Literal["run", "comparison", "eval", "bench", "calculator"]
# Controls on the page; each is a field of `Choice`.
Control = Literal["layer", "head", "step", "token"]


@dataclass(frozen=True)
class Choice:
    """The reader's choice on the page: layer, KV head, step, token position, and a calculator's numbers."""

    layer: int = 0
    head: int = 0
    step: int = 0
    token: int | None = None
    numbers: tuple[tuple[str, float], ...] = ()

    def number(self, entry: Entry) -> float:
        """The entered number, or the entry's default."""
        return dict(self.numbers).get(entry.name, entry.default)


@dataclass(frozen=True)
class Entry:
    """A number that a calculator asks for; an integer if `default`, `least` and `most` are."""

    name: str
    label: str
    default: float
    least: float
    most: float
    explanation: str = ""


@dataclass(frozen=True)
class Drawn:
    """One figure of an exhibit with its data frame, a one-line reading, and its provenance.

    `grey` holds the paper's own values, shown as a grey table; `further` is the measurement on the paper's own data.
    """

    name: str
    figure: go.Figure
    frame: pd.DataFrame
    reading: str
    origin: Provenance
    claim: Claim | None = None
    grey: pd.DataFrame | None = None
    further: Needs | None = None


@dataclass(frozen=True)
class Needs:
    """Why nothing can be drawn, in one sentence, and the missing measurement; None if none would help."""

    sentence: str
    measurement: Measurement | None = None


Draw = Callable[[Sources, Choice, Theme], "tuple[Drawn, ...] | Needs"]
RECORDED: tuple[Source, ...] = ("run", "comparison")  # sources of a single prompt
MOST_LACKING = 50_000
SEVERAL = re.compile(r"n = \d")  # in findings over several prompts
# Exhibits that cannot be drawn from a finished comparison, which never gets more data.
_LACKING: dict[Hashable, None] = {}


@dataclass(frozen=True)
class Exhibit:
    """One figure or table of a paper, drawn from live data.

    `slug` is its name in the URL, such as `fig-2a` or `tab-1`; `shows` explains the axes, `look_for` what to look for.
    A calculator has `entries`.
    """

    paper: Paper
    slug: str
    title: str
    shows: str
    look_for: str
    source: Source
    drawing: Draw
    controls: tuple[Control, ...] = ()
    entries: tuple[Entry, ...] = ()

    def draw(self, sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        """The result of `drawing`, each claim with the settings it was judged under.

        If the comparison in view lacks the data, others of the folder are tried. A finding from a single prompt says so
        first, and an open claim gets a measurement of more prompts.
        """
        drawn = self.drawing(sources, choice, theme)
        if isinstance(drawn, Needs) and self.source in RECORDED:
            drawn = self._elsewhere(sources, choice, theme) or drawn
        if isinstance(drawn, Needs):
            return drawn
        drawn = tuple(replace(one, claim=_judged_under(one)) for one in drawn)
        if self.source not in RECORDED:
            return drawn
        settle = ExhibitFill(self.key, sources.root)
        return tuple(replace(one, claim=_of_prompts(one.claim, settle)) for one in drawn)

    def _elsewhere(self, sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | None:
        for entry in sources.elsewhere():
            runs = tuple((run.run_id, run.status) for run in entry.runs)
            key = self.key, choice, viewer(), str(sources.root), runs
            if key in _LACKING or (other := sources.with_in_view(entry)) is None:
                continue
            try:
                drawn = self.drawing(other, choice, theme)
            except UserError:
                continue
            if not isinstance(drawn, Needs):
                return drawn
            _note_lacking(key)
        return None

    def seen(self, sources: Sources) -> Seen:
        """The data it is drawn from; evaluations and benchmarks are the same for every run of a model."""
        return sources.seen_of_runs if self.source in RECORDED else sources.seen_of_results

    @property
    def number(self) -> str:
        """As printed in the paper, such as `Fig 2a`."""
        return self.slug.replace("-", " ").capitalize()

    @property
    def key(self) -> str:
        """Its unique name, such as `keepkv/fig-2a`."""
        return f"{self.paper}/{self.slug}"


def _note_lacking(key: Hashable) -> None:
    _LACKING[key] = None
    if len(_LACKING) > MOST_LACKING:
        _LACKING.clear()


def _judged_under(drawn: Drawn) -> Claim | None:
    if drawn.claim is None or drawn.claim.setting:
        return drawn.claim
    return replace(drawn.claim, setting=drawn.origin.settings)


def _of_prompts(claim: Claim | None, settle: Measurement) -> Claim | None:
    if claim is None:
        return None
    if claim.verdict == OPEN and claim.basis.prompts:
        claim = replace(claim, settle=claim.settle or settle)
    several = claim.basis.prompts > 1 or SEVERAL.search(claim.finding)
    if several or claim.finding.startswith(ONE_PROMPT_BEGINS.rstrip(". ")):
        return claim
    return replace(claim, finding=ONE_PROMPT_BEGINS + claim.finding)
