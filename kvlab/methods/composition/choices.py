"""The named choices a composition is made of, and which hyper-parameter belongs to which of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvlab.common.errors import UserError
from kvlab.common.validation import shown
from kvlab.methods.composition.register import REGISTERED
from kvlab.methods.core.contract import Selector
from kvlab.methods.core.method import MOST_WHOLE, Method, made, registered
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.selectors.fifo import Oldest
from kvlab.methods.selectors.top_k import LowestScore

# Plain names for choices, each with the method it is taken from; every method's own name works too.
# As a score, "window" is SnapKV's observation window, not the method of that name (whose score is recency).
PLAIN_NAMES: dict[str, dict[str, str]] = {
    "score": {
        "recency": "streaming-llm",
        "accumulated": "h2o",
        "decayed": "zsmerge",
        "window": "snapkv",
        "ema": "keepkv",
        "rehearsal": "kvzip",
    },
    "allocate": {
        "uniform": "h2o",
        "pyramid": "pyramidkv",
        "linear": "pyramid-pool",
        "variance": "d2o",
        "global": "kvzip",
        "profile": "duoattention",
    },
    "settle": {"evict": "h2o", "pool": "pyramid-pool", "sets": "kvmerger", "values": "cam"},
}
SELECTORS: dict[str, Callable[..., Selector]] = {"topk": LowestScore, "oldest": Oldest}
SELECTOR_PARAMETERS = {"topk": ("sinks", "recent"), "oldest": ("sinks",)}
PARTS = ("score", "allocate", "select", "settle")
NOT_A_SOURCE = ("full", "packed", "compose")


def choices() -> dict[str, list[str]]:
    """The different choices for `score`, `allocate`, `select` and `settle`, by name.

    A method whose choice equals an earlier one's is not listed, but its name works as well.
    """
    listed: dict[str, list[str]] = {}
    for part in PARTS:
        plain = PLAIN_NAMES.get(part, {})
        named = [*plain] if plain else [*SELECTORS]
        known = [getattr(pipeline_of(part, name, {}), part) for name in plain] or [selector(n, {}) for n in SELECTORS]
        for name in (name for name in registered() if name not in (*NOT_A_SOURCE, *named)):
            own = getattr(pipeline_of(part, name, {}), part)
            if own not in known:
                named, known = [*named, name], [*known, own]
        listed[part] = [*named, *REGISTERED[part]]
    return listed


def source(part: str, name: str) -> tuple[str, type[Method]]:
    """(method name, method) that a choice is taken from."""
    if name in REGISTERED[part]:
        return name, REGISTERED[part][name]
    method = PLAIN_NAMES.get(part, {}).get(name, name)
    if method not in registered() or method in NOT_A_SOURCE:
        raise REGISTERED[part].unknown(name, choices()[part])
    return method, registered()[method]


def pipeline_of(part: str, name: str, given: dict[str, Any]) -> Pipeline:
    """The pipeline of the method a choice is taken from, with the choice's hyper-parameters."""
    return made(source(part, name)[1], **given).pipeline()


def selector(name: str, given: dict[str, Any], recent: float | int = 0.5) -> Selector:
    """A selection by plain name, with `recent` where nothing is given; raises UserError for numbers out of range."""
    sinks, recent = given.get("sinks", 4), given.get("recent", recent)
    if isinstance(sinks, bool) or not isinstance(sinks, int) or not 0 <= sinks <= MOST_WHOLE:
        raise UserError(f"sinks is {shown(sinks)}; it must be a whole number of first tokens, 0 to {MOST_WHOLE:,}.")
    if name == "oldest":
        return Oldest(sinks)
    share = isinstance(recent, float) and 0 < recent < 1
    if not share and (isinstance(recent, bool) or not isinstance(recent, int) or not 1 <= recent <= MOST_WHOLE):
        raise UserError(f"recent is {shown(recent)}; it must be a share of the budget below 1, or a number of tokens.")
    return LowestScore(sinks, recent)


def distributed(names: dict[str, str], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each part's own hyper-parameters."""
    parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for name, value in given.items():
        prefix, _, rest = name.partition("_")
        if prefix in PARTS and rest in _fields(prefix, names[prefix]):
            parts[prefix][rest] = value
            continue
        for part in _owners(names, name, value, given):
            parts[part][name] = value
    return parts


def _fields(part: str, name: str) -> tuple[str, ...]:
    if part == "select" and name in SELECTORS:
        return SELECTOR_PARAMETERS[name]
    method = source(part, name)[1]
    own = (field for field in method.model_fields if field not in Method.model_fields)
    return (*own, *(["preset"] if method.presets else []))


def _owners(names: dict[str, str], name: str, value: Any, given: dict[str, Any]) -> list[str]:
    """The parts that a hyper-parameter without a prefix changes."""
    having = [part for part in PARTS if name in _fields(part, names[part])]
    if not having:
        known = sorted({field for part in PARTS for field in _fields(part, names[part])})
        raise UserError(f"None of these choices has a hyper-parameter {name!r}; they have: {', '.join(known)}.")
    if "select" in having and names["select"] in SELECTORS:
        return ["select"]
    _check_all_take_it(having, names, name, value, given)
    changed = [part for part in having if _changes(part, names[part], name, value, given)]
    sources = {source(part, names[part])[0] for part in changed}
    if len(sources) > 1:
        options = " or ".join(f"{part}_{name}" for part in changed)
        raise UserError(f"Both {' and '.join(changed)} have a hyper-parameter {name!r}; say {options}.")
    # What changes no part by itself (when the method acts, say) is for all parts that know it.
    return [part for part in having if source(part, names[part])[0] in sources or not changed]


def _check_all_take_it(having: list[str], names: dict[str, str], name: str, value: Any, given: dict[str, Any]) -> None:
    """Raises UserError for a value that some part refuses; where another takes it, the sentence says how to say so."""
    refusals: dict[str, UserError] = {}
    for part in having:
        try:
            _with(part, names[part], name, value, given)
        except UserError as error:
            refusals[part] = error
    taking = [part for part in having if part not in refusals]
    if refusals and taking:
        raise UserError(
            f"{' and '.join(having)} both have a hyper-parameter {name!r}, and only {' and '.join(taking)} can take "
            f"{value!r}; say {' or '.join(f'{part}_{name}' for part in taking)}."
        )
    if refusals:
        raise next(iter(refusals.values()))


def _with(part: str, choice: str, name: str, value: Any, given: dict[str, Any]) -> Method:
    """The method of a choice with one value, and with all else it is given if it takes the value only with that."""
    method = source(part, choice)[1]
    try:
        return made(method, **{name: value})
    except UserError:
        fields, own = _fields(part, choice), f"{part}_"
        plain = {field.removeprefix(own) if field.startswith(own) else field: other for field, other in given.items()}
        others = {field: other for field, other in plain.items() if field in fields}
        if len(others) < 2:
            raise
    return made(method, **others)


def _changes(part: str, choice: str, name: str, value: Any, given: dict[str, Any]) -> bool:
    plain = made(source(part, choice)[1]).pipeline()
    changed = _with(part, choice, name, value, given).pipeline()
    return bool(getattr(plain, part) != getattr(changed, part))
