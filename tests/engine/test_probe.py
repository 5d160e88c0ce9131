"""The probe measures what GVote does: the same samples, the same kept slots, the same attention as the recorded run."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.compare import compare
from kvlab.engine.probe import SHOWN_CHANNELS, HiddenStatistics
from kvlab.models.load import LoadedModel, load_model
from kvlab.requests.compare import CompareRequest
from kvlab.trace import Run, open_run
from kvlab.trace.schema import PROBE_ARRAYS
from tests.families import tiny_folder
from tests.synthetic.hidden_states import hidden_statistics

OPTIONS = {"samples": 5, "p_nuc": 0.5, "recent": 6}
PROMPT = "The harbour lamp was lit at seven, and the old captain counted the boats as they came in."


@pytest.fixture(scope="module")
def loaded(tiny_model_folder: Path) -> LoadedModel:
    return load_model(str(tiny_model_folder), "cpu", "float32")


@pytest.fixture(scope="module")
def runs(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    choices = (
        MethodChoice(method="full", budget=1.0),
        MethodChoice(method="gvote", budget=1.0, hyper_parameters=OPTIONS),
    )
    request = CompareRequest(prompt=PROMPT, choices=choices, max_new_tokens=7, seed=3)
    return [open_run(path) for path in compare(request, tmp_path_factory.mktemp("runs"), loaded=loaded)]


def test_the_probe_lies_in_the_first_run_only_and_older_runs_say_so(runs: list[Run]):
    assert all(runs[0].has_probe(name) for name in ("history", "hidden", "sampled"))
    assert not runs[1].has_probe("hidden")
    with pytest.raises(UserError, match="has no probe"):
        runs[1].probe("hidden", 0)


def test_what_the_probe_keeps_is_what_gvote_keeps(runs: list[Run]):
    """The last union is the share of the prompt that the run of gvote held after it, in every layer and head."""
    first = runs[1].steps[runs[1].steps["step"] == 0].set_index(["layer", "head"])["live_slots"]
    for (layer, head), slots in first.items():
        union = runs[0].probe("sampled", layer)["union"][head]
        assert union[-1] == pytest.approx(slots / runs[0].record.prompt_tokens, abs=2e-3)
        assert (np.diff(union) >= 0).all()


def test_ballots_are_gvotes_own(runs: list[Run], loaded: LoadedModel):
    cache = make_cache(loaded, "gvote", seed=3, floors=False, **OPTIONS)
    with torch.inference_mode():
        loaded.model(loaded.encode(PROMPT), past_key_values=cache)
    for layer in cache.compressed_layers():
        assert layer.slots is not None
        ballots = runs[0].probe("sampled", layer.layer_idx)["ballots"]
        for head in range(ballots.shape[0]):
            slots = layer.slots.valid[0, head]
            kept = layer.slots.position[0, head][slots].numpy()
            chosen = np.flatnonzero(ballots[head])
            assert set(chosen) <= set(kept)
            assert set(kept) - set(chosen) <= {ballots.shape[1] - 1}  # the newest always stays


def test_history_holds_the_attention_that_the_run_recorded(runs: list[Run]):
    """Row by row the recorder's true mass; a token has an exp score exactly where a query could look at it."""
    for layer in range(3):
        for head in range(2):
            mass, score = (rows.astype(np.float64) for rows in runs[0].history(layer, head))
            recorded = runs[0].attention(layer, head)[0].astype(np.float64)
            steps, tokens = recorded.shape
            first = min(64, runs[0].record.prompt_tokens) - 1
            np.testing.assert_allclose(mass[first : first + steps, :tokens], recorded, atol=2e-3)
            np.testing.assert_allclose(mass.sum(1), 1, atol=1e-2)
            visible = np.arange(mass.shape[1]) <= np.arange(mass.shape[0])[:, None] + mass.shape[1] - mass.shape[0]
            assert (np.isneginf(score) == ~visible).all()


def test_overlaps_and_shares_are_shares(runs: list[Run]):
    for layer in range(3):
        sampled = runs[0].probe("sampled", layer)
        for name in ("overlap", "usage", "inner_overlap", "covered", "future", "union"):
            assert (sampled[name] >= 0).all() and (sampled[name] <= 1.002).all(), name
        assert (np.diff(sampled["covered"]) >= -1e-3).all()  # more samples never cover less
        np.testing.assert_allclose(sampled["covered"][:, -1], sampled["future"][:, 0], atol=2e-3)
        np.testing.assert_allclose(sampled["true"].sum(1), 1, atol=1e-2)


