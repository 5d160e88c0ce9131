"""Models a server offers: folders given with `kvlab app --models DIR` or a lab file.

On a server with a lab file only these, mini and the hub names in the file can be requested, by short names.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from kvlab.common.lab import lab
from kvlab.core.errors import UserError

FOLDERS = "KVLAB_MODELS"  # absolute paths, separated as PATH is: other processes have another current folder
DEPTHS = ("*", "*/*")  # a folder of models, and one sorted by owner; the folder itself may be a model too


def models_variable(folders: Sequence[Path]) -> str:
    """The value of `KVLAB_MODELS` for these folders. Raises UserError for one that is missing or has no model."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"There is no folder of models {folder}: give one that holds models saved by transformers.")
        if not _models_in(folder):
            raise UserError(f"The folder {folder} holds no model: give a folder of folders saved by transformers.")
        if os.pathsep in str(folder.absolute()):
            raise UserError(f"The name of the folder {folder} has a {os.pathsep!r} in it: rename it or link to it.")
    return os.pathsep.join(str(folder.absolute()) for folder in folders)


def server_models() -> list[str]:
    """Absolute paths of the models in the server's folders, sorted per folder; searched at every call."""
    found = (str(model) for folder in _folders() if folder.is_dir() for model in _models_in(folder))
    return list(dict.fromkeys(found))


def offered_models() -> dict[str, str] | None:
    """Requestable names and their folder or hub name on a server with a lab file; None without one."""
    settings = lab()
    if settings is None:
        return None
    by_name = {"mini": "mini"} | {name: name for name in settings.models.hub}
    for model in server_models():
        short = short_name(model)
        by_name.setdefault(Path(model).name if Path(short).is_absolute() else short, model)
    return by_name


def place_of(name: str, revision: str | None = None, cache_dir: str | None = None) -> str:
    """The folder or hub name of a model: what the lab file offers, or the name itself without one.

    Raises UserError if this server does not offer it. The message is the same whether or not such a folder exists.
    """
    models = offered_models()
    if models is None:
        return name
    if name not in models:
        raise UserError(f"This server has no model {name[:80]!r}: it has {', '.join(models)}.")
    if revision is not None or cache_dir is not None:
        raise UserError("On this server the lab file fixes the models: leave the revision out.")
    return models[name]


def short_name(model: str) -> str:
    """A model's name within its folder, such as `meta/llama-8b`; other models keep their name."""
    for folder in _folders():
        if Path(model) != folder and Path(model).is_relative_to(folder):
            return str(Path(model).relative_to(folder))
    return model


def _folders() -> list[Path]:
    settings = lab()
    given_here = [Path(folder) for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    return list(
        dict.fromkeys(
            [*given_here, *(folder.absolute() for folder in settings.models.folders)] if settings else given_here
        )
    )


def _models_in(folder: Path) -> list[Path]:
    places = sorted({folder.absolute(), *(path for depth in DEPTHS for path in folder.absolute().glob(depth))})
    found = []
    for path in places:
        if path.suffix.lower() == ".gguf":
            is_model = path.is_file()
        else:
            is_model = (path / "config.json").is_file() and any(path.glob("*.safetensors"))
        if is_model:
            found.append(path)
    return found
