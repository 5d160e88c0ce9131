"""`kvlab compare` on a checkpoint of every family as people have them: in shards, in bfloat16, with a chat template."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from kvlab.core.choice import MethodChoice
from kvlab.core.families import prepare
from kvlab.engine import compare
from kvlab.models import load
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from tests.families import CHAT_TEMPLATE, EVERY, tiny_folder, tiny_model
from tests.models.test_placement import split

SOME = ("gpt-oss", "gemma4", "mixtral", "mpt", "cohere2", "qwen3-next", "falcon-h1")
FAMILIES = (
    [name for name in EVERY if name != "mistral-sliding"] if os.environ.get("KVLAB_CONFORMANCE") == "full" else SOME
)


# Whose blocks `split` finds, and whose weights are each read where they lie.
APART = ("gpt-oss", "mpt", "llama", "qwen3", "phi3", "falcon-h1")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_comparison_of_a_real_looking_checkpoint(family: str, tmp_path: Path) -> None:
    compare_sharded(family, tmp_path)


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs the extra `placement`")
@pytest.mark.parametrize("family", [name for name in FAMILIES if name in APART])
def test_the_same_over_two_places_by_accelerate(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block here, the others brought in from the disk when it is their turn."""
    monkeypatch.setattr(load, "device_map", lambda placement, device: split(prepare(tiny_model(family))))
    compare_sharded(family, tmp_path, placement="auto")


def compare_sharded(family: str, tmp_path: Path, **options: Any) -> None:
    """Three methods on shards of the family's weights in bfloat16, in a chat template."""
    folder = tiny_folder(tmp_path / "model", family, chat_template=CHAT_TEMPLATE)
    whole = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    request = CompareRequest(
        prompt="Where is the rabbit? " * 2,
        model=str(folder),
        choices=tuple(MethodChoice(method=method, budget=0.4) for method in ("h2o", "keepkv", "gvote")),
        max_new_tokens=3,
        dtype="bfloat16",
        device="cpu",
        **options,
    )
    for path in compare(request, tmp_path / "runs"):
        record = open_run(path).record
        assert (record.status, record.model.dtype) == ("complete", "bfloat16") and record.chat is not None
