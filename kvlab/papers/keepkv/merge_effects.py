"""Effects of merges: one merge in detail, attention lost by rule, and attention by destination at a step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvlab.papers.attention_rows import ALPHA, EMA, WINDOW, Predictors, read_rows
from kvlab.trace.reader import Run
from kvlab.views.bound import query_heads_per_slot
from kvlab.views.frames.compare import unique_labels
from kvlab.views.frames.lineage import fold, token_texts

MOST_PARTS = 8
LEAST_MASS = 1e-4  # of a head's attention; merges of less are irrelevant
REST = -1


@dataclass(frozen=True)
class OneMerge:
    """Everything merged into one slot in one step: `events` are the rows of its sources, heaviest first."""

    layer: int
    head: int
    step: int
    target: int
    events: pd.DataFrame

    @property
    def source(self) -> int:
        """The heaviest merged token."""
        return int(self.events["source"].iloc[0])

    @property
    def mass_before(self) -> float:
        """Attention of target and sources before the merge, at this step's last query."""
        return float(self.events["mass_source"].sum() + self.events["mass_target"].iloc[0])

    @property
    def mass_after(self) -> float:
        """Attention of the merged slot, same query."""
        return float(self.events["mass_after"].iloc[0])


def find_merge(
    run: Run, layer: int, head: int, step: int = 0, token: int | None = None, least: float = 0.0
) -> OneMerge | None:
    """The merge of one head to show: at `step` or the next step with one, involving `token` if possible, else the
    one with the most attention; None if the head merged nothing.

    If it does not involve `token` and has less than `least` of the attention, the head's merge with the most is shown.
    """
    events = run.select("events", layer, head)
    merges = events[(events["target"] >= 0) & events["mass_after"].notna()]
    if merges.empty:
        return None
    steps = np.sort(merges["step"].unique())
    chosen = int(steps[min(int(np.searchsorted(steps, step)), len(steps) - 1)])
    here = merges[merges["step"] == chosen]
    around = here[(here["source"] == token) | (here["target"] == token)]
    groups = merges.groupby(["step", "target"])
    mass = groups["mass_source"].sum() + groups["mass_target"].first()
    if len(around):
        target = int(around["target"].iloc[0])
    else:
        target = int(mass.loc[chosen].idxmax())
        if mass.loc[chosen, target] < least:
            chosen, target = mass.idxmax()
    rows = merges[(merges["step"] == chosen) & (merges["target"] == target)]
    rows = rows.sort_values("mass_source", ascending=False, kind="stable")
    return OneMerge(layer, head, int(chosen), int(target), rows.reset_index(drop=True))


def candidates(run: Run, merge: OneMerge) -> pd.DataFrame:
    """Remaining slots by cosine of their key with that of the heaviest source: columns position, similarity, chosen.

    Keys are the tokens' own; those of previously merged slots have moved since.
    """
    unit = run.keys(merge.layer, merge.head)[0].astype(np.float32)
    lineage = fold(*(run.select(name, merge.layer, merge.head) for name in ("events", "steps")))
    staying = np.flatnonzero(lineage.alive(merge.step))
    staying = staying[staying < len(unit)]
    return pd.DataFrame(
        {
            "position": staying,
            "similarity": unit[staying] @ unit[merge.source],
            "chosen": staying == merge.target,
        }
    )


def merge_parts(run: Run, model: Run, merge: OneMerge) -> pd.DataFrame:
    """The merge in rows: target, at most `MOST_PARTS` sources, the rest together, and the merged slot.

    Columns token, text, role, votes, mass (at the step's last query), ema_before and ema_after that query: KeepKV's
    average of each token's attention, from the rows of `model` (its probe or steps); the merged slot's is the sum of
    its parts', as the method carries it on.
    """
    rows = read_rows(model, merge.layer, merge.head)
    options = run.record.hyper_parameters if run.record.method == "keepkv" else {}
    alpha, window = (float(str(options.get(name, default))) for name, default in (("alpha", ALPHA), ("window", WINDOW)))
    running = Predictors(rows.mass.shape[1], max(rows.first + 1 - int(window), 0), alpha, int(window))
    before = None
    for row in range(min(rows.first + merge.step + 1, len(rows.mass))):
        before = running.predict()[EMA] if running.rows else np.full(rows.mass.shape[1], np.nan)
        running.add(rows.mass[row].astype(np.float64), rows.visible[row])
    after = running.predict()[EMA]
    first = merge.events.iloc[0]
    texts = token_texts(run.tokens, rows.mass.shape[1])
    table = [(merge.target, "target", first["votes_target"], first["mass_target"])]
    table += [(e.source, "source", e.votes_source, e.mass_source) for e in merge.events[:MOST_PARTS].itertuples()]
    frame = pd.DataFrame(table, columns=["token", "role", "votes", "mass"])
    frame = frame.assign(ema_before=before[frame["token"]], ema_after=after[frame["token"]])  # type: ignore[index]  # arrays by token
    rest = merge.events[MOST_PARTS:]
    tokens = merge.events["source"][MOST_PARTS:].to_numpy()
    if len(rest):
        sums = {"votes": rest["votes_source"].sum(), "mass": rest["mass_source"].sum()}
        averages = {"ema_before": before[tokens].sum(), "ema_after": after[tokens].sum()}  # type: ignore[index]  # likewise
        frame.loc[len(frame)] = {"token": REST, "role": "rest", **sums, **averages}
    merged = {"votes": first["votes_after"], "mass": merge.mass_after}
    sums = frame[["ema_before", "ema_after"]].sum(min_count=1).to_dict()
    frame.loc[len(frame)] = {"token": merge.target, "role": "merged slot", **merged, **sums}
    return frame.assign(text=[texts[token] if token >= 0 else f"{len(rest)} more" for token in frame["token"]])


