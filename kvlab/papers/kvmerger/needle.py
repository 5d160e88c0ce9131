"""Figure 5: needle retrieval by length and depth, and the fate of the needle's tokens."""

import pandas as pd

from kvlab.core.choice import FULL, MethodChoice
from kvlab.evaluation.results.summary import over_tasks
from kvlab.papers.evaluations import Arm, Experiment, origin_of
from kvlab.papers.evidence import interval_of, mean_text
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.papers.paper_tables import paper_values
from kvlab.papers.score_exhibits import PairClaim, Panel
from kvlab.results.score_tables import PROMPT
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge
from kvlab.views import needle_map as figures
from kvlab.views.base import Theme, number, percent, plural

EXPERIMENT = Experiment(
    "kvmerger-fig-5",
    (Arm("h2o"), Arm("cam"), Arm("kvmerger")),
    (0.5, 0.35),
    tasks=("needle",),
    samples=3,
    only_budgets=True,
    only_tasks=True,
    lengths=(512, 1024, 1536),
    depths=(0.05, 0.25, 0.5, 0.75, 0.95),
)
BETTER = PairClaim(
    "CaM and KVMerger find the needle more often than H2O at both budgets.",
    (("kvmerger", "h2o"), ("cam", "h2o")),
    each_budget=True,
)
HIDDEN = ["hidden_own", "hidden_merged"]


@draws("kvmerger/fig-5")
def draw_needle(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """The heat maps, and the fates of the needle's tokens if recorded."""
    rows = EXPERIMENT.rows(sources)
    rows = rows.dropna(subset="depth") if len(rows) else rows
    if rows.empty or (rows["method"] == FULL.method).all():
        return EXPERIMENT.needs(sources)
    names = [
        "full cache" if method == FULL.method else MethodChoice(method=method, budget=budget).label
        for method, budget in zip(rows["method"], rows["budget"], strict=True)
    ]
    rows = rows.assign(row=names)
    cells = over_tasks(rows, ["row", "length", "depth"], ("score",)).drop(columns="tasks")
    means = over_tasks(rows, ["row"], ("score",)).drop(columns="tasks")
    panel = Panel(EXPERIMENT, BETTER, {})
    claim = panel.judge(rows, EXPERIMENT.more_prompts(sources), paper_values("kvmerger", "fig-5"))
    figure = figures.needle_map(cells, theme)
    place = origin_of(rows)
    drawn = Drawn("map", figure, cells, figures.caption_needle_map(cells, means), place, claim)
    followed = rows.dropna(subset=HIDDEN) if set(HIDDEN) <= set(rows) else rows.iloc[:0]
    if followed.empty:
        return (drawn,)
    held = followed[HIDDEN].sum(axis=1)
    followed = followed.assign(held=held, gone=(1 - held).clip(lower=0))
    frame = over_tasks(followed, ["row"], (*HIDDEN, "held", "gone", "score"))
    # One row per prompt, method and budget, with the share of the needle's tokens still held.
    compressed = followed[followed["method"] != FULL.method]
    prompts = compressed.groupby(PROMPT, dropna=False, sort=False).ngroup()
    claim = fate(compressed.assign(prompt=prompts)[["prompt", "score", "held"]])
    caption = figures.caption_needle_fates(frame)
    return drawn, Drawn("fates", figures.needle_fates(frame, theme), frame, caption, place, claim)


FATE = "What is evicted is lost for good: a needle whose tokens are gone is not found (section 1)."
CLEARLY = Threshold(0.1, "one needle in ten; less could be words that are guessed from the rest")
HALF = 0.5


def fate(answers: pd.DataFrame) -> Claim:
    """Scores with at least half of the needle kept minus those with less, on the same prompts.

    `answers` has one row per prompt, method and budget: prompt, score, held (share of the needle's tokens in any slot).
    """
    alive = answers["held"] >= HALF
    if alive.all() or not alive.any():
        finding = (
            f"All {plural(len(answers), 'answer')} are on one side: {percent(alive.mean())} kept half of the needle."
        )
        return Claim(FATE, OPEN, finding, Basis(answers["prompt"].nunique()))
    sides = answers.assign(alive=alive).groupby(["prompt", "alive"], sort=False)["score"].mean().unstack("alive")
    both = sides.dropna()
    alive = alive[answers["prompt"].isin(both.index)]
    gap = interval_of((both[True] - both[False]).tolist())
    held, lost = (interval_of(both[side].tolist()) for side in (True, False))
    finding = (
        f"On the prompts with answers of both kinds: mean score {mean_text(held, number)} where half of the needle's "
        f"tokens or more were kept ({plural(int(alive.sum()), 'answer')}), {mean_text(lost, number)} where less was "
        f"({int((~alive).sum()):,}); on the same prompt {mean_text(gap, number)} apart."
    )
    return judge(FATE, gap, CLEARLY, Basis(len(both)), finding)
