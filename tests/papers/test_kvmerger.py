"""KVMerger's exhibits on tiny recorded runs and on synthetic ones: what is drawn follows from the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvlab.core.choice import MethodChoice
from kvlab.engine import compare
from kvlab.papers.exhibit import Choice, Drawn, Needs
from kvlab.papers.kvmerger import explainers, similarity
from kvlab.papers.kvmerger.merging_sets import (
    Walkthrough,
    eviction_sentence,
    merged_pairs,
    persistence,
    representing_keys,
    walkthrough,
)
from kvlab.papers.kvmerger.similarity import locality_of_states
from kvlab.papers.registry import find
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import command_line
from kvlab.results.sources import Sources
from kvlab.trace import Run, open_run
from kvlab.views.frames.head_states import BEFORE, KEYS, VALUES, head_states, spread_heads
from tests.papers.claim_frames import six_times
from tests.synthetic.runs import write_synthetic_run

PROMPT = "A long time ago an old man and a young man sat on a wall in the sun and spoke of many things. " * 3
RUN_BASED = ("fig-1", "fig-2", "fig-3a", "fig-3b", "fig-3d", "fig-4", "fig-6", "fig-9")
SIGMAS = ("mean_l2", "mean", "paper", 2.0)


@pytest.fixture(scope="module")
def runs(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, ...]:
    """One KVMerger run a rule for sigma, of a random model; keys are merged however unlike they are."""
    options = {"budget": 0.3, "method": "kvmerger"}
    choices = [MethodChoice(**options, hyper_parameters={"loosest": -1.0, "sigma_mode": sigma}) for sigma in SIGMAS]
    request = CompareRequest(prompt=PROMPT, model=str(tiny_model_folder), choices=tuple(choices), max_new_tokens=4)
    return tuple(open_run(path) for path in compare(request, tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def sources(runs: tuple[Run, ...]) -> Sources:
    return Sources(root=runs[0].path.parent, run=runs[1], runs=runs)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Two prompts whose keys keep together along passages, and whose values do not."""
    root = tmp_path_factory.mktemp("synthetic")
    made = [
        open_run(write_synthetic_run(root, prompt_tokens=300, comparison_id=f"text-{seed}", seed=seed, layers=3))
        for seed in (0, 1)
    ]
    return Sources(root=root, run=made[0], runs=(made[0],))


def drawn(slug: str, sources: Sources, choice: Choice | None = None, theme: str = "light") -> tuple[Drawn, ...]:
    found = find("kvmerger", slug).draw(sources, choice or Choice(), theme)
    assert not isinstance(found, Needs), found
    return found


def only(kind: type[Run], sources: Sources) -> Sources:
    """The run in view, read by another kind of reader."""
    assert sources.run is not None
    run = kind(sources.run.path, sources.run.record)
    return Sources(root=sources.root, run=run, runs=(run,))


@pytest.mark.parametrize("slug", RUN_BASED)
def test_without_keys_it_says_what_would_make_them(slug: str, tmp_path: Path) -> None:
    light = open_run(write_synthetic_run(tmp_path, level="light"))
    for sources in (Sources(root=tmp_path), Sources(root=tmp_path, run=light, runs=(light,))):
        found = find("kvmerger", slug).draw(sources, Choice(), "light")
        assert isinstance(found, Needs)
        assert command_line(found.measurement).startswith("kvlab compare")
        assert "--level full" in command_line(found.measurement)


@pytest.mark.parametrize("slug", RUN_BASED)
def test_figures_say_where_they_come_from(slug: str, sources: Sources) -> None:
    for figure in drawn(slug, sources):
        assert figure.figure.layout.title.text
        assert any(run.record.run_id in figure.origin.all_run_ids for run in sources.runs)
        assert len(figure.frame)
        assert "nan" not in figure.caption
        assert figure.claim is None or any(character.isdigit() for character in figure.claim.finding)


def test_recorded_frequencies_take_the_rotation_off(runs: tuple[Run, ...]) -> None:
    """A key of the first layer is a projection of its token alone: unrotated, equal bytes have equal keys."""
    tokens = runs[0].tokens
    ids = tokens.loc[tokens["phase"] == "prompt", "id"].to_numpy()
    states = head_states(runs[0], 0, 1)
    same = np.flatnonzero(ids == ids[5])
    assert len(same) > 5
    before, after = (states[kind][same].astype(np.float32) for kind in (BEFORE, KEYS))
    assert (before @ before.T).min() > 0.999
    assert (after @ after.T).min() < 0.9
    rows = np.linalg.norm(states[BEFORE], axis=1)
    np.testing.assert_allclose(rows, 1, atol=2e-3)


