"""The check of a plug-in: the written template passes, and every property can fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from kvlab.checking import PROPERTIES, check, from_file
from kvlab.checking.case import observe_case
from kvlab.cli import commands
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.contract.parts import Selector, Victims
from kvlab.core.contract.pipeline import Evict, LowestScore, Pipeline
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import AttentionPass, Slots, View
from kvlab.core.errors import UserError
from kvlab.core.methods import Method, make_method
from kvlab.core.methods.scorers.recency import Recency

BY_NAME = {held.name: held for held in PROPERTIES}
CALLS = itertools.count()


class Mine(Method):
    """A window whose parts a test replaces; pydantic fields hold no parts, so they are looked up by name."""

    name: ClassVar[str] = "mine"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Mine"
    wrong: str = ""

    def pipeline(self) -> Pipeline:
        return replace(Pipeline(Recency()), **PARTS[self.wrong])


@dataclass(frozen=True)
class Score:
    wrong: str = ""
    every_step: ClassVar[bool] = False
    needs_hidden_states: ClassVar[bool] = False
    state: ClassVar[dict] = {}

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        score = slots.position.float()
        if self.wrong == "rows":
            score = score if len(score) == 1 else -score
        if self.wrong == "draws":
            score = score * 0 + next(CALLS) % 7 * (slots.position % 2)
        if self.wrong == "passes" and first:
            score = score if layer_pass.num_new > 30 else -score
        if self.wrong == "waits":
            score = score + score.sum().item()
        if self.wrong == "keys":
            slots.keys.mul_(1.5)
        return {"score": score}


@dataclass(frozen=True)
class Settle(Evict):
    wrong: str = ""

    def settle(self, view: View, select: Selector) -> Plan:
        if self.wrong == "hoards":
            return Plan(keep=view.slots.valid)
        if self.wrong == "votes":
            view.slots.votes.mul_(2)
        if self.wrong == "infinite":
            view.slots.values[..., -1, :] = torch.inf
        return super().settle(view, select)


@dataclass(frozen=True)
class NewestFirst(LowestScore):
    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        position = view.slots.position.masked_fill(~view.slots.valid, -1)
        index = position.topk(min(most, position.shape[-1])).indices
        return Victims(index, torch.arange(index.shape[-1]) < excess[..., None])


PARTS: dict[str, dict] = {
    "": {},
    **{wrong: {"score": Score(wrong=wrong)} for wrong in ("rows", "draws", "passes", "waits", "keys")},
    **{wrong: {"settle": Settle(wrong=wrong)} for wrong in ("hoards", "votes", "infinite")},
    "newest": {"select": NewestFirst()},
}
FAILS = {
    "rows": "padded equals single",
    "draws": "a seed decides",
    "passes": "chunks of a prompt equal the whole",
    "waits": "a decode step waits for nothing",
    "hoards": "the budget is never exceeded",
    "votes": "votes sum to the tokens seen",
    "infinite": "everything stays finite",
    "newest": "the newest token stays",
}


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """One family and its padded case are enough to see what fails."""
    for held in PROPERTIES:
        object.__setattr__(held, "_where", held.where)
        object.__setattr__(held, "where", tuple(case for case in held.where if case.family == "llama")[:9])
    yield
    for held in PROPERTIES:
        object.__setattr__(held, "where", held._where)


def test_a_sound_method_has_every_property() -> None:
    results = [check(Mine(), held) for held in PROPERTIES]
    assert [(r.property, r.detail) for r in results if r.verdict != "holds"] == []


@pytest.mark.parametrize(("wrong", "name"), FAILS.items())
def test_each_property_can_fail_and_names_the_smallest_case(wrong: str, name: str) -> None:
    result = check(Mine(wrong=wrong), BY_NAME[name])
    assert result.verdict == "fails", result
    where, _, told = result.detail.partition(": ")
    places = [str(case) for case in BY_NAME[name].where]
    assert where in places and told
    first = places.index(where)
    assert all(not BY_NAME[name].broken(Mine(wrong=wrong), case) for case in BY_NAME[name].where[:first])


@pytest.mark.parametrize(
    "name",
    [
        "a full budget equals plain transformers",
        "a second turn equals one long turn",
        "the memory table equals the tensors' bytes",
        "generate() takes the cache",
    ],
)
def test_what_a_method_cannot_break_by_itself_can_fail_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of = CompressedLayer.table_bytes
    update = CompressedLayer.update
    if "memory" in name:
        monkeypatch.setattr(CompressedLayer, "table_bytes", lambda layer: bytes_of(layer) + 1)
    elif "generate" in name:
        monkeypatch.setattr(CompressedLayer, "get_seq_length", lambda layer: 5 + next(CALLS))
    else:
        monkeypatch.setattr(  # keys are longer the longer the pass they come in
            CompressedLayer, "update", lambda layer, k, v, *_, **__: update(layer, k * 1.1 ** k.shape[2], v)
        )
    observe_case.cache_clear()
    assert check(Mine(), BY_NAME[name]).verdict == "fails"
    observe_case.cache_clear()


def test_what_does_not_apply_says_why() -> None:
    assert check(make_method("gvote"), BY_NAME["a decode step waits for nothing"]).verdict == "does not apply"
    chunks = check(make_method("gvote"), BY_NAME["chunks of a prompt equal the whole"])
    assert chunks.verdict == "does not apply" and "hidden states" in chunks.detail


@pytest.mark.parametrize("method", ["h2o", "keepkv", "snapkv", "pyramid-pool"])
def test_kvlabs_own_methods_pass(method: str) -> None:
    results = [check(make_method(method), held) for held in PROPERTIES]
    assert [(r.property, r.detail) for r in results if r.verdict == "fails"] == []


def test_the_template_is_short_runs_and_passes(plugin: Callable[..., Path], tmp_path: Path) -> None:
    made = CliRunner().invoke(commands, ["plugin", "new", "key-spread", "--folder", str(tmp_path)])
    assert made.exit_code == 0, made.output
    code = (tmp_path / "key_spread.py").read_text()
    method = code[code.index("@register\n") :].splitlines()
    scorer = code[code.index("@register_scorer") : code.index("@register\n")].splitlines()
    assert len(method) < 40 and len(scorer) < 40
    shown = CliRunner().invoke(commands, ["plugin", "check", str(tmp_path / "key_spread.py")])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("holds") == 2 * len(PROPERTIES)
    again = CliRunner().invoke(commands, ["plugin", "new", "key-spread", "--folder", str(tmp_path)])
    assert isinstance(again.exception, UserError) and "already" in str(again.exception)


@pytest.mark.parametrize("name", ["Mine", "a b", "../x", "", "1st", "-x", "x" * 61])
def test_a_name_that_cannot_be_a_methods_writes_nothing(name: str, tmp_path: Path) -> None:
    from kvlab.cli.plugin import new

    with pytest.raises(UserError, match="cannot be the name"):
        new(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_with_nothing_to_check_says_what_it_has(plugin: Callable[..., Path]) -> None:
    code = "from kvlab.extend import register_metric\n@register_metric('half')\ndef half(*_): return .5\n"
    with pytest.raises(UserError, match="it registers metric"):
        from_file(plugin(code))
