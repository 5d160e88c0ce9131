"""Properties of any method: functions of a method and a case that return what is wrong, or "", and their check."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import DynamicCache

from kvlab.checking.case import Case, cases, furthest, observe_case, walk
from kvlab.core import Budget, UserError
from kvlab.core.methods import Method, make_method
from kvlab.core.methods.composition.composed import compose
from kvlab.core.methods.composition.register import REGISTERED
from kvlab.core.plugins.load import load_plugins, name_files

ROUNDING = 1e-4  # of float32 over three layers
WARM = 12
WATCHED = 4


@dataclass(frozen=True)
class Property:
    """A property: `broken` returns what is wrong in a case, or ""; `where` are its cases, smallest first.

    `applies` returns why the property does not apply to a method, or "".
    """

    name: str
    broken: Callable[[Method, Case], str]
    where: tuple[Case, ...]
    applies: Callable[[Method], str]


EVERY = tuple(cases())
EXACT = tuple(case for case in EVERY if case.dtype == torch.float32)
LONG = Case(tokens=40, budget=0.4)
PADDED = tuple(case for case in EXACT if case.pads)
ONE_A_FAMILY = tuple(case for case in EXACT if not case.pads and case.tokens == 24 and case.budget == 0.3)
LONG_OF_EACH = tuple(replace(LONG, family=case.family) for case in ONE_A_FAMILY)


def _needs_budget(method: Method) -> str:
    return "" if method.needs_budget else "the method takes no budget, so there is no full one"


def _takes_chunks(method: Method) -> str:
    try:
        LONG.cache(method).expect(LONG.tokens, LONG.tokens // 2)
    except UserError as error:
        return str(error)
    return ""


PROPERTIES: list[Property] = []
Broken = Callable[[Method, Case], str]


def property_of(
    name: str, where: tuple[Case, ...], applies: Callable[[Method], str] = lambda method: ""
) -> Callable[[Broken], Broken]:
    """Make the decorated function the check of a property; `where` and `applies` as in `Property`."""

    def add(broken: Broken) -> Broken:
        PROPERTIES.append(Property(name, broken, where, applies))
        return broken

    return add


@property_of("a full budget equals plain transformers", EXACT, _needs_budget)
def full_budget_is_plain(method: Method, case: Case) -> str:
    """With a full budget the logits equal those of transformers without kvlab."""
    ids, mask = case.prompt()
    ours = walk(case.model(), case.cache(method, 1.0), ids, mask)
    plain = case.model(plain=True)
    apart = furthest(ours, walk(plain, DynamicCache(config=plain.config), ids, mask))
    return "" if apart <= ROUNDING else f"logits differ by {apart:.1e} from plain transformers"


@property_of("the budget is never exceeded", EVERY)
def budget_is_kept(method: Method, case: Case) -> str:
    """No head holds more slots than allocated, and the mean allocation is the budget."""
    pipeline = method.pipeline()
    layers = observe_case(method, case).layers
    for found in layers:
        on_top = case.compress_every - 1 + pipeline.buffer if pipeline.decode else found.step
        over = int((found.live - found.budget).max()) - on_top
        if over > 0:
            return f"{over} slots too many {found.place}"
    allocated = torch.stack([found.budget.float().mean(-1) for found in layers if found.step > 0]).mean(0)
    budget = torch.tensor([Budget(case.budget).slots(int(tokens)) for tokens in case.prompt()[1].sum(-1)])
    if method.needs_budget and bool((allocated > budget + 1e-3).any()):
        return f"{float(allocated.max()):g} slots per head were allocated, but the budget is {int(budget.max())}"
    return ""


@property_of("the newest token stays", EVERY)
def newest_stays(method: Method, case: Case) -> str:
    """The newest token has a slot of its own."""
    wrong = (
        found for found in observe_case(method, case).layers if (found.newest != found.tokens_seen[:, None] - 1).any()
    )
    return next((f"the newest token has no slot {found.place}" for found in wrong), "")


@property_of("votes sum to the tokens seen", EVERY)
def votes_sum_to_tokens(method: Method, case: Case) -> str:
    """Every token seen is in exactly one slot or dropped."""
    for found in observe_case(method, case).layers:
        token_counts = found.tokens_seen[:, None].expand_as(found.votes).float()
        if not torch.allclose(found.votes, token_counts):
            off = float((found.votes - token_counts).abs().max())
            return f"votes and dropped tokens differ by {off:g} from the tokens seen {found.place}"
    return ""


@property_of("everything stays finite", EVERY)
def everything_is_finite(method: Method, case: Case) -> str:
    """No valid slot and no logit is infinite or NaN."""
    observed = observe_case(method, case)
    if not bool(torch.isfinite(observed.logits).all()):
        return "a logit is infinite or not a number"
    return next(
        (f"a slot is infinite or not a number {found.place}" for found in observed.layers if not found.finite), ""
    )


@property_of("padded equals single", PADDED)
def padded_is_alone(method: Method, case: Case) -> str:
    """A row of a left-padded batch equals the same row alone."""
    ids, mask = case.prompt()
    together = observe_case(method, case).logits
    for row, skip in ((0, 0), (1, case.pads)):
        part = slice(row, row + 1), slice(skip, None)
        apart = furthest(together[row], walk(case.model(), case.cache(method), ids[part], mask[part])[0])
        if apart > 2 * ROUNDING:
            return f"row {row} differs by {apart:.1e} from the same row alone"
    return ""


@property_of("a second turn equals one long turn", ONE_A_FAMILY, _needs_budget)
def second_turn_is_one_long_turn(method: Method, case: Case) -> str:
    """With a full budget, a prompt in two turns gives the same logits as in one."""
    ids, _ = case.prompt()
    half = case.tokens // 2
    with torch.inference_mode():
        whole = case.model()(ids, past_key_values=case.cache(method, 1.0)).logits[:, half:]
        cache = case.cache(method, 1.0)
        case.model()(ids[:, :half], past_key_values=cache)
        apart = furthest(case.model()(ids[:, half:], past_key_values=cache).logits, whole)
    return "" if apart <= ROUNDING else f"the second turn differs by {apart:.1e} from one long turn"


@property_of("the memory table equals the tensors' bytes", EVERY)
def memory_is_what_tensors_take(method: Method, case: Case) -> str:
    """The memory table reports the bytes that the slots' tensors take."""
    wrong = (row for row in observe_case(method, case).allocated if row[1] != row[2])
    return next((f"layer {layer} reports {said:,} bytes and takes {taken:,}" for layer, said, taken in wrong), "")


