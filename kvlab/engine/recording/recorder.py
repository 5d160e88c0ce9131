"""The observer that records one run (steps, events, memory and arrays of every layer), and the group it is in."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache import CompressedCache
from kvlab.core.cache.settings import Observer
from kvlab.core.contract import Plan, Slots, View
from kvlab.core.methods.scorers.ema import EMA
from kvlab.engine.recording.events import (
    absent_columns,
    answer,
    event_columns,
    given_answer,
    growth,
    lengths,
    mass_columns,
    non_finite,
    rows_by_position,
    unread_mass,
    write_decision,
)
from kvlab.engine.recording.shadow import Answer, HostBlocks, Shadow
from kvlab.engine.recording.step_buffer import LEFT, PendingRows
from kvlab.requests.compare import RecordLevel
from kvlab.requests.recording import Recording
from kvlab.trace import RunWriter

EVERYTHING = Recording()
FLUSH_EVERY = 64
FLUSH_SECONDS = 2.0


@dataclass
class LayerRecord:
    """State of one layer: its shadow, this step's numbers, and the attention rows so far."""

    shadow: Shadow
    columns: dict[str, Tensor] = field(default_factory=dict)  # this step's columns of `steps`, each (H,)
    truth: Answer | None = None
    given: Answer | None = None
    broken: Tensor | None = None  # (H, S) attended slots that are not finite
    true_mass: list[np.ndarray] = field(default_factory=list)  # one (H, T) float16 row per step
    slot_mass: list[np.ndarray] = field(default_factory=list)
    read: dict[int, np.ndarray] = field(default_factory=dict)  # (H, T / 8) bits of the steps that left slots out

    def move(self, device: torch.device) -> None:
        """Move this step's tensors to another device."""
        if self.truth is None or self.truth.mass.device == device:
            return
        assert self.given is not None and self.broken is not None
        for name in ("truth", "given"):
            shown: Answer = getattr(self, name)
            state = None if shown.state_mass is None else shown.state_mass.to(device)
            setattr(self, name, Answer(shown.mass.to(device), shown.output.to(device), state))
        self.broken = self.broken.to(device)


