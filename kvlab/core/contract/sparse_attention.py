"""Contract of sparse attention: which slots a decode step reads. It changes no slot and composes with every method."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor

from kvlab.core.contract.preset import check_number
from kvlab.core.contract.rotary import Rotary
from kvlab.core.contract.slot_columns import is_valid
from kvlab.core.errors import UserError
from kvlab.core.method_spec import parse_value
from kvlab.core.plugins.load import Registry
from kvlab.core.stores.quantized_states import States, dense_states, products
from kvlab.core.validation import quote_value

EVERYTHING = "all"  # the name of attention that is not sparse: every step reads every slot
Index = dict[str, Tensor]  # (B, H, ...) each, so that an index follows the rows of its table


@dataclass(frozen=True)
class Held:
    """What sparse attention sees: the slots of one layer in one decode step, the query's own token among them."""

    keys: States  # (B, H, S, d)
    values: States  # (B, H, S, d)
    position: Tensor  # (B, H, S), negative in a free slot
    bias: Tensor | None  # (B, H, 1 or G, S) float32, added to the logits: log mass and ALiBi, -inf in a free slot
    newest: Tensor  # (B, H, 1) slot of the query's own token
    tokens_seen: Tensor  # (B,)
    scaling: float
    softcap: float | None = None
    places_count: bool = False  # the bias depends on a slot's position (ALiBi)
    dense: bool = False  # the host knows that every slot is valid
    layer: int = 0
    seed: int = 0
    heads: Tensor | None = None  # (B, H) index of each KV head in the layer; None: in order
    rotary: Rotary | None = None  # by which keys are rotated to `position`; None: not at all

    @property
    def count(self) -> int:
        """Number of slots S, free ones included."""
        return self.position.shape[2]

    def valid(self) -> Tensor:
        """Validity (B, H, S)."""
        return is_valid(self.position)

    def live(self) -> Tensor:
        """Number of valid slots (B, H)."""
        return self.valid().sum(-1)

    def float_keys(self) -> Tensor:
        """Keys (B, H, S, d) float32, zero in free slots, as the store gives them."""
        return dense_states(self.keys).float().masked_fill(~self.valid()[..., None], 0.0)

    def logits(self, query: Tensor) -> Tensor:
        """Logits (B, H, G, S) float32 of `query` (B, H, G, d) at all slots, as attention has them, with the bias."""
        query = query.float()
        every = slice(0, self.count)
        return self.with_bias(products(query, self.keys, every) * self.scaling)

    def with_bias(self, logits: Tensor) -> Tensor:
        """`logits` (B, H, G, S), already scaled, after soft-capping and with the bias."""
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if self.bias is None else logits + self.bias


class Estimate(NamedTuple):
    """Slots that were not read, by stand-ins: their logits (B, H, G, c) with log mass, and values (B, H, c, d)."""

    logits: Tensor
    values: Tensor


@dataclass(frozen=True)
class Chosen:
    """The slots that one step reads."""

    slots: Tensor  # (B, H, U, k): U is 1, or G where each query head of the group reads slots of its own
    log_weight: Tensor | None = None  # the same shape, float32, added to the logits; -inf: not read. None: all zeros
    # read from the index, per KV head or (B, H); less the keys of slots that `keys` stand in for
    index_bytes: float | Tensor = 0.0
    estimate: Estimate | None = None
    keys: Tensor | None = None  # (B, H, U, k, d) in place of the table's, from the index


@dataclass(frozen=True)
class SparseCapabilities:
    """What sparse attention declares; by default it chooses slots, exactly weighted, from an index.

    Attributes:
        samples: log weights are importance weights, so that the normaliser is an unbiased estimate.
        estimates: stand-ins take part in attention for slots that are not read.
        indexes: it keeps an index (`SparseAttention.index`), which counts as bytes held and, where read, as bytes read.
        per_query_head: query heads of a group read slots of their own.
        replaces_keys: it reads keys of its index in place of the table's (`Chosen.keys`).
        across_heads: its index is one for the heads of a layer, which then share a table.
        summarises: its index has numbers over several slots, such as a page's bounds; `note` takes those of the
            newest token's slots again, and a decision that frees more has it built anew.
        oracle: it chooses by the true attention, which a real system could not know; the search costs no bytes.
    """

    samples: bool = False
    estimates: bool = False
    indexes: bool = True
    per_query_head: bool = False
    replaces_keys: bool = False
    across_heads: bool = False
    summarises: bool = False
    oracle: bool = False