@property_of("a seed decides", ONE_A_FAMILY)
def seed_decides(method: Method, case: Case) -> str:
    """The same seed gives bit-identical logits."""
    ids, mask = case.prompt()
    first = observe_case(method, case).logits
    again = walk(case.model(), case.cache(method), ids, mask)
    return "" if torch.equal(first, again) else f"a second run differs by {furthest(first, again):.1e}"


@property_of("chunks of a prompt equal the whole", LONG_OF_EACH, _takes_chunks)
def chunks_are_the_whole(method: Method, case: Case) -> str:
    """A chunked prompt gives the same result as the whole prompt."""
    ids, _ = case.prompt()
    whole = observe_case(method, case).logits
    cache = case.cache(method)
    end = 0
    with torch.inference_mode():
        for size in cache.expect(case.tokens, case.tokens // 2):
            begun = end
            end = end + size
            logits = case.model()(ids[:, begun:end], past_key_values=cache).logits[:, -1:]
        following = walk(case.model(), cache, torch.full((1, 1), 3), torch.ones(1, case.tokens + 1), steps=1)
    apart = max(furthest(logits[:, 0].float(), whole[:, 0]), furthest(following[:, 0], whole[:, 1]))
    return "" if apart <= 2 * ROUNDING else f"differs by {apart:.1e} from the prompt in one pass"


@property_of(
    "a decode step waits for nothing",
    (LONG,),
    lambda method: (
        "without a budget the table grows"
        if not method.needs_budget
        else ""
        if method.pipeline().decode
        else "the method does not act while decoding, so its table grows"
    ),
)
def steps_do_not_wait(method: Method, case: Case) -> str:
    """A decode step at the budget does not synchronise, so it can be captured in a CUDA graph."""
    cache = case.cache(method)
    ids, _ = case.prompt()
    with torch.inference_mode():
        case.model()(ids, past_key_values=cache)
        for step in range(WARM):
            case.model()(torch.full((1, 1), 3 + step), past_key_values=cache)
        try:
            for step in range(WATCHED):
                with NoReading():
                    case.model()(torch.full((1, 1), 20 + step), past_key_values=cache)
        except AssertionError as error:
            return f"while decoding, {error}"
    return ""


@property_of("generate() takes the cache", ONE_A_FAMILY)
def generate_works(method: Method, case: Case) -> str:
    """The cache works as `past_key_values` of transformers' `generate`."""
    ids, _ = case.prompt()
    model: Any = case.model()
    options = {"do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4, "pad_token_id": 0}
    text = model.generate(ids, past_key_values=case.cache(method), **options)[0, case.tokens :]
    cache = case.cache(method)
    new = ids
    step_by_step = []
    with torch.inference_mode():
        for _ in range(4):
            logits = model(new, past_key_values=cache).logits[:, -1]
            logits[:, 2] = -torch.inf  # `min_new_tokens` forbids the end
            new = logits.argmax(-1, keepdim=True)
            step_by_step.append(int(new))
    return "" if text.tolist() == step_by_step else f"generate wrote {text.tolist()}, step by step it is {step_by_step}"


READS = {"_local_scalar_dense", "item", "equal", "is_nonzero"}
DATA_DEPENDENT = {"nonzero", "masked_select", "unique", "_unique2", "unique_consecutive", "bincount", "nonzero_numpy"}
PINS = {"_pin_memory", "pin_memory", "is_pinned"}
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class NoReading(TorchDispatchMode):
    """Raise AssertionError for operations that synchronise or whose result's shape depends on values.

    Neither can be captured in a CUDA graph, nor can random numbers, whose state is on the host, nor pinning memory.
    `shapes` collects the shapes of all results, to be compared between steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], given: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        name = operation.overloadpacket.__name__
        assert name not in READS, f"{name} reads a number from the device"
        assert name not in DATA_DEPENDENT, f"the shape of what {name} gives depends on values"
        # A dropout of zero, as in eval mode, draws no random numbers.
        idle = "scaled_dot_product" in name or (name == "dropout" and (given[1] == 0 or not given[2]))
        seeded = torch.Tag.nondeterministic_seeded in operation.tags and not idle
        assert not seeded, f"{name} draws from a generator's state"
        assert name not in PINS and not (named or {}).get("pin_memory"), f"{name} takes pinned memory"
        if operation._overloadname in ("Tensor", "self_Tensor") and name == "repeat_interleave":
            assert (named or {}).get("output_size") is not None, f"the shape of what {name} gives depends on values"
        if name in INDEXES:
            kinds = [index.dtype for index in given[1] if isinstance(index, torch.Tensor)]
            assert not {torch.bool, torch.uint8} & set(kinds), "indexing with a mask depends on its values"
        result = operation(*given, **(named or {}))
        if isinstance(result, torch.Tensor):
            self.shapes.append((name, tuple(result.shape)))
        return result


@dataclass(frozen=True)
class Result:
    """A verdict with the number of cases, the smallest failing one, or why the property does not apply."""

    property: str
    verdict: Literal["holds", "fails", "does not apply"]
    detail: str


def check(method: Method, held: Property) -> Result:
    """Check a method against one property; an exception in a case is a failure."""
    if reason := held.applies(method):
        return Result(held.name, "does not apply", reason)
    for case in held.where:
        try:
            wrong = held.broken(method, case)
        except Exception as error:
            message = (str(error).strip().splitlines() or ["no message"])[0]
            wrong = f"{type(error).__name__}: {message}"
        if wrong:
            return Result(held.name, "fails", f"{case}: {wrong}")
    return Result(held.name, "holds", f"in {len(held.where)} case{'s' * (len(held.where) > 1)}")


def from_file(path: Path) -> dict[str, Method]:
    """Load a plug-in and return what can be checked, by its name for --methods.

    These are its methods with their defaults, and its parts composed with default other parts. Raises UserError if the
    file cannot be loaded or registers neither.
    """
    name_files([path])
    place = str(path.expanduser().absolute())
    plugin = next(plugin for plugin in load_plugins() if plugin.origin.place == place)
    if plugin.failure:
        raise UserError(plugin.failure)
    brought = plugin.brought
    methods = {name: make_method(name) for name in brought.get("method", [])}
    for part, registry in REGISTERED.items():
        for name in brought.get(registry.kind, []):
            methods[f"compose:{part}={name}"] = compose(**{part: name})
    if not methods:
        raise UserError(
            f"{path} registers no method and no part of one to check; it registers {', '.join(brought) or 'nothing'}."
        )
    return methods
