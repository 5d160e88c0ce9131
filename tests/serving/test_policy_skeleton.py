"""Skeletons are TOML, name what has no counterpart, and promise no hook that the engine does not have."""

from __future__ import annotations

import tomllib

import pytest

from kvlab.core.errors import UserError
from kvlab.serving.method_table import of_methods, read_csv
from kvlab.serving.policy_skeleton import ENGINES, missing, skeleton

PARTS = {"score": "S", "allocate": "A", "select": "V", "settle": "E"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_method_has_a_skeleton(engine: str) -> None:
    for row in read_csv():
        data = tomllib.loads(skeleton(row, engine, PARTS, {"window": 32, "given": None}))
        assert data["method"]["level"] == row.level and data["settings"] == {"window": 32}
        assert data["missing"]["parts"] == missing(row, engine)
        assert ("decode" in data["hooks"]) == row.decodes


def test_what_has_no_counterpart_is_named() -> None:
    whole, heads, biased, paged = of_methods(["window", "adakv", "keepkv", "snapkv:page=16"])
    assert missing(of_methods(["full"])[0], "vllm") == []
    assert any("per head" in words for words in missing(heads, "trtllm"))
    assert any("log mass" in words for words in missing(biased, "sglang"))
    assert [words for words in missing(paged, "trtllm") if "attention" not in words] == []
    assert any("running request" in words for words in missing(whole, "vllm"))
    with pytest.raises(UserError, match="use trtllm, vllm, sglang"):
        skeleton(whole, "llamacpp", PARTS, {})
