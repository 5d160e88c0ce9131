"""What a request holds in memory: weights, caches and logits by one formula, against what is free.

Working memory of the kernels, recordings and the process itself come on top: what does not fit here fits nowhere.
"""

import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from kvlab.common.formatting import format_bytes
from kvlab.core import UNLIMITED, Amount, Budget, MethodChoice, Sizes, UserError
from kvlab.models.info.size import Model
from kvlab.planning.choices import FULL, SHORT_TEXT, Footprint
from kvlab.requests.compare import CompareRequest

WORKER = "kvlab.jobs.worker"  # a worker frees its memory before it loads another model
SHARE = 0.95  # of free memory: allocators lose some between tensors
CGROUP = Path("/sys/fs/cgroup")
SMI = ("nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits")
MEGABYTE = 2**20


@dataclass(frozen=True)
class Machine:
    """A device (cpu, cuda or mps) by name, and the bytes of each memory that a comparison may use."""

    device: str
    name: str
    device_bytes: int
    host_bytes: int
    devices: int = 1  # of this kind, assumed equal

    @property
    def shared(self) -> bool:
        """Whether the device uses the host's memory."""
        return self.device != "cuda"


def this_machine(device: str = "auto", memory: int | None = None, devices: int | None = None) -> Machine:
    """The machine as it is now; `memory` bytes and `devices` replace what is found, so the device need not exist."""
    kind = device.partition(":")[0]
    gpus = cards() if kind in ("auto", "cuda") else []
    kind = ("cuda" if gpus else "cpu") if kind == "auto" else kind
    # Free memory of the host or container, including what idle kvlab workers hold.
    workers = [process for process in psutil.process_iter(["cmdline"]) if WORKER in (process.info["cmdline"] or [])]
    unused = psutil.virtual_memory().available
    try:
        most = (CGROUP / "memory.max").read_text().strip()
        if most.isdigit():
            unused = min(unused, int(most) - int((CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    host = int(SHARE * (unused + sum(worker.memory_info().rss for worker in workers)))
    if kind != "cuda":
        return Machine(kind, kind, memory or host, memory or host)
    number = int(device.partition(":")[2] or 0)
    name, total, free = gpus[number] if number < len(gpus) else ("a GPU that is not here", 0, 0)
    room = total if workers else free
    return Machine("cuda", name, memory or int(SHARE * room), host, devices or max(1, len(gpus)))


def cards() -> list[tuple[str, int, int]]:
    """(name, bytes, free bytes) of every NVIDIA card; none without `nvidia-smi`."""
    try:
        output = subprocess.run(SMI, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [line.rsplit(",", 2) for line in output.splitlines() if line.strip()]
        gpus = [(name.strip(), int(total) * MEGABYTE, int(free) * MEGABYTE) for name, total, free in rows]
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # nvidia-smi ignores it
        numbers = [int(word) for word in chosen.split(",") if word.strip().isdigit()]
        return [gpus[number] for number in numbers if number < len(gpus)] if numbers else gpus
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def visible_gpus() -> list[str]:
    """The driver's ids of the NVIDIA cards this process may use, in the order of requests' device numbers."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [word.strip() for word in chosen.split(",") if word.strip()]
    return [str(number) for number in range(len(cards()))]


FLOAT = 4  # logits and states of the residual stream's changes are float32
LENGTHS_FROM = 512  # `kvlab.core.contract.slot_columns`, kept equal by a test
DEQUANTISED_COPIES = 2  # of a GGUF file's largest tensor, in float32: 1.5 to 2.7 were measured
WEIGHTS = "weights"
FILE = "loading the GGUF file"
FULL_NAME = "full"
FootprintOf = Callable[[MethodChoice], Footprint]
# Which methods' caches are there at once: all of a comparison's, the largest, or no more than the smallest.
Held = Literal["all", "largest", "smallest"]


@dataclass(frozen=True)
class Part:
    """Bytes of one kind, and what they are."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True)
class Plan:
    """What a request holds, part by part; the part `FILE` is there only while the weights load.

    If it `offloads`, accelerate may leave weights on the host or disk, so that nothing is refused.
    """

    model: Model
    machine: Machine
    tokens: int
    parts: tuple[Part, ...]
    limit: int  # free bytes of the devices
    offloads: bool = False

    @property
    def loading(self) -> int:
        """Bytes while a GGUF file's weights are dequantised on the host; 0 for other files."""
        names = {part.name: part.bytes for part in self.parts}
        return names[WEIGHTS] + names[FILE] if FILE in names else 0

    @property
    def total(self) -> int:
        """The most bytes of the device at once."""
        held = sum(part.bytes for part in self.parts if part.name != FILE)
        return max(held, self.loading) if self.machine.shared else held

    @property
    def fits(self) -> bool:
        return self.total <= self.limit and self.loading <= self.machine.host_bytes

    @property
    def verdict(self) -> str:
        """One sentence: it fits, or what is too small, and the largest part."""
        free = f"{self.machine.name} has {format_bytes(self.limit)} free"
        largest = max(self.parts, key=lambda part: part.bytes)
        most = f"the largest part is {largest.name}, {format_bytes(largest.bytes)}"
        if self.fits:
            return f"It fits: at least {format_bytes(self.total)} are held, and {free}; {most}."
        if self.total > self.limit:
            return f"This needs about {format_bytes(self.total)}, and {free}; {most}."
        host = f"the host has {format_bytes(self.machine.host_bytes)} free"
        return f"This needs about {format_bytes(self.loading)} to load, and {host}; {most}."

    @property
    def refusal(self) -> str:
        """The verdict on a request that is refused; empty if it may start."""
        return "" if self.fits or self.offloads else self.verdict

    def as_data(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        fields = {name: getattr(self, name) for name in ("tokens", "fits", "verdict", "total", "limit")}
        described = {"model": vars(self.model), "machine": vars(self.machine)}
        return fields | described | {"parts": [vars(part) for part in self.parts]}


def make_plan(
    request: CompareRequest,
    tokens: int,
    model: Model,
    holds: FootprintOf,
    machine: Machine,
    rows: int = 1,
    held: Held = "all",
) -> Plan:
    """The plan of a request whose (longest) prompt has `tokens` tokens; `rows` prompts are read at once.

    `holds` returns the footprint of a choice's method. A comparison holds `all` caches, the full one that leads among
    them, and logits of every token. Nothing is loaded. Raises UserError for a model without layers.
    """
    if model.layers < 1:
        raise UserError(f"The configuration of {model.name!r} names no layers.")
    number = model.number_bytes(request.dtype, machine.device)
    text = Text(model, tokens, request.max_new_tokens, number)
    weights = Part(WEIGHTS, model.weight_bytes(number, request.weights), f"{model.parameters:,} parameters")
    caches = [_cache(choice, text, holds, rows) for choice in request.choices if choice.method != FULL_NAME]
    if held == "all" or len(caches) < len(request.choices):
        caches.insert(0, _cache(MethodChoice(method=FULL_NAME, budget=1.0), text, holds, rows))
    if held != "all":
        caches = sorted(caches, key=lambda part: part.bytes)[slice(1) if held == "smallest" else slice(-1, None)]
    written = 1 + (request.max_new_tokens if held == "all" else 0)
    description = f"float32, of the prompt's last token and {written - 1:,} new ones over the vocabulary"
    logits = Part("logits", rows * written * model.vocabulary * FLOAT, description)
    parts = [weights, *caches, logits]
    if model.file_bytes:
        tensor = FLOAT * model.vocabulary * model.hidden
        why = "the file's pages, and its largest tensor twice in float32, while the weights load"
        parts.append(Part(FILE, model.file_bytes + DEQUANTISED_COPIES * tensor, why))
    spread = request.placement == "auto" and not machine.shared
    devices = machine.devices if spread else 1
    limit = (machine.host_bytes if machine.shared else machine.device_bytes) * devices
    return Plan(model, machine, tokens, tuple(parts), limit, request.placement == "auto" and machine.devices < 2)


def _cache(choice: MethodChoice, text: "Text", holds: FootprintOf, rows: int) -> Part:
    """The most bytes that caches of `rows` prompts hold in the end, without recurrent states and free slots."""
    is_full = choice.method == FULL_NAME
    footprint = FULL if is_full else holds(choice)
    model = text.model
    slots = text.slots(footprint, choice.budget)
    tables = model.full_layers * model.key_value_heads * math.ceil(text.sizes(footprint).bytes_of(slots))
    # Kept for the next decision besides slots: queries, and state per head.
    queries = footprint.recalled * model.heads * model.head_dim * text.number
    of_width = footprint.head_value_bytes + footprint.head_keys * text.number
    per_head = footprint.head_bytes + model.head_dim * of_width
    state = model.full_layers * (queries + model.key_value_heads * per_head)
    # Keys and values of the sliding-window layers.
    held = min(model.window, text.total_tokens)
    window = model.sliding_layers * held * 2 * model.key_value_heads * model.head_dim * text.number
    why = f"{model.full_layers} layers x {model.key_value_heads} KV heads"
    if model.sliding_layers:
        why += f", and a window of {model.window:,} tokens in {model.sliding_layers} layers"
    if rows > 1:
        why += f", of {rows:,} prompts"
    return Part("full cache" if is_full else choice.label, rows * (tables + state + window), why)


@dataclass(frozen=True)
class Text:
    """A prompt of `tokens` and new tokens, read by a model at `number` bytes per number."""

    model: Model
    tokens: int
    new_tokens: int
    number: int

    @property
    def total_tokens(self) -> int:
        """Tokens in the end: the last new one is not fed back to the model."""
        return self.tokens + self.new_tokens - 1

    def slots(self, holds: Footprint, budget: Amount) -> int:
        """Slots per KV head in the end, mean over layers and heads."""
        if not holds.compresses or not holds.needs_budget:
            return self.total_tokens  # unknown without a budget: at most everything
        kept = Budget(budget).slots(self.tokens, self.sizes(holds))
        if kept >= min(UNLIMITED, self.total_tokens):
            return self.total_tokens
        if not holds.decode:
            return min(kept, self.tokens) + self.new_tokens - 1
        return min(self.total_tokens, kept + min(holds.buffer, self.new_tokens - 1))

    def sizes(self, holds: Footprint) -> Sizes:
        """Bytes of the slots of one KV head."""
        model = self.model
        token = 2 * model.head_dim * self.number
        heads = model.full_layers * model.key_value_heads
        length = FLOAT if holds.seeks and token >= LENGTHS_FROM else 0  # of the key, though on a CPU alone
        wider = 2 * holds.whole_numbers if self.total_tokens > SHORT_TEXT else 0
        slot = token + length + holds.slot_bytes + wider + model.group * holds.query_head_bytes
        if holds.packed is None:
            return Sizes(token, slot, slot, heads=heads)
        return holds.packed.sizes(token, slot, model.head_dim, heads)
