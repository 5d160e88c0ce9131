"""The prompt's decision: who stayed, by score or by place, what a token would have taken, and the decision played."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlab.views import decision
from kvlab.views.frames.lineage import NEVER, Lineage


def kept_by_hand(scores: list[float], budget: int, sinks: int, recent: int) -> set[int]:
    """What a selection keeps: the first and last tokens, then the highest scores, of equals the later ones."""
    count = len(scores)
    stay = {*range(min(sinks, count)), *range(max(count - recent, 0), count)}
    for place in sorted(range(count), key=lambda at: (-scores[at], -at)):
        if len(stay) < budget:
            stay.add(place)
    return stay


def table_of(scores: list[float], kept: set[int]) -> pd.DataFrame:
    class Recorded:
        def decision(self, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
            stay = np.array([place in kept for place in range(len(scores))], np.uint8)
            return np.array(scores, np.float32), stay

    return decision.by_rank(Recorded(), 0, 0)


SCORES = st.lists(st.integers(0, 12).map(float), min_size=6, max_size=40)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCORES, st.integers(3, 12), st.integers(0, 2), st.integers(1, 3), st.data())
def test_the_budget_a_token_would_have_taken_is_the_smallest_that_keeps_it(scores, budget, sinks, recent, data):
    budget = max(budget, sinks + recent)
    kept = kept_by_hand(scores, budget, sinks, recent)
    table = table_of(scores, kept)
    line = decision.cutoff(table)
    assert line.by_score, "score and place explain all of it"
    assert line.budget == len(kept)
    token = data.draw(st.integers(0, len(scores) - 1))
    needed = decision.budget_for(table, [token])
    assert needed is not None
    assert token in kept_by_hand(scores, max(needed, sinks + recent), sinks, recent)
    if token not in kept:
        assert token not in kept_by_hand(scores, needed - 1, sinks, recent)
    else:
        assert needed == len(kept)


def test_what_stays_for_no_score_and_no_place_is_said_to():
    table = table_of([9.0, 1.0, 2.0, 8.0, 1.0, 7.0, 9.0], {0, 1, 4, 6})
    line = decision.cutoff(table)
    assert (line.odd, line.by_score, line.line) == (1, False, 8.0)
    assert decision.budget_for(table, [2]) is None


def test_a_token_that_the_decision_was_not_about_has_no_budget():
    assert decision.budget_for(table_of([1.0, 2.0], {1}), [5]) is None


@pytest.fixture
def lineage() -> Lineage:
    """Ten tokens: 2 to 5 leave at the decision (3 into 4, 4 into 6), 7 later."""
    never = [NEVER] * 10
    leave, parent = np.array(never), np.full(10, -1)
    leave[[2, 3, 4, 5]], leave[7], parent[3], parent[4] = 0, 3, 4, 6
    absorb, death = np.array(never), np.array(never)
    absorb[[4, 6]] = 0
    death[[2, 5]], death[7] = 0, 3
    birth = np.zeros(10, int)
    return Lineage(np.arange(5), np.full(5, 10), birth, leave, np.zeros(10, np.uint8), parent, absorb, death)


def test_played_the_lowest_scores_leave_first_and_all_end_where_they_ended(lineage: Lineage):
    scores = [9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 9.0, 9.0, 9.0, 9.0]
    table = table_of(scores, {0, 1, 6, 7, 8, 9})
    played = decision.replay(lineage, table, frames=4)
    assert played.leave[[2, 3, 4, 5]].tolist() == [1, 2, 3, 4]
    assert played.owners(0).tolist() == list(range(10))
    assert played.owners(int(played.steps[-1])).tolist() == lineage.owners(0).tolist()
    assert played.alive(4).sum() == 6 and played.leave[7] == NEVER
    shown = [int(played.alive(step).sum()) for step in played.steps]
    assert shown == [10, 9, 8, 7, 6]


def test_a_decision_that_comes_late_is_found(lineage: Lineage):
    assert decision.decision_step(lineage) == 0
    waiting = Lineage(**{**vars(lineage), "leave": np.where(lineage.leave == 0, 1, lineage.leave)})
    assert decision.decision_step(waiting) == 1


def test_a_head_that_keeps_the_whole_prompt_was_decided_about_after_the_prompt(lineage: Lineage):
    """Its decision was counted after the first new token: one slot and one token more than the prompt has."""
    keeps = Lineage(
        **{
            **vars(lineage), "tokens_seen": np.arange(10, 15), "leave": np.full(10, NEVER), "parent": np.full(10, -1),
            "death": np.full(10, NEVER), "absorb": np.full(10, NEVER),
        }
    )  # fmt: skip
    assert decision.decision_step(keeps) == 0
    played = decision.replay(keeps, table_of([1.0] * 10, set(range(10))))
    assert played.steps.tolist() == [0] and played.tokens_seen.tolist() == [10] and played.tokens == 10
