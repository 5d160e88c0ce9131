"""Fetching a hub model's files with word of how far it is: gigabytes that come in silence look like a hang."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from tqdm.auto import tqdm

from kvlab.models.sources import Source

WEIGHTS, PARTS = "model.safetensors", "model.safetensors.index.json"
WANTED = (WEIGHTS, "model-*-of-*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt")
SECONDS = 0.5  # between two words of progress

Report = Callable[[str, float, float], None]  # a model's name, bytes done, and all that are known of


def fetch(source: Source, report: Report) -> None:
    """Bring the files of a hub name to this disk, telling `report` bytes done and to come; nothing where they are here.

    What cannot be had is said by whoever reads the files next; what `report` raises ends the download.
    """
    if source.folder is not None or is_here(source):
        return
    report(source.name, 0, 0)
    try:
        snapshot_download(
            source.where,
            revision=source.revision,
            cache_dir=source.cache_dir,
            allow_patterns=list(WANTED),
            tqdm_class=_bar(source.name, report),
        )
    except (HfHubHTTPError, OSError, ValueError):
        return


def is_here(source: Source) -> bool:
    """Whether all weights of a hub name lie on this disk."""

    def known(file: str) -> Path | None:
        found = try_to_load_from_cache(source.where, file, source.cache_dir, source.revision)
        return Path(found) if isinstance(found, str) else None

    parts = known(PARTS)
    if parts is None:
        return known(WEIGHTS) is not None
    try:
        named = set(json.loads(parts.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    return all((parts.parent / part).is_file() for part in named)


def _bar(name: str, report: Report) -> type[tqdm]:
    """A silent bar class for the hub's client, which counts bytes on one bar or on several at once."""
    bars: dict[int, tuple[float, float]] = {}
    told = [0.0]

    class Bar(tqdm):
        def __init__(self, *given: Any, **named: Any) -> None:
            named.pop("name", None)  # of the hub's own bars
            super().__init__(*given, **(named | {"file": io.StringIO(), "disable": False}))

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if self.unit == "B" and self.total:
                bars[id(self)] = (self.n, self.total)
                done, total = max(bars.values())
                if time.monotonic() - told[0] > SECONDS or done >= total:
                    told[0] = time.monotonic()
                    report(name, done, total)
            return shown

    return Bar
