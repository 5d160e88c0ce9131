"""`kvlab compare` on a checkpoint of every family as people have them: in shards, in bfloat16, with a chat template."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from kvlab.engine import compare
from kvlab.requests import CompareRequest, MethodChoice
from kvlab.trace import open_run
from tests.families import CHAT_TEMPLATE, EVERY, tiny_folder

SOME = ("gpt-oss", "gemma4", "mixtral", "mpt", "cohere2", "qwen3-next", "falcon-h1")
FAMILIES = (
    [name for name in EVERY if name != "mistral-sliding"] if os.environ.get("KVLAB_CONFORMANCE") == "full" else SOME
)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_comparison_of_a_real_looking_checkpoint(family: str, tmp_path: Path) -> None:
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
    )
    for path in compare(request, tmp_path / "runs"):
        record = open_run(path).record
        assert (record.status, record.model.dtype) == ("complete", "bfloat16") and record.chat is not None
