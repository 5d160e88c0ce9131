"""Every sentence of every verdict agrees with itself: its number, interval, threshold, n and kind.

They are those of what ships, drawn from its rows anew, and those of constructed rows of 30 layers and 3 heads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.common.intervals import Interval
from kvlab.papers.attention_rows import CUMULATIVE, EMA, LAST, WINDOWED
from kvlab.papers.beyond import recordings as head_shares
from kvlab.papers.evaluations import contest
from kvlab.papers.exhibit import DIFFERENCE, RECORDED, Choice, Drawn, Exhibit
from kvlab.papers.gvote import probe
from kvlab.papers.keepkv import attention, merging
from kvlab.papers.kvmerger import compression, explainers, similarity
from kvlab.papers.pyramid_pool import recordings
from kvlab.papers.registry import EXHIBITS
from kvlab.papers.verdict_figure import card_frame
from kvlab.results.shipped_folder import parse_claim, shipped
from kvlab.results.sources import Sources
from kvlab.results.verdict import (
    FAILS,
    HOLDS,
    LEAST_PROMPTS,
    OPEN,
    Basis,
    Claim,
    Threshold,
    basis_sentences,
    decisive,
    verdict_sentence,
    what_would_change,
)
from kvlab.views.base.provenance import Provenance
from tests.papers.shipped_drawings import draw_shipped

NUMBER = r"([-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)"
WORDS = r"(?: %| points)?(?: lost| gained)?"
INTERVAL = re.compile(rf"{NUMBER}({WORDS}) \({NUMBER}({WORDS}) to {NUMBER}({WORDS}), n = ([\d,]+)\)")
EVERY_N = re.compile(r"n = ([\d,]+)")
FAILURES_OF_WORDS = (r"100 %[^.;]* or more", r"\bnan\b", r"\bNone\b", r"paper\S* settings, not the paper's", r"\binf\b")


class Shown(NamedTuple):
    """A figure's claim, and which figure of which exhibit it is of."""

    exhibit: Exhibit
    figure: str
    claim: Claim


def of_what_ships() -> Iterator[Shown]:
    """Every claim of every exhibit; fails where an exhibit whose results ship is not drawn from them."""
    ships, nowhere = shipped(), Sources(Path("nowhere"))
    assert ships is not None
    measured = bool(list((ships.root / "bench").glob("*.parquet")))
    for exhibit in EXHIBITS:
        if exhibit.source in RECORDED:  # drawn before it shipped, with these claims
            rows = [row for row in ships.drawings(exhibit.key, "light") if row["claim"]]
            found = [Shown(exhibit, row["name"], parse_claim(json.loads(row["claim"]))) for row in rows]
            assert tuple(one.claim for one in found) == ships.claims(exhibit.key, "light"), exhibit.key
            yield from found
        else:
            drawn = draw_shipped(ships, exhibit, nowhere, "light")
            figures = drawn if isinstance(drawn, tuple) else ()
            claims = [Shown(exhibit, one.name, one.claim) for one in figures if one.claim]
            if exhibit.source == "eval":  # the card ships with the verdicts that its rows give
                printed = [claim.finding for claim in ships.claims(exhibit.key, "light")]
                assert [one.claim.finding for one in claims] == printed, exhibit.key
            yield from claims
            # What newer methods claim is judged where it was measured, and ships no results.
            if exhibit.paper != "beyond" and (measured or exhibit.source != "bench"):
                assert isinstance(drawn, tuple), exhibit.key


@pytest.fixture(scope="module")
def walked() -> list[Shown]:
    """Drawing every exhibit takes 15 seconds."""
    return list(of_what_ships())


def number(text: str, words: str) -> float:
    value = float(text.replace(",", ""))
    return -value if "gained" in words else value


def faults(claim: Claim) -> list[str]:
    """What is wrong with one verdict's sentences."""
    sentences = [verdict_sentence(claim, "mini"), what_would_change(claim), *basis_sentences(claim)]
    told = " ".join([claim.finding, *sentences])
    found = [f"says {pattern!r}" for pattern in FAILURES_OF_WORDS if re.search(pattern, told)]
    for mean, at, low, below, high, above, _ in INTERVAL.findall(told):
        if not number(low, below) <= number(mean, at) <= number(high, above):
            found.append(f"{mean} outside {low} to {high}")
    counts = {int(n.replace(",", "")) for n in EVERY_N.findall(claim.finding)}
    if counts and claim.basis.prompts and claim.basis.prompts not in counts:
        found.append(f"rests on {claim.basis.prompts} prompts, and n is {counts}")
    if counts - {1} and re.match(r"One prompt\b", claim.finding):
        found.append("one prompt and several")
    one, held = claim.interval, claim.threshold
    if one is not None and held is not None and claim.verdict == OPEN and not what_would_change(claim):
        found.append("is open, and nothing is said of what would decide it")
    if one is not None:
        if not one.low <= one.mean <= one.high:
            found.append("the mean is outside its interval")
        if claim.basis.prompts and one.n != claim.basis.prompts:
            found.append(f"decided by n = {one.n} and on {claim.basis.prompts} prompts")
        never_counts = held is not None and not held.at_most and claim.verdict == FAILS and one.high <= held.value
        if held is not None and held.side(one) != claim.verdict and not never_counts:
            found.append(f"{claim.verdict}, where {one} and {held.description} say {held.side(one)}")
    return found