def distance_to_normal(values: np.ndarray) -> float:
    """The Kolmogorov-Smirnov statistic, from its definition: just before and just after each value."""
    ordered = np.sort(values)
    normal = np.array([statistics.NormalDist().cdf(value) for value in ordered])
    after = np.arange(1, len(ordered) + 1) / len(ordered)
    return max(np.abs(after - normal).max(), np.abs(after - 1 / len(ordered) - normal).max())


def test_hidden_statistics_agree_with_their_definitions():
    states = torch.distributions.Gamma(3.0, 1.0).sample((500, 20)) * torch.arange(1, 21)
    states[:4] *= 1000  # sinks, which must not count
    found = {name: tensor.numpy() for name, tensor in hidden_statistics(states, 4).items()}
    inner = states[4:].double().numpy()
    normal = (inner - inner.mean(0)) / inner.std(0, ddof=1)
    np.testing.assert_allclose(found["skew"], (normal**3).mean(0), rtol=1e-3)
    np.testing.assert_allclose(found["kurtosis"], (normal**4).mean(0) - 3, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["distance"], [distance_to_normal(column) for column in normal.T], atol=1e-5)
    assert (found["kurtosis_with_sinks"] > 50).all()
    assert found["histogram"].shape == (1 + SHOWN_CHANNELS, 48)
    np.testing.assert_allclose(found["histogram"].sum(1) * 0.25, 1, atol=1e-3)


def test_a_prompt_of_a_few_tokens_is_probed_without_samples(loaded: LoadedModel, tmp_path: Path):
    request = CompareRequest(prompt="Hi", choices=(MethodChoice(method="gvote"),), max_new_tokens=2)
    run = open_run(compare(request, tmp_path, loaded=loaded)[0])
    assert run.has_probe("history") and not run.has_probe("sampled")


def test_light_runs_are_not_probed(loaded: LoadedModel, tmp_path: Path):
    request = CompareRequest(prompt=PROMPT, choices=(MethodChoice(method="h2o"),), max_new_tokens=2, level="light")
    assert not open_run(compare(request, tmp_path, loaded=loaded)[0]).has_probe("history")


def probed(folder: Path, root: Path, chunk: int | None) -> tuple[Run, int]:
    """The first run of a comparison, and the most tokens that the model read in one pass."""
    loaded = load_model(str(folder), "cpu", "float32")
    passes: list[int] = []
    loaded.model.register_forward_pre_hook(
        lambda module, given, named: passes.append(given[0].shape[1]), with_kwargs=True
    )
    request = CompareRequest(
        prompt=PROMPT, choices=(MethodChoice(method="h2o"),), max_new_tokens=9, prefill_chunk=chunk
    )
    return open_run(compare(request, root, loaded=loaded)[0]), max(passes)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss", "falcon-alibi"])
def test_the_probe_honours_the_chunk_with_the_same_result(family: str, tmp_path: Path):
    """Chunks of 13 tokens: the probed queries come in eight passes, and the prompt ends inside one of them."""
    folder = tiny_folder(tmp_path / "model", family)
    whole, longest = probed(folder, tmp_path / "whole", None)
    chunked, short = probed(folder, tmp_path / "chunked", 13)
    assert (longest, short) == (whole.record.prompt_tokens, 13)
    names = sorted(path.name for path in (whole.path / "arrays").iterdir())
    assert names == sorted(path.name for path in (chunked.path / "arrays").iterdir())
    for name in (name for name in names if name.split("-")[0] in PROBE_ARRAYS):
        expected, given = (load_file(run.path / "arrays" / name) for run in (whole, chunked))
        assert expected.keys() == given.keys()
        for key in expected:
            both = (tensors[key].astype(np.float64) for tensors in (given, expected))
            np.testing.assert_allclose(*both, rtol=2e-3, atol=2e-3, err_msg=f"{family} {name} {key}")


@pytest.mark.parametrize("cuts", [(3,), (100, 101, 350), (499,)])
def test_hidden_statistics_do_not_depend_on_how_the_states_come(cuts: tuple[int, ...]):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(500, 8, generator=generator).exp() + 30 * torch.arange(8)
    gathered = HiddenStatistics(500, 4)
    for part in states.tensor_split(list(cuts)):
        gathered.add(part)
    found = gathered.statistics()
    for name, expected in hidden_statistics(states, 4).items():
        torch.testing.assert_close(found[name], expected, rtol=2e-4, atol=2e-4, msg=name)
