"""On a server with a lab file nothing that a request says is opened as a path, nor told whether it exists."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from kvlab import jobs
from kvlab.bench.request import BenchJob, BenchRequest
from kvlab.common.formatting import hide_paths
from kvlab.common.lab import VARIABLE
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.fitted import files
from kvlab.core.fitted.kinds import MAPS, PROFILES, SCORE_HEADS
from kvlab.evaluation.request import EvalJob, EvalRequest, FileChoice, TaskChoice
from kvlab.forms import eval_form, prompt_files
from kvlab.jobs.access_check import under_own_name
from kvlab.jobs.work import Work
from kvlab.models.fitting.request import FitJob, FitRequest, fitted_file
from kvlab.models.info.names import check_model, context_length
from kvlab.models.load import load_model
from kvlab.planning.choices import local_models, model_field_help
from kvlab.requests.compare import CompareRequest, ImportRequest, RestoreRequest
from kvlab.trace.user_labels import load_labels
from tests.families import tiny_folder

H2O = MethodChoice(method="h2o")
LAB = """
people = {{way = "proxy"}}
models = {{folders = ["{models}"], hub = ["Qwen/Qwen3-0.6B"]}}
"""


@pytest.fixture
def server(tmp_path: Path, write_lab: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs of a server that offers one model, `own`; another lies beside it and is not offered."""
    tiny_folder(tmp_path / "models" / "own")
    shutil.copytree(tmp_path / "models" / "own", tmp_path / "elsewhere")
    monkeypatch.delenv("KVLAB_MODELS", raising=False)
    write_lab(LAB.format(models=tmp_path / "models"))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def sentence(attempt: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        attempt()
    return str(error.value)


def test_the_list_of_models_is_all_there_is(server: Path, tmp_path: Path) -> None:
    assert local_models(server) == ["mini", "Qwen/Qwen3-0.6B", "own"]
    assert check_model(" own ") == "own" and context_length("own")
    there, missing = str(tmp_path / "elsewhere"), str(tmp_path / "nowhere")
    for asks in (check_model, lambda name: load_model(name, device="cpu")):
        names = (there, missing)
        said = [sentence(lambda asks=asks, name=name: asks(name)).replace(name[:80], "NAME") for name in names]
        assert said[0] == said[1] and "has no model 'NAME'" in said[0]
        assert str(tmp_path) not in said[0]
    assert context_length(there) is None  # what a form asks while it is typed into reads nothing either
    assert check_model("Qwen/Qwen3-0.6B") and "has no model" in sentence(lambda: check_model("Qwen/Qwen3-1.7B"))


def test_forms_say_what_can_be_named(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_field_help() == "mini, Qwen/Qwen3-0.6B, own"
    monkeypatch.delenv(VARIABLE)
    assert model_field_help() == "mini, smollm2, a folder saved by transformers, a GGUF file, a hub name"


@pytest.mark.parametrize("kind", ["evaluation", "benchmark"])
def test_what_the_atlas_queues_is_each_person_s_own(
    kind: Literal["evaluation", "benchmark"], server: Path, act_as: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The card's name for the first, numbered for the others, and the same again for each; nobody is refused."""
    from app.papers.measure_button import submit  # it sets who asks

    monkeypatch.setenv("KVLAB_RUNS", str(server))
    monkeypatch.setattr("app.papers.measure_button.submit_job", lambda work: jobs.submit(server, work))
    monkeypatch.setattr("app.papers.measure_button.go", lambda *_, **__: None)
    monkeypatch.setattr("kvlab.jobs.ensure_worker", lambda _root: 0)
    work = eval_job() if kind == "evaluation" else BenchJob(name="it", preset="small")
    for person in ("ben", "carl", "ben", "anna", "carl"):
        act_as(person)
        submit([work])
    names = [jobs.request_of(server, job.job_id).name for job in reversed(jobs.list_jobs(server))]
    assert names == ["it", "it-2", "it", "it-3", "it-2"]
    owners = {name: load_labels(server, name, kind).owner for name in names}
    assert owners == {"it": "ben", "it-2": "carl", "it-3": "anna"}
    monkeypatch.delenv(VARIABLE)
    assert under_own_name(server, work) == work


@pytest.mark.parametrize("kind", ["evaluation", "benchmark"])
def test_results_of_nobody_stay_nobody_s(
    kind: Literal["evaluation", "benchmark"], server: Path, act_as: Callable[..., None]
) -> None:
    """As of a terminal: who comes first may not add to them and then hide, rename or delete them."""
    work = eval_job() if kind == "evaluation" else BenchJob(name="it", preset="small")
    made = server / ("eval/it/part-0.parquet" if kind == "evaluation" else "bench/it.parquet")
    made.parent.mkdir(parents=True)
    made.touch()
    act_as("ben")
    assert "it is already taken (owner: none): choose another name" in sentence(lambda: jobs.submit(server, work))
    assert under_own_name(server, work).name == "it-2"
    assert jobs.list_jobs(server) == [] and load_labels(server, "it", kind).owner == ""
    act_as("")
    assert under_own_name(server, work) == work
    jobs.submit(server, work)
    assert load_labels(server, "it", kind).owner == ""
    act_as("ben")
    jobs.submit(server, work.model_copy(update={"name": "another"}))
    assert load_labels(server, "another", kind).owner == "ben"


def test_a_model_is_loaded_by_its_short_name_and_called_so(server: Path) -> None:
    assert load_model("own", device="cpu").name == "own"
    assert "leave the revision out" in sentence(lambda: load_model("own", device="cpu", revision="refs/pr/1"))


def eval_job(**fields: Any) -> EvalJob:
    return EvalJob(
        name="it", request=EvalRequest(**{"tasks": (TaskChoice(task="needle"),), "choices": (H2O,)} | fields)
    )


def test_a_request_names_nothing_by_its_path(server: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text("{}")
    named = [MethodChoice(method="less", hyper_parameters={"weights": str(path)}) for path in (secret, secret / "no")]
    refused: list[Work] = [
        *(CompareRequest(prompt="x", choices=(choice,)) for choice in named),
        CompareRequest(prompt="x", choices=(H2O,), model=str(tmp_path / "elsewhere")),
        CompareRequest(prompt="x", choices=(H2O,), model="own", revision="refs/pr/1"),
        CompareRequest(prompt="x", choices=(H2O,), model="own", cache_dir=str(tmp_path)),
        eval_job(files=(FileChoice(form="table", path=secret),)),
        eval_job(tasks=(TaskChoice(task="lm-eval:/etc/task.yaml"),)),
        FitJob(name="it", request=FitRequest(corpus=tmp_path)),
        BenchJob(name="it", requests=(BenchRequest(mode="decode", model=str(tmp_path / "elsewhere"), choices=(H2O,)),)),
        BenchJob(name="it", preset="small", changes={"model": str(tmp_path / "elsewhere")}),
        RestoreRequest(run_id="of-somebody-else"),
        ImportRequest(file=f"{'0' * 12}/it.kvlab", model=str(tmp_path / "elsewhere")),
    ]
    for request in refused:
        said = sentence(lambda request=request: jobs.submit(server, request))
        assert "\n" not in said and said.endswith(".")
    assert jobs.list_jobs(server) == []
    said = [
        sentence(lambda choice=choice: jobs.submit(server, CompareRequest(prompt="x", choices=(choice,))))
        for choice in named
    ]
    assert said[0] == said[1]
    fitted = MethodChoice(method="less", hyper_parameters={"weights": "fit:mine"})
    file = fitted_file(server, "mine")
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    assert jobs.submit(server, CompareRequest(prompt="x", choices=(fitted,), model="own"))
    assert jobs.submit(server, eval_job())


@pytest.mark.usefixtures("commands_here")
def test_files_come_by_upload_alone(server: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text("{}")
    assert "by upload" in sentence(lambda: eval_form.read_files(f"table={secret}"))
    kept, _ = prompt_files.save_prompts(server, "a.jsonl", b'{"prompt": "x", "answer": "y"}\n')
    assert jobs.submit(server, eval_job(files=(kept,)))
    outside = kept.path.parent / ".." / ".." / ".." / "labels" / "x.jsonl"
    assert "by upload" in sentence(
        lambda: jobs.submit(server, eval_job(files=(FileChoice(form="table", path=outside),)))
    )


@pytest.mark.parametrize("kind", [MAPS, PROFILES, SCORE_HEADS], ids=lambda kind: kind.name)
def test_the_worker_opens_fitted_files_by_name_alone(
    kind: Any, server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came past the form: this is where they are opened."""
    monkeypatch.setattr(files, "_fits", files._Fits(server / "fit", only=True))
    (tmp_path / "secret").write_text("x")
    said = {sentence(lambda name=name: kind.path(str(tmp_path / name))) for name in ("secret", "nothing")}
    assert len(said) == 1 and str(tmp_path) not in said.pop()
    assert kind.path("mini").is_file()
    assert kind.path("fit:mine") == server / "fit" / "mine" / "fitted.safetensors"
    sentence(lambda: kind.path("fit:../../x"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("The index in /srv/lab/runs cannot be opened.", "The index in …/runs cannot be opened."),
        ("There is no '/home/anna/x.jsonl': look.", "There is no '…/x.jsonl': look."),
        ("See https://host.example/a/b/c or ~/a/b/.", "See https://host.example/a/b/c or …/b."),
        ("Qwen/Qwen3-0.6B, 3/4 and a/b/c", "Qwen/Qwen3-0.6B, 3/4 and a/b/c"),
        ("ruler=/data/niah/validation.jsonl", "ruler=…/validation.jsonl"),
        ("`/compare?comparison=x` and / and /a", "`/compare?comparison=x` and / and /a"),
    ],
)  # fmt: skip
def test_sentences_name_no_folder_of_the_server(text: str, said: str) -> None:
    assert hide_paths(text) == said


def test_alone_all_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVLAB_LAB", raising=False)
    folder = tiny_folder(tmp_path / "own")
    assert check_model(str(folder)) == str(folder)
    assert MAPS.path("some/file") == Path("some/file")
    choice = MethodChoice(method="less", hyper_parameters={"weights": "some/file"})
    assert jobs.submit(tmp_path, CompareRequest(prompt="x", choices=(choice,), model=str(folder)))
