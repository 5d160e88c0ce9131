"""SHA-256 of a run's files, cached per state of a file, and of array files also by block.

A read of an array verifies only the blocks it touches: one head of a layer is an eighth of its file or less, and
hashing a whole file of 270 MB takes 0.2 s. The writer pays for a second hash: 65 ms for 70 MB on top of 63. SHA-256 is
the fastest standard hash on CPUs with SHA extensions (1.2 GiB/s on one core; BLAKE2b 0.6, SHA-512 0.8).
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from kvlab.trace.record import REMEDY
from kvlab.trace.schema import EXACT_ARRAYS, PROBE_ARRAYS, RunRecord

REMEMBERED = 16_384  # files; a run of 100 layers has about 300
REMEMBERED_BLOCKS = 1_024  # array files whose verified blocks are remembered
State = tuple[int, int, int]


def checksum(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state_of(path: Path) -> State:
    """State of a file: inode, size, modification time."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=REMEMBERED)
def known_checksum(path: Path, state: State) -> str:
    """As `checksum`, cached for this state of the file, so until it is changed or replaced."""
    return checksum(path)


SUMS = "arrays/blocks.safetensors"  # in the run folder: (blocks, 32) uint8 by array file name
BLOCK = 65_536  # bytes; the sums take 1/2,048 of the files
DIGEST = 32  # bytes of SHA-256
LENGTH = 8  # bytes of the header length field of a safetensors file
MOST_EMPTY = 2**24  # rows of a tensor with zero-size rows
NUMBERS = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "U8": np.uint8, "I32": np.int32, "I64": np.int64}

Index = tuple[int | slice, ...]  # into the first dimensions of a tensor; slices are whole


def block_sums(path: Path) -> np.ndarray:
    """SHA-256 of each block of a file, (blocks, 32) uint8; the last block may be shorter."""
    with path.open("rb") as file:
        sums = b"".join(hashlib.sha256(block).digest() for block in iter(lambda: file.read(BLOCK), b""))
    return np.frombuffer(sums, np.uint8).reshape(-1, DIGEST)


