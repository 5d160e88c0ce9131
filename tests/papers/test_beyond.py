"""Claims beyond the five papers: what decides each, on rows made up so that the answer is known."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from kvlab.core.methods import make_method
from kvlab.evaluation.request_parser import parse_request
from kvlab.evaluation.results.rows import canonical_json
from kvlab.papers.beyond import recordings
from kvlab.papers.evaluations import Arm
from kvlab.papers.paper_tables import paper_values
from kvlab.papers.registry import SCORES
from kvlab.papers.score_exhibits import TASKS, ScoreExhibit
from kvlab.requests.measurement import command_line
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim
from tests.papers.claim_frames import rows as heads
from tests.papers.test_scores import row

CONTESTS = [one for one in SCORES.values() if one.paper == "beyond"]
BY_NUMBER = {one.slug: one for one in CONTESTS}


def judge(contest: ScoreExhibit, rows: pd.DataFrame) -> Claim:
    return contest.panels[0].judge(rows, "more", paper_values("beyond", contest.slug))


def evaluated(contest: ScoreExhibit, first: float, second: float, count: int = 24, full: float = 1.0) -> pd.DataFrame:
    """`count` prompts a task: right or wrong in that share of them, or a KL about that."""
    found = []
    asked = contest.experiment
    pair = [Arm.parse(arm) for arm in contest.panels[0].claim.pairs[0]]
    for task in asked.tasks:
        for index in range(count):
            arms = list(zip(pair, (first, second), strict=True))
            for arm, value in [*(arm for arm in arms if arm[0].method != "full"), (None, full)]:
                kl = asked.tasks == TASKS["text"]
                score = value * (1 + 0.01 * (index % 3)) if kl else float(index < round(value * count))
                name, options = ("full", {}) if arm is None else (arm.method, arm.published)
                own = {"question_aware": asked.question_aware, "hyper_parameters": canonical_json(options)}
                own["metric"] = "kl" if kl else "exact_match"
                found.append(row(task, name, score, index, asked.budgets[0]) | own)
    return pd.DataFrame(found)


@pytest.mark.parametrize("slug", ["tab-1", "tab-3", "tab-4", "tab-12"])
def test_ahead_means_that_the_whole_interval_is_above_zero(slug: str) -> None:
    contest = BY_NUMBER[slug]
    ahead = judge(contest, evaluated(contest, 0.9, 0.1))
    assert (ahead.verdict, ahead.basis.prompts) == ("holds", 24 * len(contest.experiment.tasks))
    assert ahead.interval is not None and ahead.interval.low > 0 and ahead.threshold is not None
    assert judge(contest, evaluated(contest, 0.1, 0.9)).verdict == "does not hold"
    assert re.search(r"\(\+?[\d.]+ to \+?[\d.]+, n = \d+\)", ahead.finding), ahead.finding
    even = judge(contest, evaluated(contest, 0.5, 0.5))
    assert (even.verdict, even.settle) == ("not enough to say", "more")


def test_of_divergences_the_smaller_is_better() -> None:
    contest = BY_NUMBER["tab-7"]
    assert judge(contest, evaluated(contest, 0.02, 0.06, full=0.0)).verdict == "holds"
    assert judge(contest, evaluated(contest, 0.06, 0.02, full=0.0)).verdict == "does not hold"


def test_a_loss_is_none_up_to_the_margin() -> None:
    contest = BY_NUMBER["tab-9"]
    assert judge(contest, evaluated(contest, 1.0, 1.0, count=100)).verdict == "holds"
    assert judge(contest, evaluated(contest, 0.7, 1.0, count=100)).verdict == "does not hold"
    assert judge(contest, evaluated(contest, 1.0, 1.0, count=4)).verdict == "not enough to say"
    unable = judge(contest, evaluated(contest, 0.0, 0.0, full=0.0))
    assert unable.verdict == "not enough to say" and "full cache itself" in unable.finding


def test_what_was_asked_in_sight_says_nothing_of_what_was_not(tmp_path: Path) -> None:
    contest = BY_NUMBER["tab-1"]
    sources = Sources(tmp_path)
    seen = evaluated(contest, 0.9, 0.1).assign(question_aware=True, name="mine", settings="{}")
    sources.__dict__["evaluations"] = seen
    assert contest.experiment.rows(sources).empty
    unseen = Sources(tmp_path)
    unseen.__dict__["evaluations"] = seen.assign(question_aware=False)
    assert set(contest.experiment.rows(unseen)["method"]) == {"full", "kvzip", "snapkv"}


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda one: one.slug)
def test_the_command_of_a_claim_can_be_run(contest: ScoreExhibit, tmp_path: Path) -> None:
    words = shlex.split(command_line(contest.experiment.needs(Sources(tmp_path)).measurement))
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert options["--question-aware"] == ("yes" if contest.experiment.question_aware else "no")
    request = parse_request(
        model="mini", tasks=options["--tasks"], files=[], methods=options["--methods"], budgets=options["--budgets"],
        lengths=options["--lengths"], depths=None, samples=int(options["--samples"]), seed=0, question_aware="no",
        batch_rows=None, skip_malformed=False,
    )  # fmt: skip
    for choice in request.choices:
        make_method(choice.method, **choice.hyper_parameters).pipeline()
    asked = {(choice.method, canonical_json(choice.hyper_parameters)) for choice in request.choices}
    assert asked == {(arm.method, canonical_json(arm.published)) for arm in contest.experiment.arms}


def test_shares_that_stay_are_told_from_those_that_follow_the_text() -> None:
    stay = heads(per_prompt=6, share=lambda prompt, head: head / 15 + 0.001 * (prompt % 2))
    assert recordings.invariant(stay).verdict == "holds"
    follow = heads(per_prompt=6, share=lambda prompt, head: ((head + 1) * (prompt % 6 + 1) % 7) / 15)
    assert recordings.invariant(follow).verdict == "does not hold"
    assert (
        recordings.invariant(heads(prompts=1, per_prompt=6, share=lambda p, h: h / 15)).verdict == "not enough to say"
    )


def test_later_layers_want_more_only_where_shares_rise() -> None:
    def by_layer(share: list[float]) -> pd.DataFrame:
        frame = heads(per_prompt=len(share), share=lambda prompt, head: share[head])
        return frame.assign(layer=frame["head"], head=0)

    assert recordings.layer_order_correlation(by_layer([0.1, 0.2, 0.3, 0.4])).verdict == "holds"
    assert recordings.layer_order_correlation(by_layer([0.0, 0.1, 0.77, 0.1, 0.03])).verdict == "does not hold"
