"""Binary format of a component's data: a JSON header followed by the raw bytes of the vectors.

Streamlit serialises JSON twice, to send it and to detect changes. For six numbers per token and 131,072 tokens that
takes as long as the rest of a page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

ALIGNED = 8  # bytes; every vector starts at a multiple


def pack(data: Mapping[str, Any]) -> bytes:
    """The header's length (4 bytes, little-endian), the header and the vectors.

    kvlab/browser/src/binary-payload.js reads it: every numpy array of `data` becomes a flat typed array.
    """
    vectors = {name: value for name, value in data.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in data.items() if name not in vectors}
    places, chunks, size = {}, [], 0
    for name, vector in vectors.items():
        places[name] = [vector.dtype.name, size, vector.size]
        content = np.ascontiguousarray(vector).tobytes()
        chunks += [content, bytes(-len(content) % ALIGNED)]
        size += vector.nbytes + len(chunks[-1])
    header = json.dumps({"plain": plain, "vectors": places}).encode()
    header += b" " * (-(4 + len(header)) % ALIGNED)
    return b"".join([len(header).to_bytes(4, "little"), header, *chunks])
