"""Where weights go: named devices, several by accelerate, packed weights; and a sentence for what is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from kvlab.core.assets import project_root
from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.fitted.files import signature
from kvlab.engine import compare
from kvlab.evaluation.harness import model_digest
from kvlab.models import load, placement
from kvlab.models.load import load_model
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from tests.families import tiny_folder


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "cuda:x", "mps:3x", "toaster", "cpu:x"])
def test_a_device_that_is_not_there(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device not in ("cuda",))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=f"no device '{device}'"):
        placement.pick_device(device)


def test_one_of_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert placement.pick_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("built", "sentence"),
    [("13.0", "built for CUDA 13.0, for which the driver may be too old"), (None, "without CUDA")],
)
def test_a_gpu_that_torch_cannot_use_is_warned_of_once(
    built: str | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for there in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(there, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(placement, "DRIVER", tmp_path / "version")
    placement.warn_of_an_idle_gpu.cache_clear()
    assert placement.pick_device("auto") == torch.device("cpu") and not caplog.records
    (tmp_path / "version").write_text("NVRM version: 535")
    assert [placement.pick_device(name) for name in ("auto", "cpu", "auto")] == [torch.device("cpu")] * 3
    (record,) = caplog.records
    assert sentence in record.getMessage()
    placement.warn_of_an_idle_gpu.cache_clear()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"placement": "everywhere"}, "no placement 'everywhere'"),
        ({"weights": "3bit"}, "cannot be loaded in '3bit'"),
        ({"dtype": "int8"}, "no number format 'int8'"),
    ],
)
def test_words_that_mean_nothing(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_model("mini", "cpu", **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"placement": "auto"}, "needs accelerate"),
        ({"weights": "4bit"}, "4 bit need another package: install bitsandbytes or torchao"),
        ({"weights": "8bit"}, "8 bit need another package: install bitsandbytes or torchao"),
    ],
)
def test_a_package_that_is_not_there(options: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=sentence):
        load_model("mini", "cpu", **options)


SPLIT = ["llama", "falcon-alibi", "mpt", "gpt-oss", "phi3"]


def split(model: torch.nn.Module) -> dict[str, str]:
    """A place for every part: the first block here, the others on the disk, brought in when it is their turn."""
    parts = list(model.named_modules())
    blocks = [name for name, part in parts if type(part).__name__.endswith(("DecoderLayer", "Block"))]
    rest = [name for name, part in parts if name and not list(part.children())]
    outside = [name for name in rest if not any(f"{name}.".startswith(f"{block}.") for block in blocks)]
    return dict.fromkeys((*outside, blocks[0]), "cpu") | dict.fromkeys(blocks[1:], "disk")


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs the extra `placement`")
@pytest.mark.parametrize("family", SPLIT)
def test_a_model_in_two_places_is_the_same_model(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By accelerate, as over two devices: its logits, its compressed run, what names its weights."""
    folder = str(tiny_folder(tmp_path / "model", family))
    whole = load_model(folder, "cpu")
    monkeypatch.setattr(load, "device_map", lambda placement, device: split(whole.model))
    apart = load_model(folder, "cpu", placement="auto")
    assert {parameter.is_meta for parameter in apart.model.parameters()} == {True, False}
    assert apart.device == torch.device("cpu")
    ids = whole.encode("Down the rabbit hole.")
    for method, budget in (("full", 1.0), ("keepkv", 0.3), ("gvote", 1.0)):
        with torch.inference_mode():
            expected = whole.model(ids, past_key_values=make_cache(whole, method, budget)).logits
            given = apart.model(ids, past_key_values=make_cache(apart, method, budget)).logits
        assert (given - expected).abs().max() < 1e-5
    assert model_digest(apart.model) == model_digest(whole.model)
    assert torch.equal(signature(apart.model), signature(whole.model))
    request = CompareRequest(
        prompt="Down the hole.", choices=(MethodChoice(method="h2o"),), max_new_tokens=2, model=folder
    )
    assert open_run(compare(request, tmp_path, loaded=apart)[0]).record.status == "complete"


def test_a_proxy_is_asked_and_not_gone_around(tmp_path: Path) -> None:
    """Where HTTPS_PROXY is the only way to the hub, it is the way the question goes."""
    import socket
    import threading

    asked: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with suppress(OSError):  # until the server closes; who asks again and is not heard waits for seconds
            while True:
                connection, _ = server.accept()
                asked.append(connection.recv(200))
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                connection.close()

    threading.Thread(target=answer, daemon=True).start()
    address = f"http://127.0.0.1:{server.getsockname()[1]}"
    code = "from kvlab.models.load import load_model; load_model('some/model', 'cpu')"
    done = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=False, timeout=120,
        env=os.environ | {
            "PYTHONPATH": str(project_root()), "HF_HOME": str(tmp_path), "HTTPS_PROXY": address, "https_proxy": address,
            "NO_PROXY": "", "no_proxy": "", "HF_HUB_OFFLINE": "0",
        },
    )  # fmt: skip
    server.close()
    assert asked and asked[0].startswith(b"CONNECT huggingface.co:443")
    assert "There is no model 'some/model' on this disk" in done.stderr.splitlines()[-1]


def refusal(status: int, code: str) -> Exception:
    """What the hub's client raises for an answer of the hub."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    kind = {"GatedRepo": GatedRepoError, "RepoNotFound": RepositoryNotFoundError}.get(code, RevisionNotFoundError)
    error = kind.__new__(kind)
    Exception.__init__(error, f"{status} Client Error")
    return error


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("GatedRepo", "is gated: accept its terms on .*some/model, then log in here with `hf auth login`"),
        ("RepoNotFound", "There is no model 'some/model': use"),
        ("RevisionNotFound", "has no revision 'v9'"),
    ],
)
def test_what_the_hub_says_is_said_truly(
    code: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvlab.models import sources

    def refuse(*args: Any, **options: Any) -> None:
        raise refusal(403, code)

    monkeypatch.setattr(sources, "get_hf_file_metadata", refuse)
    with pytest.raises(UserError, match=sentence):
        load_model("some/model", "cpu", revision="v9", cache_dir=str(tmp_path))
