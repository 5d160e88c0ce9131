"""Claims are judged under the papers' settings, and say so where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.core.methods import make_method, registered
from kvlab.papers.evaluations import Arm, Experiment, origin_of
from kvlab.papers.evidence import comparison
from kvlab.requests.measurement import command_line
from kvlab.results.sources import Sources
from kvlab.trace.reader import open_run
from kvlab.views.base import provenance
from kvlab.views.base.provenance import Provenance, join_sources, of_run
from tests.papers.evaluations import evaluated
from tests.synthetic.runs import write_synthetic_run

ARMS = (Arm("h2o"), Arm("keepkv", {"threshold": 0.7}))


def test_the_methods_without_a_paper_are_those_without_its_preset():
    without = [name for name, method in registered().items() if provenance.PAPER not in method.presets]
    assert sorted(without) == sorted(provenance.WITHOUT_PAPER)


def test_every_method_named_by_an_exhibit_is_run_under_its_papers_settings(tmp_path: Path):
    command = command_line(comparison(Sources(tmp_path), ["h2o", "keepkv:rule=votes", "window", "keepkv:preset=code"]))
    assert "h2o:preset=paper,keepkv:preset=paper:rule=votes,window,keepkv:preset=code" in command
    made = make_method("keepkv", preset="paper", threshold=0.7)
    assert make_method("keepkv", **ARMS[1].published) == made
    assert ARMS[1].label == "keepkv:threshold=0.7"


def test_rows_under_the_papers_settings_are_preferred_and_others_are_named(tmp_path: Path):
    experiment = Experiment("one", ARMS)
    theirs = evaluated(tmp_path / "theirs", ARMS, lambda arm, budget, index: (1.0, budget))
    assert str(origin_of(experiment.rows(theirs))).endswith(provenance.PUBLISHED)
    ours = evaluated(tmp_path / "ours", [Plain(arm.method, arm.options) for arm in ARMS], lambda a, b, i: (0.5, b))
    assert str(origin_of(experiment.rows(ours))).endswith("under kvlab's default settings, not preset=paper")
    assert origin_of(experiment.rows(ours)).settings.startswith("under kvlab's default")
    assert len(experiment.scores(ours)) == len(experiment.scores(theirs)) > 0


class Plain(Arm):
    """An arm that somebody evaluated under the defaults."""

    @property
    def published(self) -> dict:
        return dict(self.options)


@pytest.mark.parametrize(
    ("departures", "words"),
    [
        (None, "not compared with the paper's"),
        ({}, provenance.PUBLISHED),
        (
            {"recent": 0.8, "rule": "paper"},
            "default settings, not the paper's: recent 0.5, not 0.8; rule bias, not paper",
        ),
    ],
)
def test_a_run_says_which_settings_it_ran_under(tmp_path: Path, departures: dict | None, words: str):
    run = open_run(write_synthetic_run(tmp_path, method="keepkv"))
    own = {"hyper_parameters": {"recent": 0.5, "rule": "bias"}, "departures": departures}
    run.record = run.record.model_copy(update=own)
    assert words in of_run(run).settings


def test_a_provenance_is_rendered_as_one_line_and_keeps_what_it_names(tmp_path: Path):
    paths = [write_synthetic_run(tmp_path, method=method) for method in ("h2o", "keepkv")]
    first, second = (of_run(open_run(path)) for path in paths)
    both = join_sources(first.at("layer 1, head 0"), second)
    assert str(both) == f"layer 1, head 0 · {first}; {second}"
    assert both.all_run_ids == {path.name for path in paths}
    assert both.short.startswith("run h2o")
    assert not Provenance() and Provenance("text").short == "text"
