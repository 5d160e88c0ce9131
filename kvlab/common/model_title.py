"""The name of a model as people read it, from the name by which it is loaded."""

from __future__ import annotations

import re

# Models of a package index have a short name (`kvlab.models.info.packaged_models`).
TITLES = {"smollm2": "SmolLM2-135M-Instruct (Q4_1)"}
GGUF = re.compile(r"(.+?)[.-](I?Q\d\w*|B?F16|F32|MXFP4\w*)\.gguf", re.IGNORECASE)
# `owner/name` on a hub is a name, not a path; the hub's cache keeps it in a folder `models--owner--name`.
HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")


def model_title(name: str) -> str:
    """The folder's name if `name` is a path, that of a GGUF file with its type, else `name`.

    `/data/model-7b/` becomes `model-7b`, `/data/model.Q4_1.gguf` becomes `model (Q4_1)`; `mini`, `shape:llama3-8b` and
    the hub's `owner/name` stay. A snapshot in the hub's cache gets its name on the hub.
    """
    if name in TITLES:
        return TITLES[name]
    parts = [part for part in re.split(r"[/\\]", name.strip()) if part not in ("", ".", "..", "~")]
    if not parts:
        return name
    if parts[-1].lower().endswith(".gguf"):
        typed = GGUF.fullmatch(parts[-1])
        return f"{typed[1]} ({typed[2].upper()})" if typed else parts[-1][: -len(".gguf")]
    if HUB.fullmatch(name):
        return name
    cached = next((found for part in parts if (found := CACHED.fullmatch(part))), None)
    return f"{cached[1]}/{cached[2]}" if cached else parts[-1]
