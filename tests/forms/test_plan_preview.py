"""The plan of the form, which knows methods as data, beside the command line's, which asks the method itself."""

from __future__ import annotations

import subprocess
from dataclasses import asdict
from typing import Any

import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.cli.options.plan_check import notes_of
from kvlab.core.budget import Budget
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.methods.spec import list_methods
from kvlab.engine.out_of_memory import footprint_of
from kvlab.forms import compare_form, plan_preview
from kvlab.forms.plan_preview import run_notes
from kvlab.models.info.size import find_model
from kvlab.planning import choices
from kvlab.planning import method_footprints as footprint
from kvlab.planning.choices import MethodEntry
from kvlab.planning.plan import Machine, Plan, make_plan
from kvlab.requests.compare import CompareRequest

HERE = Machine("cpu", "cpu", 10**12, 10**12)


@pytest.fixture(scope="module")
def entries() -> dict[str, MethodEntry]:
    return {one.name: MethodEntry.model_validate(asdict(one)) for one in list_methods()}


CASES = [("snapkv", "0.9"), ("keepkv", "0.9"), ("snapkv", "50%B"), ("full", "1.0")]


@pytest.mark.parametrize("held", ["native", "turbo3", "kivi4", "auto"])
@pytest.mark.parametrize(("name", "budget"), CASES)
def test_the_form_plans_the_store_that_is_chosen(
    entries: dict[str, MethodEntry], monkeypatch: pytest.MonkeyPatch, name: str, budget: str, held: str
) -> None:
    monkeypatch.setattr(choices, "methods", lambda: list(entries.values()))
    monkeypatch.setattr(plan_preview, "_machine", lambda *_: HERE)
    typed, options = {name: {"store": held}}, {"device": "cpu", "level": "light"}
    form = plan_preview.plan_of(900, "mini", [entries[name]], budget, typed, options)
    choice = MethodChoice(method=name, budget=compare_form.parse_budgets(budget)[0], hyper_parameters={"store": held})
    request = CompareRequest(prompt="-", choices=(choice,), device="cpu", level="light")
    own = make_plan(request, 900, find_model("mini"), footprint_of, HERE)
    assert form is not None and [part.bytes for part in form.parts] == [part.bytes for part in own.parts]
    if (name, budget, held) == ("snapkv", "0.9", "turbo3"):
        native = plan_preview.plan_of(900, "mini", [entries[name]], budget, {}, options)
        assert native is not None and form.total < native.total


@pytest.fixture
def asked(entries: dict[str, MethodEntry], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of `kvlab methods`, which answers in this process."""
    heard: list[str] = []

    def run(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        heard.append(given or "")
        done = CliRunner().invoke(commands, list(words), input=given)
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, "")

    monkeypatch.setattr(choices, "methods", lambda: list(entries.values()))
    monkeypatch.setattr(choices, "run_command", run)
    monkeypatch.setattr(footprint, "_answers", {})
    return heard


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("attention-matching", {"study": 200, "on_policy": True}),
    ("keydiff", {"block": 64}),
    ("chunkkv", {"decode": "budget", "buffer": 32}),
    ("keepkv", {"preset": "paper", "window": 9}),
    ("kvzip", {"piece": 100, "store": "kivi4"}),
    ("compose", {"score": "ema", "settle": "cam"}),
]


def chosen(settings: list[tuple[str, dict[str, Any]]]) -> list[MethodChoice]:
    return [MethodChoice(method=name, hyper_parameters=own) for name, own in settings]


def test_what_methods_hold_as_they_are_set_is_asked_once_for_all(asked: list[str]) -> None:
    """The command line asks the method itself."""
    choices = chosen(SETTINGS)
    for _ in range(2):
        holds = footprint.footprints_of(choices)
        assert [holds(choice) for choice in choices] == [footprint_of(choice) for choice in choices]
    assert len(asked) == 1


def test_of_defaults_and_published_settings_nobody_is_asked(entries: dict[str, MethodEntry], asked: list[str]) -> None:
    published = [(name, {"preset": preset}) for name, entry in entries.items() for preset in entry.presets]
    choices = chosen([*published, *((name, {"preset": "default", "store": "int8"}) for name in entries)])
    holds = footprint.footprints_of(choices)
    assert [holds(choice) for choice in choices] == [footprint_of(choice) for choice in choices]
    assert not asked


def test_settings_that_do_not_fit_are_said_where_the_method_says_it(asked: list[str]) -> None:
    wrong = MethodChoice(method="h2o", hyper_parameters={"colour": "blue"})
    with pytest.raises(UserError, match="no hyper-parameter 'colour'"):
        footprint.footprints_of([wrong])(wrong)


@pytest.mark.parametrize(
    ("status", "printed", "said"),
    [(0, "[]", "no list"), (0, '[{"holds": 3}]', "no list"), (0, "{}", "no list"), (1, "", r"\(out of order\)")],
)
def test_an_answer_to_something_else_is_one_sentence_and_not_kept(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, status: int, printed: str, said: str
) -> None:
    (choice,) = chosen(SETTINGS[:1])
    answer = subprocess.CompletedProcess((), status, printed, "out of order")
    with monkeypatch.context() as patch:
        patch.setattr(choices, "run_command", lambda *_, **__: answer)
        with pytest.raises(UserError, match=said):
            footprint.footprints_of([choice])
    assert footprint.footprints_of([choice])(choice) == footprint_of(choice)


def test_the_form_plans_the_settings_that_are_chosen(
    entries: dict[str, MethodEntry], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mass for each query head takes memory in every slot."""
    monkeypatch.setattr(plan_preview, "_machine", lambda *_: HERE)

    def form(name: str, **own: Any) -> Plan:
        made = plan_preview.plan_of(900, "mini", [entries[name]], "0.2", {name: own}, {"level": "light"})
        assert made is not None
        return made

    more, less = (form("keepkv", per_head_mass=kept).parts[2].bytes for kept in (True, False))
    assert more > less


@pytest.mark.parametrize("name", ["h2o", "snapkv", "less"])
def test_the_form_warns_of_a_window_that_takes_the_budget_as_the_method_itself_does(
    entries: dict[str, MethodEntry], asked: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(choices, "methods", lambda: list(entries.values()))
    settings: dict[str, dict[str, Any]] = {"h2o": {}, "snapkv": {"window": 24}, "less": {"evictor": "snapkv"}}
    for budget in ("16", "32", "200", "5%"):
        [amount] = compare_form.parse_budgets(budget)
        form = run_notes(300, "mini", [entries[name]], budget, {name: settings[name]})
        choice = MethodChoice(method=name, budget=amount, hyper_parameters=settings[name])
        own = make_method(name, **settings[name]).notes(Budget(choice.budget).slots(300), 300)
        # The form knows LESS by its window alone, and names it in place of its evictor.
        assert form == [sentence.replace("SnapKV", entries[name].title) for sentence in own]
        assert bool(form) == (name != "h2o" and (budget in ("16", "5%") or (budget == "32" and name == "less")))
    assert notes_of(CompareRequest(prompt="a b c " * 100, choices=(MethodChoice(method="snapkv", budget=32),)))