def test_what_ships_is_drawn_every_verdict_agrees_with_itself_and_a_claim_has_one(walked: list[Shown]):
    assert len(walked) > 50
    wrong = {f"{one.exhibit.key}: {one.claim.paper}": found for one in walked if (found := faults(one.claim))}
    assert not wrong, wrong
    judged: dict[str, set[tuple[str, str]]] = {}
    for exhibit, _, claim in walked:
        judged.setdefault(claim.paper, set()).add((claim.judged_at or exhibit.key, claim.verdict))
    assert {claim: found for claim, found in judged.items() if len(found) > 1} == {}


def test_a_claim_that_a_number_decides_names_the_number_and_the_paper_s_value_of_it(walked: list[Shown]):
    """Only evaluations have claims without a number of their own: those judge a difference of scores."""
    printed, known = 0, 0
    for exhibit, figure, claim in walked:
        if claim.judged_at or card_frame(claim).empty:
            continue
        measured, values = exhibit.number_of(figure, claim)
        assert exhibit.source == "eval" or not measured.startswith(DIFFERENCE), (exhibit.key, figure)
        assert not claim.part or measured.endswith(claim.part)
        printed, known = printed + bool(values), known + 1
    assert known > 50 and printed > 12


# Rows of another shape than any model that ships


LAYERS, HEADS = 30, 3


def heads_of(prompts: int, **columns: float) -> pd.DataFrame:
    """A row a prompt and head; a number is the mean of values with a tenth of it as deviation, 0 stays 0."""
    random = np.random.default_rng(prompts)
    places = [(f"p{p}", layer, head) for p in range(prompts) for layer in range(LAYERS) for head in range(HEADS)]
    frame = pd.DataFrame(places, columns=["prompt", "layer", "head"])
    return frame.assign(
        **{name: mean * (1 + 0.1 * random.standard_normal(len(frame))) for name, mean in columns.items()}
    )


SHARES = ("overlap", "usage", "inner_overlap", "inner_usage", "covered", "kept", "correlation", "inner_correlation")


def constructed(prompts: int, at: float) -> Iterator[Claim]:
    """The claims of recorded runs, whose numbers lie around `at`."""
    one = heads_of(
        prompts, mass=at, true_mass=1, off=at / 3, merging=at, evicting=1, keys_rise=at, before_rise=at / 9,
        values_rise=at / 20, keys=at, least=at, ever=at, share=at, recorded=at, shuffled=1, ratio=at,
    )  # fmt: skip
    one = one.assign(slots=7, steps=9, sets=3, pairs=1, label="keepkv 20 %", attended=3, heaviest=3)
    yield merging.keeps(one)
    yield similarity.local(one)
    yield similarity.local(one.assign(values_rise=at))
    yield similarity.rotation(one)
    yield similarity.differs(one)
    yield attention.majority(one)
    yield attention.returns(one)
    yield attention.locality(one)
    yield explainers.keeps_more(one)
    yield explainers.pivot_leads(one)
    yield compression.nearer(one)
    yield compression.same(one)
    yield head_shares.invariant(one)
    yield head_shares.layer_order_correlation(one)
    yield recordings.localises(one)
    yield probe.overlap(heads_of(prompts, **dict.fromkeys(SHARES, at)))
    yield probe.judge_correlation(heads_of(prompts, **dict.fromkeys(SHARES, at)))
    errors = heads_of(prompts, **{EMA: at, CUMULATIVE: 1, WINDOWED: at, LAST: at}).assign(kind="mass")
    yield attention.predicts(errors, "mass", "attention")
    sums = heads_of(prompts, before=1, loss=at, moved=at).assign(merges=5, sagging=4)
    for rule in ("convex", "exact", "predicted"):
        rows = pd.concat(
            [sums.assign(rule=rule, label="a"), sums.assign(rule=rule, label="b", loss=0.5 - sums["loss"])]
        )
        yield merging.sags(rows)
        yield merging.exact(rows)
    for trend, newest in ((at, 1), (at, 2)):
        yield recordings.older(heads_of(prompts, trend=trend).assign(newest=newest))
    for explained in (1.0, 0.99996, 0.7):
        line = {"layers": LAYERS, "explained": explained, "ratio": at + 1, "total": 900, "beta": 4.0}
        rows = pd.DataFrame([line | {"prompt": f"p{p}", "sinks": 12, "touched": 0} for p in range(prompts)])
        yield recordings.falls(rows)


