"""GVote's exhibits: what each computes, on arrays whose answer is known and on probed runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvlab.core.choice import MethodChoice
from kvlab.engine.compare import compare
from kvlab.models.load import load_model
from kvlab.papers.evaluations import Experiment
from kvlab.papers.exhibit import Choice, Needs
from kvlab.papers.gvote import probe, scores
from kvlab.papers.gvote import probe_figures as figures
from kvlab.papers.registry import find
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import command_line
from kvlab.results.shipped_folder import shipped
from kvlab.results.sources import Sources
from kvlab.trace import Run, RunWriter, open_run
from tests.papers.claim_frames import six_times
from tests.papers.drawing import drawn
from tests.papers.evaluations import can_be_run, evaluated
from tests.papers.shipped_drawings import draw_shipped
from tests.synthetic.runs import write_synthetic_run

PROMPT = "The harbour lamp was lit at seven; the harbour lamp was lit at eight, and nobody knew who lit it at nine."
PROBED = ("fig-2", "fig-3a", "fig-3b")


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    root = tmp_path_factory.mktemp("synthetic")
    runs = [open_run(write_synthetic_run(root, method=name, prompt_tokens=200, steps=12)) for name in ("full", "gvote")]
    return Sources(root, runs[1], runs)


@pytest.fixture(scope="module")
def recorded(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    root = tmp_path_factory.mktemp("recorded")
    loaded = load_model(str(tiny_model_folder), "cpu", "float32")
    request = CompareRequest(prompt=PROMPT, choices=(MethodChoice(method="gvote", budget=1.0),), max_new_tokens=6)
    runs = [open_run(path) for path in compare(request, root, loaded=loaded)]
    return Sources(root, runs[0], runs)


def run_with(root: Path, name: str, arrays: dict[str, np.ndarray]) -> Run:
    """A run that holds nothing but one probed layer."""
    record = open_run(write_synthetic_run(root / "other", prompt_tokens=8, steps=1)).record
    writer = RunWriter(root, record.model_copy(update={"run_id": "probed", "status": "running"}))
    writer.write_arrays(name, 0, arrays)
    writer.finish("complete")
    return open_run(writer.path)


@pytest.mark.parametrize("slug", PROBED)
def test_probed_exhibits_are_drawn_from_a_synthetic_comparison(synthetic: Sources, slug: str):
    drawn(find("gvote", slug), synthetic, Choice(layer=1, head=1))


@pytest.mark.parametrize("slug", PROBED)
def test_probed_exhibits_are_drawn_from_a_recorded_run(recorded: Sources, slug: str):
    drawn(find("gvote", slug), recorded, Choice(layer=2, head=1))


@pytest.mark.parametrize("slug", PROBED)
def test_runs_without_a_probe_name_the_command(synthetic: Sources, tmp_path: Path, slug: str):
    """Those of before the probe, and none at all."""
    for sources in (Sources(tmp_path), Sources(tmp_path, synthetic.runs[1], synthetic.runs[1:])):
        found = find("gvote", slug).draw(sources, Choice(), "light")
        assert isinstance(found, Needs)
        assert "gvote" in command_line(found.measurement)


# figure 2


def states(kind: str, rows: int = 4000, channels: int = 24) -> np.ndarray:
    random = np.random.default_rng(0)
    return {"normal": random.standard_normal, "heavy": lambda size: random.standard_t(4, size)}[kind]((rows, channels))


@pytest.mark.parametrize(("kind", "verdict"), [("normal", "holds"), ("heavy", "does not hold")])
def test_normal_states_are_found_normal_and_heavy_tails_are_not(tmp_path: Path, kind: str, verdict: str):
    torch = pytest.importorskip("torch")
    from tests.synthetic.hidden_states import hidden_statistics

    arrays = hidden_statistics(torch.from_numpy(states(kind)), 4)
    run = run_with(tmp_path, "hidden", {name: tensor.numpy() for name, tensor in arrays.items()})
    moments = figures.channels(run)
    assert moments["close"].mean() == pytest.approx({"holds": 1, "does not hold": 0}[verdict], abs=0.25)
    assert probe.gaussian(six_times(probe.channel_rows(run))).verdict == verdict
    density, pairs = figures.channel_shapes(run, 0)
    together = density[density["channel"] == figures.ALL]
    assert (together["density"].sum() * 0.25) == pytest.approx(1, abs=0.01)
    off = (pairs["quantile"] - pairs["normal"])[pairs["channel"] == figures.ALL].abs().max()
    assert (off < 0.03) == (kind == "normal")


# figure 3


def test_correlation_is_pearsons():
    random = np.random.default_rng(1)
    x = random.random(500)
    assert figures.pearson(x, 3 * x + 1) == pytest.approx(1)
    assert figures.pearson(x, -x) == pytest.approx(-1)
    assert abs(figures.pearson(x, random.random(500))) < 0.15
    assert np.isnan(figures.pearson(x, np.ones(500)))


def test_by_head_averages_the_samples_and_reads_the_last_union(synthetic: Sources):
    run = synthetic.runs[0]
    table = figures.by_head(run).set_index(["layer", "head"])
    for layer in range(2):
        arrays = run.probe("sampled", layer)
        for head in range(2):
            row = table.loc[(layer, head)]
            assert row["overlap"] == pytest.approx(arrays["overlap"][head].mean())
            assert row["kept"] == pytest.approx(arrays["union"][head, -1])
            true, mean = arrays["true"][head], arrays["synthetic"][head]
            assert row["correlation"] == pytest.approx(np.corrcoef(true, mean)[0, 1], abs=1e-6)


def test_more_samples_keep_and_cover_more(recorded: Sources):
    run = probe.probed_run(recorded, "sampled")
    assert isinstance(run, Run)
    grown = figures.growth(run)
    assert (grown[["kept", "covered"]].diff().dropna() >= -1e-3).all(axis=None)
    assert (grown["kept_low"] <= grown["kept_high"]).all()
    later = drawn(find("gvote", "fig-3a"), recorded)[-1].frame
    assert later["covered"].iloc[0] == pytest.approx(grown["covered"].iloc[-1], abs=2e-3)


# figures 1 and 4 to 7

EXPERIMENTS = (scores.BY_LENGTH, scores.BY_TASK, scores.BY_MODEL, scores.SAMPLES, scores.NUCLEUS)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_the_stated_evaluations_can_be_run(experiment: Experiment, tmp_path: Path):
    can_be_run(experiment, tmp_path)


@pytest.mark.parametrize(("kept", "verdict"), [(0.1, "holds"), (0.3, "does not hold")])
def test_half_the_memory_is_measured_at_the_same_score(tmp_path: Path, kept: float, verdict: str):
    """Budgets score what they keep; GVote scores 0.3, for which they need 30 %."""
    sources = evaluated(
        tmp_path,
        scores.ARMS,
        lambda arm, budget, index: (0.3, kept) if arm.method == "gvote" else (budget, budget),
        (0.1, 0.5),
        ("needle", "key_value"),
    )
    for slug in ("fig-1", "fig-4"):
        claim = drawn(find("gvote", slug), sources)[0].claim
        assert claim is not None and claim.verdict == verdict
    (found,) = drawn(find("gvote", "fig-5"), sources)
    assert found.claim is not None and found.claim.verdict == "not enough to say"  # one model shows nothing


@pytest.mark.parametrize(
    ("slug", "experiment", "option"), [("fig-6", scores.SAMPLES, "samples"), ("fig-7", scores.NUCLEUS, "p_nuc")]
)
def test_options_are_drawn_in_the_order_of_their_values(tmp_path: Path, slug: str, experiment: Experiment, option: str):
    values = [arm.options[option] for arm in experiment.arms]
    sources = evaluated(
        tmp_path,
        experiment.arms[::-1],
        lambda arm, budget, index: (values.index(arm.options[option]) / 10, values.index(arm.options[option]) / 9),
    )
    (found,) = drawn(find("gvote", slug), sources)
    assert found.frame[option].drop_duplicates().tolist() == [str(value) for value in values]
    assert found.claim is not None and found.claim.verdict == "holds"


def test_a_panel_shows_more_than_the_full_cache(tmp_path: Path):
    sources = evaluated(tmp_path, scores.BY_LENGTH.arms, lambda arm, budget, index: (0.5, budget))
    rows = sources.evaluations
    alone = rows[rows["method"] == "full"].assign(length=9999)
    sources.__dict__["evaluations"] = pd.concat([rows, alone], ignore_index=True)
    shown = drawn(find("gvote", "fig-1"), sources)[0].frame
    assert len(shown) and "9,999 tokens" not in set(shown["task"])


def test_panels_by_length_are_in_the_order_of_lengths():
    shown = draw_shipped(shipped(), find("gvote", "fig-1"), Sources(Path("nowhere")), "light")
    titles = [one.text for one in shown[0].figure.layout.annotations if one.text.endswith(" tokens")]
    assert len(titles) > 1 and titles == sorted(titles, key=lambda text: int(text.split()[0].replace(",", "")))
