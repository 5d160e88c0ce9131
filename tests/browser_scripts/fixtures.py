"""Data for the scripts' unit tests, computed by the Python code whose formats and rules the scripts share.

`python -m tests.browser_scripts.fixtures` writes them again.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from app.similarity import quantize_cosines
from kvlab.browser import pack_payload
from kvlab.core.assets import project_root
from kvlab.views.frames.lineage import NEVER, Lineage, states_at
from kvlab.views.frames.wall import Fate, Wall
from kvlab.views.timeline import encode_never
from kvlab.views.wall import packed_fates, wall_vectors

PATH = project_root() / "kvlab" / "browser" / "tests" / "fixtures.json"
PAYLOAD = {
    "texts": ["a", "ä—𝄞", "\n", "\ud800"],
    "step": 3,
    "none": None,
    "codes": np.array([[1, 2], [3, 255]], np.uint8),
    "leave": np.array([-1, 300, 7], np.int16),
    "birth": np.array([-1, 127], np.int8),
    "mass": np.array([0.5, 0.25, 6e-8], np.float16).view(np.uint16),
    "parent": np.array([70_000, -1], np.int32),
    "score": np.array([0.5, -1.25], np.float32),
    "empty": np.zeros(0, np.int16),
}
COSINES = np.array([[1.0, -1.0, 0.0], [0.5, -0.25, 2.0]])


def head() -> Lineage:
    """Ten tokens, seven of the prompt: 2 is merged into 1, 4 evicted, 1 merged into 5, and 5 evicted."""
    vectors = {name: np.full(10, NEVER, np.int32) for name in ("leave", "absorb", "death")}
    parent = np.full(10, -1, np.int32)
    vectors["leave"][[2, 4, 1, 5]] = 0, 1, 2, 3
    parent[[2, 1]] = 1, 5
    vectors["absorb"][[1, 5]] = 0, 2
    vectors["death"][[4, 1, 2, 5]] = 1, 3, 3, 3
    return Lineage(
        steps=np.arange(4),
        tokens_seen=np.arange(7, 11),
        birth=np.array([0] * 7 + [1, 2, 3], np.int32),
        kind=np.array([0, 2, 2, 0, 1, 1, 0, 0, 0, 0]),
        parent=parent,
        **vectors,
    )


def wall() -> Wall:
    """Two layers of two heads over 8 tokens, five of the prompt; tokens change at the prompt, at steps 1 and 3."""
    first = np.zeros((4, 8), np.uint8)
    first[0, [1, 2]] = Fate.ABSORBED, Fate.HOLDS
    first[3, :3] = Fate.DROPPED
    changes = [
        (1, 5, Fate.DROPPED),
        (1, 2, Fate.ABSORBED),
        (1, 2, Fate.DROPPED),
        (3, 31, Fate.DROPPED),
        (3, 0, Fate.HOLDS),
    ]
    step, cell, fate = (np.array(column) for column in zip(*changes, strict=True))
    birth = np.array([0] * 5 + [1, 2, 3], np.int32)
    change = step.astype(np.int32), cell.astype(np.uint32), fate.astype(np.uint8)
    return Wall((0, 2), 2, np.arange(4), birth, first, *change)


def fixtures() -> dict[str, Any]:
    lineage, fates = head(), wall()
    steps = lineage.steps.tolist()
    return {
        "payload": {
            "bytes": _base64(pack_payload(PAYLOAD)),
            "data": {name: _plain(value) for name, value in PAYLOAD.items()},
        },
        "tile": {
            "bytes": _base64(quantize_cosines(COSINES).tobytes()),
            "values": quantize_cosines(COSINES).ravel().tolist(),
        },
        "wall": {
            **{name: _plain(vector) for name, vector in wall_vectors(fates).items()},
            "fates": [fates.fates(step).ravel().tolist() for step in range(4)],
            "packed": packed_fates(np.array([3, 2, 1, 0, 3], np.uint8)).tolist(),
        },
        "head": {
            **{name: encode_never(getattr(lineage, name)).tolist() for name in ("birth", "leave", "death", "absorb")},
            "parent": lineage.parent.tolist(),
            "steps": steps,
            "states": [states_at(lineage, step).tolist() for step in steps],
            "owners": [lineage.owners(step).tolist() for step in steps],
            "votes": [lineage.votes(step).tolist() for step in steps],
        },
    }


def text() -> str:
    return json.dumps(fixtures(), indent=1) + "\n"


def _plain(value: Any) -> Any:
    return value.ravel().tolist() if isinstance(value, np.ndarray) else value


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
