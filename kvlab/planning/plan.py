"""Whether a comparison fits this machine, and which setting would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal

from kvlab.common.formatting import format_bytes
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.model_info.size import Model
from kvlab.planning.footprint import FULL, Footprint
from kvlab.planning.machine import Machine
from kvlab.planning.memory import on, phases, phases_of_evaluation, shares
from kvlab.planning.parts import Part, Phase, largest_of_each
from kvlab.planning.recording_bytes import trace
from kvlab.planning.workload import Workload
from kvlab.requests.compare import CompareRequest

CHUNKS = (4096, 1024, 256)
MOST_WAYS = 3
PASSING = "weights on their way"
BY_LAYER = ("weights", "full cache", "compressed caches", "caches to time", "cache that is timed")
FootprintOf = Callable[[MethodChoice], Footprint]
Change = tuple[str, dict[str, Any]]
# How methods run: as a comparison, in shared passes without what only a comparison needs, or one after another.
Manner = Literal["comparison", "together", "apart"]


@dataclass(frozen=True)
class Plan:
    """A request's needs of a machine. `ways` are changes that make it fit, each tried, the mildest first."""

    model: Model
    machine: Machine
    tokens: int
    phases: tuple[Phase, ...]
    trace: Part
    ways: tuple[str, ...] = ()

    @property
    def parts(self) -> list[Part]:
        """Every kind of part at its largest, the trace last."""
        return [*largest_of_each(list(self.phases)), self.trace]

    @property
    def peak(self) -> Phase:
        """The phase that needs most of the scarcest memory."""
        return max(self.phases, key=self._strain)

    @property
    def stages(self) -> dict[str, Phase]:
        """The most demanding phase of each stage, which is named before the colon."""
        worst: dict[str, Phase] = {}
        for phase in self.phases:
            stage = phase.name.partition(":")[0]
            if stage not in worst or self._strain(phase) > self._strain(worst[stage]):
                worst[stage] = phase
        return worst

    @property
    def device_bytes(self) -> int:
        """The most any phase needs of the device; 0 if it uses the host's memory."""
        return max(on(phase, self._kind)["device"] for phase in self.phases)

    @property
    def host_bytes(self) -> int:
        """The most any phase needs of the host."""
        return max(on(phase, self._kind)["host"] for phase in self.phases)

    @property
    def total(self) -> int:
        """The most it needs of the memory the device uses."""
        return self.host_bytes if self.machine.shared else self.device_bytes

    @property
    def limit(self) -> int:
        """The size of that memory."""
        return self.machine.host_bytes if self.machine.shared else self.machine.device_bytes

    @property
    def lacking(self) -> str | None:
        """The memory or disk that is too small, as a clause; None if everything fits."""
        for needed, available, what in (
            (self.total, self.limit, f"{self.machine.name} has {format_bytes(self.limit)} free"),
            (self.host_bytes, self.machine.host_bytes, f"the host has {format_bytes(self.machine.host_bytes)} free"),
            (self.trace.bytes, self.machine.disk_bytes, f"the disk has {format_bytes(self.machine.disk_bytes)} free"),
        ):
            if needed > available:
                return f"{format_bytes(needed)}, and {what}"
        return None

    @property
    def fits(self) -> bool:
        return self.lacking is None

    @property
    def verdict(self) -> str:
        """One sentence: it fits, or what is too small and what would make it fit."""
        if self.lacking is None:
            return (
                f"It fits: at most {format_bytes(self.total)} of {format_bytes(self.limit)} free memory "
                f"({self.machine.name}), in the phase “{self.peak.name}”, and {format_bytes(self.trace.bytes)} of disk."
            )
        return f"This needs about {self.lacking} (phase “{self.peak.name}”): {self.advice}."

    @property
    def advice(self) -> str:
        """What would make it fit, as a clause."""
        if not self.ways:
            return "no setting of this request changes that, so use a smaller model or a larger device"
        return "it fits with " + ", or with ".join(self.ways)

    def as_data(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        fields = {name: getattr(self, name) for name in ("tokens", "fits", "verdict", "total", "limit", "ways")}
        return fields | {
            "model": vars(self.model),
            "machine": vars(self.machine),
            "parts": [vars(part) for part in self.parts],
            "phases": [
                {"name": phase.name, **on(phase, self._kind), "parts": [vars(part) for part in phase.parts]}
                for phase in self.phases
            ],
        }

    @property
    def _kind(self) -> str:
        return "cpu" if self.machine.shared else self.machine.device

    def _strain(self, phase: Phase) -> float:
        needed = on(phase, self._kind)
        return max(
            needed["device"] / max(self.machine.device_bytes, 1), needed["host"] / max(self.machine.host_bytes, 1)
        )


def make_plan(
    request: CompareRequest,
    tokens: int,
    model: Model,
    holds: FootprintOf,
    machine: Machine,
    *,
    manner: Manner = "comparison",
) -> Plan:
    """The plan of a request whose prompt has `tokens` tokens; `holds` returns the footprint of a choice's method.

    Several comparisons run one after another with such a prompt each: disk is for all of them. Nothing is loaded.
    Raises UserError for a model without layers.
    """
    if model.layers < 1:
        raise UserError(f"The configuration of {model.name!r} names no layers.")
    plan = _planned(request, tokens, model, holds, machine, manner)
    ways = () if plan.fits else tuple(_ways(request, tokens, model, holds, machine, manner))
    return Plan(model, machine, tokens, plan.phases, plan.trace, ways)


def with_reference(request: CompareRequest) -> tuple[MethodChoice, ...]:
    """The runs, with the full cache added if there are several methods."""
    choices = request.choices
    if len(choices) > 1 and all(choice.method != "full" for choice in choices):
        return (MethodChoice(method="full", budget=1.0), *choices)
    return choices


def _work(request: CompareRequest, tokens: int, model: Model, machine: Machine) -> Workload:
    number = model.number_bytes(request.dtype, machine.device)
    weights = model.weight_bytes(number, request.load_in)
    settings = (request.level, request.compress_every, request.prefill_chunk, request.record)
    packs = machine.packs and request.dtype == "bfloat16"  # by default a CPU computes in float32
    return Workload(model, tokens, request.max_new_tokens, number, weights, *settings, packs=packs)


def _planned(
    request: CompareRequest, tokens: int, model: Model, holds: FootprintOf, machine: Machine, manner: Manner
) -> Plan:
    """The plan without ways. Runs that a GPU cannot hold together are planned in halves, as the engine repeats them."""
    work = _work(request, tokens, model, machine)
    choices = [
        ("full cache", FULL, 1.0) if choice.method == "full" else (choice.label, holds(choice), choice.budget)
        for choice in (with_reference(request) if manner == "comparison" else request.choices)
    ]
    kind = "cpu" if machine.shared else machine.device
    devices = machine.devices if request.placement == "auto" and not machine.shared else 1
    written = trace(work, choices, request.comparisons)

    def plan(needed: list[Phase]) -> Plan:
        return Plan(model, machine, tokens, tuple(spread_over(needed, devices, model.layers)), written)

    if manner != "comparison":
        return plan(phases_of_evaluation(work, choices, kind, manner == "together"))
    made, most = plan(phases(work, choices, kind)), sum(shares(work, holds) for _, holds, _ in choices)
    while not made.fits and not machine.shared and most > 1:
        most = -(-most // 2)
        made = plan(phases(work, choices, kind, most))
    return made


def spread_over(phases: Sequence[Phase], devices: int, layers: int) -> list[Phase]:
    """The phases on the fullest of `devices`: its share of per-layer parts, with at most one extra layer."""
    if devices < 2:
        return list(phases)
    return [Phase(phase.name, tuple(_on_one(part, devices, layers) for part in phase.parts)) for phase in phases]


def _on_one(part: Part, devices: int, layers: int) -> Part:
    if part.name == PASSING:
        return Part(part.name, part.place, part.bytes // layers, "accelerate sends each to its device as it is read")
    if part.place != "device" or part.name not in BY_LAYER:
        return part
    largest = min(-(-layers // devices) + 1, layers)  # layers on one device, of which none is split
    return Part(part.name, part.place, part.bytes * largest // layers, f"on the fullest of {devices} devices")


def can_plan(request: CompareRequest, machine: Machine) -> bool:
    """Whether the placement is known: not if accelerate leaves layers on the host or disk."""
    return request.placement == "single" or machine.devices > 1


def _ways(
    request: CompareRequest, tokens: int, model: Model, holds: FootprintOf, machine: Machine, manner: Manner
) -> list[str]:
    """Changes that make the request fit, found by trying: few settings, fewer methods, a shorter prompt."""

    def fits(changes: dict[str, Any], length: int = tokens) -> bool:
        return _planned(request.model_copy(update=changes), length, model, holds, machine, manner).fits

    kinds = _changes(request, model, machine, [holds(choice) for choice in request.choices if choice.method != "full"])
    found = []
    for count in range(1, len(kinds) + 1):
        for together in combinations(kinds, count):
            first = next((tried for tried in product(*together) if fits(_joined(tried))), None)
            found += [" and ".join(words for words, _ in first)] if first else []
        if found:
            break
    else:
        found = _without_some(request, kinds, fits)
    shorter = _longest(lambda length: fits({}, length), tokens)
    return [*found[:MOST_WAYS], *([f"at most {shorter:,} prompt tokens"] if shorter else [])]


def _joined(tried: Sequence[Change]) -> dict[str, Any]:
    return {name: value for _, changes in tried for name, value in changes.items()}


def _without_some(
    request: CompareRequest, kinds: Sequence[list[Change]], fits: Callable[[dict[str, Any]], bool]
) -> list[str]:
    """Leave out methods: as few as possible of those that come last."""
    mildest = [kind[0] for kind in kinds]
    for count in range(len(mildest) + 1):
        for tried in combinations(mildest, count):
            changes = _joined(tried)
            kept: tuple[MethodChoice, ...] = ()
            for choice in request.choices:
                kept = (*kept, choice) if fits(changes | {"choices": (*kept, choice)}) else kept
            if kept:
                left_out = ", ".join(choice.label for choice in request.choices if choice not in kept)
                return [" and ".join([*(words for words, _ in tried), f"no {left_out}"])]
    return []


def _changes(request: CompareRequest, model: Model, machine: Machine, held: Sequence[Footprint]) -> list[list[Change]]:
    """Possible changes by kind, the mildest first, as text and as fields."""
    chunks = [chunk for chunk in CHUNKS if chunk < (request.prefill_chunk or 2**62)]
    kinds: list[list[Change]] = [
        [("level light", {"level": "light"})] if request.level == "full" else [],
        [
            (f"a prefill chunk of {chunk:,}", {"prefill_chunk": chunk})
            for chunk in chunks
            if all(holds.takes_chunks(chunk) for holds in held)
        ],
        [("number format bfloat16", {"dtype": "bfloat16"})]
        if model.number_bytes(request.dtype, machine.device) > 2
        else [],
    ]
    if request.max_new_tokens > 1:
        fewer = max(1, request.max_new_tokens // 4)
        kinds.append([(f"{fewer:,} new tokens", {"max_new_tokens": fewer})])
    if request.load_in is None and not machine.shared:
        kinds.append([(f"weights in {bits} bit", {"load_in": f"{bits}bit"}) for bits in (8, 4)])
    if request.placement == "single" and machine.devices > 1:
        kinds.insert(0, [(f"placement auto over {machine.devices} devices", {"placement": "auto"})])
    return [kind for kind in kinds if kind]


def _longest(fits: Callable[[int], bool], tokens: int) -> int:
    """The longest prompt that fits, to about 1 %; 0 if even a short one does not."""
    low, high = 0, tokens
    while high - low > max(1, tokens // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
