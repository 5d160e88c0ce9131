"""Models that can be chosen: those that need no download, and what a form's field takes."""

from __future__ import annotations

from pathlib import Path

from kvlab.model_info.files import EMBEDDED, HUB_NAME, model_file
from kvlab.model_info.names import PREFIX
from kvlab.server.offered_models import offered, shelf
from kvlab.trace.catalogue import list_runs


def what_to_name() -> str:
    """What a form's field for a model takes, in words: on a server with a list of models, those of the list."""
    on_offer = offered()
    return "mini, a folder saved by transformers, a hub name" if on_offer is None else ", ".join(on_offer)


def models_here(root: Path) -> list[str]:
    """Models that need no download: of the runs under `root`, newest first, `mini`, of the folders that whoever started
    the dashboard gave, and of the hub's cache.
    """
    if (on_offer := offered()) is not None:
        return list(on_offer)
    ran = [entry.model for entry in list_runs(root)]
    known = dict.fromkeys([*ran, EMBEDDED, *shelf(), *_cached()])
    return [name for name in known if model_file(name, "config.json")]


def _cached() -> list[str]:
    """Hub names with files in the hub's cache, in alphabetic order."""
    from huggingface_hub import constants

    folders = Path(constants.HF_HUB_CACHE).glob(f"{PREFIX}*")
    names = (folder.name.removeprefix(PREFIX).replace("--", "/") for folder in folders)
    return sorted(name for name in names if HUB_NAME.fullmatch(name))
