"""The command line's short forms: `key_value:pairs=64`, `keepkv:preset=paper`, `ruler=niah.jsonl`, `0.05,128`."""

from __future__ import annotations

from pydantic import JsonValue

from kvlab.common.errors import UserError
from kvlab.methods import make_method
from kvlab.requests.budget import Amount, Budget, unbounded_note
from kvlab.requests.compare import FULL, MethodChoice
from kvlab.requests.method_spec import parse_spec, split_list


def parse_choices(methods: str, budgets: str) -> tuple[MethodChoice, ...]:
    """Return every method with every budget; one that needs no budget stands once."""
    amounts = [Budget.parse(text).amount for text in split_list(budgets)]
    if not amounts:
        raise UserError("Name at least one budget, such as --budgets 0.2 or --budgets 64.")
    named = [parse_spec(text) for text in split_list(methods)]
    if not named:
        raise UserError("Name at least one method, such as --methods h2o,keepkv.")
    return tuple(choice for name, values in named for choice in _with_budgets(name, values, amounts))


def own_bytes(methods: str, budgets: str) -> str:
    """A sentence where a budget of bytes was given beside methods that take none; else nothing."""
    made = [make_method(name, **values) for name, values in map(parse_spec, split_list(methods))]
    free = [one.title for one in made if not one.needs_budget and one.name != FULL.method]
    return unbounded_note(free, [Budget.parse(text) for text in split_list(budgets)])


def _with_budgets(name: str, values: dict[str, JsonValue], amounts: list[Amount]) -> list[MethodChoice]:
    if not make_method(name, **values).needs_budget:
        amounts = [FULL.budget]
    return [MethodChoice(method=name, budget=amount, hyper_parameters=values) for amount in amounts]
