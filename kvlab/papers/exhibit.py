"""Exhibits: the paper figure shown, its data source, and the drawn result."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import ONE_PROMPT_BEGINS
from kvlab.core.errors import UserError
from kvlab.requests.measurement import ExhibitFill, Measurement
from kvlab.results.sources import Sources, SourceState
from kvlab.results.verdict import OPEN, Claim
from kvlab.views.base import Provenance, Theme

Paper = Literal["zsmerge", "kvmerger", "pyramid-pool", "keepkv", "gvote", "beyond"]
# What an exhibit reads: one run, all runs of a comparison, results of `kvlab eval` or `kvlab bench`, or only user input
# (a calculator).
Source = Literal["run", "comparison", "eval", "bench", "calculator"]
# Selections on the page, each a field of `Choice`.
Control = Literal["layer", "head", "step", "token"]


@dataclass(frozen=True)
class Choice:
    """The user's selection on the page: layer, KV head, step, token position, and calculator inputs."""

    layer: int = 0
    head: int = 0
    step: int = 0
    token: int | None = None
    numbers: tuple[tuple[str, float], ...] = ()

    def number(self, entry: Entry) -> float:
        """The user's input, else the entry's default."""
        return dict(self.numbers).get(entry.name, entry.default)


@dataclass(frozen=True)
class Entry:
    """A numeric input of a calculator; an integer if `default`, `least` and `most` are."""

    name: str
    label: str
    default: float
    least: float
    most: float
    explanation: str = ""


@dataclass(frozen=True)
class Drawn:
    """One figure of an exhibit with its frame, caption and origin.

    `grey` holds the paper's own values, shown as a grey table under the figure; `further` describes the same
    measurement on the paper's model and data. `model` is the one it was measured on ("": of no model, as a calculator).
    `wanted` says what the model in view lacks, where the figure is of another one.
    """

    name: str
    figure: go.Figure
    frame: pd.DataFrame
    caption: str
    origin: Provenance
    claim: Claim | None = None
    grey: pd.DataFrame | None = None
    further: Needs | None = None
    model: str = ""
    wanted: Needs | None = None


@dataclass(frozen=True)
class Needs:
    """Why nothing can be drawn, in one sentence, and the missing measurement; None if none would help."""

    sentence: str
    measurement: Measurement | None = None


Draw = Callable[[Sources, Choice, Theme], "tuple[Drawn, ...] | Needs"]
# By key, such as `keepkv/fig-2a`: of those that are not rows of arms alone.
DRAWINGS: dict[str, Draw] = {}


def draws(key: str) -> Callable[[Draw], Draw]:
    """Decorate the function that draws an exhibit; no two draw the same one."""

    def register(draw: Draw) -> Draw:
        assert key not in DRAWINGS, f"two functions draw {key}"
        DRAWINGS[key] = draw
        return draw

    return register


SHORT = 30  # characters of a short title
DIFFERENCE = "difference in mean score"
BEYOND = {"tab": "contest", "fig": "recording"}  # numbered on their own: no paper has these tables
RECORDED: tuple[Source, ...] = ("run", "comparison")  # sources of a single prompt
MOST_LACKING = 50_000
SEVERAL = re.compile(r"n = \d")  # a finding over several prompts
# Exhibits that cannot be drawn from finished comparisons: what was not recorded never will be.
_LACKING: dict[Hashable, None] = {}


@dataclass(frozen=True)
class Exhibit:
    """One figure or table of a paper, drawn live.

    `slug` names it in the URL, such as `fig-2a`; `short` is a title of at most `SHORT` characters; `shows` explains the
    axes. A calculator lists its `entries`. `numbers` names the number that decides the claim of each figure, with its
    unit, and `printed` holds the paper's value of it; "any" stands for every figure.
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
    short: str = ""
    numbers: Mapping[str, str] = field(default_factory=dict, hash=False)
    printed: Mapping[str, float] = field(default_factory=dict, hash=False)

    def draw(self, sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        """Draw the exhibit, adding to each claim the settings it was judged under.

        What the current comparison lacks is drawn from another one in the folder. Findings of a single prompt say so;
        open claims name the command that records more prompts.
        """
        drawn = self.drawing(sources, choice, theme)
        if isinstance(drawn, Needs) and self.source in RECORDED:
            for entry in sources.elsewhere():
                runs = tuple((run.run_id, run.status) for run in entry.runs)
                request = self.key, choice, sources.viewer, str(sources.root), runs
                if request in _LACKING or (other := sources.with_in_view(entry)) is None:
                    continue
                try:
                    found = self.drawing(other, choice, theme)
                except UserError:
                    continue
                if not isinstance(found, Needs):
                    drawn = found
                    break
                _LACKING[request] = None
                if len(_LACKING) > MOST_LACKING:
                    _LACKING.clear()
        if isinstance(drawn, Needs):
            return drawn
        model = "" if self.source == "calculator" else sources.measured_model
        settle = ExhibitFill(self.key, sources.root, sources.measured_model)
        judged = []
        for one in drawn:
            claim = one.claim
            if claim is not None:
                claim = replace(claim, setting=claim.setting or one.origin.settings)
            if claim is not None and self.source in RECORDED:
                if claim.verdict == OPEN and claim.basis.prompts:
                    claim = replace(claim, settle=claim.settle or settle)
                several = claim.basis.prompts > 1 or SEVERAL.search(claim.finding)
                if not several and not claim.finding.startswith(ONE_PROMPT_BEGINS.rstrip(". ")):
                    claim = replace(claim, finding=ONE_PROMPT_BEGINS + claim.finding)
            judged.append(replace(one, claim=claim, model=one.model or model))
        return tuple(judged)

    def source_state(self, sources: Sources) -> SourceState:
        """State of its data. For evaluations and benchmarks it is the same for all runs of a model."""
        return sources.state_of_runs if self.source in RECORDED else sources.state_of_results

    @property
    def number(self) -> str:
        """As printed in the paper, such as `Fig 2a`; claims beyond the papers are numbered on their own."""
        kind, _, place = self.slug.partition("-")
        return f"{BEYOND.get(kind, kind) if self.paper == 'beyond' else kind} {place}".capitalize()

    @property
    def label(self) -> str:
        """Number and short title, such as `Fig 2a · Top tokens`."""
        return f"{self.number} · {self.short or self.title}"

    def number_of(self, name: str, claim: Claim) -> tuple[str, tuple[float, ...]]:
        """The number that decides the claim of the figure `name`: what it is, with its unit, and the paper's own values
        of it, if it prints any."""
        measured = self.numbers.get(name) or self.numbers.get("any") or DIFFERENCE
        known = self.printed.get(name, self.printed.get("any"))
        values = claim.printed or (() if known is None else (known,))
        return f"{measured}, {claim.part}" if claim.part else measured, values

    @property
    def key(self) -> str:
        """Unique name, such as `keepkv/fig-2a`."""
        return f"{self.paper}/{self.slug}"
