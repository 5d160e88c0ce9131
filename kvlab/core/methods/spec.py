"""Command-line short forms: `key_value:pairs=64`, `keepkv:preset=paper`, `ruler=niah.jsonl`, `0.05,128`."""

from dataclasses import dataclass

from pydantic import JsonValue

from kvlab.core.budget import Budget, unbounded_note
from kvlab.core.choice import FULL, MethodChoice
from kvlab.core.contract.method import registered
from kvlab.core.errors import UserError
from kvlab.core.method_spec import parse_spec, split_list
from kvlab.core.methods import make_method


@dataclass(frozen=True)
class MethodDescription:
    """One method as forms, tables and the dashboard show it."""

    name: str
    family: str
    title: str
    paper: str
    summary: str
    merges: bool
    compresses_while_decoding: bool
    needs_budget: bool
    variants: list[str]
    choices: dict[str, str]
    parameters: dict[str, JsonValue]
    presets: dict[str, JsonValue]
    reasons: dict[str, str]
    holds: dict[str, JsonValue]
    stores: dict[str, JsonValue]
    window: int  # newest tokens of the prompt that always stay
    origin: str  # plug-in with version and hash; empty: kvlab's own


def list_methods() -> list[MethodDescription]:
    """All registered methods in display order."""
    return [MethodDescription(**method.describe()) for method in registered().values()]  # type: ignore[arg-type]  # describe() has this class's fields


def parse_choices(methods: str, budgets: str) -> tuple[MethodChoice, ...]:
    """Combine every method with every budget; methods without a budget appear once."""
    amounts = [Budget.parse(text).amount for text in split_list(budgets)]
    if not amounts:
        raise UserError("Give at least one budget, such as 0.2 or 64.")
    named = [parse_spec(text) for text in split_list(methods)]
    if not named:
        raise UserError("Give at least one method, such as h2o,keepkv.")
    choices: list[MethodChoice] = []
    for name, values in named:
        needed = amounts if make_method(name, **values).needs_budget else [FULL.budget]
        choices += [MethodChoice(method=name, budget=amount, hyper_parameters=values) for amount in needed]
    return tuple(choices)


def unused_byte_budgets(methods: str, budgets: str) -> str:
    """Note for byte budgets given to methods that take no budget; empty if there are none."""
    made = [make_method(name, **values) for name, values in map(parse_spec, split_list(methods))]
    free = [one.title for one in made if not one.needs_budget and one.name != FULL.method]
    return unbounded_note(free, [Budget.parse(text) for text in split_list(budgets)])
