"""The name of a model as people read it, from the name by which it is loaded."""

from __future__ import annotations

import re

# `owner/name` on a hub is a name, not a path; the hub's cache keeps it in a folder `models--owner--name`.
HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")


def model_title(name: str) -> str:
    """The folder's name if `name` is a path, else `name`.

    `/data/smollm2/` becomes `smollm2`; `mini`, `shape:llama3-8b` and the hub's `owner/name` stay. A snapshot in the
    hub's cache gets its name on the hub.
    """
    parts = [part for part in re.split(r"[/\\]", name.strip()) if part not in ("", ".", "..", "~")]
    if HUB.fullmatch(name) or not parts:
        return name
    cached = next((found for part in parts if (found := CACHED.fullmatch(part))), None)
    return f"{cached[1]}/{cached[2]}" if cached else parts[-1]
