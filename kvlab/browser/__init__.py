"""Browser scripts, styles and markup, shared by the dashboard's components and by exported talks.

`static/*.js` is built from `src/` by `make browser`.
"""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"


def read_static(*names: str) -> str:
    """The text of files of `static`, such as `tilemap.js`, one after the other."""
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)
