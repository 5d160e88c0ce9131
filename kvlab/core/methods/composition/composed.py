"""Compose a method from other methods' scores, allocations, selections and settlers."""

from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict, Field, JsonValue

from kvlab.core.contract import Evict, LowestScore, Oldest, Pipeline, Selector, capabilities_of, optional
from kvlab.core.contract.method import MOST_WHOLE, Method, build_method, make_method, register, registered
from kvlab.core.errors import UserError
from kvlab.core.methods.composition.register import REGISTERED
from kvlab.core.methods.scorers.wrapper import PromptOnly
from kvlab.core.validation import quote_value

# Plain names of choices and the method each is taken from; methods' own names work too. As a score, "window" is
# SnapKV's observation window, not the method of that name (whose score is recency).
PLAIN_NAMES: dict[str, dict[str, str]] = {
    "score": {
        "recency": "streaming-llm",
        "accumulated": "h2o",
        "decayed": "zsmerge",
        "window": "snapkv",
        "ema": "keepkv",
        "second-pass": "kvzip",
    },
    "allocate": {
        "uniform": "window",
        "pyramid": "pyramidkv",
        "linear": "pyramid-pool",
        "variance": "d2o",
        "global": "kvzip",
        "profile": "duoattention",
        "curves": "lukv",
    },
    "settle": {"evict": "window", "pool": "pyramid-pool", "sets": "kvmerger", "values": "cam"},
}
FORMER_NAMES = {"rehearsal": "second-pass"}  # of scores, in rows, runs and links of earlier versions
SELECTORS: dict[str, Callable[..., Selector]] = {"topk": LowestScore, "oldest": Oldest}
SELECTOR_PARAMETERS = {"topk": ("sinks", "recent"), "oldest": ("sinks",)}
PARTS = ("score", "allocate", "select", "settle")
NOT_A_SOURCE = ("full", "packed", "compose")


def choices() -> dict[str, list[str]]:
    """Names of the distinct choices for `score`, `allocate`, `select` and `settle`.

    A method whose choice equals an earlier one is not listed, but its name works as well.
    """
    listed: dict[str, list[str]] = {}
    for part in PARTS:
        plain = PLAIN_NAMES.get(part, {})
        named = [*plain] if plain else [*SELECTORS]
        known = [getattr(pipeline_of(part, name, {}), part) for name in plain] or [selector(n, {}) for n in SELECTORS]
        for name in (name for name in registered() if name not in (*NOT_A_SOURCE, *named)):
            choice = getattr(pipeline_of(part, name, {}), part)
            if choice not in known:
                named = [*named, name]
                known = [*known, choice]
        listed[part] = [*named, *REGISTERED[part]]
    return listed


def source(part: str, name: str) -> tuple[str, type[Method]]:
    """(method name, method class) a choice is taken from."""
    name = FORMER_NAMES.get(name, name)
    if name in REGISTERED[part]:
        return name, REGISTERED[part][name]
    method = PLAIN_NAMES.get(part, {}).get(name, name)
    if method not in registered() or method in NOT_A_SOURCE:
        raise REGISTERED[part].unknown(name, choices()[part])
    return method, registered()[method]


def pipeline_of(part: str, name: str, given: dict[str, Any]) -> Pipeline:
    """Pipeline of a choice's method with the choice's hyper-parameters."""
    return build_method(source(part, name)[1], **given).pipeline()


def selector(name: str, given: dict[str, Any], recent: float | int = 0.5) -> Selector:
    """A selector by plain name; `recent` is the default. Raises UserError for numbers out of range."""
    sinks = given.get("sinks", 4)
    recent = given.get("recent", recent)
    if isinstance(sinks, bool) or not isinstance(sinks, int) or not 0 <= sinks <= MOST_WHOLE:
        raise UserError(f"sinks is {quote_value(sinks)}: use an integer number of first tokens, 0 to {MOST_WHOLE:,}.")
    if name == "oldest":
        return Oldest(sinks)
    share = isinstance(recent, float) and 0 < recent < 1
    if not share and (isinstance(recent, bool) or not isinstance(recent, int) or not 1 <= recent <= MOST_WHOLE):
        raise UserError(f"recent is {quote_value(recent)}: use a share of the budget below 1, or a number of tokens.")
    return LowestScore(sinks, recent)