class SparseAttention(BaseModel, ABC):
    """Chooses the slots that a decode step reads. Subclasses declare settings as fields.

    `exact_at` are settings at which everything is read, so that the output is that of dense attention.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    acts_on: ClassVar[str] = "slots"
    exact_at: ClassVar[Mapping[str, Any]]

    dense_layers: int = Field(0, ge=0, description="first layers that read everything")
    dense_steps: int = Field(0, ge=0, description="first generated tokens for which every layer reads everything")

    _check_bounds = field_validator("*")(check_number)

    @property
    def capabilities(self) -> SparseCapabilities:
        """What it needs and gives."""
        return SparseCapabilities()

    def index(self, held: Held) -> Index:
        """The index over all slots; empty if it keeps none."""
        return {}

    def note(self, index: Index, held: Held) -> Index:
        """The index after one more token was written to the slots `held.newest`; may change tensors in place."""
        return index

    @abstractmethod
    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        """The slots that the queries (B, H, G, d) of one step read. Always among them: the step's own token."""


class SparseShare(SparseAttention):
    """Sparse attention that reads a given share of the slots; the default, a tenth, is the same for all to compare."""

    exact_at: ClassVar[Mapping[str, Any]] = {"share": 1.0}

    share: float = Field(0.1, gt=0, le=1, description="share of a head's slots that a step reads")
    slots: int = Field(
        0,
        ge=0,
        description="slots of a head that a step reads, in place of the share; more than there are: all; 0: the share",
    )


SPARSE_ATTENTIONS: Registry[type[SparseAttention]] = Registry("sparse attention")


def register_sparse_attention(sparse_attention: type[SparseAttention]) -> type[SparseAttention]:
    """Class decorator that registers sparse attention by name."""
    SPARSE_ATTENTIONS.add(sparse_attention.name, sparse_attention)
    return sparse_attention


def sparse_attention_of(text: str, share: float | None = None) -> SparseAttention | None:
    """Sparse attention by name, such as `quest` or with settings `quest/page=8/dense_layers=0`; None for `all`.

    `share` takes precedence over its default. Raises UserError for an unknown name or setting, or a value out of range.
    """
    name, *settings = text.split("/")
    if name == EVERYTHING:
        if settings or share is not None:
            raise UserError(
                f"read={EVERYTHING} reads every slot and has no settings: name sparse attention, as in read=quest."
            )
        return None
    if name not in SPARSE_ATTENTIONS:
        raise SPARSE_ATTENTIONS.unknown(name, [EVERYTHING, *SPARSE_ATTENTIONS])
    parts = (setting.partition("=") for setting in settings)
    values: dict[str, Any] = {name: parse_value(value) for name, _, value in parts}
    if share is not None:
        values["share"] = share
    sparse_attention = SPARSE_ATTENTIONS[name]
    try:
        return sparse_attention(**values)
    except ValidationError as error:
        first = error.errors()[0]
        setting = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(sparse_attention.model_fields)
            raise UserError(f"The sparse attention {name} has no setting {setting!r}; it has: {known}.") from None
        reason = first["msg"].removeprefix("Value error, ").lower().rstrip(".")
        given = quote_value(first["input"])
        raise UserError(
            f"The setting {setting!r} of the sparse attention {name} cannot be {given}: {reason}."
        ) from None


# What plug-ins of before import from here.
Reading = SparseAttention
PartReading = SparseShare
ReadingCapabilities = SparseCapabilities
register_reading = register_sparse_attention
reading_of = sparse_attention_of
READINGS = SPARSE_ATTENTIONS
