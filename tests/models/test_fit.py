"""`kvlab fit --method kvzap`: what it learns from, how it learns, and a job that is stopped and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from kvlab import jobs
from kvlab.cli import commands
from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.fitted.kinds import SCORE_HEADS
from kvlab.jobs.work import read_request
from kvlab.models.fitting import kvzap
from kvlab.models.fitting.fit import fit
from kvlab.models.fitting.kvzap import fit_head, judge, watch
from kvlab.models.fitting.request import FitJob, FitRequest, fitted_file
from kvlab.models.load import LoadedModel, load_model, prepare
from tests.cache.layers import draw
from tests.cache.test_second_pass import ASK, Watch, lab, text
from tests.families import tiny_model
from tests.jobs.by_hand import cancelled_after, work_off


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus" / "books"
    folder.mkdir(parents=True)
    (folder / "one.txt").write_text("It was the best of times, it was the worst of times. " * 200)
    return folder.parent


@pytest.mark.parametrize("target", ["kvzip", "kvzip+"])
def test_targets_are_the_logarithm_of_what_a_second_reading_gives(target: Any) -> None:
    """Max over the repetition's queries and the group; for KVzip+ of A_ij |W_o v_j| / |h_i|, written out."""
    model, ids = lab(), text()
    request = FitRequest(target=target, tokens=1000)
    torch.manual_seed(0)
    found = watch(model, ids, request, 0)
    order = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(0))
    given: dict[int, Tensor] = {}
    for number, layer in enumerate(model.model.model.layers):
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, named, number=number: given.update({number: named["hidden_states"][0]}),
            with_kwargs=True,
        )
    full, seen = make_cache(model, "full"), Watch()
    again = torch.tensor([ASK + ids[0, 1:].tolist()])
    with torch.inference_mode():
        model.model(ids, past_key_values=full)
        states, values = (
            dict(given),
            {n: layer.slots.values[0].clone() for n, layer in enumerate(full.compressed_layers())},
        )
        full.settings.observer = seen
        model.model(again, past_key_values=full)
    for number, (learned, scores) in found.items():
        torch.testing.assert_close(learned.float(), states[number][order], atol=2e-3, rtol=2e-3)
        weight = model.model.model.layers[number].self_attn.o_proj.weight.detach()
        mass = seen.mass[number]
        heads = len(mass)
        for h in range(2):
            for place, token in enumerate(order.tolist()):
                best = 0.0
                for q in range(h * heads // 2, (h + 1) * heads // 2):
                    for row in range(again.shape[1]):
                        weighed = float(mass[q, row, token])
                        if target == "kvzip+":
                            d = values[number].shape[-1]
                            out = weight[:, q * d : (q + 1) * d] @ values[number][h, token]
                            weighed *= float(out.norm()) / float(given[number][row].norm())
                        best = max(best, weighed)
                assert float(scores[place, h]) == pytest.approx(torch.tensor(best).log().item(), abs=2e-3)
        break  # one layer tells


def test_a_linear_network_finds_a_linear_truth_and_two_layers_a_bent_one() -> None:
    states, fresh, slope = draw(1, 3000, 32), draw(3, 500, 32), draw(2, 32, 2)
    level = torch.tensor([3.0, -5.0])
    straight = fit_head(states, states @ slope + level, FitRequest(form="linear"), 0)
    assert judge(straight, fresh, fresh @ slope + level).explained > 0.999
    bent, wanted = (2 * rows[:, :1].abs() - 4 for rows in (states, fresh))
    line, curve = (fit_head(states, bent, FitRequest(form=form, epochs=120), 0) for form in ("linear", "mlp"))
    assert judge(line, fresh, wanted).explained < 0.1 < 0.6 < judge(curve, fresh, wanted).explained


def test_a_fit_is_cancelled_goes_on_and_ends_as_if_never_stopped(
    tmp_path: Path, books: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = FitRequest(model=str(tiny_model_folder), device="cpu", corpus=books, windows=4, length=256, epochs=2)
    job = FitJob(name="mine", request=asked)
    assert read_request(job.model_dump_json()) == job
    first, read = jobs.submit(tmp_path, job), []
    watched = kvzap.watch
    monkeypatch.setattr(kvzap, "watch", lambda *given: read.append(given[3]) or watched(*given))
    with cancelled_after(2, tmp_path, first):
        work_off(tmp_path)
    assert jobs.status(tmp_path, first).state == "cancelled" and not fitted_file(tmp_path, "mine").exists()
    again = jobs.submit(tmp_path, job)
    work_off(tmp_path)
    assert jobs.status(tmp_path, again).state == "complete", jobs.status(tmp_path, again).message
    assert read == [0, 1, 2, 3]
    whole = jobs.submit(tmp_path, job.model_copy(update={"name": "whole"}))
    work_off(tmp_path)
    assert jobs.status(tmp_path, whole).state == "complete"
    cut, uncut = (SCORE_HEADS.read(fitted_file(tmp_path, name))[0] for name in ("mine", "whole"))
    for layer, head in uncut.items():
        for name, tensor in head.tensors().items():
            assert torch.equal(tensor, cut[layer].tensors()[name])
    other = jobs.submit(tmp_path, job.model_copy(update={"request": asked.model_copy(update={"seed": 1})}))
    work_off(tmp_path)
    assert "Another fit is called mine" in jobs.status(tmp_path, other).message


def test_the_command_says_how_to_use_what_it_wrote(tmp_path: Path, books: Path, tiny_model_folder: Path) -> None:
    out = tmp_path / "heads.safetensors"
    told = CliRunner().invoke(
        commands,
        ["fit", "--model", str(tiny_model_folder), "--device", "cpu", "--corpus", str(books), "--set", "windows=2",
         "--set", "length=256", "--set", "form=linear", "--out", str(out)],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    assert f"use it with kvzap:heads={out}" in told.output
    with pytest.raises(UserError, match="--method cannot be 'h2o'"):
        CliRunner().invoke(commands, ["fit", "--method", "h2o"], catch_exceptions=False)
    model = LoadedModel(prepare(tiny_model("llama")), None, "other")
    with pytest.raises(UserError, match="not fitted to these weights"):
        make_cache(model, "kvzap", 0.3, heads=str(out))


def test_query_statistics_are_measured_by_command_and_stop_when_asked(
    tmp_path: Path, books: Path, tiny_model_folder: Path
) -> None:
    out, shared = tmp_path / "queries.safetensors", {"corpus": books, "windows": 2, "length": 256}
    told = CliRunner().invoke(
        commands,
        ["fit", "--method", "qfilter", "--model", str(tiny_model_folder), "--device", "cpu", "--corpus", str(books),
         "--set", "windows=2", "--set", "length=256", "--out", str(out)],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    assert f"use it with qfilter:queries={out}" in told.output
    model = load_model(str(tiny_model_folder), device="cpu")
    for method in ("triattention", "qfilter"):  # one file is both methods'
        make_cache(model, method, 0.3, queries=str(out))
    request = FitRequest(method="triattention", model=str(tiny_model_folder), **shared)
    stopped = tmp_path / "stopped.safetensors"
    fit(request, stopped, cancelled=lambda: True)
    assert not stopped.exists()
