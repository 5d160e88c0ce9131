"""A claim decided by two arms on the same prompts, as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pandas as pd

from kvlab.atlas.exhibit import DIFFERENCE, Choice, Drawn, Exhibit, Needs
from kvlab.atlas.scores import (
    ABLE,
    AHEAD,
    Arm,
    Experiment,
    caption_table,
    contest,
    gap_text,
    origin_of,
    unable,
)
from kvlab.common.intervals import Interval
from kvlab.evaluate.scoring.metrics import higher_is_better
from kvlab.requests.measurement import Measurement
from kvlab.results.score_tables import PROMPT, paired_gap, score_table, with_names, without_preset
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim, Threshold
from kvlab.views import scores as figures
from kvlab.views.base.palette import Theme

NEEDLES = ("needle", "key_value")
TEXT = ("next_token_kl",)
MORE = 60  # prompts per task
LEVEL_KL = Threshold(-0.01, "0.01 nats per token more KL from the full cache: hardly another next token")


@dataclass(frozen=True)
class Contest:
    """The claim that `first` is better than `second` by more than `threshold` at one budget.

    Where less is better the sign is flipped, so that positive differences favour `first`. `second` "full" is the full
    cache. `unseen`: the context is compressed before the question is read. Small differences need more `samples`.
    `names` tell arms of one method apart; the options are in the figure's frame. `short` is a shorter title.
    """

    slug: str
    title: str
    says: str
    look_for: str
    first: Arm
    second: Arm
    budget: float
    tasks: tuple[str, ...]
    unseen: bool = True
    threshold: Threshold = AHEAD
    samples: int = 20
    names: tuple[str, str] = ("", "")
    short: str = ""

    @property
    def experiment(self) -> Experiment:
        """The deciding evaluation, over prompts of 1,024 tokens."""
        arms = (self.first,) if self.second.method == "full" else (self.first, self.second)
        return Experiment(
            f"beyond-{self.slug}",
            arms,
            (self.budget,),
            self.tasks,
            self.samples,
            only_budgets=True,
            only_tasks=True,
            lengths=(1024,),
            question_aware=not self.unseen,
        )

    def rows(self, sources: Sources) -> pd.DataFrame:
        """The experiment's rows; empty if only the full cache was evaluated."""
        found = self.experiment.rows(sources)
        return found if len(found) and (found["method"] != "full").any() else found.iloc[:0]

    def difference(self, rows: pd.DataFrame) -> Interval | None:
        """`first` minus `second` on the same prompts, mean over tasks, positive if better."""
        table = with_names(rows)
        sign = table["metric"].map(higher_is_better).map({True: 1.0, False: -1.0})
        table = table.assign(score=sign * table["score"])
        mine, theirs = (_of(table, arm) for arm in (self.first, self.second))
        return paired_gap(mine, theirs, [*PROMPT, "question_aware"]) if len(mine) and len(theirs) else None

    def claim(self, rows: pd.DataFrame, settle: Measurement | None) -> Claim:
        """The verdict on the claim, by the paired difference of the arms."""
        full = rows[(rows["method"] == "full") & rows["metric"].map(higher_is_better)]
        if len(full) and full["score"].mean() < ABLE:
            return unable(self.says, f"The full cache itself scores {full['score'].mean():.2f} here.", len(full))
        found = self.difference(rows)
        unit = " (nats of KL saved)" if self.tasks == TEXT else ""
        first, second = (self.name_of(arm) for arm in (self.first, self.second))
        part = f"{first} minus {second} at {100 * self.budget:g} %"
        finding = f"{part}: {gap_text(found)}{unit}."
        return contest(self.says, {part: found}, finding, settle, self.threshold)

    def draw(self, sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        """Scores of both arms and the full cache by task."""
        rows = self.rows(sources)
        if rows.empty:
            return self.experiment.needs(sources)
        table = score_table(rows)
        claim = self.claim(rows, self.experiment.more_prompts(sources))
        named = table.assign(
            arm=[
                self._name(method, *pair)
                for method, *pair in zip(table["method"], table["options"], table["arm"], strict=True)
            ]
        )
        caption = caption_table(rows, table)
        for written, name in sorted(zip(table["arm"], named["arm"], strict=True), key=lambda one: -len(one[0])):
            caption = caption.renamed(f"{written} ", f"{name} ")
        figure = figures.benchmark_table(named, theme, self.title)
        return (Drawn("scores", figure, named, caption, origin_of(rows), claim),)

    def name_of(self, arm: Arm) -> str:
        """A short name that tells the two arms apart."""
        return self.names[arm != self.first] or arm.label

    def _name(self, method: str, options: str, written: str) -> str:
        own = without_preset(json.loads(options))
        for arm in (self.first, self.second):
            if arm.method == method and without_preset(arm.options) == own:
                return written if method == "full" else self.name_of(arm)
        return written

    def exhibit(self) -> Exhibit:
        """The exhibit of this contest."""
        seen = "before its question is read" if self.unseen else "with its question in sight"
        held = "hold every token" if self.first.method == "sparse" else f"at {100 * self.budget:g} %"
        shows = (
            f"Both arms {held} and the full cache, a column per task; each prompt is compressed {seen}. Cells show "
            "mean scores with intervals. The share kept exceeds the budget by what is read and written after the "
            "compression."
        )
        measured = {"scores": "nats of KL saved per token" if self.tasks == TEXT else DIFFERENCE}
        return Exhibit(
            "beyond", self.slug, self.title, shows, self.look_for, "eval", self.draw, short=self.short, numbers=measured
        )


def _of(table: pd.DataFrame, arm: Arm) -> pd.DataFrame:
    mine = table[table["method"] == arm.method]
    if arm.method == "full":
        return mine
    own = without_preset(arm.options)
    return mine[[without_preset(json.loads(text)) == own for text in mine["options"]]]
