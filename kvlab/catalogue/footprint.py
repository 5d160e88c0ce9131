"""What methods hold as they are set: known of defaults and published settings, else asked of a process, once each."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from kvlab.catalogue import methods, parameters
from kvlab.catalogue.methods import Held, MethodEntry
from kvlab.common.errors import UserError
from kvlab.planning.footprint import Holds
from kvlab.planning.plan import HoldsOf
from kvlab.requests.budget import Budget, meant_store, window_note
from kvlab.requests.compare import MethodChoice

STORE = "store"
MOST_KEPT = 1000  # answers; then all are asked for anew
Key = tuple[str, str]
_answers: dict[Key, Held | str] = {}  # what a method holds as it is set, or in a sentence why it cannot be set so
_asking = threading.Lock()  # one process at a time: each takes the memory of a torch
_LISTED = TypeAdapter(list[Held | str])


def holds_in(choices: Iterable[MethodChoice]) -> HoldsOf:
    """What says what a choice's method holds, in its store; settings of `choices` are asked about together.

    It, or this, raises UserError for a setting that the method does not take, or where nobody answers. A store with
    settings counts as it is without them.
    """
    _ask({_key(choice): choice for choice in choices if _known(choice) is None})
    return _holds


def window_notes(choices: Iterable[MethodChoice], tokens: int) -> list[str]:
    """A sentence for each choice whose budget its method's own window takes up, for a prompt of so many tokens.

    Budgets in bytes are only slots once the prompt was read. Raises UserError as `holds_in`.
    """
    found = []
    for choice in choices:
        if not isinstance(choice.budget, str) and (entry := _entry(choice)) is not None:
            slots = Budget(choice.budget).slots(tokens)
            found.append(window_note(entry.title, _held(choice).window, slots, tokens))
    return list(dict.fromkeys(filter(None, found)))


def _held(choice: MethodChoice) -> Held:
    held = _known(choice)
    if held is None:
        held = _ask({_key(choice): choice})[_key(choice)]
    if isinstance(held, str):
        raise UserError(held)
    return held


def _holds(choice: MethodChoice) -> Holds:
    held = _held(choice)
    store = meant_store(_store(choice), Budget(choice.budget)).partition("/")[0]
    return held.holds.model_copy(update={"packed": held.stores[store]}) if store in held.stores else held.holds


def _store(choice: MethodChoice) -> str:
    entry = _entry(choice)
    usual = parameters.parameters(entry, str(choice.preset)) if entry else []
    return str(choice.hyper_parameters.get(STORE, next((one.default for one in usual if one.name == STORE), "")))


def _known(choice: MethodChoice) -> Held | str | None:
    """What is known without asking; None where nothing is."""
    entry, own = _entry(choice), _settings(choice)
    if entry is None:
        return Held()  # whoever makes it says that there is no such method
    if not own:
        return entry
    if set(own) == {parameters.PRESET} and choice.preset in entry.presets:
        return entry.presets[str(choice.preset)]
    return _answers.get(_key(choice))


def _ask(unknown: dict[Key, MethodChoice]) -> dict[Key, Held | str]:
    with _asking:
        told = {key: _answers[key] for key in unknown if key in _answers}  # somebody else has asked meanwhile
        new = [key for key in unknown if key not in told]
        if new:
            settings = [(unknown[key].method, _settings(unknown[key])) for key in new]
            answered = methods.ask("methods", "--held", given=json.dumps(settings))
            try:
                answers = _LISTED.validate_python(answered)
                told |= zip(new, answers, strict=True)
            except ValueError as error:  # another kind of answer, or of another number
                raise methods.no_list("methods") from error
        if len(_answers) > MOST_KEPT:
            _answers.clear()
        _answers.update(told)
        return told


def _key(choice: MethodChoice) -> Key:
    return choice.method, json.dumps(_settings(choice), sort_keys=True)


def _settings(choice: MethodChoice) -> dict[str, Any]:
    """Of a choice all but the store and what means nothing."""
    own = {name: value for name, value in choice.hyper_parameters.items() if name != STORE}
    return {name: value for name, value in own.items() if (name, value) != (parameters.PRESET, parameters.DEFAULT)}


def _entry(choice: MethodChoice) -> MethodEntry | None:
    return next((entry for entry in methods.methods() if entry.name == choice.method), None)