def test_runs_without_frequencies_do_without_that_map(synthetic: Sources) -> None:
    maps, by_distance = drawn("fig-2", synthetic)
    assert set(maps.frame["kind"]) == {KEYS, VALUES}
    assert by_distance.claim is not None
    assert by_distance.claim.verdict == "not enough to say"


def test_locality_of_keys_and_not_of_values_is_found_where_it_is(synthetic: Sources) -> None:
    class Unordered(Run):
        def values(self, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
            unit, norm = super().values(layer, head)
            order = np.random.default_rng(0).permutation(len(unit))
            return unit[order], norm[order]

    sources = only(Unordered, synthetic)
    _, by_distance = drawn("fig-2", sources)
    assert sources.run is not None
    assert similarity.local(six_times(similarity.locality_rows(sources.run))).verdict == "holds"
    keys = by_distance.frame[by_distance.frame["kind"] == KEYS].set_index("offset")["cosine"]
    assert keys[1] > keys[4] > keys[64]


def test_values_that_keep_together_too_contradict_the_paper(synthetic: Sources) -> None:
    class Swapped(Run):
        def values(self, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
            return self.keys(layer, head)

    run = only(Swapped, synthetic).run
    assert run is not None
    assert similarity.local(six_times(similarity.locality_rows(run))).verdict == "does not hold"


def test_means_by_distance_are_those_of_all_pairs() -> None:
    unit = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    matrix = unit @ unit.T
    found = locality_of_states({"keys": unit}, (1, 7, 39, 50))
    expected = [np.diagonal(matrix, offset).mean() for offset in (1, 7, 39)]
    assert found["offset"].tolist() == [1, 7, 39], "the text is too short for 50"
    np.testing.assert_allclose(found["cosine"], expected, atol=1e-6)
    any_pair = (matrix.sum() - np.trace(matrix)) / (40 * 39)
    assert found["any_pair"].tolist() == pytest.approx([any_pair] * 3, abs=1e-6)


def test_neighbours_are_those_of_the_chosen_token(sources: Sources) -> None:
    (figure,) = drawn("fig-3a", sources, Choice(layer=1, head=1, token=30))
    frame = figure.frame
    assert set(frame["token"]) == {30}
    own = frame[(frame["layer"] == 1) & (frame["head"] == 1)].set_index("position")["similarity"]
    unit = sources.run.keys(1, 1)[0].astype(np.float32)
    assert own[33] == pytest.approx(float(unit[30] @ unit[33]), abs=1e-5)
    (three,) = drawn("fig-3a", sources)
    assert three.frame["token"].nunique() == 3


def test_one_line_a_prompt_and_the_order_of_layers_is_compared(synthetic: Sources, sources: Sources) -> None:
    ratio, thresholds = drawn("fig-3b", synthetic)
    assert ratio.frame["prompt"].nunique() == 2
    assert len(ratio.figure.data) == 2
    means = thresholds.frame.groupby("threshold")["ratio"].mean()
    assert means.is_monotonic_increasing
    assert means.between(0, 1).all()
    alone, _ = drawn("fig-3b", sources)
    assert alone.frame["prompt"].nunique() == 1, "all runs of one comparison have one prompt"
    assert alone.claim is not None
    assert alone.claim.verdict == "not enough to say"


def test_persistence_is_about_the_order_alone() -> None:
    layers = pd.DataFrame({"a": [0.1, 0.5, 0.9], "b": [0.2, 0.3, 0.4], "c": [0.9, 0.5, 0.1]})
    np.testing.assert_allclose(persistence(layers), [[1, 1, -1], [1, 1, -1], [-1, -1, 1]])


@pytest.mark.parametrize("sigma", SIGMAS)
def test_real_weights_lie_on_the_kernel_of_their_set(runs: tuple[Run, ...], sigma: object) -> None:
    run = next(run for run in runs if run.record.hyper_parameters.get("sigma_mode") == sigma)
    points = merged_pairs(run, spread_heads(run))
    assert (points["others"] > 1).any()
    # Keys are recorded in half precision.
    assert (points["relative_weight"] - points["kernel"]).abs().max() < 0.02
    assert points["sigma"].nunique() == 1 if sigma == 2.0 else points["sigma"].nunique() > 1


def test_what_was_evicted_beside_merging_is_said(sources: Sources) -> None:
    """Counted from the events, which the sentence is not: it is from the table of steps."""
    run = sources.run_of("kvmerger")
    assert run is not None
    first = run.select("events").query("step == 0")
    heads = len(run.steps.query("step == 0"))
    said = eviction_sentence(run)
    assert f"Of the {len(first) / heads:,.0f} tokens" in said
    assert f" {(first['kind'] == 'evict').sum() / heads:,.0f} were evicted" in said
    by_distance, _ = drawn("fig-3d", sources)
    assert "the paper evicts none" in by_distance.caption
    other = Run(run.path, run.record.model_copy(update={"method": "h2o"}))
    assert eviction_sentence(other) == ""


def test_the_kernel_figure_holds_a_mark_a_token(sources: Sources) -> None:
    by_distance, in_sigmas = drawn("fig-3d", sources)
    marks = [trace for trace in by_distance.figure.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in marks) == len(by_distance.frame)
    assert in_sigmas.claim is not None


def test_the_pipeline_is_the_algorithm_on_these_tokens(runs: tuple[Run, ...]) -> None:
    run = runs[1]
    walk = walkthrough(run, 2, 1)
    tokens = walk.tokens.set_index("position")
    unit = run.keys(2, 1)[0].astype(np.float32)
    for anchor, members in tokens.groupby("set"):
        assert members.index[-1] == anchor
        assert list(members.index) == list(range(members.index[0], anchor + 1))
        assert members["weight"].sum() == pytest.approx(1, abs=1e-5)
        assert members["pivot"].nunique() == 1
        assert members["attention"].idxmax() == members["pivot"].iloc[0]
        assert members["weight"].idxmax() == members["pivot"].iloc[0]
        for position in members.index[:-1]:
            assert float(unit[position] @ unit[anchor]) > walk.threshold
    assert (tokens.groupby("set").size() > 1).sum() >= 2
    shares = walk.tokens["weight"].to_numpy()[:, None] * walk.keys
    first = walk.tokens["set"] == walk.tokens["set"].iloc[0]
    np.testing.assert_allclose(shares[first].sum(0), representing_keys(walk)[0], rtol=1e-4, atol=1e-5)


def test_the_explainer_has_its_stages_as_frames_and_ends_with_the_last(sources: Sources) -> None:
    (figure,) = drawn("fig-4", sources, Choice(layer=2, head=1))
    names = [frame.name for frame in figure.figure.frames]
    assert len(names) == 5
    assert [step.label for step in figure.figure.layout.sliders[0].steps] == names
    assert list(figure.figure.data[2].x) == list(figure.figure.frames[-1].data[2].x)
    weights = figure.figure.frames[3].data[2].x
    np.testing.assert_allclose(weights, figure.frame["weight"], atol=1e-4)


def test_three_ways_leave_what_they_say(sources: Sources) -> None:
    (figure,) = drawn("fig-1", sources, Choice(layer=2, head=1))
    cached, quantised, evicted, merged = (trace.z for trace in figure.figure.data)
    assert len(np.unique(quantised[:, 3])) <= 4, "two bits a channel"
    assert np.abs(quantised - cached).max() <= (cached.max(0) - cached.min(0)).max() / 6 + 1e-5
    assert (~np.isnan(evicted).all(1)).sum() == 3
    assert (~np.isnan(merged).all(1)).sum() == figure.frame["set"].nunique()


def test_the_schematics_are_judged_too(runs: tuple[Run, ...], sources: Sources) -> None:
    walk = walkthrough(runs[0], 2, 1)

    def rows(one: Walkthrough) -> pd.DataFrame:
        return six_times(pd.DataFrame([explainers.window_errors(one)]))

    assert explainers.keeps_more(rows(walk)).verdict in ("holds", "does not hold")
    lost = replace(walk, merged=np.full_like(walk.merged, 1e3))
    assert explainers.keeps_more(rows(lost)).verdict == "does not hold"
    assert explainers.pivot_leads(rows(walk)).verdict == "holds"
    turned = replace(walk, tokens=walk.tokens.assign(attention=-walk.tokens["attention"]))
    assert explainers.pivot_leads(rows(turned)).verdict == "does not hold"
    for slug in ("fig-1", "fig-4"):
        assert drawn(slug, sources, Choice(layer=2, head=1))[0].claim is not None


def test_walls_show_every_head_of_every_kind(sources: Sources) -> None:
    walls = drawn("fig-6", sources)
    assert [wall.name for wall in walls] == [KEYS, BEFORE, VALUES]
    assert all("Mistral-7B-Instruct" in wall.caption for wall in walls)
    assert [len(wall.frame) for wall in walls] == [6, 6, 6]
    assert walls[0].claim is not None
    assert walls[1].claim is None
