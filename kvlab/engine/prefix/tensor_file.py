"""A safetensors file whose tensors begin at multiples of 64 bytes, so that a mapped file computes as allocated memory
does: vector instructions round by how data is aligned. Tensors of padding fill the gaps that this leaves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from kvlab.library.prefixes import LENGTH, PADDING, SEAL, SUMS, PrefixFile, damage_error, seal

ALIGNMENT = 64  # bytes
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write contiguous tensors with metadata `about`, their SHA-256 and a seal; each is read twice, none is copied."""
    layout: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in tensors.items():
        if gap := -end % ALIGNMENT:
            layout[f"{PADDING}{len(layout)}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [end, end + gap]}
            end += gap
        place = {"dtype": NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [end, end + tensor.nbytes]}
        layout[name] = place
        end = end + tensor.nbytes
    told = {
        **about,
        SUMS: json.dumps({name: hashlib.sha256(_bytes(one).data).hexdigest() for name, one in tensors.items()}),
    }
    header = json.dumps({**layout, "__metadata__": {**told, SEAL: seal(layout, told)}}).encode()
    header += b" " * (-(LENGTH + len(header)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(LENGTH, "little") + header)
        for name, place in layout.items():
            _write(file, _bytes(tensors[name]) if name in tensors else np.zeros(place["shape"], np.uint8))


def mapped_tensors(file: PrefixFile) -> dict[str, Tensor]:
    """The tensors by name, in memory that is read from the file when it is used; changes stay in this process.

    Raises UserError if the file's header does not describe tensors.
    """
    whole = torch.from_file(str(file.path), shared=False, size=file.bytes, dtype=torch.uint8)
    found = {}
    for name, (kind, shape, start, end) in file.tensors.items():
        try:
            found[name] = whole[start:end].view(DTYPES[kind]).reshape(shape)
        except (KeyError, RuntimeError) as error:
            raise damage_error(file.path, name) from error
    return found


def _bytes(tensor: Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, on the host."""
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()


def _write(file: BinaryIO, content: np.ndarray) -> None:
    if content.nbytes:  # a memory view of nothing cannot be written
        file.write(content.data)
