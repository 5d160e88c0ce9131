"""Inside vLLM itself, which `make vllm` installs: slots and tokens are those of kvlab's own runs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from kvlab.core.assets import asset_path
from kvlab.core.methods import make_method
from kvlab.extras.vllm.agreement import CONTROL, NAMES, NATIVE, Agreement, Trial, agreements, make_prompts
from kvlab.extras.vllm.session import REPLAY, UNSEEN, Choice
from kvlab.models.load import load_model

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here: make vllm")
METHODS = ("full", "window", "streaming-llm", "snapkv", "h2o", "keepkv", "exactmerge2")
BREAKS = {  # situation: methods that differ, as their states are gone, and what is said about it
    "prefix cache without queries": ({"h2o", "keepkv", "snapkv", "exactmerge2"}, UNSEEN),
    "chunked without queries": ({"h2o", "keepkv", "snapkv", "exactmerge2"}, UNSEEN),
    "preempted without slots": ({"exactmerge2"}, REPLAY),
}


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], Agreement]:
    """Two prompts of mini under every method and situation."""
    loaded = load_model("mini", "cpu", "float32")
    prompts = make_prompts(loaded, 2, 320, 16)
    trials = [Trial(loaded, name, Choice(make_method(name), 0.2), prompts) for name in METHODS]
    wanted = [name for name in NAMES if name != CONTROL]
    return {(row.method, row.situation): row for row in agreements(trials, str(asset_path("mini")), wanted)}


def test_vllm_by_itself_writes_what_the_full_cache_writes(found: dict) -> None:
    assert found["full", NATIVE].tokens == 2


@pytest.mark.parametrize("situation", ["alone", "batch", "chunked", "preempted", "prefix cache", "kvlab prefix"])
@pytest.mark.parametrize("method", METHODS)
def test_slots_and_tokens_are_equal(found: dict, method: str, situation: str) -> None:
    row = found[method, situation]
    assert (row.slots, row.tokens, row.heads) == (2, 2, 1.0), row


def test_the_situations_took_place(found: dict) -> None:
    for method in METHODS:
        assert "preempted" in found[method, "preempted"].note
        assert "prefix cache" in found[method, "prefix cache"].note


@pytest.mark.parametrize("situation", BREAKS)
def test_what_breaks_is_named_and_the_rest_is_equal(found: dict, situation: str) -> None:
    broken, reason = BREAKS[situation]
    for method in METHODS:
        row = found[method, situation]
        assert row.slots == 2 or method in broken, row
        assert (reason in row.note) == (row.slots < 2), row
    assert any(found[method, situation].slots < 2 for method in broken)
