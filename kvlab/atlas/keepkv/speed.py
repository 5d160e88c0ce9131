"""Table 1: decode rate by method, measured and published."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas import benchmarks
from kvlab.atlas.claims import speed as claims

PRESET = "keepkv-table1"


def with_ratios(numbers: pd.DataFrame) -> pd.DataFrame:
    """The compressed caches' rates with both ratios; the paper divides by a full cache of batch 2, we by one of
    batch 8."""
    full = numbers.loc[numbers["method"] == "full", "value"]
    rates = numbers[numbers["method"] != "full"].copy()
    rates["paper_ratio"] = rates["paper_ratio"].fillna(rates["value"] / full.iloc[0] if len(full) else float("nan"))
    rates["setting"] = [
        f"batch {row.batch}, {row.context:,} tokens, {benchmarks.budget_text(row.budget)}" for row in rates.itertuples()
    ]
    columns = ["setting", "method", "budget", "our_ratio", "paper_ratio", "ours", "value", "why", "note"]
    return rates[columns].reset_index(drop=True)


# Tokens per second at batch 8 relative to the full cache at the same batch; in the paper at batch 2.
DRAWINGS = {
    "tab-1": benchmarks.draw_rates(PRESET, "rate", "Decode rate against the full cache", with_ratios, claims.twice)
}
