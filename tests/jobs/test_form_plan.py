"""The plan of the form, which knows methods as data, beside the command line's, which asks the method itself."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from kvlab.catalogue import methods
from kvlab.engine.room import holds_of
from kvlab.jobs import fitting, intake, registry
from kvlab.jobs.registry import MethodEntry
from kvlab.planning import Machine, find_model, make_plan
from kvlab.requests import CompareRequest, MethodChoice

HERE = Machine("cpu", "cpu", 10**12, 10**12, 10**12)


@pytest.fixture(scope="module")
def entries() -> dict[str, MethodEntry]:
    return {one.name: MethodEntry.model_validate(asdict(one)) for one in methods()}


CASES = [("snapkv", "0.9"), ("keepkv", "0.9"), ("snapkv", "50%B"), ("full", "1.0")]


@pytest.mark.parametrize("held", ["native", "turbo3", "kivi4", "auto"])
@pytest.mark.parametrize(("name", "budget"), CASES)
def test_the_form_plans_the_store_that_is_chosen(
    entries: dict[str, MethodEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, budget: str, held: str
) -> None:
    monkeypatch.setattr(registry, "methods", lambda: list(entries.values()))
    monkeypatch.setattr(fitting, "_machine", lambda *_: HERE)
    monkeypatch.setattr("kvlab.planning.plan.duration", lambda *_: None)
    typed, options = {name: {"store": held}}, {"device": "cpu", "level": "light"}
    form = fitting.plan_of(900, "mini", [entries[name]], budget, typed, options, tmp_path)
    choice = MethodChoice(method=name, budget=intake.parse_budgets(budget)[0], hyper_parameters={"store": held})
    request = CompareRequest(prompt="-", choices=(choice,), device="cpu", level="light")
    own = make_plan(request, 900, find_model("mini"), holds_of, HERE, tmp_path, timed=False)
    assert form is not None and [phase.parts for phase in form.phases] == [phase.parts for phase in own.phases]
    if (name, budget, held) == ("snapkv", "0.9", "turbo3"):
        native = fitting.plan_of(900, "mini", [entries[name]], budget, {}, options, tmp_path)
        assert native is not None and form.total < native.total
