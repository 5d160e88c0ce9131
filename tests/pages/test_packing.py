"""What components are given as bytes is read back as it was, by a reader of its own."""

from __future__ import annotations

import json
import struct

import numpy as np

from app.components import SentTexts
from kvlab.browser import ALIGNED, pack_payload
from tests.browser_scripts.fixtures import PAYLOAD


def _read(data: bytes) -> dict:
    (size,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + size])
    found = dict(header["plain"])
    for name, (kind, first, count) in header["vectors"].items():
        start = 4 + size + first
        assert start % ALIGNED == 0
        found[name] = list(struct.unpack_from(f"<{count}{FORMATS[kind]}", data, start))
    return found


FORMATS = {"uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "int32": "i", "float32": "f"}


def test_numbers_and_texts_come_back_as_they_were():
    found = _read(pack_payload(PAYLOAD))
    assert found.keys() == PAYLOAD.keys()
    for name, value in PAYLOAD.items():
        assert found[name] == (value.ravel().tolist() if isinstance(value, np.ndarray) else value)


def test_texts_are_named_by_what_they_say():
    texts = ["a", "b\0", "\ud800"]
    assert SentTexts(texts).name == SentTexts(list(texts)).name
    assert len({SentTexts(other).name for other in (texts, ["a", "b", "\0\ud800"], texts[:2], [])}) == 4
    assert _read(SentTexts(texts).packed) == {"name": SentTexts(texts).name, "value": texts}
