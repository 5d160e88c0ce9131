"""Tables of a head's slots at a step and of the merges behind them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.lineage.fold import KINDS, NEVER, Lineage
from kvlab.analysis.lineage.states import STATES, states_at


def token_texts(tokens: pd.DataFrame, count: int) -> list[str]:
    """Texts of positions 0 to `count` - 1 of the run's `tokens`: the prompt, then the forced continuation."""
    read = tokens[tokens["phase"] != "free"].drop_duplicates("position")
    return read.set_index("position")["text"].reindex(range(count)).fillna("").tolist()


def slot_table(
    lineage: Lineage,
    texts: list[str],
    step: int,
    masses: tuple[np.ndarray, np.ndarray] | None = None,
    most: int | None = None,
) -> pd.DataFrame:
    """One row per live slot after `step`: position, text, state, votes, tokens in it, and masses if given.

    `masses` is (true mass of each token, mass of each slot) at the step, both (tokens,). A slot's true mass is the sum
    over its tokens; `lost` is the true mass minus the slot's mass, negative if it gained. If there are more than `most`
    slots, those with the most votes (then attention) are shown, ordered by position.
    """
    owner = lineage.owners(step)
    alive = np.flatnonzero(lineage.alive(step))
    votes = np.bincount(owner[owner >= 0], minlength=lineage.tokens)
    table = pd.DataFrame({"position": alive, "votes": votes[alive], "read at step": lineage.birth[alive]})
    if masses is not None:
        true_mass, slot_mass = (mass[: lineage.tokens].astype(np.float32) for mass in masses)
        inside = np.bincount(owner[owner >= 0], weights=true_mass[owner >= 0], minlength=lineage.tokens)[alive]
        mass = slot_mass[alive]
        table = table.assign(**{"mass": mass, "true mass": inside.astype(np.float32), "lost": inside - mass})
    if most is not None and len(table) > most:
        order = [name for name in ("votes", "mass") if name in table]
        table = table.sort_values(order, ascending=False, kind="stable").head(most).sort_values("position")
    positions = table["position"].to_numpy()
    table.insert(1, "text", [texts[position] for position in positions])
    table.insert(2, "state", np.array(STATES)[states_at(lineage, step)[positions]])
    return table


def check_slots(lineage: Lineage, steps: pd.DataFrame) -> pd.DataFrame:
    """One row per step: live slots folded from the events, live slots recorded, and whether they agree."""
    steps = steps.sort_values("step")
    columns = {"step": lineage.steps, "folded": lineage.live_slots(), "recorded": steps["live_slots"].to_numpy()}
    table = pd.DataFrame(columns)
    return table.assign(agree=table["folded"] == table["recorded"])


def events_with_texts(events: pd.DataFrame, texts: list[str]) -> pd.DataFrame:
    """Events of one step of one head with the texts of source and target."""
    here = events.drop(columns=["step", "layer", "head"])
    return here.assign(
        source_text=[texts[position] if 0 <= position < len(texts) else "" for position in here["source"]],
        target_text=[texts[position] if 0 <= position < len(texts) else "" for position in here["target"]],
    )[["kind", "source", "source_text", "target", "target_text", *here.columns[3:]]]


def event_steps(lineage: Lineage) -> np.ndarray:
    """Steps after the prefill in which anything left."""
    left = np.unique(lineage.leave[lineage.leave < NEVER])
    return left[left > lineage.steps[0]] if len(lineage.steps) else left


def members(lineage: Lineage, slot: int, step: int) -> np.ndarray:
    """Increasing positions of the tokens held by `slot` after `step`; empty if the slot is not alive."""
    return np.flatnonzero(lineage.owners(step) == slot)


def merged_slots(lineage: Lineage, step: int, limit: int = 200) -> dict[int, int]:
    """Votes of the slots that hold more than one token after `step`, by position, most votes first."""
    votes = lineage.votes(step)
    order = np.argsort(-votes, kind="stable")[:limit]
    return {int(position): int(votes[position]) for position in order if votes[position] > 1}


def merged_count(lineage: Lineage, step: int) -> int:
    """Number of slots that hold more than one token after `step`."""
    return int((lineage.votes(step) > 1).sum())


def lineage_tree(lineage: Lineage, events: pd.DataFrame, texts: list[str], slot: int, step: int) -> pd.DataFrame:
    """One row per merge that led into `slot` by `step`, direct ones first, then by value weight.

    Columns: source, source_text, target, target_text, step, kind, votes (tokens carried over), similarity,
    value_weight, depth (merges between source and slot).
    """
    inside = members(lineage, slot, step)
    joined = inside[(lineage.leave[inside] <= step) & (inside != slot)]
    rows = pd.DataFrame({"source": joined, "target": lineage.parent[joined]})
    rows = rows.assign(
        source_text=[texts[position] for position in rows["source"]],
        target_text=[texts[position] for position in rows["target"]],
        step=lineage.leave[joined],
        kind=np.array(KINDS)[lineage.kind[joined]],
        depth=_depths(lineage, joined, slot),
    )
    weights = events[["source", "target", "similarity", "value_weight", "votes_source"]]
    weights = weights.drop_duplicates(["source", "target"])
    rows = rows.merge(weights, on=["source", "target"], how="left").rename(columns={"votes_source": "votes"})
    return rows.sort_values(["depth", "value_weight"], ascending=[True, False]).reset_index(drop=True)


def _depths(lineage: Lineage, sources: np.ndarray, slot: int) -> np.ndarray:
    depth = np.zeros(len(sources), np.int64)
    here = sources.copy()
    while len(here) and (here != slot).any():
        moving = here != slot
        here = np.where(moving, lineage.parent[here], here)
        depth += moving
    return depth
