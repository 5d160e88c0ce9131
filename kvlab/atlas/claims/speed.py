"""Claims of benchmarks: ZSMerge's figure 3 and table 1, KeepKV's table 1, KVMerger's table 2.

A benchmark repeats one measurement: repeats are its n, and no interval over prompts belongs to it. Bytes are exact.
"""

from __future__ import annotations

import pandas as pd

from kvlab.figures.base.words import byte_size, number, percent
from kvlab.requests.measurement import Measurement
from kvlab.results.verdict import FAILS, HOLDS, OPEN, Basis, Claim, Threshold, Verdict

STEADY = "ZSMerge's memory stays constant (43 GB) and its decode rate steady (9 tokens/s) from 20k to 54k tokens."
FASTER = "ZSMerge has a higher throughput than the full cache in every setting, 1.23 to 2.24 times where both ran."
TWICE = "KeepKV decodes over twice as fast as the full cache, faster than D2O and slower than H2O."
SHARES = "At 50 and 35 % the cache takes 51 and 33 % (7B) of the full one, after 3,900 + 1,024 tokens."
LEVEL = Threshold(0.8, "at least four fifths of its start: the paper says steady and prints one rate")
ABOVE = Threshold(1.0, "as fast as the full cache of equal batch")
DOUBLE = Threshold(2.0, "twice the full cache, as the paper says")
CLOSE = Threshold(0.05, "the paper's own two models differ by six points at 35 %", at_most=True)
GROWN = 1.02
SMALL = " A smaller shape was measured, where fixed costs weigh more."


def steady(frame: pd.DataFrame, small: bool, repeats: int = 0, settle: Measurement | None = None) -> Claim:
    """Rate and bytes at the longest context over those at the shortest; `frame`: context, measure, value, method."""
    ours = frame[(frame["method"] == "zsmerge") & (frame["status"] == "ok")].sort_values("context")
    rate, size = (ours.loc[ours["measure"] == measure, "value"] for measure in ("rate", "bytes"))
    if len(rate) < 2 or len(size) < 2:
        return Claim(STEADY, OPEN, "Fewer than two lengths were measured.", Basis(repeats=repeats), settle=settle)
    kept, grown = rate.iloc[-1] / rate.iloc[0], size.iloc[-1] / size.iloc[0]
    finding = (
        f"From {ours['context'].min():,} to {ours['context'].max():,} tokens its rate goes from "
        f"{number(rate.iloc[0])} to {number(rate.iloc[-1])} tokens/s ({kept:.2f} times), its bytes from "
        f"{byte_size(size.iloc[0])} to {byte_size(size.iloc[-1])} ({grown:.2f} times)."
    )
    return _measured(STEADY, kept >= LEVEL.value and grown <= GROWN, finding, LEVEL, small, repeats, settle)


def faster(frame: pd.DataFrame, small: bool, repeats: int = 0, settle: Measurement | None = None) -> Claim:
    """Every setting's ratio to the full cache of equal batch; `frame`: method, our_ratio."""
    ours = frame[frame["method"] == "zsmerge"].dropna(subset=["our_ratio"])
    if ours.empty:
        return Claim(FASTER, OPEN, "No setting of ZSMerge was measured.", Basis(repeats=repeats), settle=settle)
    ahead = int((ours["our_ratio"] > ABOVE.value).sum())
    ratios = f"{ours['our_ratio'].min():.2f} to {ours['our_ratio'].max():.2f} times the full cache of equal batch"
    finding = f"Faster in {ahead} of {len(ours)} settings: {ratios}."
    return _measured(FASTER, ahead == len(ours), finding, ABOVE, small, repeats, settle)


def twice(frame: pd.DataFrame, small: bool, repeats: int = 0, settle: Measurement | None = None) -> Claim:
    """Twice the full cache, above D2O, below H2O; `frame`: method, our_ratio."""
    ratio = frame.set_index("method")["our_ratio"].dropna()
    if not {"keepkv", "d2o", "h2o"} <= set(ratio.index):
        why = "KeepKV, D2O and H2O were not all measured."
        return Claim(TWICE, OPEN, why, Basis(repeats=repeats), settle=settle)
    shown = ", ".join(f"{name} {value:.2f}" for name, value in ratio.items())
    finding = f"Times the full cache at equal batch: {shown}; in the paper, at batch 8 against 2, KeepKV 2.20."
    holds = ratio["keepkv"] >= DOUBLE.value and ratio["d2o"] < ratio["keepkv"] < ratio["h2o"]
    return _measured(TWICE, bool(holds), finding, DOUBLE, small, repeats, settle)


def shares(frame: pd.DataFrame, repeats: int = 0) -> Claim:
    """Bytes over the full cache's at every budget, against the paper's; `frame`: row, ours, paper."""
    known = frame.dropna(subset="paper")
    if known.empty:
        return Claim(SHARES, OPEN, "Neither of the paper's models was measured.", Basis(repeats=repeats))
    gap = (known["ours"] - known["paper"]).abs()
    verdict: Verdict = HOLDS if gap.max() <= CLOSE.value else FAILS
    parts = [f"{row.row}: {percent(row.ours)}, the paper {percent(row.paper)}" for row in known.itertuples()]
    why = "" if verdict == HOLDS else (
        " As published the prompt alone is compressed and generated tokens come on top; the paper's shares are "
        "those of the prompt."
    )  # fmt: skip
    return Claim(SHARES, verdict, f"{'; '.join(parts)}.{why}", Basis(repeats=repeats), threshold=CLOSE)


def _measured(
    says: str, holds: bool, finding: str, threshold: Threshold, small: bool, repeats: int, settle: Measurement | None
) -> Claim:
    """A speed measured on a model made smaller says nothing of the paper's: its fixed costs weigh too much."""
    basis = Basis(repeats=repeats)
    if small:
        return Claim(says, OPEN, finding + SMALL, basis, threshold=threshold, settle=settle)
    return Claim(says, HOLDS if holds else FAILS, finding, basis, threshold=threshold)
