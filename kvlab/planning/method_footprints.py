"""Memory footprints of configured methods, from the catalogue or, for other settings, from a second process."""

import json
import threading
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from kvlab.core import Budget, MethodChoice, UserError, resolve_store, window_note
from kvlab.planning import choices, parameters
from kvlab.planning.choices import Footprint, MethodEntry, MethodFootprint
from kvlab.planning.plan import FootprintOf

STORE = "store"
MOST_KEPT = 1000  # answers; then the cache is cleared
Key = tuple[str, str]
_answers: dict[Key, MethodFootprint | str] = {}  # the footprint, or why the settings are invalid
_asking = threading.Lock()  # one process at a time: each loads torch
_LISTED = TypeAdapter(list[MethodFootprint | str])


def footprints_of(choices: Iterable[MethodChoice]) -> FootprintOf:
    """A function that returns the footprint of a choice's method and store; unknown `choices` are queried together.

    It, or this, raises UserError for a setting the method does not accept, or if the process gives no answer. A store
    with settings counts as without them.
    """
    _ask({_key(choice): choice for choice in choices if _known(choice) is None})
    return _holds


def window_notes(choices: Iterable[MethodChoice], tokens: int) -> list[str]:
    """One sentence for each choice whose budget is taken up by the method's own window at this prompt length.

    Budgets in bytes are skipped: their slots are known only once the prompt was read. Raises UserError as
    `footprints_of`.
    """
    notes = []
    for choice in choices:
        if not isinstance(choice.budget, str) and (entry := _entry(choice)) is not None:
            slots = Budget(choice.budget).slots(tokens)
            notes.append(window_note(entry.title, footprint_of(choice).window, slots, tokens))
    return list(dict.fromkeys(filter(None, notes)))


def footprint_of(choice: MethodChoice) -> MethodFootprint:
    """The footprint of the configured method, in any store; raises UserError as `footprints_of`."""
    held = _known(choice)
    if held is None:
        held = _ask({_key(choice): choice})[_key(choice)]
    if isinstance(held, str):
        raise UserError(held)
    return held


def _holds(choice: MethodChoice) -> Footprint:
    held = footprint_of(choice)
    entry = _entry(choice)
    usual = parameters.parameters(entry, str(choice.preset)) if entry else []
    default = next((one.default for one in usual if one.name == STORE), "")
    asked = str(choice.hyper_parameters.get(STORE, default))
    store = resolve_store(asked, Budget(choice.budget)).partition("/")[0]
    return held.holds.model_copy(update={"packed": held.stores[store]}) if store in held.stores else held.holds


def _known(choice: MethodChoice) -> MethodFootprint | str | None:
    """The footprint if it is known without a second process, else None."""
    entry = _entry(choice)
    settings = _settings(choice)
    if entry is None:
        return MethodFootprint()  # building it reports that there is no such method
    if not settings:
        return entry
    if set(settings) == {parameters.PRESET} and choice.preset in entry.presets:
        return entry.presets[str(choice.preset)]
    return _answers.get(_key(choice))


def _ask(unknown: dict[Key, MethodChoice]) -> dict[Key, MethodFootprint | str]:
    with _asking:
        answers_of = {key: _answers[key] for key in unknown if key in _answers}  # another thread has asked meanwhile
        new = [key for key in unknown if key not in answers_of]
        if new:
            settings = [(unknown[key].method, _settings(unknown[key])) for key in new]
            answered = choices.ask("methods", "--held", stdin=json.dumps(settings))
            try:
                answers_of |= zip(new, _LISTED.validate_python(answered), strict=True)
            except ValueError as error:  # not a list of footprints, or of another length
                raise choices.not_a_list("methods") from error
        if len(_answers) > MOST_KEPT:
            _answers.clear()
        _answers.update(answers_of)
        return answers_of


def _key(choice: MethodChoice) -> Key:
    return choice.method, json.dumps(_settings(choice), sort_keys=True)


def _settings(choice: MethodChoice) -> dict[str, Any]:
    """The choice's settings without the store and the default preset."""
    settings = {name: value for name, value in choice.hyper_parameters.items() if name != STORE}
    return {name: value for name, value in settings.items() if (name, value) != (parameters.PRESET, parameters.DEFAULT)}


def _entry(choice: MethodChoice) -> MethodEntry | None:
    return next((entry for entry in choices.methods() if entry.name == choice.method), None)
