"""Models that whoever starts the dashboard puts on offer: folders given with `kvlab app --models DIR`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kvlab.errors import UserError

FOLDERS = "KVLAB_MODELS"  # absolute paths, separated as PATH is: other processes have another current folder
DEPTHS = ("*", "*/*")  # a folder of models, and one sorted by owner; the folder itself may be a model too


def given(folders: Sequence[Path]) -> str:
    """What `KVLAB_MODELS` has to be for these folders. Raises UserError for one that is not there or has no model."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"There is no folder of models {folder}: give one that holds models saved by transformers.")
        if not _models_in(folder):
            raise UserError(f"The folder {folder} holds no model: give a folder of folders saved by transformers.")
        if os.pathsep in str(folder.absolute()):
            raise UserError(f"The name of the folder {folder} has a {os.pathsep!r} in it: rename it or link to it.")
    return os.pathsep.join(str(folder.absolute()) for folder in folders)


def shelf() -> list[str]:
    """The models on offer as absolute paths, in alphabetic order a folder; each is looked for anew at every call."""
    found = (str(model) for folder in _folders() if folder.is_dir() for model in _models_in(folder))
    return list(dict.fromkeys(found))


def short_name(model: str) -> str:
    """A model as it is called within its folder, such as `meta/llama-8b`; one from elsewhere keeps its name."""
    for folder in _folders():
        if Path(model) != folder and Path(model).is_relative_to(folder):
            return str(Path(model).relative_to(folder))
    return model


def _folders() -> list[Path]:
    return [Path(folder) for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


def _models_in(folder: Path) -> list[Path]:
    places = sorted({folder.absolute(), *(path for depth in DEPTHS for path in folder.absolute().glob(depth))})
    return [path for path in places if (path / "config.json").is_file() and any(path.glob("*.safetensors"))]
