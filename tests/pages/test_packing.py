"""What components are given as bytes is read back as it was, by a reader of its own."""

from __future__ import annotations

import json
import struct

import numpy as np

from app.components.payload import ALIGNED, SentTexts, pack_payload


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
    given = {
        "texts": ["a", "ä—𝄞", "\n", "\ud800"],
        "step": 3,
        "none": None,
        "codes": np.array([[1, 2], [3, 255]], np.uint8),
        "leave": np.array([-1, 300, 7], np.int16),
        "birth": np.array([-1, 127], np.int8),
        "true": np.array([0.1, 6e-8], np.float16).view(np.uint16),
        "parent": np.array([70_000, -1], np.int32),
        "mass": np.array([0.5, 0.25, 1e-6], np.float32),
        "empty": np.zeros(0, np.int16),
    }
    found = _read(pack_payload(given))
    assert found.keys() == given.keys()
    assert all(found[name] == given[name] for name in ("texts", "step", "none"))
    for name in ("codes", "leave", "birth", "true", "parent", "mass", "empty"):
        assert found[name] == given[name].ravel().tolist()


def test_texts_are_named_by_what_they_say():
    texts = ["a", "b\0", "\ud800"]
    assert SentTexts(texts).name == SentTexts(list(texts)).name
    assert len({SentTexts(other).name for other in (texts, ["a", "b", "\0\ud800"], texts[:2], [])}) == 4
    assert _read(SentTexts(texts).packed) == {"name": SentTexts(texts).name, "value": texts}