@pytest.mark.parametrize("prompts", [1, 2, LEAST_PROMPTS, 12])
@pytest.mark.parametrize("at", [0.001, 0.3, 0.79, 0.9, 1.28, 2.5])
def test_verdicts_on_a_model_of_thirty_layers_agree_with_themselves(prompts: int, at: float):
    wrong = {claim.paper: found for claim in constructed(prompts, at) if (found := faults(claim))}
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("mean", "verdict"), [(1.0, HOLDS), (1.28, FAILS), (0.5, FAILS), (1.24, OPEN)]
)  # fmt: skip
def test_a_number_that_has_to_lie_between_two_is_held_to_both(mean: float, verdict: str):
    between, found = Threshold(0.8, "a fifth", up_to=1.25), Interval(mean, mean - 0.02, mean + 0.02, 8)
    assert between.side(found) == verdict
    assert between.description == "between 0.8 and 1.25: a fifth"


def test_the_part_that_decides_is_the_one_that_is_shown():
    more, less = Threshold(0.1, "more"), Threshold(0.1, "less", at_most=True)
    high, low, wide = (Interval(*bounds, 8) for bounds in ((0.5, 0.4, 0.6), (0.01, 0.0, 0.02), (0.1, 0.0, 0.2)))
    assert decisive([(high, more), (low, less)]) == (HOLDS, high, more)
    assert decisive([(high, more), (high, less)]) == (FAILS, high, less)
    assert decisive([(high, more), (wide, less)]) == (OPEN, wide, less)
    assert decisive([(high, more), (None, less)]) == (OPEN, None, less)


@pytest.mark.parametrize("other", [None, Interval(0.1, -0.1, 0.3, 20), Interval(-0.2, -0.3, -0.1, 9)])
def test_a_contest_shows_the_gap_that_decides_it(other: Interval | None):
    claim = contest("A is better.", {"b": Interval(0.3, 0.2, 0.4, 12), "c": other}, "so much")
    assert claim.interval is other
    assert claim.threshold is not None and (other is None or claim.threshold.side(other) == claim.verdict)


def test_numbers_of_two_prompts_are_not_of_one():
    """A claim that is left open for want of a rule still says how many prompts its numbers are of."""
    sums = heads_of(2, before=1, loss=0.01, moved=0.05).assign(merges=5, sagging=4, rule="predicted", label="keepkv")
    claim = merging.exact(sums)
    assert claim.verdict == OPEN and claim.basis.prompts == 2 and "n = 2" in claim.finding
    exhibit = next(one for one in EXHIBITS if one.key == "keepkv/fig-1")
    one = Drawn("all merges", go.Figure(), sums, "", Provenance(), claim)
    for prompts, begins in ((2, False), (1, True)):
        judged = replace(one, claim=replace(claim, basis=Basis(prompts), finding=claim.finding.replace("n = 2", "")))
        draws = replace(exhibit, drawing=lambda *_, judged=judged: (judged,))
        shown = draws.draw(Sources(Path("x")), Choice(), "light")
        assert isinstance(shown, tuple) and shown[0].claim is not None
        assert shown[0].claim.finding.startswith("One prompt") == begins and shown[0].claim.settle is not None


def test_a_steep_line_never_explains_more_than_all():
    rows = pd.DataFrame({"prompt": [f"p{p}" for p in range(8)], "layers": 30, "explained": 0.99996, "ratio": 2.0,
                         "total": 9, "beta": 4.0, "sinks": 4, "touched": 0})  # fmt: skip
    assert "explains at least 99.9 % of how the budgets vary" in recordings.falls(rows).finding
    assert "explains all of how" in recordings.falls(rows.assign(explained=1.0)).finding


def test_distances_beside_a_correlation_go_its_way():
    """The first layer looks back less than the last, and yet attention gets more local from layer to layer."""
    share = {layer: 0.5 - 0.01 * layer for layer in range(30)} | {0: 0.05, 29: 0.22}
    frame = heads_of(8).assign(share=lambda table: table["layer"].map(share))
    claim = recordings.localises(frame)
    assert claim.interval is not None and claim.interval.mean < 0
    first, second = re.findall(r"([\d.]+) % \(", claim.finding)[-2:]
    assert float(first) > float(second) and "first half of the layers" in claim.finding
