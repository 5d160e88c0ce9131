"""Decode steps on the host: whether two steps do the same work, and host counters of a replayed step."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from torch import Tensor

from kvlab.core.attention.layer_handoff import AttentionCall, offer_layer
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.layers.blockwise import attend_in_blocks
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.layers.layer_state import UnboundedLayer

HostCounts = tuple[tuple[int, list[int], int, tuple[int, ...]], ...]


def replay_obstacle(cache: CompressedCache) -> str:
    """Reason why no decode step of this cache can be replayed (CUDA graph); empty if it can."""
    settings = cache.settings
    others = len(cache.layers) - len(cache.compressed_layers())
    if any(hasattr(layer, "recurrent_states") for layer in cache.layers):
        return "the model also has a recurrent state"
    if others:
        return f"{others} layers have a sliding window whose tensors are new at every step"
    if settings.store.packs:
        return "slots are quantized in groups, so steps differ"
    if settings.sparse_attention is not None:
        return "the slots that are read differ from step to step"
    if settings.observer is not None:
        return "a recorder observes every step"
    if settings.changing_rotary is not None:
        return "the model's rotary frequencies depend on the length of the text"
    return ""


def kind_of_next(cache: CompressedCache) -> Hashable:
    """Key of the next token's work: equal keys mean equal work, given tensors the pass reads from the device.

    None if the work also depends on a host count, as before the first decision or when integers are widened.
    """
    layers = cache.compressed_layers()
    buckets = [bucket for layer in layers for bucket in layer.buckets]
    if any(not layer.prompt_compressed for layer in layers) or any(one.table.is_dense or one.ahead for one in buckets):
        return None
    if not all(table.fits_integers(layer.cumulative_length + 1) for layer in layers for table in layer.tables):
        return None
    kinds: list[Hashable] = []
    for layer in layers:
        due = layer.settings.pipeline.decode and layer.waiting + 1 >= layer.settings.period
        kinds.append(layer.waiting if due else None)
        for bucket in layer.buckets:
            table = bucket.table
            places = (table.slots.keys, table.slots.values, bucket.evicted_votes, *table.slots.metadata().values())
            addresses = tuple(tensor.data_ptr() for tensor in (*places, *table.head_state.values()))
            assert bucket.head_budgets is not None
            over = table.occupied + 1 > bucket.head_budgets.smallest
            has_room = table.occupied < table.width
            kinds.append((addresses, table.width, has_room, table.weighted, bucket.started, over))
    return tuple(kinds)


def host_counts(cache: CompressedCache) -> HostCounts:
    """Host counters that a decode step changes."""
    return tuple(
        (layer.cumulative_length, layer.lengths, layer.waiting, tuple(table.occupied for table in layer.tables))
        for layer in cache.compressed_layers()
    )


def put_host_counts(cache: CompressedCache, counts: HostCounts) -> None:
    """Undo a step's changes: restore what `host_counts` returned before it."""
    for layer, (length, lengths, waiting, occupied) in zip(cache.compressed_layers(), counts, strict=True):
        layer.cumulative_length = length
        layer.lengths = lengths
        layer.waiting = waiting
        for table, slots in zip(layer.tables, occupied, strict=True):
            table.occupied = slots


def count_step(cache: CompressedCache) -> None:
    """Update host counters after the device has replayed a decode step."""
    first = cache.compressed_layers()[0]  # all layers decide together
    decided = cache.settings.pipeline.decode and first.waiting + 1 >= cache.settings.period
    for layer in cache.compressed_layers():
        layer.cumulative_length += 1
        layer.lengths = [length + 1 for length in layer.lengths]
        layer.waiting = 0 if decided else layer.waiting + 1
        for bucket in layer.buckets:
            bucket.table.occupied += 1
            if decided and bucket.head_budgets is not None:
                bucket.table.occupied = min(bucket.table.occupied, bucket.head_budgets.largest)


def supports_token_by_token(cache: CompressedCache) -> bool:
    """Whether layers are independent of other layers, hidden states and changing frequencies."""
    settings = cache.settings
    pipeline = cache.settings.pipeline
    apart = not (pipeline.waits or pipeline.score.needs_hidden_states)
    plain = all(type(layer) is CompressedLayer for layer in cache.compressed_layers())
    return apart and plain and settings.changing_rotary is None


@contextmanager
def token_by_token(cache: CompressedCache) -> Iterator[CompressedCache]:
    """`cache`, empty as yet, as the next pass fills it: every layer by itself, token by token."""
    layers = cache.layers
    cache.layers = [TokenByToken(layer) if isinstance(layer, CompressedLayer) else layer for layer in layers]
    try:
        yield cache
    finally:
        cache.layers = layers


class TokenByToken(UnboundedLayer):
    """Replaces a compressed layer during one pass over a whole text."""

    def __init__(self, layer: CompressedLayer) -> None:
        super().__init__()
        self.layer = layer
        self.layer_idx = layer.layer_idx

    def get_seq_length(self) -> int:
        """Tokens seen so far: none."""
        return self.layer.get_seq_length()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append nothing yet; all states (B, H, q, d) are passed to the attention function."""
        offer_layer(self, key_states)
        return key_states, value_states

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Output (B, Hq, q, d): each token is appended, attends and is compressed before the next one."""
        return attend_in_blocks(self.layer, 1, query, key, value, call._replace(padding=None))