def _fields(part: str, name: str) -> tuple[str, ...]:
    if part == "select" and name in SELECTORS:
        return SELECTOR_PARAMETERS[name]
    method = source(part, name)[1]
    settings = (field for field in method.model_fields if field not in Method.model_fields)
    return (*settings, *(["preset"] if method.presets else []))


def _owners(names: dict[str, str], name: str, value: Any, given: dict[str, Any]) -> list[str]:
    """Parts changed by a hyper-parameter without prefix."""
    having = [part for part in PARTS if name in _fields(part, names[part])]
    if not having:
        known = sorted({field for part in PARTS for field in _fields(part, names[part])})
        raise UserError(f"None of these choices has a hyper-parameter {name!r}; they have: {', '.join(known)}.")
    if "select" in having and names["select"] in SELECTORS:
        return ["select"]
    # If another part accepts a value that one rejects, suggest the prefixed name.
    refusals: dict[str, UserError] = {}
    for part in having:
        try:
            _with(part, names[part], name, value, given)
        except UserError as error:
            refusals[part] = error
    taking = [part for part in having if part not in refusals]
    if refusals and taking:
        raise UserError(
            f"{' and '.join(having)} both have a hyper-parameter {name!r}, but only {' and '.join(taking)} accepts "
            f"{value!r}: use {' or '.join(f'{part}_{name}' for part in taking)}."
        )
    if refusals:
        raise next(iter(refusals.values()))
    changed = []
    for part in having:
        plain = build_method(source(part, names[part])[1]).pipeline()
        if getattr(plain, part) != getattr(_with(part, names[part], name, value, given).pipeline(), part):
            changed.append(part)
    sources = {source(part, names[part])[0] for part in changed}
    if len(sources) > 1:
        options = " or ".join(f"{part}_{name}" for part in changed)
        raise UserError(f"Both {' and '.join(changed)} have a hyper-parameter {name!r}: use {options}.")
    # A hyper-parameter that changes no part by itself (for example, when the method acts) applies to all parts that
    # have it.
    return [part for part in having if source(part, names[part])[0] in sources or not changed]


def _with(part: str, choice: str, name: str, value: Any, given: dict[str, Any]) -> Method:
    """The method of a choice with one value, plus the choice's other values if it needs them."""
    method = source(part, choice)[1]
    try:
        return build_method(method, **{name: value})
    except UserError:
        fields = _fields(part, choice)
        prefix = f"{part}_"
        plain = {field.removeprefix(prefix): other for field, other in given.items()}
        others = {field: other for field, other in plain.items() if field in fields}
        if len(others) < 2:
            raise
    return build_method(method, **others)


# Half of an equal share would be half of what layers can give each other.
RECENT_ACROSS_LAYERS = 16
__all__ = ["Composition", "choices", "compose"]


def compose(
    score: str | Method = "accumulated",
    allocate: str | Method = "uniform",
    select: str | Method = "topk",
    settle: str | Method = "evict",
    **hyper_parameters: Any,
) -> "Composition":
    """Create a method from four others' parts, for `make_cache(model, compose(...), budget)`.

    Each is a method, as in `compose(score=SnapKV(window=16), settle=KeepKV())`, or a name: `choices()` lists them, and
    a method's name stands for that method's part. A hyper-parameter goes to the choice that has it; if two have it,
    prefix it with the part (`score_window`, `settle_window`). `sinks` and `recent` belong to `select` "topk". Raises
    UserError for unknown names and incompatible choices.
    """
    names: dict[str, str] = {}
    for part, choice in {"score": score, "allocate": allocate, "select": select, "settle": settle}.items():
        if isinstance(choice, str):
            names[part] = choice
            continue
        # As a score, "window" is SnapKV's observation window; the local window's own is recency.
        names[part] = "recency" if (part, choice.name) == ("score", "window") else choice.name
        given = {name: value for name, value in choice if value != type(choice).model_fields[name].default}
        if common := sorted(given.keys() & Method.model_fields.keys()):
            raise UserError(f"{' and '.join(common)} belong to the whole method: set them on what compose returns.")
        hyper_parameters = {f"{part}_{name}": value for name, value in given.items()} | hyper_parameters
    made = make_method(Composition.name, **names, **hyper_parameters)
    assert isinstance(made, Composition)
    return made


