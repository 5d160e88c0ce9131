"""What every layer of one cache shares, and who may watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.pass_view import PassSeen
from kvlab.cache.rotary import RotaryOfPasses
from kvlab.cache.token_pruning import Passage
from kvlab.common.errors import UserError
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.rotary import Rotary
from kvlab.methods.core.second_pass import Rehearsal
from kvlab.methods.core.view import Slots, View
from kvlab.requests.budget import Budget
from kvlab.stores import NATIVE, Store, store_of


class Observer(Protocol):
    """Somebody who watches a layer; the cache works the same without one."""

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, output: Tensor) -> None:
        """After attention, before any decision. `slots` is the table with the new tokens in it."""
        ...

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """After a plan was applied. `before` is the table from just before, as long as the call lasts."""
        ...


class Counter(Observer, Protocol):
    """One whose `full` is false: it looks at no slots."""

    def counted(self, layer_idx: int, counts: np.ndarray) -> None:
        """In place of `compressed` where no plan was made: one slot of each head has left.

        `counts` (3, B, H) are as `kvlab.cache.layers.counts.counts_of` gives them, and no guard was called.
        """
        ...


@dataclass(frozen=True)
class Held:
    """A layer that has read its prompt and waits for the decision; `shown`: its pass was, to who watches."""

    layer: Any
    seen: PassSeen
    shown: bool


@dataclass
class RehearsalState:
    """The prompt's token ids as its passes come in, and how far the rehearsal is."""

    plan: Rehearsal
    ask: list[int]  # token ids in front of each piece
    start: int | None  # the token every text begins with, which is not read again
    studies: list[list[int]] = field(default_factory=list)  # token ids of requests that the model answers by itself
    context: int | None = None  # tokens of each row that are read again, the first ones; None: all
    ids: list[Tensor] = field(default_factory=list)  # (B, q) of each pass
    mask: Tensor | None = None  # (B, T) of the last pass, where one was given
    running: bool = False
    done: bool = False

    def forget(self) -> None:
        """Make ready for another prompt."""
        self.context, self.ids, self.mask = None, [], None
        self.running = self.done = False