def read_parts(path: Path, sums: np.ndarray | None, wanted: Mapping[str, Index]) -> dict[str, np.ndarray] | None:
    """Read the `wanted` parts of a safetensors file's tensors; None if the file differs from its `sums`.

    The header is verified too. Each block is hashed once per state of the file. Without sums nothing is verified.

    Raises OSError or SafetensorError if the file cannot be read or has another format, ValueError or KeyError if it is
    truncated or a tensor is missing or has an unknown type, IndexError if the index is beyond a tensor's end.
    """
    state = state_of(path)
    count = -(-state[1] // BLOCK)
    if sums is not None and count != len(sums):
        return None
    if state[1] < LENGTH:
        raise ValueError("the file ends before its header does")
    sound = np.ones(count, bool) if sums is None else _sound(path, state, count)
    with path.open("rb", buffering=0) as file:
        blocks = _Blocks(file, sums, sound, memoryview(bytearray(BLOCK)))
        length = bytearray(LENGTH)
        if not blocks.read(0, memoryview(length)):
            return None
        header_ends = LENGTH + int.from_bytes(length, "little")
        if header_ends > state[1]:
            raise ValueError("the header is longer than the file")
        words = bytearray(header_ends - LENGTH)
        if not blocks.read(LENGTH, memoryview(words)):
            return None
        with safe_open(path, framework="numpy"):
            pass  # what the header says holds together and lies within the file, whoever wrote it
        header = json.loads(words)
        found = {}
        for name, index in wanted.items():
            part, starts = _place(header[name], index)
            memory = memoryview(part.reshape(-1).view(np.uint8).data)
            size = len(memory) // max(1, len(starts))
            for number, start in enumerate((header_ends + starts).tolist()):
                if not blocks.read(start, memory[number * size : (number + 1) * size]):
                    return None
            found[name] = part
    return found


@dataclass(frozen=True)
class _Blocks:
    """A file by blocks: those already `sound`, the `sums` of the others, and `room` for one block."""

    file: FileIO
    sums: np.ndarray | None
    sound: np.ndarray
    room: memoryview

    def read(self, start: int, into: memoryview) -> bool:
        """Read bytes from `start`; False if a block was changed. Raises ValueError if the file ends earlier."""
        place = start
        end = start + len(into)
        while place < end:
            block = place // BLOCK
            until = min(end, (block + 1) * BLOCK)
            part = into[place - start : until - start]
            if self.sound[block]:
                self.file.seek(place)
                if self.file.readinto(part) != len(part):
                    raise ValueError("the file ends before its tensors do")
            else:
                assert self.sums is not None
                self.file.seek(block * BLOCK)
                held = self.room[: self.file.readinto(self.room)]
                begins = place - block * BLOCK
                if hashlib.sha256(held).digest() != self.sums[block].tobytes() or len(held) < begins + len(part):
                    return False
                part[:] = held[begins : begins + len(part)]
                self.sound[block] = True
            place = until
        return True


@lru_cache(maxsize=REMEMBERED_BLOCKS)
def _sound(path: Path, state: State, blocks: int) -> np.ndarray:
    """(blocks,) which blocks of a file in this state were verified; filled over time."""
    return np.zeros(blocks, bool)


def _place(tensor: Mapping[str, Any], index: Index) -> tuple[np.ndarray, np.ndarray]:
    """Memory for a part of a tensor, and the offsets of its pieces after the header.

    Raises ValueError if the tensor has too many zero-size rows.
    """
    shape = tensor["shape"]
    dtype = np.dtype(NUMBERS[tensor["dtype"]])
    begins = tensor["data_offsets"][0]
    outer = shape[: len(index)]
    inner = shape[len(index) :]
    if not math.prod(inner) and math.prod(outer) > MOST_EMPTY:
        raise ValueError("rows without end that hold nothing")
    rows = np.arange(math.prod(outer)).reshape(outer)[index]
    part = np.empty((*rows.shape, *inner), dtype)
    return part, begins + math.prod(inner) * dtype.itemsize * rows.reshape(-1)


def why_no_array(record: RunRecord, path: Path, layer: int) -> str:
    """A sentence on why this layer's array file is missing or unreadable."""
    if path.exists() and record.status != "running":
        return f"{path} is cut off or damaged: {REMEDY}."
    if record.thinned:
        return record.thinned_note
    if layer in record.sliding_layers:
        return f"Layer {layer} keeps its own sliding window, so nothing was recorded for it: choose another layer."
    if record.level != "full":
        return f"This run was recorded at level {record.level}, without keys: run it again with level full."
    if not record.recording.of_layers([layer]):
        return not_recorded(record, f"layer {layer}")
    if record.status == "running":
        return "The run is still running (or its worker was killed): its keys and attention rows appear when it ends."
    name = path.name.split("-layer-")[0]
    kept = {"attention": record.attention_rows, "keys": record.recorded_states}
    what = "keys" if name == "values" else name
    if what in record.left_out and (what not in kept or not kept[what].of_layers([layer])):
        return record.left_out[what]
    if name == "slots_read":
        return "Which slots were read was not recorded: every step read all of them, or the run is too old."
    if name in EXACT_ARRAYS:
        return "No decision about the prompt was recorded: nothing had to be evicted, or the run is too old."
    if name in PROBE_ARRAYS:
        return "This run has no probe: record the comparison again at level full (its first run has the probe)."
    return f"{path} is missing: the run ended before it was written, or the file was removed."


def not_recorded(record: RunRecord, what: str) -> str:
    """A sentence on a layer or head that was not to be recorded."""
    return (
        f"Nothing was recorded of {what}: this run records {record.recording.text} only; "
        "choose one of these, or record it again."
    )
