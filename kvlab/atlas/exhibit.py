"""What an exhibit is: which paper figure it answers, what it is drawn from, and what drawing it returns."""

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
# What an exhibit reads: one run, all runs of a comparison, results of `kvlab eval` or `kvlab bench`, or only numbers
# that the page asks for (a calculator).
Source = Literal["run", "comparison", "eval", "bench", "calculator"]
# What the page lets the reader choose; each is a field of `Choice`.
Control = Literal["layer", "head", "step", "token"]


@dataclass(frozen=True)
class Choice:
    """What the reader chose on the page: layer, KV head, step, a token's position, and numbers of a calculator."""

    layer: int = 0
    head: int = 0
    step: int = 0
    token: int | None = None
    numbers: tuple[tuple[str, float], ...] = ()

    def number(self, entry: Entry) -> float:
        """What the reader entered, else what the entry starts with."""
        return dict(self.numbers).get(entry.name, entry.default)


@dataclass(frozen=True)
class Entry:
    """A number that a calculator asks the reader for; whole where `default`, `least` and `most` are."""

    name: str
    label: str
    default: float
    least: float
    most: float
    explanation: str = ""


@dataclass(frozen=True)
class Drawn:
    """One figure of an exhibit with the frame it shows, its one-line reading, and where the data came from.

    `grey` holds the paper's own values, shown as a grey table under the figure, where there are any; `further` says
    what measures the same on the paper's own model and data.
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
    """Why nothing can be drawn yet, in one sentence, and the measurement that is missing; None if none would help."""

    sentence: str
    measurement: Measurement | None = None


Draw = Callable[[Sources, Choice, Theme], "tuple[Drawn, ...] | Needs"]
RECORDED: tuple[Source, ...] = ("run", "comparison")  # sources that are one prompt
MOST_LACKING = 50_000
SEVERAL = re.compile(r"n = \d")  # how a finding says that a number is of several prompts
# Which exhibits can't be drawn from which comparisons that have ended: what was not recorded never will be.
_LACKING: dict[Hashable, None] = {}


@dataclass(frozen=True)
class Exhibit:
    """One figure or table of a paper, live.

    `slug` names it in the address, such as `fig-2a` or `tab-1`; `shows` says what the axes mean, `look_for` what the
    reader should look for. A calculator lists its `entries`.
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
        """What `drawing` returns, each claim with the settings it was judged under.

        What the comparison in view lacks is drawn from another of the folder. A finding of a single prompt begins by
        saying so; a claim there is not enough to say of names the command that records more prompts.
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
            asked = self.key, choice, viewer(), str(sources.root), runs
            if asked in _LACKING or (other := sources.with_in_view(entry)) is None:
                continue
            try:
                drawn = self.drawing(other, choice, theme)
            except UserError:
                continue
            if not isinstance(drawn, Needs):
                return drawn
            _note_lacking(asked)
        return None

    def seen(self, sources: Sources) -> Seen:
        """What it is drawn from. What evaluations and benchmarks draw is the same for every run of a model in view."""
        return sources.seen_of_runs if self.source in RECORDED else sources.seen_of_results

    @property
    def number(self) -> str:
        """As the paper prints it, such as `Fig 2a`."""
        return self.slug.replace("-", " ").capitalize()

    @property
    def key(self) -> str:
        """Its name among all exhibits, such as `keepkv/fig-2a`."""
        return f"{self.paper}/{self.slug}"


def _note_lacking(asked: Hashable) -> None:
    _LACKING[asked] = None
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
