"""Flips: which prompts change under which method and budget, in which direction, and how much methods share."""

from __future__ import annotations

from itertools import combinations

import pandas as pd

from kvlab.results.risk.losses import ARM, ASKED

COLUMNS = [ARM, "method", ASKED, "prompts", "worse", "better", "share_worse", "share_better"]
PAIRS = [ASKED, "one", "other", "worse_one", "worse_other", "common", "shared"]


def flips(paired: pd.DataFrame) -> pd.DataFrame:
    """One row per method and budget: how many prompts got worse (right to wrong) and better (wrong to right).

    `paired` as from `losses.losses`; by text or KL a prompt only changes, and `better` is 0. Budgets go from the
    largest down.
    """
    ordered = paired.sort_values("budget", ascending=False, kind="stable")
    found = ordered.groupby([ARM, "method", ASKED], sort=False).agg(
        prompts=("prompt", "nunique"),
        worse=("loss", lambda loss: int((loss > 0).sum())),
        better=("gain", lambda gain: int((gain > 0).sum())),
    )
    found = found.reset_index().sort_values(ARM, kind="stable", ignore_index=True)
    shares = {f"share_{name}": found[name] / found["prompts"] for name in ("worse", "better")}
    return found.assign(**shares)[COLUMNS]


def overlap(paired: pd.DataFrame) -> pd.DataFrame:
    """One row per budget and pair of methods: the prompts that get worse under each and under both.

    `shared` is the share of those that get worse under either (Jaccard index); null where there are none.
    """
    lines = []
    worse = paired[paired["loss"] > 0]
    for asked, at in paired.sort_values("budget", ascending=False, kind="stable").groupby(ASKED, sort=False):
        changed = worse[worse[ASKED] == asked].groupby(ARM)["prompt"].agg(set).to_dict()
        for one, other in combinations(sorted(at[ARM].unique()), 2):
            first = changed.get(one, set())
            second = changed.get(other, set())
            common = len(first & second)
            either = len(first | second)
            shared = common / either if either else None
            lines.append((asked, one, other, len(first), len(second), common, shared))
    return pd.DataFrame(lines, columns=PAIRS)
