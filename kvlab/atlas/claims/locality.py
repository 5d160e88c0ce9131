"""KVMerger, figures 2, 3a and 6 to 8: keys of neighbouring tokens are similar because of the rotation, values are
not."""

from __future__ import annotations

import pandas as pd

from kvlab.analysis.similarity.head_states import BEFORE, KEYS, VALUES, head_states, readable_heads, spread_heads
from kvlab.atlas.analysis.locality import MOST_TOKENS, NEAR, OFFSETS, locality_of_states, near_and_any
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.prompt_means import basis_of, interval_of, mean_text, over_prompts
from kvlab.figures.base.words import two_digits
from kvlab.results.verdict import OPEN, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run

LOCAL = "Keys of neighbouring tokens are alike, more so than those of distant ones; values are not."
ROTATION = "The rotary embedding, which keys go through and values do not, is the main reason for that locality."
DIFFERS = "How alike a key and its neighbours are differs from head to head."
NO_NUMBER = "the paper shows maps and no number; a tenth of what equal vectors have can be seen in a map"
RISES = Threshold(0.1, f"for keys; {NO_NUMBER}")
FLAT = Threshold(0.1, f"for values; {NO_NUMBER}", at_most=True)
LEFT = Threshold(0.5, "a main reason takes more than half of the effect with it", at_most=True)
SPREAD = Threshold(0.1, f"between the most alike tenth of the heads and the least; {NO_NUMBER}")
NEAR_OFFSETS = tuple(offset for offset in OFFSETS if offset <= NEAR)
SHORT = {KEYS: "keys", BEFORE: "before", VALUES: "values"}


def head_rows(run: Run) -> pd.DataFrame:
    """One row per head: `keys` and `keys_rise`, and the same for `before` (rotation, if recorded) and `values`.

    The mean cosine of tokens at most `NEAR` apart, and its excess over that of any two tokens.
    """
    rows = []
    for layer, head in readable_heads(run, spread_heads(run, tokens=MOST_TOKENS)):
        found = near_and_any(locality_of_states(head_states(run, layer, head, MOST_TOKENS), NEAR_OFFSETS))
        own = {SHORT[str(kind)]: line["near"] for kind, line in found.iterrows()}
        rises = {f"{SHORT[str(kind)]}_rise": line["rise"] for kind, line in found.iterrows()}
        rows.append({"layer": layer, "head": head, **own, **rises})
    return pd.DataFrame(rows)


EVIDENCE = Evidence("locality", head_rows)


def local(rows: pd.DataFrame) -> Claim:
    """Neighbouring keys are more similar than any two; neighbouring values are not."""
    keys, values = (over_prompts(rows, name) if name in rows else None for name in ("keys_rise", "values_rise"))
    finding = (
        f"Tokens at most {NEAR} apart are more alike than any two by {mean_text(keys, two_digits)} for keys and "
        f"{mean_text(values, two_digits)} for values, mean over heads."
    )
    verdict, decider, held = decisive([(keys, RISES), (values, FLAT)])
    return Claim(LOCAL, verdict, finding, basis_of(rows), decider, held)


def rotation(rows: pd.DataFrame) -> Claim:
    """Share of the rise that remains in keys before rotation."""
    known = rows.dropna(subset="before_rise") if "before_rise" in rows else rows.iloc[:0]
    if known.empty:
        why = "No run recorded its rotary frequencies (record one again), or the model does not rotate its keys."
        return Claim(ROTATION, OPEN, why)
    after, before = over_prompts(known, "keys_rise"), over_prompts(known, "before_rise")
    means = known.groupby("prompt", sort=False)[["keys_rise", "before_rise"]].mean()
    left = interval_of((means["before_rise"] / means["keys_rise"]).tolist())
    finding = (
        f"Keys of neighbours are {mean_text(after, two_digits)} more alike than any two with the rotation and "
        f"{mean_text(before, two_digits)} without it: {mean_text(left, two_digits)} of it is left, mean over heads."
    )
    if RISES.side(after) != "holds":
        return Claim(ROTATION, OPEN, f"{finding} There is no clear rise to explain.", basis_of(known))
    return judge(ROTATION, left, LEFT, basis_of(known), finding)


def differs(rows: pd.DataFrame) -> Claim:
    """Spread of the neighbours' cosine over the heads of a prompt."""
    found = rows.groupby("prompt", sort=False)["keys"] if "keys" in rows else None
    spread = None if found is None else found.quantile(0.9) - found.quantile(0.1)
    one = None if spread is None else interval_of(spread.tolist())
    finding = (
        f"The mean cosine of tokens at most {NEAR} apart differs by {mean_text(one, two_digits)} between the most and "
        "the least similar tenth of the heads."
    )
    return judge(DIFFERS, one, SPREAD, basis_of(rows), finding)
