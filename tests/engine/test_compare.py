"""Real recorded runs of a tiny model: what the tables say must follow from each other and from the tensors."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvlab.core.choice import MethodChoice
from kvlab.core.contract import method as method_module
from kvlab.core.errors import UserError
from kvlab.core.methods import registered
from kvlab.engine import compare, run
from kvlab.requests.compare import CompareRequest, Progress
from kvlab.requests.repeats import Planting
from kvlab.trace import Run, open_run
from tests.families import ON_ANY_MODEL

PROMPT = (
    "Alice was beginning to get very tired of sitting by her sister on the bank — and of having nothing to do. " * 2
)
NEW = 10
METHODS = tuple(name for name in registered() if name not in ("full", "compose"))


def request_for(folder: Path, *choices: MethodChoice, **fields: object) -> CompareRequest:
    options = {"prompt": PROMPT, "model": str(folder), "choices": choices, "max_new_tokens": NEW}
    return CompareRequest(**(options | fields))


@pytest.fixture(scope="module")
def runs(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    choices = [MethodChoice(method=m, budget=0.3, hyper_parameters=ON_ANY_MODEL.get(m, {})) for m in METHODS]
    choices.append(
        MethodChoice(method="keepkv", budget=0.3, hyper_parameters={"threshold": -1.0, "rule": "paper", "guard": 0.001})
    )
    choices.append(MethodChoice(method="keydiff", budget=0.3, hyper_parameters={"block": 16}))
    paths = compare(request_for(tiny_model_folder, *choices), tmp_path_factory.mktemp("runs"))
    opened = [open_run(path) for path in paths]
    *named, guarded, blocks = opened
    return {run.record.method: run for run in named} | {"keepkv-paper": guarded, "keydiff-blocks": blocks}


def test_the_full_cache_is_run_first_and_agrees_with_itself(runs: dict[str, Run]) -> None:
    assert next(iter(runs)) == "full"
    forced = runs["full"].tokens.query("phase == 'forced'")
    assert forced["kl"].max() < 1e-6
    assert forced["top1_agree"].all()
    assert runs["full"].record.free_text == runs["full"].record.forced_text
    assert len(runs["full"].events) == 0


@pytest.mark.parametrize("name", [*METHODS, "full", "keepkv-paper"])
def test_every_run_is_complete_and_its_text_is_the_prompt(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert run.record.status == "complete"
    assert run.record.decode_tokens_per_second is not None
    prompt = run.tokens.query("phase == 'prompt'")
    assert "".join(prompt["text"][1:]) == PROMPT
    assert prompt["text"].iloc[0] == "<bos>"
    assert len(run.tokens.query("phase == 'forced'")) == NEW
    np.testing.assert_allclose(prompt["logprob"][1:], prompt["logprob_full"][1:], atol=1e-4)


@pytest.mark.parametrize("name", [*METHODS, "full", "keepkv-paper", "keydiff-blocks"])
def test_folding_the_events_gives_the_live_slots(runs: dict[str, Run], name: str) -> None:
    """From events and the prompt alone: a slot leaves once, merges go to slots alive, votes add up, counts agree."""
    run, alive = runs[name], {}
    steps = run.steps.set_index(["step", "layer", "head"])
    events = dict(iter(run.events.groupby(["step", "layer", "head"])))
    for layer, head in {(row.layer, row.head) for row in run.steps.itertuples()}:
        votes: dict[int, float] = {}
        dropped = 0.0
        for step in range(NEW):
            new = range(run.record.prompt_tokens) if step == 0 else [run.record.prompt_tokens + step - 1]
            votes |= dict.fromkeys(new, 1.0)
            rows = events.get((step, layer, head), pd.DataFrame())
            for row in rows.itertuples():
                assert votes[row.source] == row.votes_source
                mine = votes.pop(row.source)
                if row.kind == "evict":
                    dropped += mine
                else:
                    votes[row.target] += mine
            for row in rows.itertuples():
                if row.kind != "evict":
                    assert row.votes_after == pytest.approx(votes[row.target])
            said = steps.loc[(step, layer, head)]
            assert said["live_slots"] == len(votes)
            assert said["max_votes"] == pytest.approx(max(votes.values()))
            assert said["evicted"] + said["merged"] == len(rows)
            assert sum(votes.values()) + dropped == said["tokens_seen"]
        alive[layer, head] = votes
    assert alive


@pytest.mark.parametrize("name", [*METHODS, "full", "keepkv-paper", "keydiff-blocks"])
def test_masses_are_probabilities(runs: dict[str, Run], name: str) -> None:
    steps = runs[name].steps
    total = steps["kept_mass"] + steps["merged_true_mass"] + steps["regret"]
    np.testing.assert_allclose(total, 1.0, atol=1e-4)
    np.testing.assert_allclose(steps["sag"], steps["merged_true_mass"] - steps["merged_mass"], atol=1e-5)
    true, given = runs[name].attention(0, 0)
    np.testing.assert_allclose(true.sum(-1), 1.0, atol=5e-3)
    if name == "less":  # the state beside the slots has the rest
        assert (given.sum(-1) < 1 + 5e-3).all()
    else:
        np.testing.assert_allclose(given.sum(-1), 1.0, atol=5e-3)
    if name in ("kvzap-threshold", "simlayerkv"):  # their windows hold all of so short a prompt
        assert not (steps["evicted"] + steps["merged"]).any()
    # with the native store, packed is the full cache
    if name in ("full", "packed", "sparse", "kvzap-threshold", "simlayerkv"):
        assert steps["output_error"].max() < 1e-4
    else:
        assert steps["output_error"].max() > 1e-3


def test_each_method_is_built_once_per_comparison(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: Counter[str] = Counter()
    build = method_module.build_method

    def counted(method: type[method_module.Method], **hyper_parameters: object) -> method_module.Method:
        built[method.name] += 1
        return build(method, **hyper_parameters)

    monkeypatch.setattr(method_module, "build_method", counted)
    chosen = ("h2o", "keepkv", "gvote")
    choices = [MethodChoice(method=name, budget=0.3) for name in chosen]
    paths = compare(request_for(tiny_model_folder, *choices, max_new_tokens=4), tmp_path)
    assert len(paths) == 4
    assert {name: built[name] for name in chosen} == dict.fromkeys(chosen, 1)


def test_a_state_beside_the_slots_counts_as_one_merged_slot(runs: dict[str, Run]) -> None:
    less, h2o = runs["less"].steps, runs["h2o"].steps
    assert (less["regret"] == 0).all()
    assert (less["merged_mass"] > 0).all()
    assert (h2o["regret"] > 0).all()
    assert (less["max_votes"] == 1).all() and (less["merged"] == 0).all(), "its events are evictions"


def test_only_what_predicts_has_a_prediction_error(runs: dict[str, Run]) -> None:
    later = runs["keepkv"].steps.query("step > 0")
    assert later["score_error"].notna().all()
    assert (later["score_error"] >= 0).all()
    assert runs["h2o"].steps["score_error"].isna().all()


def test_guards_are_counted_in_the_step_they_act_in(runs: dict[str, Run]) -> None:
    steps = runs["keepkv-paper"].steps
    assert steps["guard_activations"].sum() > 0
    assert (steps["guard_activations"] <= steps["merged"]).all()
    assert (runs["keepkv"].steps["guard_activations"] == 0).all()


def test_unit_keys_and_norms(runs: dict[str, Run]) -> None:
    run = runs["keepkv"]
    for states in (run.keys, run.values):
        unit, norm = states(1, 1)
        assert unit.shape == (run.record.prompt_tokens + NEW - 1, run.record.model.head_dim)
        np.testing.assert_allclose(np.linalg.norm(unit.astype(np.float32), axis=1), 1.0, atol=2e-3)
        assert (norm > 0).all()


def test_memory_never_lies_about_compression(runs: dict[str, Run]) -> None:
    full = runs["full"].memory.query("step == @NEW - 1")["live_bytes"].sum()
    for name in METHODS:
        last = runs[name].memory.query("step == @NEW - 1")
        assert (last["allocated_bytes"] >= last["live_bytes"]).all()
        assert (last["peak_bytes"] >= last["allocated_bytes"]).all()
        if name == "vase":  # its 64 newest queries, which count, take as much as its slots of so short a prompt
            assert last["live_bytes"].sum() < 0.7 * full
        elif registered()[name].needs_budget:
            assert last["live_bytes"].sum() < 0.5 * full


@pytest.mark.parametrize("level", ["off", "light"])
def test_lower_levels_record_less_and_decode_the_same(
    tiny_model_folder: Path, tmp_path: Path, runs: dict[str, Run], level: str
) -> None:
    request = request_for(tiny_model_folder, MethodChoice(method="h2o", budget=0.3), level=level)
    recorded = open_run(compare(request, tmp_path)[0])
    assert len(recorded.events) == 0
    assert len(recorded.steps) == (0 if level == "off" else len(runs["h2o"].steps))
    assert not recorded.has_arrays
    last = runs["h2o"].memory.query("step == @NEW - 1").reset_index(drop=True)
    pd.testing.assert_frame_equal(recorded.memory.query("step == @NEW - 1").reset_index(drop=True), last)
    assert recorded.record.free_text == runs["h2o"].record.free_text
    forced, whole = (r.tokens.query("phase == 'forced'")["kl"].to_numpy() for r in (recorded, runs["h2o"]))
    np.testing.assert_allclose(forced, whole, rtol=1e-4, atol=1e-5)  # the rows of the batch differ
    if level == "light":
        counted = ["step", "layer", "head", "live_slots", "evicted", "merged", "budget_slots"]
        pd.testing.assert_frame_equal(recorded.steps[counted], runs["h2o"].steps[counted])


def test_a_cancelled_comparison_keeps_what_it_has(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The runs of a shared pass stop together; those that could not share it never start."""
    reports: list[Progress] = []
    alone = MethodChoice(method="keydiff", budget=0.3, hyper_parameters={"block": 16})
    choices = [MethodChoice(method="h2o", budget=0.3), MethodChoice(method="keepkv", budget=0.3), alone]
    request = request_for(tiny_model_folder, *choices)
    paths = compare(
        request,
        tmp_path,
        progress=reports.append,
        cancelled=lambda: bool(reports) and reports[-1].stage.startswith("decoding"),
    )
    states = [open_run(path).record.status for path in paths]
    assert states == ["cancelled"] * 3
    assert len(open_run(paths[1]).tokens) > 0
    assert all(a.done <= b.done for a, b in itertools.pairwise(reports))


