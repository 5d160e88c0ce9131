"""Claims decided by two arms on the same prompts, one table per claim."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pandas as pd

from kvlab.atlas.exhibit import DIFFERENCE, Choice, Drawn, Exhibit, Needs
from kvlab.atlas.scores import (
    ABLE,
    AHEAD,
    NOT_BEHIND,
    Arm,
    Experiment,
    contest,
    gap_text,
    origin_of,
    read_table,
    unable,
)
from kvlab.common.intervals import Interval
from kvlab.evaluate.scoring.metrics import higher_is_better
from kvlab.figures import scores as figures
from kvlab.figures.base.palette import Theme
from kvlab.requests.measurement import Measurement
from kvlab.results.score_tables import PROMPT, paired_gap, score_table, with_names, without_preset
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim, Threshold

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
        """What the difference says of the claim."""
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
        named = table.assign(arm=[self._name(method, *pair) for method, *pair in zip(
            table["method"], table["options"], table["arm"], strict=True)])  # fmt: skip
        reading = read_table(rows, table)
        for written, name in sorted(zip(table["arm"], named["arm"], strict=True), key=lambda one: -len(one[0])):
            reading = reading.renamed(f"{written} ", f"{name} ")
        figure = figures.benchmark_table(named, theme, self.title)
        return (Drawn("scores", figure, named, reading, origin_of(rows), claim),)

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
        shows = (
            f"Both arms at {100 * self.budget:g} % and the full cache, a column per task; each prompt is compressed "
            f"{seen}. Cells show mean scores with intervals. The share kept exceeds the budget by what is read and "
            "written after the compression."
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


FULL = Arm("full")
MATCHING = Arm("attention-matching", {"ridge": 0.1, "bias": False, "on_policy": False})
GRKV = Arm("grkv")
BLOCKS, AT_ONCE = Arm("keydiff"), Arm("keydiff", {"block": 0})  # the paper's blocks have 128 tokens
CONTESTS = (
    Contest(
        "tab-1", "KVzip against SnapKV, the question unseen",
        "KVzip: compressed before the question is known, a cache serves any question; SnapKV's does not.",
        "How far SnapKV falls where its window cannot hold the question.",
        Arm("kvzip"), Arm("snapkv"), 0.1, NEEDLES, short="KVzip, question unseen",
    ),
    Contest(
        "tab-2", "A repetition against the question itself",
        "KVzip: what the text asks of itself covers what is asked of it, even where the question could be seen.",
        "Whether reading the context again is as good as reading the question.",
        Arm("kvzip"), Arm("snapkv"), 0.1, NEEDLES, unseen=False, threshold=NOT_BEHIND, short="KVzip, question seen",
    ),
    Contest(
        "tab-3", "The largest attention against the mean",
        "KVzip: a pair's score is the most attention it gets from the repetition, and not the mean.",
        "Whether the mean loses what one query alone looks at.",
        Arm("kvzip", {"over": "max"}), Arm("kvzip", {"over": "mean"}), 0.05, NEEDLES,
        names=("largest attention", "mean attention"), short="Largest or mean attention",
    ),
    Contest(
        "tab-4", "Budgets by head against equal heads",
        "Attention Matching: head budgets are the biggest part of it.",
        "Whether one cut over the model beats as many slots in every head.",
        Arm("attention-matching", {"ridge": 0.1, "bias": False, "on_policy": False, "allocate": "global"}),
        Arm("attention-matching", {"ridge": 0.1, "bias": False, "on_policy": False, "allocate": "equal"}), 0.1, NEEDLES,
        names=("budgets by head", "equal heads"), short="Budgets by head",
    ),
    Contest(
        "tab-5", "Fitted log mass",
        "Attention Matching: a fitted bias a slot, the least of its parts, still helps.",
        "The sign of the difference: with a bias minus without.",
        Arm("attention-matching", {"ridge": 0.1, "bias": True, "on_policy": False}), MATCHING, 0.05, TEXT,
        names=("with bias", "without bias"),
    ),
    Contest(
        "tab-6", "Refitting with a ridge and without",
        "GRKV: a refit of values needs a ridge, without which it harms.",
        "How large KL gets where the least squares are plain.",
        MATCHING, Arm("attention-matching", {"ridge": 0.0, "bias": False, "on_policy": False}), 0.2, TEXT,
        names=("with ridge", "without ridge"), short="Refitting with a ridge",
    ),
    Contest(
        "tab-7", "GRKV against its base",
        "GRKV: fitting the survivors' values to the full outputs improves on the eviction beneath.",
        "Whether the interval of the difference lies above zero.",
        GRKV, Arm("snapkv"), 0.1, TEXT, samples=MORE,
    ),
    Contest(
        "tab-8", "More queries for GRKV's fit",
        "GRKV: 32 surrogate queries are best; 64 make it worse.",
        "The sign of the difference: 32 rows minus 64.",
        Arm("grkv", {"rows": 32}), Arm("grkv", {"rows": 64}), 0.1, TEXT, names=("32 queries", "64 queries"),
    ),
    Contest(
        "tab-9", "4-bit slots",
        "KIVI: 4 bits are free, also where heads share keys.",
        "Whether the loss stays within five points of score.",
        Arm("packed", {"store": "kivi4"}), FULL, 1.0, ("needle", "key_value", "few_shot"), threshold=NOT_BEHIND,
        samples=MORE, names=("4 bits", ""),
    ),
    Contest(
        "tab-10", "2-bit slots",
        "KIVI under grouped queries: 2 bits cost where 4 do not.",
        "KL to the full cache with 2 bits, and with 4.",
        Arm("packed", {"store": "kivi4"}), Arm("packed", {"store": "kivi2"}), 1.0, TEXT, names=("4 bits", "2 bits"),
    ),
    Contest(
        "tab-11", "KVzip at a third of the cache",
        "KVzip: a cache three times smaller loses nothing in context.",
        "Whether few-shot prompts and lists keep their score.",
        Arm("kvzip"), FULL, 0.33, ("few_shot", "key_value"), threshold=NOT_BEHIND, samples=MORE,
    ),
    Contest(
        "tab-12", "Heads that stream",
        "DuoAttention: heads that retrieve need the text, all others only sinks and the newest tokens.",
        "Whether whole heads kept beat the same bytes of sinks and newest tokens in every head.",
        Arm("duoattention", {"sinks": 4, "recent": 16}), Arm("streaming-llm"), 0.5, NEEDLES, names=("duoattention", ""),
    ),
    Contest(
        "tab-13", "Keys alone, without attention",
        "KeyDiff: keys unlike the others are what a text needs, without any attention.",
        "On text, not on needles: digits in prose have unusual keys.",
        Arm("keydiff"), Arm("snapkv"), 0.2, TEXT, threshold=LEVEL_KL,
    ),
    Contest(
        "tab-14", "On-policy queries",
        "Attention Matching: queries read through the layers already compressed fit better than the full cache's.",
        "The sign of the difference: on-policy minus not, both without self-study.",
        Arm("attention-matching", {"ridge": 0.1, "bias": False, "on_policy": True}), MATCHING, 0.05, TEXT,
        names=("on-policy", "off-policy"),
    ),
    Contest(
        "tab-15", "Predicted instead of rehearsed",
        "KVzap: networks on hidden states give what KVzip finds, in one pass.",
        "Whether the prediction is within five points of the second reading.",
        # The published window of 128 tokens would use most of a short prompt's budget.
        Arm("kvzap", {"recent": 16}), Arm("kvzip"), 0.2, NEEDLES, threshold=NOT_BEHIND, samples=MORE,
        names=("kvzap", ""),
    ),
    Contest(
        "tab-16", "KeyDiff block by block: needles",
        "KeyDiff: cut back to the budget after every block of 128 tokens, it finds needles as it does at once.",
        "Whether blocks, which never hold the whole prompt, stay within five points of score.",
        BLOCKS, AT_ONCE, 0.2, ("needle",), threshold=NOT_BEHIND, samples=2 * MORE, names=("in blocks", "at once"),
        short="KeyDiff in blocks: needles",
    ),
    Contest(
        "tab-17", "KeyDiff block by block: text",
        "KeyDiff: cut back to the budget after every block of 128 tokens, it goes on with a text as well as at once.",
        "How many nats more of KL blocks have than the whole prompt at once.",
        BLOCKS, AT_ONCE, 0.2, TEXT, threshold=LEVEL_KL, samples=3 * MORE, names=("in blocks", "at once"),
        short="KeyDiff in blocks: text",
    ),
    Contest(
        "tab-18", "KeyDiff block by block: lists",
        "KeyDiff: cut back to the budget after every block of 128 tokens, it finds a list's entries as at once.",
        "Whether a list, whose keys are all unusual, loses more where it is cut block by block.",
        BLOCKS, AT_ONCE, 0.2, ("key_value",), threshold=NOT_BEHIND, samples=2 * MORE, names=("in blocks", "at once"),
        short="KeyDiff in blocks: lists",
    ),
)  # fmt: skip
TABLES = tuple(one.exhibit() for one in CONTESTS)