@register
class Composition(Method):
    """Combine any methods' score, allocation, selection and settling.

    Further hyper-parameters are those of the chosen methods. State that the chosen merge needs besides the score
    (running averages, accumulated attention) is maintained too. Acts while decoding only if the methods of score and
    settler both do. Selection `topk` protects 4 sinks and half the budget of recent tokens unless `sinks` and `recent`
    are set, or 16 recent tokens if layers share a budget. GVote's allocation takes no budget.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name = "compose"
    family = "composition"
    title = "Composition"
    paper = ""

    score: str = Field(
        "accumulated",
        description="importance of slots",
        json_schema_extra=lambda schema: schema.update(enum=[*choices()["score"]]),
    )
    allocate: str = Field(
        "uniform",
        description="split of the budget over layers and heads",
        json_schema_extra=lambda schema: schema.update(enum=[*choices()["allocate"]]),
    )
    select: str = Field(
        "topk",
        description="which slots may be evicted, lowest scores first",
        json_schema_extra=lambda schema: schema.update(enum=[*choices()["select"]]),
    )
    settle: str = Field(
        "evict",
        description="what happens to victims",
        json_schema_extra=lambda schema: schema.update(enum=[*choices()["settle"]]),
    )

    @property
    def needs_budget(self) -> bool:  # type: ignore[override]  # a constant of the class elsewhere
        """Whether the allocation needs a budget."""
        return source("allocate", self.allocate)[1].needs_budget

    @classmethod
    def describe(cls) -> dict[str, JsonValue]:
        return super().describe() | {"needs_budget": True}

    def model_post_init(self, context: Any) -> None:
        """Check that the choices exist and are compatible."""
        self.pipeline()

    def pipeline(self) -> Pipeline:
        names = {"score": self.score, "allocate": self.allocate, "select": self.select, "settle": self.settle}
        # Hyper-parameters go to the part that their prefix names, or to those that they change.
        extra = dict(self.model_extra or {})
        given: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        for name, value in extra.items():
            prefix, _, rest = name.partition("_")
            if prefix in PARTS and rest in _fields(prefix, names[prefix]):
                given[prefix][rest] = value
                continue
            for part in _owners(names, name, value, extra):
                given[part][name] = value
        plain = self.select in SELECTORS
        parts = {part: pipeline_of(part, names[part], given[part]) for part in PARTS if part != "select" or not plain}
        shares = optional(parts["allocate"].allocate, "shares_budget")
        recent = RECENT_ACROSS_LAYERS if shares else 0.5
        select = selector(self.select, given["select"], recent) if plain else parts["select"].select
        score = parts["score"].score
        allocate = parts["allocate"].allocate
        settle = parts["settle"].settle
        if type(settle) is Evict and self.settle not in ("evict", self.score, self.allocate, self.select):
            # a method's own four parts are that method
            raise UserError(f"{self.settle} only evicts tokens: use settle 'evict'.")
        if optional(settle, "needs_protection") and capabilities_of(select).protected is None:
            raise UserError(f"settle {self.settle!r} needs a selection with protected slots, such as 'topk'.")
        # Each part is fitted to the others, or raises UserError if they do not go together.
        if fit := optional(allocate, "fitted_to"):
            score, allocate = fit(score, select, parts["allocate"].score)
        if fit := optional(settle, "fitted_to"):
            score, settle = fit(score, select, parts["settle"].score)
        decode = parts["score"].decode and parts["settle"].decode
        if not decode and not (optional(score, "costs_no_step") or capabilities_of(score).recall):
            score = PromptOnly(score)
        buffer = parts["score"].buffer if decode else 0
        deferred = parts["allocate"].deferred
        block = parts["score"].block if decode and not deferred else 0  # between decisions, so there must be several
        return Pipeline(score, allocate, select, settle, decode, deferred, block=block, buffer=buffer)