class Recorder:
    """Observer (`kvlab.core.cache.layers.kvlab.core.cache.settings.Observer`) for a batch of one prompt.

    Level `light` writes counts (`steps` without masses, `memory`); `full` keeps the shadow and writes everything: keys
    and values selected by `recording`, attention rows selected by `rows`. The shadow is on the host, so the device
    holds at most one layer of it.
    """

    def __init__(
        self,
        writer: RunWriter,
        level: RecordLevel,
        prompt_tokens: int,
        steps: int,
        recording: Recording = EVERYTHING,
        rows: Recording = EVERYTHING,
    ) -> None:
        self.writer = writer
        self.full = level == "full"
        self.recording = recording
        self.rows = rows
        self.capacity = prompt_tokens + steps
        self.step = 0
        self.layers: dict[int, LayerRecord] = {}
        self.hosts: dict[torch.device, HostBlocks] = {}
        self.shown: LayerRecord | None = None  # the last layer observed
        self.pending = PendingRows(writer)
        self.none = self.same = torch.zeros(0)  # (H,) zeros and ones: the values of most steps
        self.flushed = time.monotonic()

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        """Compare this pass with the uncompressed shadow, before the decision."""
        if layer_idx not in self.layers:
            if (device := slots.valid.device) not in self.hosts:
                self.hosts[device] = HostBlocks(device)
            self.layers[layer_idx] = LayerRecord(Shadow(self.capacity, self.hosts[device]))
        layer = self.layers[layer_idx]
        heads = slots.valid.shape[1]
        self._turn_to(layer)
        earlier = layer.columns.get(LEFT) if self.step == 0 else None  # by earlier blocks of the prompt
        if self.none.shape[0] != heads or self.none.device != layer_pass.query.device:
            self.none, self.same = (make(heads, device=layer_pass.query.device) for make in (torch.zeros, torch.ones))
        layer.columns = {LEFT: self.none, "merged": self.none}
        if earlier is not None:
            layer.columns[LEFT] = earlier
        if not self.full:
            return
        # A chunked prompt is shown once, after its last chunk; a prompt in blocks is shown block by block.
        first = layer.shadow.tokens == 0
        layer.shadow.append(slots, slots.valid.shape[2] if first else layer_pass.num_new)
        if first and layer.shadow.absent is not None:  # with prefill saving they never reached the layer
            self._append_events(layer_idx, absent_columns(layer.shadow.absent, heads))
        layer.broken = non_finite(slots)
        layer.columns |= {
            "non_finite": layer.broken.sum(-1, dtype=torch.float32),
            "key_growth": self.same,
            "value_growth": self.same,
        }
        # The states of the shadow used after this one are sent ahead, if it serves the same device.
        places = list(self.layers)
        after = self.layers[places[(places.index(layer_idx) + 1) % len(places)]].shadow
        is_near = after is not layer.shadow and after.keys and after.host is layer.shadow.host
        layer.truth = layer.shadow.truth(layer_pass, after if is_near else None)
        layer.given = given_answer(slots, layer_pass, output)
        columns = layer.shadow.columns(slots)
        layer.columns |= mass_columns(slots, columns, layer.shadow, layer.given, layer.truth)
        if (read := layer_pass.share_read()) is not None:
            layer.columns["unread_mass"] = unread_mass(slots, columns, read, layer.shadow, layer.truth)
            if self.recording.of_layers([layer_idx]):
                # Bits of the slots that were read, at their positions.
                there = torch.zeros(heads, layer.shadow.capacity + 1, dtype=torch.bool, device=columns.device)
                there.scatter_(1, columns, read[0] > 0)
                bits = there[self.recording.of_heads(heads), : layer.shadow.tokens].cpu().numpy()
                layer.read[self.step] = np.packbits(bits, axis=1, bitorder="little")
        if self.step > 0 and EMA in slots.extra:
            # Relative error of the method's predicted attention, over the slots it had a prediction for.
            newest = slots.position[0] == slots.position[0].amax(-1, keepdim=True)
            judged = slots.valid[0] & ~newest
            predicted = slots.score[0].exp().masked_fill(~judged, 0.0)
            real = layer.given.mass.masked_fill(~judged, 0.0)
            received = real.sum(-1)
            error = (predicted - real).abs().sum(-1) / received
            layer.columns["score_error"] = error.masked_fill(received == 0, torch.nan)
        if self._keeps_rows(layer_idx):
            if self.step == 0:
                layer.true_mass = []
                layer.slot_mass = []
            layer.true_mass.append(self._half(layer.truth.mass))
            layer.slot_mass.append(self._half(rows_by_position(layer.given.mass, columns, layer.shadow)))

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Write the events of this decision and update which slot owns each token."""
        layer = self.layers[layer_idx]
        self._turn_to(layer)
        gone = (before.valid > plan.keep)[0]
        leaving = gone.sum(-1, dtype=torch.float32)
        absent = 0 if self.step > 0 or layer.shadow.absent is None else int(layer.shadow.absent.sum())
        leaving = leaving + layer.columns[LEFT] if self.step == 0 else leaving
        layer.columns[LEFT] = leaving + absent if absent else leaving
        if plan.edges is not None:
            layer.columns["merged"] = plan.edges.active[0].sum(-1, dtype=torch.float32)
        if not self.full:
            return
        layer.move(before.valid.device)
        assert isinstance(view.layer_pass, PassView) and layer.given is not None and layer.truth is not None
        if view.phase == "prefill":
            write_decision(self.writer, layer_idx, before, plan, layer.shadow.tokens)
        if plan.edges is not None or plan.value_shift is not None or plan.new_keys is not None:
            measured = lengths(after)
            layer.columns |= growth(lengths(before), plan, measured)
            layer.columns["non_finite"] = non_finite(after, measured).sum(-1, dtype=torch.float32)
        elif layer.broken is not None:
            layer.columns["non_finite"] = (layer.broken & plan.keep[0]).sum(-1, dtype=torch.float32)
        answered = answer(after, view.layer_pass)
        self._append_events(layer_idx, event_columns(before, plan, after, layer.given, answered, gone))
        layer.shadow.follow(before, plan, gone)
        places = layer.shadow.columns(after)
        if self._keeps_rows(layer_idx):
            layer.slot_mass[-1] = self._half(rows_by_position(answered.mass, places, layer.shadow))
        if self.step == 0:
            # Prefill attends to everything: the cost of compression shows only when the last query is evaluated again.
            layer.columns |= mass_columns(after, places, layer.shadow, answered, layer.truth)

    def end_step(self, cache: CompressedCache) -> None:
        """Queue this step's rows of `steps` and `memory`; the next flush writes them."""
        layers = cache.compressed_layers()
        records = [self.layers[layer.layer_idx] for layer in layers]
        for record in records:
            record.truth = record.given = record.broken = None
        self.shown = None
        self.pending.note(self.step, layers, [record.columns for record in records])
        self.step += 1
        if self.step % FLUSH_EVERY == 0 and time.monotonic() - self.flushed > FLUSH_SECONDS:
            self.writer.flush()
            self.flushed = time.monotonic()

    def write_arrays(self) -> None:
        """Write keys and values (unit vectors and norms) and attention rows, and note their float16 rounding error."""
        errors = dict.fromkeys(("keys", "values"), 0.0)
        for index, layer in self.layers.items() if self.full else ():
            for name in errors if self.recording.of_layers([index]) else ():
                stored = layer.shadow.stored(name, self.recording.of_heads(len(self.none)))
                errors[name] = max(errors[name], stored.error)
                self.writer.write_arrays(name, index, {"unit": stored.unit, "norm": stored.norm})
            if layer.read:
                # Bits (steps, H, T / 8) of every step.
                heads = next(iter(layer.read.values())).shape[0]
                width = -(-layer.shadow.tokens // 8)
                stacked = np.full((self.step, heads, width), 255, np.uint8)
                for step, row in layer.read.items():
                    stacked[step] = np.pad(row, ((0, 0), (0, width - row.shape[1])))
                self.writer.write_arrays("slots_read", index, {"read": stacked})
                layer.read = {}
            if layer.true_mass:
                masses = {"true_mass": _stack(layer.true_mass, layer.shadow.tokens)}
                masses["slot_mass"] = _stack(layer.slot_mass, layer.shadow.tokens)
                self.writer.write_arrays("attention", index, masses)
                layer.true_mass = []
                layer.slot_mass = []
        if self.full:
            self.writer.update(array_error=errors)

    def _turn_to(self, layer: LayerRecord) -> None:
        """Release the previous layer's tensors; for a prompt move them to the host, as its decision may come later."""
        last = self.shown
        self.shown = layer
        if last is None or last is layer:
            return
        if self.step == 0:
            last.move(torch.device("cpu"))
        else:
            last.truth = last.given = last.broken = None

    def _append_events(self, layer_idx: int, columns: dict[str, np.ndarray]) -> None:
        if count := len(columns["head"]):
            place = {"step": np.full(count, self.step), "layer": np.full(count, layer_idx)}
            self.writer.append("events", place | columns)

    def _keeps_rows(self, layer_idx: int) -> bool:
        return self.step % self.rows.every == 0 and bool(self.rows.of_layers([layer_idx]))

    def _half(self, mass: Tensor) -> np.ndarray:
        """The recorded heads' rows of `mass` (H, T) as float16."""
        heads = self.recording.of_heads(len(mass))
        return (mass if len(heads) == len(mass) else mass[heads]).half().cpu().numpy()


def memory_columns(cache: CompressedCache, step: int) -> dict[str, list]:
    """Rows of the `memory` table: each compressed layer's footprint after a step."""
    memory = cache.memory()
    layers = memory.layers
    common = {"step": step, "cache_peak_bytes": memory.peak_bytes}
    names = ("layer", "logical_tokens", "physical_slots", "live_slots", "live_bytes", "allocated_bytes", "peak_bytes")
    columns = {name: [getattr(layer, name) for layer in layers] for name in names}
    return columns | {name: [value] * len(layers) for name, value in common.items()}


def _stack(rows: list[np.ndarray], width: int) -> np.ndarray:
    """Stack rows that grew with the text into (steps, H, width), zero-padded."""
    stacked = np.zeros((len(rows), rows[0].shape[0], width), dtype=np.float16)
    for step, row in enumerate(rows):
        stacked[step, :, : row.shape[1]] = row
    return stacked


@dataclass(eq=False)
class ObserverGroup:
    """An observer (`kvlab.core.cache.settings.Observer`) that passes everything on and measures it by the clock `now`.

    `seconds` is the time of all calls, `decision_seconds` of those within a decision.
    """

    observers: list[Observer]
    now: Callable[[], float] = time.perf_counter
    seconds: float = 0.0
    decision_seconds: float = 0.0

    @property
    def full(self) -> bool:
        """Whether any observer reads slots; otherwise all of them only count."""
        return any(getattr(observer, "full", True) for observer in self.observers)

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        """Report a pass."""
        self._pass_on("attended", layer_idx, slots, layer_pass, output)

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Report a decision."""
        self.decision_seconds += self._pass_on("compressed", layer_idx, view, plan, before, after)

    def _pass_on(self, event: str, *args: Any) -> float:
        begun = self.now()
        for observer in self.observers:
            getattr(observer, event)(*args)
        taken = self.now() - begun
        self.seconds += taken
        return taken