def influence_over_steps(run: Run, merge: OneMerge) -> pd.DataFrame:
    """From the merge until the slot ends: columns step, votes, mass, and its tokens' true_mass (nothing dropped)."""
    true, slot = (rows.astype(np.float64) for rows in run.attention(merge.layer, merge.head, thinned=True))
    lineage = fold(*(run.select(name, merge.layer, merge.head) for name in ("events", "steps")))
    table = []
    every = run.attention_every
    for step in lineage.steps[(lineage.steps >= merge.step) & (lineage.steps % every == 0)]:
        row = int(step) // every
        if row >= len(true) or lineage.leave[merge.target] <= step:
            break
        members = np.flatnonzero(lineage.owners(int(step)) == merge.target)
        table.append((int(step), len(members), true[row, members].sum(), slot[row, merge.target]))
    return pd.DataFrame(table, columns=["step", "votes", "true_mass", "mass"])


EXACT_RULES = ("bias", "paper", "min-norm")
CONVEX = ("cam", "d2o", "kvmerger", "pyramid-pool")  # unless a mass rule of kvlab is set
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SAG_COLUMNS = [
    "label", "method", "rule", "merges", *(f"q{round(100 * q):02d}" for q in QUANTILES), "sagging", "total", "size",
]  # fmt: skip


def rule_of(run: Run) -> str:
    """`exact` (KeepKV at the present query), `grouped` (the same with query heads sharing a slot, exact for none of
    them), `predicted` (KeepKV on its averages), `votes`, `convex` (a merged slot counts as one) or `other`."""
    record = run.record
    options = run.record.hyper_parameters
    if record.method == "keepkv" and options.get("mass", "rule") == "rule":
        if options.get("rule", "bias") not in EXACT_RULES:
            return "votes"
        if options.get("predict") != "current":
            return "predicted"
        return "exact" if query_heads_per_slot(run) == 1 or options.get("per_head_mass") else "grouped"
    return "convex" if record.method in CONVEX and options.get("mass", "none") == "none" else "other"


def merge_groups(run: Run) -> pd.DataFrame:
    """One row per merged slot and step: columns step, layer, head, slot, before, after, sag.

    `sag` is (before - after) / before, attention of the same query: positive if the merge lost attention, undefined
    without attention. Evictions of the step raise all other attention; `after` is times 1 - evicted attention.
    """
    columns = ["step", "layer", "head", "target", "mass_source", "mass_target", "mass_after"]
    events = run.select("events", columns=columns)
    place = ["step", "layer", "head"]
    evicted = events[events["target"] < 0].groupby(place)["mass_source"].sum().rename("evicted")
    merged = events[(events["target"] >= 0) & events["mass_after"].notna()]
    groups = merged.groupby([*place, "target"])
    table = groups.agg(
        sources=("mass_source", "sum"), own=("mass_target", "first"), after=("mass_after", "first")
    ).reset_index()
    lift = table.join(evicted, on=place)["evicted"].fillna(0.0)
    table["before"], table["after"] = table["sources"] + table["own"], table["after"] * (1 - lift)
    table["sag"] = (table["before"] - table["after"]) / table["before"].where(table["before"] > 0)
    return table.rename(columns={"target": "slot"})[[*place, "slot", "before", "after", "sag"]]


def sag_of_runs(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run that merged: label, method, rule, merges (groups with at least `LEAST_MASS` before), quantiles
    of the sag (q05 .. q95), sagging (share of them that lost), total (summed loss over mass) and size (absolute)."""
    rows = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        groups = merge_groups(run)
        heavy = groups[groups["before"] >= LEAST_MASS]
        if heavy.empty:
            continue
        quantiles = {f"q{round(100 * q):02d}": heavy["sag"].quantile(q) for q in QUANTILES}
        rows.append(
            {
                "label": label,
                "method": run.record.method,
                "rule": rule_of(run),
                "merges": len(heavy),
                **quantiles,
                "sagging": float((heavy["sag"] > 0).mean()),
                "total": float((heavy["before"] - heavy["after"]).sum() / heavy["before"].sum()),
                "size": float((heavy["before"] - heavy["after"]).abs().sum() / heavy["before"].sum()),
            }
        )
    return pd.DataFrame(rows, columns=SAG_COLUMNS)


def where_attention_goes(runs: Sequence[Run], layer: int, head: int, step: int) -> pd.DataFrame:
    """One row per run with a shadow: shares of one head's attention at one step, with nothing dropped, on kept tokens
    and on merged slots, and lost by sag (negative if gained) and by eviction.

    Columns label, method, kept, merged, sag, regret, output_error, votes (largest).
    """
    rows = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        steps = run.select("steps", layer, head)
        steps = steps[steps["kept_mass"].notna()]
        if steps.empty:
            continue
        at = steps.iloc[int(np.searchsorted(steps["step"], min(step, steps["step"].max())))]
        rows.append(
            {
                "label": label,
                "method": run.record.method,
                "step": int(at["step"]),
                "kept": at["kept_mass"],
                "merged": at["merged_mass"],
                "sag": at["sag"],
                "regret": at["regret"],
                "output_error": at["output_error"],
                "votes": at["max_votes"],
            }
        )
    return pd.DataFrame(rows)
