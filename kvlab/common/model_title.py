"""The name of a model as pages and figures show it."""

from __future__ import annotations

import re

# Models of a package index have a short name (`kvlab.model_info.packaged_models`).
TITLES = {"smollm2": "SmolLM2-135M-Instruct (Q4_1)"}
GGUF = re.compile(r"(.+?)[.-]((?:I?Q\d\w*|B?F(?:16|32)|MXFP4\w*))\.gguf", re.IGNORECASE)


def model_title(name: str) -> str:
    """The name of a model without the folders above it, and a GGUF file's with its type: `Model (Q4_1)`.

    Hub names stay whole.
    """
    if name in TITLES:
        return TITLES[name]
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    if found := GGUF.fullmatch(last):
        return f"{found[1]} ({found[2].upper()})"
    if last.lower().endswith(".gguf"):
        return last[: -len(".gguf")]
    return last if name.startswith(("/", "~", ".")) or re.match(r"[A-Za-z]:\\", name) else name
