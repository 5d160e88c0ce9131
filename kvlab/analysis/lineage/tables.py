"""The slots of a head at a step, and the fate of each token, as tables a person can read."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.lineage.fold import KINDS, NEVER, Lineage
from kvlab.analysis.lineage.states import STATES, states_at


def token_texts(tokens: pd.DataFrame, count: int) -> list[str]:
    """The texts of positions 0 to `count` - 1 of the run's `tokens`: the prompt, then the forced continuation."""
    read = tokens[tokens["phase"] != "free"].drop_duplicates("position")
    return read.set_index("position")["text"].reindex(range(count)).fillna("").tolist()


def slot_table(
    lineage: Lineage,
    texts: list[str],
    step: int,
    masses: tuple[np.ndarray, np.ndarray] | None = None,
    most: int | None = None,
) -> pd.DataFrame:
    """One row a live slot after `step`: position, text, state, votes, tokens in it, and its masses where recorded.

    `masses` is (true mass of each token, mass of each slot) at the step, both (tokens,); the true mass of a slot is
    that of all its tokens together, and `lost` is what the slot falls short of it, negative where it gained. Of more
    than `most` slots those with most votes, among those alike in it with most attention, by position.
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


def token_fates(lineage: Lineage, texts: list[str], step: int) -> pd.DataFrame:
    """One row a token read by `step`: its state, the slot it lives in (-1 if none), and when and how its own ended."""
    read = lineage.birth <= step
    left = (lineage.leave <= step)[read]
    lost = (lineage.death <= step)[read]
    how = np.array(KINDS)[lineage.kind[read]]
    return pd.DataFrame(
        {
            "position": np.flatnonzero(read),
            "text": [text for text, inside in zip(texts, read, strict=True) if inside],
            "state": np.array(STATES)[states_at(lineage, step)[read]],
            "slot": lineage.owners(step)[read],
            "read at step": lineage.birth[read],
            "left at step": pd.array(np.where(left, lineage.leave[read], 0), "Int32"),
            "how": np.where(left, how, ""),
            "lost at step": pd.array(np.where(lost, lineage.death[read], 0), "Int32"),
        }
    ).assign(
        **{
            "left at step": lambda table: table["left at step"].where(left),
            "lost at step": lambda table: table["lost at step"].where(lost),
        }
    )


def check(lineage: Lineage, steps: pd.DataFrame) -> pd.DataFrame:
    """One row a step: slots alive by folding the events, slots the run recorded, and whether the two agree."""
    steps = steps.sort_values("step")
    table = pd.DataFrame(
        {"step": lineage.steps, "folded": lineage.live_slots(), "recorded": steps["live_slots"].to_numpy()}
    )
    return table.assign(agree=table["folded"] == table["recorded"])


def events_with_texts(events: pd.DataFrame, texts: list[str]) -> pd.DataFrame:
    """Events of one step of one head with the text of the slots that left and of those they went into."""
    here = events.drop(columns=["step", "layer", "head"])
    return here.assign(
        source_text=[texts[position] if 0 <= position < len(texts) else "" for position in here["source"]],
        target_text=[texts[position] if 0 <= position < len(texts) else "" for position in here["target"]],
    )[["kind", "source", "source_text", "target", "target_text", *here.columns[3:]]]


def event_steps(lineage: Lineage) -> np.ndarray:
    """The steps after the prefill at which anything left, for jumping from one to the next."""
    left = np.unique(lineage.leave[lineage.leave < NEVER])
    return left[left > lineage.steps[0]] if len(lineage.steps) else left
