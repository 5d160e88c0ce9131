"""Models that can be chosen without a download, and the help text of a form's model field."""

from __future__ import annotations

from pathlib import Path

from kvlab.models.info.names import EMBEDDED, HUB_NAME, PREFIX, model_file
from kvlab.models.info.offered_models import offered_models, server_models
from kvlab.models.info.packaged_models import PACKAGED
from kvlab.trace.catalogue import list_runs


def model_field_help() -> str:
    """Help of a form's model field: names it accepts; on a server with a list of models, those of the list."""
    on_offer = offered_models()
    return (
        "mini, smollm2, a folder saved by transformers, a GGUF file, a hub name"
        if on_offer is None
        else ", ".join(on_offer)
    )


def local_models(root: Path) -> list[str]:
    """Models that need no download: those of the runs under `root` (newest first), `mini`, those in the server's model
    folders, those downloaded from a package index, and those in the hub's cache.
    """
    if (on_offer := offered_models()) is not None:
        return list(on_offer)
    ran = [entry.model for entry in list_runs(root)]
    packaged = [name for name, model in PACKAGED.items() if model.file() is not None]
    names = dict.fromkeys([*ran, EMBEDDED, *packaged, *server_models(), *_cached()])
    return [name for name in names if model_file(name, "config.json")]


def _cached() -> list[str]:
    """Hub names with files in the hub's cache, sorted."""
    from huggingface_hub import constants

    folders = Path(constants.HF_HUB_CACHE).glob(f"{PREFIX}*")
    names = (folder.name.removeprefix(PREFIX).replace("--", "/") for folder in folders)
    return sorted(name for name in names if HUB_NAME.fullmatch(name))
