"""Browser scripts, styles and markup, shared by the dashboard's components and by exported reports."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"


def read_static(name: str) -> str:
    """The text of one file of `static`, such as `tilemap.js`."""
    return (STATIC / name).read_text(encoding="utf-8")