@dataclass
class LayerSettings:
    """What every layer of one cache shares."""

    pipeline: Pipeline
    budget: Budget
    num_layers: int  # compressed layers: sliding ones keep their own window and share no budget
    group: int = 1  # query heads to a KV head
    compress_every: int = 1
    compresses: bool = True  # these settings can drop something
    seed: int = 0
    observer: Observer | None = field(default=None, repr=False)
    timed: bool = False  # measure how long the prompt's decisions take (waits for the device)
    prefill_compress_seconds: float = 0.0
    rotary: Rotary | None = field(default=None, repr=False)
    changing_rotary: Callable[[], Rotary] | None = field(default=None, repr=False)  # where frequencies follow length
    unrotated: frozenset[int] = frozenset()  # layers that do not rotate though the model does
    passage: Passage | None = field(default=None, repr=False)  # with prefill saving: what goes on to the next layer
    prompt_tokens: int = 0  # announced tokens of the prompt: nothing is decided before all are there; 0: one pass
    text_tokens: int = 0  # tokens of the text that budgets are for; 0: those of the first prompt
    statistics: dict[int, Tensor] = field(default_factory=dict, repr=False)  # what the allocator noted, by layer
    store: Store = field(default_factory=lambda: store_of(NATIVE))  # how settled slots are held
    held: dict[int, Held] | None = field(default=None, repr=False)  # by layer, prompts not decided about yet
    stays_held: bool = False  # nobody decides about the prompt: others go on from it (`prefix`)
    rehearsal: RehearsalState | None = field(default=None, repr=False)  # where the method wants one
    prompt_ids: list[Tensor] = field(default_factory=list, repr=False)  # (B, q) of its passes, where the method reads
    rehearsal_seconds: float = 0.0  # how long it took, where `timed`
    shape: dict[str, Any] | None = None  # of the model it was made for, as `shape_of` reads it
    unattended: int | None = None  # the layer that appended states last, until its attention is computed

    def forget(self) -> None:
        """Drop all that belongs to the text seen so far, and keep what belongs to the method and the model."""
        self.prompt_tokens, self.text_tokens, self.unattended = 0, 0, None
        self.prefill_compress_seconds = self.rehearsal_seconds = 0.0
        self.statistics, self.prompt_ids, self.held = {}, [], None
        if self.passage is not None:
            self.passage.begin()
        if self.rehearsal is not None:
            self.rehearsal.forget()

    @property
    def loses(self) -> bool:
        """Whether slots are dropped, merged or rounded, so that it matters where the prompt ends."""
        return self.compresses or self.store.packs

    def check_model(self, module: Any, group: int) -> None:
        """Raises UserError where the attention module belongs to a model of another shape than the cache was made for.

        Rotation, heads and layers are known from that model. A copy of it, or one fine-tuned from it, will do. `group`
        query heads share a KV head of the module.
        """
        config = getattr(module, "config", None)
        if self.shape is not None and config is not None and (shape_of(config), group) != (self.shape, self.group):
            raise UserError(
                "This cache was made for another model: make one with kvlab.make_cache and the model that runs."
            )

    def check_attended(self) -> None:
        """Raises UserError where a layer got keys and values but was never asked for the attention over them."""
        if self.unattended is not None:
            raise UserError(
                f"Layer {self.unattended} stored keys and values in this cache, but the model computed attention "
                "without it, so nothing would ever be compressed: use the model that make_cache was given, loaded with "
                "kvlab.load_model, and do not change its attention implementation."
            )

    @property
    def period(self) -> int:
        """Decode steps from one decision to the next."""
        return self.compress_every - 1 + max(self.pipeline.buffer, 1)

    def token_ids(self, slots: int) -> Tensor | None:
        """(B, `slots`) of the prompt, for a method that reads it; None where nobody told them."""
        known = torch.cat(self.prompt_ids, 1) if self.prompt_ids else None
        return known if known is not None and known.shape[1] == slots else None

    @property
    def watched_closely(self) -> bool:
        """Whether an observer looks at slots; one whose `full` is false only counts what leaves."""
        return self.observer is not None and getattr(self.observer, "full", True)

    def holds_anew(self, dense: bool) -> bool:
        """Whether a prompt of which nothing leaves is put into tables of its own all the same."""
        return (self.compresses and not dense) or self.store.packs

    def rotary_of(self, layer_idx: int) -> RotaryOfPasses:
        """What one layer's keys are rotated by, pass by pass."""
        if self.rotary is not None and layer_idx in self.unrotated:
            return RotaryOfPasses(Rotary(torch.zeros_like(self.rotary.inverse_frequencies)), None)
        return RotaryOfPasses(self.rotary, self.changing_rotary)

    @property
    def rehearses_now(self) -> bool:
        """Whether the pass at work is a rehearsal's."""
        return self.rehearsal is not None and self.rehearsal.running

    @contextmanager
    def clock(self, phase: str, device: torch.device) -> Iterator[None]:
        """Adds the time of a prompt's decision to `prefill_compress_seconds`, if asked to."""
        if not self.timed or phase != "prefill":
            yield
            return
        wait(device)
        begun = time.perf_counter()
        yield
        wait(device)
        self.prefill_compress_seconds += time.perf_counter() - begun


# What all layers have in common, even where heads differ from layer to layer.
SHAPE = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rope_parameters")


def shape_of(config: Any) -> dict[str, Any]:
    """What a cache knows of the model it was made for."""
    text = config.get_text_config(decoder=True)
    return {name: getattr(text, name, None) for name in SHAPE}


def wait(device: torch.device) -> None:
    """Until the device has done what it was asked to."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
