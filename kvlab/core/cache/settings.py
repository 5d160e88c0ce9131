"""Settings and state shared by all layers of one cache, and the observer protocol."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassView
from kvlab.core.budget import Budget
from kvlab.core.contract import Pipeline, Plan, Rotary, SecondPassRequest, Slots, SparseAttention, View
from kvlab.core.errors import UserError
from kvlab.core.stores import NATIVE, Store, store_of


class Observer(Protocol):
    """Watches a layer, for example to record a trace; optional."""

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        """Called after attention and before any decision; `slots` is the table including the new tokens."""

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Called after a plan was applied; `before` is the table just before it and is valid during this call only."""


class PartObserver(Protocol):
    """Observer that also sees the chunks of a prompt."""

    def attended_part(self, layer_idx: int, layer_pass: PassView) -> None:
        """Called after attention of a chunk that is not the prompt's last."""


@dataclass(frozen=True)
class PendingLayer:
    """A layer that has read its prompt and waits for the decision; `reported`: the observer knows its pass."""

    layer: Any
    layer_pass: PassView
    reported: bool


@dataclass
class SecondPass:
    """Progress of a second pass over the prompt, with the token ids collected so far."""

    plan: SecondPassRequest
    ask: list[int]  # token ids put before each piece
    start: int | None  # BOS token: not read again
    studies: list[list[int]] = field(default_factory=list)  # token ids of requests that the model answers itself
    context: int | None = None  # number of leading tokens per row that are read again; None: all
    ids: list[Tensor] = field(default_factory=list)  # (B, q) of each pass
    mask: Tensor | None = None  # (B, T) of the last pass, if one was passed
    counts_padding: bool = False  # the prompt came without position ids, so that the model counted padding too
    next_logits: Tensor | None = None  # (B, vocabulary) after the prompt, for its continuations
    running: bool = False
    done: bool = False


STATES = -1


@dataclass
class HeldBytes:
    """Bytes of all layers' tables, and the most of them at once in the step under way, or in the last one."""

    # By index among the compressed layers (`STATES`: what blocks are cut from), as last noted.
    layers: dict[int, int] = field(default_factory=dict)
    total: int = 0
    peak: int = 0

    def record(self, compressed_index: int, size: int, most: int) -> None:
        """A layer holds `size` bytes now and held up to `most` since it was last noted, beside the other layers."""
        others = self.total - self.layers.get(compressed_index, 0)
        self.layers[compressed_index] = size
        self.total = others + size
        self.peak = max(self.peak, others + most)


@dataclass
class LayerSettings:
    """What every layer of one cache shares."""

    pipeline: Pipeline
    budget: Budget
    num_layers: int  # compressed layers only: sliding-window layers share no budget
    group: int = 1  # query heads per KV head
    compress_every: int = 1
    compresses: bool = True  # whether these settings can evict or merge slots
    seed: int = 0
    observer: Observer | None = field(default=None, repr=False)
    part_observer: PartObserver | None = field(default=None, repr=False)
    timed: bool = False  # measure how long the prompt's decisions take (waits for the device)
    prefill_compress_seconds: float = 0.0
    rotary: Rotary | None = field(default=None, repr=False)
    changing_rotary: Callable[[], Rotary] | None = field(default=None, repr=False)  # if frequencies depend on length
    unrotated: frozenset[int] = frozenset()  # layers without rotary embedding in a model that has one (NoPE)
    prompt_tokens: int = 0  # announced prompt length: no decision before all have arrived; 0: one pass
    text_tokens: int = 0  # text length that budgets refer to; 0: length of the first prompt
    statistics: dict[int, Tensor] = field(default_factory=dict, repr=False)  # allocator statistics by layer
    store: Store = field(default_factory=lambda: store_of(NATIVE))  # storage format of settled slots
    sparse_attention: SparseAttention | None = None  # which slots a decode step reads; None: all of them
    # prompts that still wait for their decision, by layer
    pending: dict[int, PendingLayer] | None = field(default=None, repr=False)
    stays_pending: bool = False  # defer the prompt's decision for good: other caches continue from it (`shared_prefix`)
    second_pass: SecondPass | None = field(default=None, repr=False)  # if the method needs one
    prompt_ids: list[Tensor] = field(default_factory=list, repr=False)  # (B, q) per pass, if the method reads text
    second_pass_seconds: float = 0.0  # measured if `timed`
    shape: dict[str, Any] | None = None  # identifies the model: see `shape_of`
    held: HeldBytes = field(default_factory=HeldBytes, repr=False)
    texts: int = 1  # texts that continue one prompt, each in a row; counts and sizes are those of one
    unattended: int | None = None  # the layer whose states were appended last, until its attention is computed

    def forget(self) -> None:
        """Reset everything that belongs to the current text; keep method and model settings."""
        self.prompt_tokens = 0
        self.text_tokens = 0
        self.unattended = None
        self.prefill_compress_seconds = self.second_pass_seconds = 0.0
        self.statistics, self.prompt_ids, self.pending, self.held = {}, [], None, HeldBytes()
        if self.second_pass is not None:
            known = self.second_pass
            self.second_pass = SecondPass(known.plan, known.ask, known.start, known.studies)

    @property
    def is_lossy(self) -> bool:
        """Whether slots are evicted, merged or quantized, so that the end of the prompt matters."""
        return self.compresses or self.store.packs

    def check_model(self, module: Any, group: int) -> None:
        """Raise UserError if the attention module belongs to a model of another shape than the cache.

        A copy or a fine-tuned version of the model is accepted. `group`: query heads per KV head of the module.
        """
        config = getattr(module, "config", None)
        if self.shape is not None and config is not None and (shape_of(config), group) != (self.shape, self.group):
            raise UserError(
                "This cache belongs to another model: call kvlab.make_cache with the model you want to run."
            )

    @property
    def period(self) -> int:
        """Decode steps between two decisions."""
        return self.compress_every - 1 + max(self.pipeline.buffer, 1)

    @property
    def observes_slots(self) -> bool:
        """Whether the observer reads slots; with `full` false it only counts evictions."""
        return self.observer is not None and getattr(self.observer, "full", True)

    @property
    def in_second_pass(self) -> bool:
        """Whether the current pass belongs to a second pass over the prompt."""
        return self.second_pass is not None and self.second_pass.running


# Equal in all layers, even if heads differ from layer to layer.
SHAPE = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rope_parameters")


def shape_of(config: Any) -> dict[str, Any]:
    """Config fields that identify the model a cache was created for."""
    text = config.get_text_config(decoder=True)
    return {name: getattr(text, name, None) for name in SHAPE}


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
