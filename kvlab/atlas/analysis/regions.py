"""Regions of one head's cache (residual, context, proximity) by step, and movement between them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.views.frames.lineage import Lineage, State, states_at

REGIONS = ("residual", "context", "proximity")
_REGION_OF = {State.PIVOT: 0, State.SINK: 1, State.KEPT: 1, State.RECENT: 2}


def region_codes(lineage: Lineage, step: int) -> np.ndarray:
    """(tokens,) index into `REGIONS` of the slot named by each token after `step`; -1 if there is none.

    Residual: merged slots; proximity: the contiguous own slots at the end; context: own slots before them.
    """
    states = states_at(lineage, step)
    codes = np.full(lineage.tokens, -1)
    for state, region in _REGION_OF.items():
        codes[states == state] = region
    return codes


def regions_over_steps(lineage: Lineage) -> pd.DataFrame:
    """One row per step: slots in each region, all slots, and tokens read."""
    rows = [np.bincount(codes[codes >= 0], minlength=3) for codes in (region_codes(lineage, s) for s in lineage.steps)]
    table = pd.DataFrame(rows, columns=list(REGIONS)).assign(step=lineage.steps, tokens=lineage.seen)
    return table.assign(slots=table[list(REGIONS)].sum(axis=1))


def slots_by_step(lineage: Lineage, step: int, columns: int = 6, most: int = 28) -> pd.DataFrame:
    """One row per slot and step over `columns` steps from `step` on: step, tokens, position, region, votes, and
    `slots`, the number of slots over these steps.

    At most `most` slots: first those that arrive, leave or change region, then residual ones, then an even sample.
    """
    steps = _window(lineage, step, columns)
    codes = np.stack([region_codes(lineage, one) for one in steps])
    shown = _worth_showing(codes, most)
    votes = np.stack([lineage.votes(one) for one in steps])
    table = pd.DataFrame(
        {
            "step": np.repeat(steps, len(shown)),
            "tokens": np.repeat(lineage.seen[np.searchsorted(lineage.steps, steps)], len(shown)),
            "position": np.tile(shown, len(steps)),
            "code": codes[:, shown].ravel(),
            "votes": votes[:, shown].ravel(),
        }
    )
    table = table[table["code"] >= 0].assign(slots=int((codes >= 0).any(axis=0).sum()))
    return table.assign(region=[REGIONS[code] for code in table.pop("code")]).reset_index(drop=True)


def _window(lineage: Lineage, step: int, columns: int) -> np.ndarray:
    first = int(np.searchsorted(lineage.steps, step))
    first = max(0, min(first, len(lineage.steps) - columns))
    return lineage.steps[first : first + columns]


def _worth_showing(codes: np.ndarray, most: int) -> np.ndarray:
    """Sorted positions of the slots to show."""
    alive = np.flatnonzero((codes >= 0).any(axis=0))
    changes = (codes != codes[0]).any(axis=0)
    rank = np.where(changes, 0, np.where((codes == 0).any(axis=0), 1, 2))[alive]
    order = alive[np.argsort(rank, kind="stable")]
    first = order[np.sort(rank) < 2][:most]
    rest = order[np.sort(rank) == 2]
    room = min(most - len(first), len(rest))
    spread = rest[np.unique(np.linspace(0, len(rest) - 1, room).round().astype(int))] if room > 0 else rest[:0]
    return np.sort(np.concatenate([first, spread]))