def test_ctrl_c_marks_the_run_cancelled(tiny_model_folder: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage.startswith("decoding"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(request_for(tiny_model_folder, MethodChoice(method="h2o", budget=0.3)), tmp_path, progress=stop)
    (path,) = (path.parent for path in tmp_path.glob("*/run.json"))
    assert open_run(path).record.status == "cancelled"


def test_progress_reaches_its_end(tiny_model_folder: Path, tmp_path: Path) -> None:
    reports: list[Progress] = []
    compare(request_for(tiny_model_folder, MethodChoice(method="h2o", budget=0.3)), tmp_path, progress=reports.append)
    assert reports[-1].done == reports[-1].total


def test_run_from_python(tiny_model_folder: Path, tmp_path: Path) -> None:
    made = run(PROMPT, "zsmerge", "20%", model=str(tiny_model_folder), max_new_tokens=3, root=tmp_path, alpha=0.9)
    assert made.record.hyper_parameters["alpha"] == 0.9
    assert made.record.budget == 0.2
    assert {"step", "layer", "head"} <= set(made.steps.columns)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"prompt": "  \n "}, "prompt is empty"),
        ({"prompt": "x" * 600}, "shorten the prompt to at most"),
        ({"model": "no/such-model"}, "no model 'no/such-model'"),
        ({"choices": (MethodChoice(method="nope"),)}, "no method called 'nope'"),
        ({"device": "cuda"}, "no device 'cuda'"),
    ],
)
def test_bad_requests_get_one_sentence_and_write_nothing(
    tiny_model_folder: Path, tmp_path: Path, fields: dict, sentence: str
) -> None:
    request = (
        request_for(tiny_model_folder, MethodChoice(method="h2o"), **fields)
        if "choices" not in fields
        else (request_for(tiny_model_folder, *fields["choices"]))
    )
    with pytest.raises(ValueError, match=sentence):
        compare(request, tmp_path)
    assert not list(tmp_path.glob("*/run.json"))


def test_an_unsupported_family_says_so(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=32)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'gpt2' are not supported"):
        compare(request_for(tmp_path, MethodChoice(method="h2o")), tmp_path / "runs")


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "x" * 300, "a\nb"])
def test_a_name_that_is_no_folders_is_one_sentence_before_anything_runs(tmp_path: Path, name: str) -> None:
    request = request_for(tmp_path / "no model", MethodChoice(method="h2o"))
    with pytest.raises(UserError, match="Invalid comparison id"):
        compare(request, tmp_path / "runs", comparison_id=name)
    assert not (tmp_path / "runs").exists()


def test_repeats_are_not_one_comparison(tmp_path: Path) -> None:
    request = request_for(tmp_path, MethodChoice(method="h2o"), repeats=(Planting(), Planting(draw=1)))
    with pytest.raises(UserError, match="several comparisons"):
        compare(request, tmp_path)
