"""Claims of recorded runs, from frames made by hand after the papers' words: each holds, fails, or is left open."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from kvlab.papers.attention_rows import CUMULATIVE, EMA, LAST, WINDOWED
from kvlab.papers.gvote import probe
from kvlab.papers.keepkv import attention, merging
from kvlab.papers.kvmerger import compression, explainers, similarity
from kvlab.papers.pyramid_pool import recordings
from kvlab.papers.zsmerge import contents
from kvlab.results.verdict import FAILS, HOLDS, OPEN, Claim
from tests.papers.claim_frames import FEW, either_way, labelled, near, rows

Judge = Callable[[pd.DataFrame], Claim]


def alike(keys: float, values: float, before: float = 0.0) -> dict[str, object]:
    """Neighbours' cosine above any two's, for keys, keys before rotation and values."""
    return {"keys": 0.5, "keys_rise": near(keys), "values_rise": near(values), "before_rise": near(before)}


def merged(lost: float, rule: str = "convex", merges: int = 50) -> dict[str, object]:
    """Merges of a head that had one unit of attention before and lost so much of it."""
    loss = near(lost, 0.1)
    return {
        "rule": rule, "merges": merges, "before": 1.0, "loss": loss, "sagging": 40,
        "moved": lambda prompt, head: abs(loss(prompt, head)),
    }  # fmt: skip


def influence(mass: object) -> dict[str, object]:
    """What merged slots get of the attention that their tokens would get."""
    return {"mass": mass, "true_mass": 1.0, "off": 0.2, "slots": 5}


def predicted(ema: float, cumulative: float, window: float) -> dict[str, object]:
    return {"kind": "mass", EMA: near(ema), CUMULATIVE: cumulative, WINDOWED: window, LAST: 0.1}


def queries(overlap: float, usage: float, r: float) -> dict[str, object]:
    names = ("covered", "kept", "inner_overlap", "inner_usage", "inner_correlation")
    return {"overlap": near(overlap), "usage": usage, "correlation": near(r), **dict.fromkeys(names, 0.5)}


def channels(close: float) -> dict[str, object]:
    return {
        "close": near(close),
        "channels": 32,
        "skew": 0.1,
        "kurtosis": 0.1,
        "kurtosis_with_sinks": 0.2,
        "distance": 0.1,
    }


def line(explained: float = 1.0, ratio: float = 4.0, touched: int = 0) -> dict[str, object]:
    return {"layers": 6, "explained": explained, "ratio": ratio, "beta": 4.0, "touched": touched, "sinks": 8}


def mass_predicts(frame: pd.DataFrame) -> Claim:
    return attention.predicts(frame, "mass", "attention")


def slots(over: int = 0, evicted: int = 0) -> dict[str, object]:
    return {"steps": 10, "over": over, "evicted": evicted, "merged": 7, "fill": 1.0}


# The judge, and columns under which the claim holds, fails, and lies on both sides of its threshold.
CASES: dict[str, tuple[Judge, dict[str, object], dict[str, object], dict[str, object] | None]] = {
    "keys are alike, values are not": (similarity.local, alike(0.4, 0.0), alike(0.4, 0.4), alike(0.4, 0.105)),
    "keys are not alike": (similarity.local, alike(0.4, 0.0), alike(0.02, 0.0), None),
    "rotation": (similarity.rotation, alike(0.4, 0, 0.05), alike(0.4, 0, 0.38), alike(0.4, 0, 0.2)),
    "heads differ": (
        similarity.differs,
        {"keys": lambda prompt, head: 0.2 + 0.5 * head},
        {"keys": 0.4},
        {"keys": lambda prompt, head: 0.2 + head * either_way(0.125, 0.06)(prompt, head)},
    ),
    "merging keeps more": (
        explainers.keeps_more,
        {"merging": near(0.2), "evicting": near(0.4)},
        {"merging": near(0.4), "evicting": near(0.2)},
        {"merging": 0.3, "evicting": either_way(0.3, 0.1)},
    ),
    "the pivot leads": (
        explainers.pivot_leads,
        {"sets": 3, "attended": 3, "heaviest": 3},
        {"sets": 3, "attended": lambda prompt, head: 3 - (prompt == head == 1), "heaviest": 3},
        None,
    ),
    "nearer tokens weigh more": (
        compression.nearer,
        {"ratio": near(1.5), "sets": 4, "pairs": 2},
        {"ratio": near(1.0), "sets": 4, "pairs": 2},
        {"ratio": either_way(1.1, 0.1), "sets": 4, "pairs": 2},
    ),
    "convex merging sags": (merging.sags, merged(0.3), merged(-0.2), merged(0.05)),
    "no sag at the present query": (
        merging.exact, merged(0.0, "exact"), merged(0.2, "exact"), merged(0.01, "exact"),
    ),
    "a slot keeps its influence": (
        merging.keeps, influence(near(1.0)), influence(near(0.5)), influence(either_way(0.8, 0.1)),
    ),
    "a slot gets too much": (
        merging.keeps, influence(near(1.0)), influence(near(2.0)), influence(either_way(1.25, 0.1)),
    ),
    "not always the majority": (
        attention.majority,
        {"least": lambda prompt, head: 0.3 if head else 0.9, "mass": 0.9},
        {"least": 0.8, "mass": 0.9},
        None,
    ),
    "evicted tokens return": (
        attention.returns,
        {"ever": near(0.4), "share": 0.1, "mass": 0.2, "steps": 30},
        {"ever": near(0.03), "share": 0.01, "mass": 0.2, "steps": 30},
        {"ever": either_way(0.1, 0.05), "share": 0.1, "mass": 0.2, "steps": 30},
    ),
    "scores are local in time": (
        attention.locality,
        {"recorded": near(0.5), "shuffled": 1.0},
        {"recorded": near(1.0), "shuffled": 1.0},
        {"recorded": either_way(0.9, 0.1), "shuffled": 1.0},
    ),
    "EMA predicts best": (mass_predicts, predicted(0.5, 0.8, 0.9), predicted(0.85, 0.8, 0.9), predicted(0.8, 0.8, 0.9)),
    "channels are Gaussian": (probe.gaussian, channels(0.9), channels(0.5), channels(0.75)),
    "sampled queries overlap": (
        probe.overlap, queries(0.93, 0.6, 0.8), queries(0.5, 0.1, 0.8), queries(0.8, 0.4, 0.8),
    ),
    # A random set of that size would do as well.
    "overlap is more than chance": (
        probe.overlap, queries(0.93, 0.6, 0.8), queries(0.9, 0.97, 0.8), queries(0.9, 0.9, 0.8),
    ),
    "attention is correlated": (
        probe.judge_correlation, queries(0.9, 0.5, 0.8), queries(0.9, 0.5, 0.2), queries(0.9, 0.5, 0.5),
    ),
    "layers shrink, heads do not": (
        recordings.two_axes, {"layers": 4.0, "heads": 1.0}, {"layers": 4.0, "heads": 2.0}, None,
    ),
    "budgets fall in a line": (recordings.falls, line(), line(explained=0.6), None),
    "budgets fall": (recordings.falls, line(), line(ratio=0.5), None),
    "sinks stay": (recordings.falls, line(), line(touched=1), None),
    "older is coarser": (
        recordings.older,
        {"trend": near(0.9), "newest": 1},
        {"trend": near(0.1), "newest": 1},
        {"trend": near(0.5), "newest": 1},
    ),
    "the newest stays as it is": (
        recordings.older, {"trend": near(0.9), "newest": 1}, {"trend": near(0.9), "newest": 4}, None,
    ),
    "slots stay in their budget": (contents.judge_budget, slots(), slots(over=1), None),
    "nothing is dropped": (contents.judge_budget, slots(), slots(evicted=1), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_claim_holds_fails_and_is_left_open(name: str):
    judge, holds, fails, between = CASES[name]
    assert judge(rows(**holds)).verdict == HOLDS
    assert judge(rows(**fails)).verdict == FAILS
    if between is not None:
        assert judge(rows(**between)).verdict == OPEN


@pytest.mark.parametrize("name", CASES)
def test_three_prompts_are_not_enough_and_none_says_why(name: str):
    judge, holds, *_ = CASES[name]
    few = judge(rows(FEW, **holds))
    assert few.verdict == OPEN
    assert few.basis.prompts == FEW
    nothing = judge(pd.DataFrame(columns=["prompt", "label"]))
    assert nothing.verdict == OPEN
    assert nothing.finding


@pytest.mark.parametrize("name", CASES)
def test_a_claim_says_what_it_rests_on(name: str):
    judge, holds, *_ = CASES[name]
    claim = judge(rows(**holds))
    assert claim.basis.prompts == 8
    assert claim.threshold is None or claim.threshold.reason
    assert claim.interval is None or claim.interval.n == 8
    assert "nan" not in claim.finding


def test_merging_drifts_less_than_eviction_on_the_same_prompts():
    """The gap is paired: prompts that differ a lot from one another hide nothing."""
    hard = {"kl": lambda prompt, head: 1.0 + prompt, "bytes": 0.2}
    easier = {"kl": lambda prompt, head: 0.9 + prompt + 0.01 * (prompt % 2), "bytes": 0.2}
    frame = labelled({"evicts": rows(per_prompt=1, **hard), "merges": rows(per_prompt=1, **easier)})
    assert contents.closer(frame, "evicts", "merges").verdict == HOLDS
    assert contents.closer(frame, "merges", "evicts").verdict == FAILS
    assert contents.closer(frame, "evicts", "another").verdict == OPEN
    few = frame[frame["prompt"].isin(["p0", "p1", "p2"])]
    assert contents.closer(few, "evicts", "merges").verdict == OPEN


def test_attention_sags_only_where_every_convex_method_loses():
    both = {"a": rows(**merged(0.3)), "b": rows(**merged(0.2))}
    assert merging.sags(labelled(both)).verdict == HOLDS
    assert merging.sags(labelled(both | {"b": rows(**merged(-0.1))})).verdict == FAILS
    assert merging.sags(rows(**merged(0.3, "votes"))).verdict == OPEN  # none merges by a convex combination


def test_predicted_scores_are_those_of_no_query():
    assert merging.exact(rows(**merged(0.0, "predicted"))).verdict == OPEN
    mixed = labelled({"now": rows(**merged(0.0, "exact")), "later": rows(**merged(0.5, "predicted"))})
    assert merging.exact(mixed).verdict == HOLDS


@pytest.mark.parametrize(("prompts", "shuffle", "verdict"), [(8, False, HOLDS), (8, True, FAILS), (2, False, OPEN)])
def test_the_order_of_layers_is_compared_between_prompts(prompts: int, shuffle: bool, verdict: str):
    random = np.random.default_rng(0)
    orders = [random.permutation(8) if shuffle else np.arange(8) for _ in range(prompts)]
    frame = pd.DataFrame(
        [
            {"prompt": f"p{prompt}", "layer": layer, "head": 0, "ratio": 0.1 * order[layer]}
            for prompt, order in enumerate(orders)
            for layer in range(8)
        ]
    )
    assert compression.same(frame).verdict == verdict


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [((0.4, 0.3, 0.2, 0.1), HOLDS), ((0.1, 0.2, 0.3, 0.4), FAILS), ((0.1, 0.2), OPEN)],
)
def test_attention_gets_more_local_from_layer_to_layer(shares: tuple[float, ...], verdict: str):
    parts = [rows(per_prompt=2, share=near(share, 0.1)).assign(layer=layer) for layer, share in enumerate(shares)]
    assert recordings.localises(pd.concat(parts, ignore_index=True)).verdict == verdict


def test_the_influence_of_all_slots_and_later_steps_is_added_up(monkeypatch: pytest.MonkeyPatch):
    """Two slots by hand: token 1 goes into 0 at step 0, and 3 into 2 at step 1; only later steps count."""
    events = pd.DataFrame(
        {
            "step": [0, 1], "layer": 0, "head": 0, "kind": "merge", "source": [1, 3], "target": [0, 2],
            "key_weight": 0.5, "value_weight": 0.5,
        }
    )  # fmt: skip
    steps = pd.DataFrame({"step": [0, 1, 2], "layer": 0, "head": 0, "tokens_seen": [4, 5, 6], "live_slots": [3, 3, 4]})
    true = np.array([[0.1, 0.2, 0.3, 0.4, 0, 0], [0.1, 0.1, 0.3, 0.2, 0.3, 0], [0.1, 0.3, 0.2, 0.1, 0.2, 0.1]])
    slot = np.array([[0.3, 0, 0.3, 0.4, 0, 0], [0.4, 0, 0.3, 0.0, 0.3, 0], [0.2, 0, 0.5, 0, 0.2, 0.1]])
    tables = {"events": events, "steps": steps}
    run = SimpleNamespace(
        attention_every=1, attention=lambda *_, thinned: (true, slot), select=lambda name, *_: tables[name]
    )
    monkeypatch.setattr(merging, "heads_with_attention", lambda run: [(0, 0)])
    (found,) = merging.influence_rows(run).to_dict("records")
    # Step 1: slot 0 gets 0.4 for tokens 0 and 1 (0.2). Step 2: slot 0 gets 0.2 for 0.4, slot 2 gets 0.5 for 0.3.
    assert found["mass"] == pytest.approx(0.4 + 0.2 + 0.5)
    assert found["true_mass"] == pytest.approx(0.2 + 0.4 + 0.3)
    assert found["off"] == pytest.approx(0.2 + 0.2 + 0.2)
    assert found["slots"] == 2
