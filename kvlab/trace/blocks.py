"""SHA-256 of each block of an array file: what is read of it is held against the sums of its own blocks alone.

One head of a layer is an eighth of its file or less, and the sum of a whole file of 270 MB takes a fifth of a second.
Whoever writes a run pays once more what the whole file's sum costs: 65 ms for 70 MB beside 63.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.trace.checksums import State, state_of

SUMS = "arrays/blocks.safetensors"  # in a run's folder: of each array file, by its name, (blocks, 32) uint8
BLOCK = 65_536  # bytes; all sums take 1/2,048 of what they are of
DIGEST = 32  # bytes of SHA-256
LENGTH = 8  # bytes that say how long the header of a safetensors file is
REMEMBERED = 1_024  # files

Index = tuple[int | slice, ...]  # into the first dimensions of a tensor; slices are whole


def block_sums(path: Path) -> np.ndarray:
    """SHA-256 of each block of a file, (blocks, 32) uint8; the last block may be shorter than the others."""
    with path.open("rb") as file:
        sums = b"".join(hashlib.sha256(block).digest() for block in iter(lambda: file.read(BLOCK), b""))
    return np.frombuffer(sums, np.uint8).reshape(-1, DIGEST)


def is_sound(path: Path, sums: np.ndarray, read: Mapping[str, Index]) -> bool:
    """Whether `read`, parts of a safetensors file's tensors, is as it was when `sums` were taken.

    Its header is looked at too. A block is read once for each state of the file.

    Raises:
        OSError, ValueError, KeyError: the file cannot be read, its header is no header, or lacks a tensor.
    """
    state = state_of(path)
    blocks = -(-state[1] // BLOCK)
    if blocks != len(sums):
        return False
    sound = _sound(path, state, blocks)
    with path.open("rb") as file:
        header_ends = LENGTH + int.from_bytes(file.read(LENGTH), "little")
        if not _check(file, sums, sound, np.array([[0, header_ends]])):
            return False
        file.seek(LENGTH)
        header = json.loads(file.read(header_ends - LENGTH))
        spans = [_spans(header[name], index) for name, index in read.items()]
        return _check(file, sums, sound, header_ends + np.concatenate(spans))


@lru_cache(maxsize=REMEMBERED)
def _sound(path: Path, state: State, blocks: int) -> np.ndarray:
    """(blocks,) which blocks of a file in this state were found sound: filled as they are."""
    return np.zeros(blocks, bool)


def _check(file: BufferedReader, sums: np.ndarray, sound: np.ndarray, spans: np.ndarray) -> bool:
    """Whether every block that one of the `spans`, (n, 2) first byte and the one after the last, touches is sound."""
    edges = np.zeros(len(sums) + 1, np.int64)
    first, beyond = spans[:, 0] // BLOCK, -(-spans[:, 1] // BLOCK)
    if (beyond > len(sums)).any():
        return False
    np.add.at(edges, first, 1)
    np.add.at(edges, beyond, -1)
    held = memoryview(bytearray(BLOCK))
    for block in np.flatnonzero((edges.cumsum()[:-1] > 0) & ~sound).tolist():
        file.seek(block * BLOCK)
        if hashlib.sha256(held[: file.readinto(held)]).digest() != sums[block].tobytes():
            return False
        sound[block] = True
    return True


def _spans(tensor: Mapping[str, Any], index: Index) -> np.ndarray:
    """(n, 2) the bytes behind the header that a part of a tensor lies in, given what the header says of it."""
    begins, ends = tensor["data_offsets"]
    outer = tensor["shape"][: len(index)]
    together = (ends - begins) // max(1, math.prod(outer))
    starts = begins + together * np.arange(math.prod(outer)).reshape(outer)[index].reshape(-1)
    return np.stack([starts, starts + together], axis=1)
