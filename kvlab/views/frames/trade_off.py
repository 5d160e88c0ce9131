"""Quality against bytes: one point per run or, over a batch of prompts, one mean with its interval per cell."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.views.frames.board import OWN_BUDGET
from kvlab.views.frames.repeats import Batch
from kvlab.views.frames.verdict import KINDS

# measures of quality: nats per token (less is better), share of right answers
KL = "mean_kl"
SHARE = "share"
# which bytes are compared: held at the end, or read by a decode step
HELD = "live_bytes"
READ = "bytes_read"
POINT = ["label", "method", "row", "column", HELD, READ, "quality", "low", "high", "prompts", "verdict", "measure"]
UNEQUAL = 0.05  # bytes above the median of the same budget that are worth a sentence


def run_points(table: pd.DataFrame, places: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """One row per run of one prompt, from `headline` or `verdicts` and the runs' places on the board.

    Columns: label, method, row and column (method with settings, and budget), live_bytes, bytes_read, quality (mean KL
    in nats per token) with low and high (empty for a single prompt), prompts, verdict ("" without an answer), measure.
    """
    rows, columns = zip(*places, strict=True) if len(places) else ((), ())
    points = table[["label", "method", "prompts"]].assign(
        row=list(rows),
        column=list(columns),
        live_bytes=table[HELD].astype(float),
        bytes_read=_read(table),
        quality=table["mean_kl"].astype(float),
        low=np.nan,
        high=np.nan,
        measure=KL,
        verdict=table.get("verdict", ""),
    )
    return points[POINT].reset_index(drop=True)


def batch_points(batch: Batch) -> pd.DataFrame:
    """One row per cell of a batch, as `run_points`, and one of the full cache; means over `prompts` prompts.

    The quality is the share of right answers with its Wilson interval, or without answers the mean KL with its
    bootstrap interval; both at 95 %, empty for a single prompt.
    """
    measure, count = (SHARE, "n") if batch.is_asked else (KL, "ended")
    cells = batch.cells
    names = {"quality": measure, "low": f"{measure}_low", "high": f"{measure}_high", HELD: HELD}
    values = {name: cells[column].astype(float) for name, column in names.items()} if len(cells) else {}
    values |= {READ: _read(cells)} if len(cells) else {}
    points = (
        pd.DataFrame(
            {name: cells[name] for name in ("label", "method", "row", "column")} | values | {"prompts": cells[count]}
        )
        if len(cells)
        else pd.DataFrame(columns=POINT)
    )
    points.loc[points["prompts"] < 2, ["low", "high"]] = np.nan
    points = points[points["prompts"] > 0]
    full = batch.prompts[batch.prompts["method"] == "full"]
    if len(full):
        judged = batch.references[batch.references["reference"].isin(KINDS[:3])]["reference"]
        quality = float((judged == "right").mean()) if measure == SHARE else 0.0
        sizes = {HELD: pd.to_numeric(full[HELD]).astype(float).mean(), READ: _read(full).mean()}
        line = {"label": "full cache", "method": "full", "row": "full", "column": OWN_BUDGET, **sizes}
        line |= {"quality": quality, "low": np.nan, "high": np.nan, "prompts": len(full)}
        points = pd.concat([pd.DataFrame([line]), points], ignore_index=True)
    points = points.reset_index(drop=True)
    return points.assign(verdict="", measure=measure)[POINT]


def _read(table: pd.DataFrame) -> pd.Series:
    """Bytes read by a decode step; where they are not known, those held."""
    return pd.to_numeric(table[READ] if READ in table else table[HELD]).astype(float)


def reads_less(points: pd.DataFrame) -> bool:
    """Whether a run reads fewer bytes than it holds, which only one with sparse attention does.

    The mean over the steps of a cache that grows is below its end too; the full cache says by how much.
    """
    ratio = (_read(points) / points[HELD]).to_numpy(float)
    full = ratio[(points["method"] == "full").to_numpy()]
    return len(full) > 0 and bool((ratio < 0.9 * full.min()).any())


def with_axis(points: pd.DataFrame, axis: str) -> pd.DataFrame:
    """The points with the bytes to compare, `HELD` or `READ`, as live_bytes."""
    return points.assign(live_bytes=_read(points)) if axis == READ else points


def best_points(points: pd.DataFrame) -> pd.DataFrame:
    """The compressed points that are better than all others with as few bytes, by bytes.

    A point without any right answer is not among them.
    """
    known = points[(points["method"] != "full") & points["quality"].notna() & points["live_bytes"].notna()]
    is_kl = measures_kl(points)
    known = known if is_kl else known[known["quality"] > 0]
    ordered = known.assign(cost=known["quality"] if is_kl else -known["quality"])
    ordered = ordered.sort_values(["live_bytes", "cost"], kind="stable")
    return ordered[ordered["cost"] < ordered["cost"].cummin().shift(fill_value=np.inf)].drop(columns="cost")


def measures_kl(points: pd.DataFrame) -> bool:
    """Whether the quality of these points is a KL, of which less is better, and not a share of right answers."""
    return not (points["measure"] == SHARE).any()


def unequal_bytes(points: pd.DataFrame, tolerance: float = UNEQUAL) -> pd.DataFrame:
    """Points that hold over `tolerance` more bytes than the median of all methods at the same budget.

    Columns label, row, column, live_bytes, median, excess (0.14 is 14 % above), largest excess first. A method without
    a budget, and a budget with one method, have nothing to compare with.
    """
    known = points[(points["method"] != "full") & (points["column"] != OWN_BUDGET) & points["live_bytes"].notna()]
    groups = known.groupby("column", sort=False)["live_bytes"]
    table = known.assign(median=groups.transform("median"), rivals=groups.transform("size"))
    table = table.assign(excess=table["live_bytes"] / table["median"] - 1)
    above = table[(table["excess"] > tolerance) & (table["rivals"] > 1)]
    columns = ["label", "row", "column", "live_bytes", "median", "excess"]
    return above.sort_values("excess", ascending=False, kind="stable")[columns].reset_index(drop=True)


def compared_budgets(points: pd.DataFrame) -> list[str]:
    """The budgets of a comparison, ascending by median live bytes; methods without a budget have none."""
    known = points[(points["method"] != "full") & (points["column"] != OWN_BUDGET)]
    size = known.assign(size=known["live_bytes"].fillna(np.inf)).groupby("column", sort=False)["size"].median()
    return [str(column) for column in size.sort_values(kind="stable").index]


def at_budget(points: pd.DataFrame, budget: str) -> pd.DataFrame:
    """The points at one budget, and those of methods without one, the full cache's included; all for ""."""
    return points[points["column"].isin([budget, OWN_BUDGET])] if budget else points
