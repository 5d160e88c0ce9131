"""Browser scripts, styles and markup, shared by the dashboard's components, notebooks and exported talks.

`static/*.js` is built from `src/` by `make browser`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

STATIC = Path(__file__).parent / "static"
ALIGNED = 8  # bytes: alignment of vectors of any type


def read_static(*names: str) -> str:
    """The text of files of `static`, such as `tilemap.js`, one after the other."""
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)


def pack_payload(data: Mapping[str, Any]) -> bytes:
    """A component's data as bytes: the header's length (4 bytes, little-endian), a JSON header, then the vectors.

    `payload.js` reads it: every numpy array of `data` becomes a flat typed array of the same type in the browser.
    Streamlit serialises JSON twice, once to send it and once to detect changes; for six numbers per token of a text of
    131,072 tokens that takes as long as the rest of a page.
    """
    vectors = {name: value for name, value in data.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in data.items() if name not in vectors}
    places = {}
    chunks = []
    size = 0
    for name, vector in vectors.items():
        places[name] = [vector.dtype.name, size, vector.size]
        content = np.ascontiguousarray(vector).tobytes()
        padding = bytes(-len(content) % ALIGNED)
        chunks += [content, padding]
        size += len(content) + len(padding)
    header = json.dumps({"plain": plain, "vectors": places}).encode()
    header += b" " * (-(4 + len(header)) % ALIGNED)
    return b"".join([len(header).to_bytes(4, "little"), header, *chunks])
