"""GGUF files: loaded as transformers loads them, recorded with type and checksum, and refused in one sentence."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.environment import model_shape
from kvlab.models.info import model_faults as gguf_files
from kvlab.models.info.chat_template import has_template
from kvlab.models.info.names import check_model, context_length
from kvlab.models.info.offered_models import models_variable
from kvlab.models.info.size import find_model
from kvlab.models.load import load_model
from kvlab.planning.choices import FULL
from kvlab.planning.plan import FILE, Machine, make_plan
from kvlab.requests.compare import CompareRequest
from tests.models.tiny_gguf import ARCHITECTURES, tiny_gguf

IDS = torch.arange(3, 27)[None]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLAB_CACHE", str(tmp_path_factory.getbasetemp() / "gguf-cache"))


def logits(model: torch.nn.Module, **options: object) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS, **options).logits


@pytest.mark.usefixtures("gguf_here")
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_gguf_file_is_the_model_it_was_written_from_and_what_transformers_reads(tmp_path: Path, family: str) -> None:
    sizes = {"head_dim": 128} if family == "qwen3" else {}  # the only one that transformers assumes
    written = tiny_gguf(tmp_path / "tiny.gguf", family, **sizes)
    loaded = load_model(str(tmp_path / "tiny.gguf"), device="cpu")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    ours = logits(loaded.model, past_key_values=make_cache(loaded, "full"))
    torch.testing.assert_close(ours, logits(theirs), rtol=0, atol=1e-5)
    if family != "gemma2":  # GGUF has no place for its query_pre_attn_scalar
        torch.testing.assert_close(ours, logits(written), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("gguf_here")
def test_quantized_weights_are_those_of_the_type_and_the_record_names_it(tmp_path: Path) -> None:
    file = tmp_path / "tiny.Q8_0.gguf"
    written = tiny_gguf(file, kind=gguf.GGMLQuantizationType.Q8_0)
    loaded = load_model(str(file), device="cpu")
    weight = written.model.layers[0].mlp.up_proj.weight.detach().numpy()
    blocks = weight.reshape(weight.shape[0], -1, 32)  # a scale of 16 bits for 32 weights of 8
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    expected = (np.rint(blocks / scale) * scale.astype(np.float16).astype(np.float32)).reshape(weight.shape)
    np.testing.assert_allclose(loaded.model.model.layers[0].mlp.up_proj.weight.detach().numpy(), expected, atol=1e-6)
    shape = model_shape(loaded)
    assert shape.quantization == "Q8_0" and shape.dtype == "float32"
    assert shape.checksum == hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_viewing_side_knows_it_without_its_weights(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    written = tiny_gguf(file)
    assert check_model(str(file)) == str(file)
    assert context_length(str(file)) == 512 and has_template(str(file))
    found = find_model(str(tmp_path))  # a folder with one file
    assert found.parameters == sum(weight.numel() for weight in written.state_dict().values())
    assert models_variable([tmp_path]) == str(tmp_path)


@pytest.mark.usefixtures("gguf_here")
def test_a_plan_counts_what_a_file_takes_while_its_weights_load(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    written = tiny_gguf(file)
    model = find_model(str(file))
    request = CompareRequest(prompt="-", choices=(MethodChoice(method="full", budget=1.0),), max_new_tokens=8)
    machine = Machine("cpu", "cpu", 10**12, 10**12)
    plan = make_plan(request, 64, model, lambda _: FULL, machine)
    held = {part.name: part.bytes for part in plan.parts}
    largest = max(weight.numel() for weight in written.state_dict().values())
    assert held[FILE] == file.stat().st_size + 2 * 4 * largest and held["weights"] == 4 * model.parameters
    assert plan.loading == held[FILE] + held["weights"] <= plan.total


def cut(file: Path) -> str:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return "incomplete or damaged"


def overwritten(file: Path) -> str:
    file.write_bytes(b"GGUF" + os.urandom(4000))
    return "incomplete or damaged"


def no_gguf(file: Path) -> str:
    file.write_text("hello")
    return "incomplete or damaged"


def unknown_type(file: Path) -> str:
    content = bytearray(file.read_bytes())
    reader = gguf.GGUFReader(str(file))
    tensor = reader.tensors[0]
    place = tensor.field.offset + sum(part.nbytes for part in tensor.field.parts[:-2])
    content[place : place + 4] = (250).to_bytes(4, "little")
    file.write_bytes(content)
    return "unknown type"


@pytest.mark.usefixtures("gguf_here")
@pytest.mark.parametrize("damage", [cut, overwritten, no_gguf, unknown_type])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, damage) -> None:
    file = tmp_path / "tiny.gguf"
    tiny_gguf(file)
    words = damage(file)
    for named in (load_model, check_model, find_model):
        is_one_sentence(named, file, words)


def is_one_sentence(named, file: Path, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        named(str(file))
    assert "\n" not in str(error.value) and str(error.value).endswith(".")
    cache = Path(os.environ["KVLAB_CACHE"]) / "gguf"
    assert not list(cache.glob("*-*")), "nothing half-written stays"


def test_the_process_that_reads_files_says_what_is_wrong_in_one_sentence(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    is_one_sentence(check_model, tmp_path / "tiny.gguf", cut(tmp_path / "tiny.gguf"))


def test_parts_of_a_split_file_say_how_to_merge_them(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(UserError, match=r"part 1 of 3 of a split GGUF file: merge"):
        load_model(str(tmp_path / "m-00001-of-00003.gguf"))


@pytest.mark.usefixtures("gguf_here")
def test_a_model_that_is_no_decoder_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bert.gguf", "bert")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=r"architecture bert is not supported"):
        check_model(str(tmp_path / "bert.gguf"))


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that an environment with them has described before, too."""
    tiny_gguf(tmp_path / "tiny.gguf")
    check_model(str(tmp_path / "tiny.gguf"))
    monkeypatch.setattr(gguf_files, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs gguf and accelerate: pip install 'kvlab\[gguf\]'"):
        load_model(str(tmp_path / "tiny.gguf"))


def test_a_folder_with_two_files_asks_for_one(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        tiny_gguf(tmp_path / name)
    with pytest.raises(UserError, match=r"holds 2 GGUF files: give one of them"):
        check_model(str(tmp_path))


def test_more_bits_options_do_not_apply(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(UserError, match="quantized as they are"):
        load_model(str(tmp_path / "tiny.gguf"), weights="4bit")
