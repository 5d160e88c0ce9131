"""Read a recording of a foreign cache (`kvlab.watch.recorder`) and turn its passes into steps and events of a run."""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.core.errors import UserError

# As in `kvlab.watch.recorder`, which stands alone and imports torch.
MAGIC = b"kvlab recording\n"
FORMAT = 1
UNKNOWN = -1
MASKED = -3
ABSENT = -4


@dataclass
class LayerSlots:
    """One layer after one pass.

    Attributes:
        positions: (rows, heads, slots) int32: the token of each slot, or one of the recorder's marks.
        merges: (parents, 7): row, head, slot, parent, weight in the key, weight in the value, relative residual.
        counts: slots by what they are.
    """

    positions: np.ndarray
    merges: np.ndarray
    bytes: int
    counts: dict[str, int]


@dataclass
class Pass:
    sequence: int
    tokens: int
    bytes: int
    ids: np.ndarray | None  # (rows, tokens)
    places: np.ndarray | None  # likewise, or one row for all: the positions at which the tokens were rotated
    padded: np.ndarray | None  # likewise, 1 where a token is padding
    logits: np.ndarray | None  # (rows, vocabulary): log probabilities after the last token
    layers: dict[int, LayerSlots]


@dataclass
class Recording:
    """A recording: its header, its passes, and whether it ends in the middle."""

    path: Path
    header: dict[str, Any]
    passes: list[Pass] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cut_off: bool = False

    @property
    def title(self) -> str:
        return self.header["title"] or self.path.stem

    @property
    def origin(self) -> str:
        """For labels: that it was recorded outside, with the versions of what ran."""
        versions = self.header["versions"]
        names = [name for name in ("kvpress", "transformers") if name in versions]
        return f"recorded outside: {', '.join(f'{name} {versions[name]}' for name in names)}"

    @property
    def dtype(self) -> Any:
        """In which the model ran, as `load_model` takes it: scores of other numbers choose other tokens."""
        name = self.header["dtype"].removeprefix("torch.")
        return name if name in ("float32", "bfloat16", "float16") else "auto"

    def counts(self) -> dict[str, int]:
        """Slots by what they are, over all passes and layers."""
        total: dict[str, int] = {}
        for layer in (layer for one in self.passes for layer in one.layers.values()):
            for kind, count in layer.counts.items():
                total[kind] = total.get(kind, 0) + count
        return total


def is_recording(path: Path) -> bool:
    """Whether a file begins as a recording does."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_recording(path: Path) -> Recording:
    """The recording in `path`; one that is cut off is read up to its last whole pass.

    Raises UserError if the file is no recording, has a newer format, or holds no pass.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"The recording {path.name} cannot be read: {error.strerror or error}.") from error
    if not data.startswith(MAGIC):
        raise UserError(
            f"{path.name} is no recording of a cache: make one with kvlab_watch (`kvlab watch --write FILE`)."
        )
    recording: Recording | None = None
    ended = False
    for head, tensors in _frames(data):
        if head["kind"] == "header":
            if head["format"] > FORMAT:
                raise UserError(
                    f"{path.name} has format {head['format']}, and this kvlab reads formats up to {FORMAT}: "
                    "update kvlab."
                )
            recording = Recording(path, head)
        elif recording is not None and head["kind"] == "pass":
            layers = {}
            for one in head["layers"]:
                layer = one["layer"]
                merges = tensors.get(f"merges.{layer}", np.zeros((0, 7), np.float32))
                layers[layer] = LayerSlots(tensors[f"positions.{layer}"], merges, one["bytes"], one["counts"])
            recording.passes.append(
                Pass(
                    head["sequence"],
                    head["tokens"],
                    head["bytes"],
                    tensors.get("ids"),
                    tensors.get("places"),
                    tensors.get("padded"),
                    tensors.get("logits"),
                    layers,
                )
            )
        elif recording is not None and head["kind"] == "end":
            recording.notes = head["notes"]
            ended = True
    if recording is None or not recording.passes:
        raise UserError(f"The recording {path.name} holds no whole pass: it ended before the model had read anything.")
    recording.cut_off = not ended
    return recording


def _frames(data: bytes) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """The whole frames of a file: fields and tensors."""
    at = len(MAGIC)
    while at + 12 <= len(data):
        size, check = struct.unpack_from("<QI", data, at)
        packed = data[at + 12 : at + 12 + size]
        if len(packed) < size or zlib.crc32(packed) != check:
            return
        plain = zlib.decompress(packed)
        (length,) = struct.unpack_from("<I", plain)
        head = json.loads(plain[4 : 4 + length])
        body = plain[4 + length :]
        tensors = {}
        for name, (kind, shape, offset) in head["tensors"].items():
            count = int(np.prod(shape))
            tensors[name] = np.frombuffer(body, kind, count, offset).reshape(shape)
        yield head, tensors
        at += 12 + size


@dataclass
class Step:
    """What one step of decoding, or reading the prompt (step 0), left in a layer and KV head.

    Attributes:
        live: names of the slots that are recognised: the position of their token, of merged ones of their pivot.
        slots: slots there are, unrecognised ones too; masked ones are not counted.
        events: (kind, source, target, key weight, value weight, votes of the target after).
        votes: tokens of the largest slot.
    """

    live: list[int]
    slots: int
    masked: int
    unknown: int
    events: list[tuple[str, int, int, float, float, float]]
    votes: float


def steps_of_head(passes: list[Pass], layer: int, row: int, head: int, padding: int) -> list[Step]:
    """The steps of one layer and KV head: `passes` is one group of passes a step, positions count without padding."""
    names: dict[int, set[int]] = {}  # pivot -> tokens in its slot
    read = 0
    steps = []
    for one in passes:
        before = dict(names)
        for position in range(read, read + one.tokens):
            if position >= padding:
                before[position - padding] = {position - padding}
        read += one.tokens
        if layer not in one.layers:
            steps.append(Step(sorted(before), len(before), 0, 0, [], 1.0))
            names = before
            continue
        held = one.layers[layer]
        slots = held.positions[row, head]
        names = {int(p) - padding: {int(p) - padding} for p in slots[slots >= padding]}
        events = []
        rows = held.merges[(held.merges[:, 0] == row) & (held.merges[:, 1] == head)]
        for slot in np.unique(rows[:, 2]):
            parents = rows[rows[:, 2] == slot]
            tokens = {int(parent) - padding for parent in parents[:, 3] if parent >= padding}
            if not tokens:
                continue
            weight = {int(parent[3]) - padding: (float(parent[4]), float(parent[5])) for parent in parents}
            # The pivot: a slot that was there before, the heaviest of them, so that a slot keeps its name.
            pivots = [token for token in tokens if token in before and token not in names] or sorted(tokens)
            pivot = max(pivots, key=lambda token: (len(before.get(token, ())), abs(weight[token][1]), -token))
            names[pivot] = tokens
            for source in sorted(tokens & set(before) - {pivot}):
                if source not in names:
                    events.append(("merge", source, pivot, *weight[source], float(len(tokens))))
        merged = {event[1] for event in events}
        for source in sorted(set(before) - set(names) - merged):
            events.append(("evict", source, -1, 0.0, 0.0, float("nan")))
        live = int((slots != ABSENT).sum() - (slots == MASKED).sum())
        if padding:
            live -= int(((slots >= 0) & (slots < padding)).sum())
        steps.append(
            Step(
                sorted(names),
                live,
                int((slots == MASKED).sum()),
                int((slots == UNKNOWN).sum()),
                events,
                float(max((len(tokens) for tokens in names.values()), default=1)),
            )
        )
    return steps
