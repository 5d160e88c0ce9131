"""KVMerger, figure 5: a needle whose tokens are gone is not found."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas.prompt_means import interval_of, words_of
from kvlab.figures.base.words import number, percent, plural
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge

FATE = "What is evicted is lost for good: a needle whose tokens are gone is not found (section 1)."
CLEARLY = Threshold(0.1, "one needle in ten; less could be words that are guessed from the rest")
HALF = 0.5


def fate(answers: pd.DataFrame) -> Claim:
    """Scores with at least half of the needle kept minus those with less, on the same prompts.

    `answers` has a row a prompt, method and budget: prompt, score, held (share of the needle's tokens in any slot).
    """
    alive = answers["held"] >= HALF
    if alive.all() or not alive.any():
        say = f"All {plural(len(answers), 'answer')} are on one side: {percent(alive.mean())} kept half of the needle."
        return Claim(FATE, OPEN, say, Basis(answers["prompt"].nunique()))
    sides = answers.assign(alive=alive).groupby(["prompt", "alive"], sort=False)["score"].mean().unstack("alive")
    both = sides.dropna()
    alive = alive[answers["prompt"].isin(both.index)]
    gap = interval_of((both[True] - both[False]).tolist())
    held, lost = (interval_of(both[side].tolist()) for side in (True, False))
    finding = (
        f"On the prompts with answers of both kinds: mean score {words_of(held, number)} where half of the needle's "
        f"tokens or more were kept ({plural(int(alive.sum()), 'answer')}), {words_of(lost, number)} where less was "
        f"({int((~alive).sum()):,}); on the same prompt {words_of(gap, number)} apart."
    )
    return judge(FATE, gap, CLEARLY, Basis(len(both)), finding)
