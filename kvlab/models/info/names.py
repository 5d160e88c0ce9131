"""Find a model's files on this machine and check its name, without loading it."""

import json
import re
from os.path import expanduser  # leaves a path with an unknown home as it is
from pathlib import Path
from typing import Any

from kvlab.core import UserError, project_root, read_json
from kvlab.models.info.model_faults import description_folder, fault, gguf_file
from kvlab.models.info.offered_models import offered_models, place_of
from kvlab.models.info.packaged_models import PACKAGED

HUB_NAME = re.compile(r"(?!.*(--|\.\.))\w[\w.-]*/\w(?:[\w.-]*\w)?", re.ASCII)
EMBEDDED = "mini"


def model_file(name: str, file: str) -> Path | None:
    """A file of the model `name` (mini, a folder or a hub name) if it is on this machine, else None."""
    folder = project_root() / "assets" / EMBEDDED if name == EMBEDDED else model_folder(name)
    if folder is not None:
        return folder / file if (folder / file).is_file() else None
    if not HUB_NAME.fullmatch(name) or name not in (offered_models() or [name]):
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(name, file)
    except ValueError:  # the hub's own rules for names are stricter
        return None
    return Path(path) if isinstance(path, str) else None


def model_folder(name: str) -> Path | None:
    """The folder with a local model's config and tokenizer, if it exists: for a GGUF file, where it is described."""
    models = offered_models()
    place = name if models is None else models.get(name, "")
    if models is not None and not Path(place).is_absolute():
        return None
    if (file := gguf_file(place)) is not None:
        try:
            return description_folder(file)
        except UserError:  # `model_faults.fault` gives the reason
            return None
    try:
        folder = Path(place).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError):  # a name too long for a path, or an unknown home
        return None


EXAMPLES = "mini, smollm2, a folder with config.json, a GGUF file, or a hub name such as Qwen/Qwen3-0.6B"
PREFIX = "models--"  # of folders in the hub's cache, with -- for the slash


def check_model(name: str) -> str:
    """The model's name if it is valid: `mini`, `smollm2`, a folder that holds a model, a GGUF file, or a hub name.

    A hub name is not looked up; the worker reports an unknown one. Raises UserError if it is none of these.
    """
    name = name.strip()
    if offered_models() is not None:
        place_of(name)
        return name
    if not name:
        raise UserError(f"Name a model: {EXAMPLES}.")
    if name == EMBEDDED:
        return name
    if (file := gguf_file(name)) is not None:
        description_folder(file, name)
        return name if name in PACKAGED else str(Path(expanduser(name)).absolute())
    if (folder := model_folder(name)) is not None:
        if why := fault(folder):
            raise UserError(why)
        return str(folder.absolute())
    if why := fault(Path(expanduser(name)), name):
        raise UserError(why)
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"There is no model {name!r}: write {EXAMPLES}.")
    return name


def context_length(name: str) -> int | None:
    """The model's context window in tokens, from its `config.json` on this machine; None if unknown."""
    file = model_file(name, "config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file else {}
        length = config.get("text_config", config).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):  # the worker reports the error
        return None
    return length if isinstance(length, int) else None


def generation_settings(name: str) -> dict[str, Any]:
    """The model's `generation_config.json` on this machine; empty if missing or unreadable."""
    file = model_file(name, "generation_config.json")
    try:
        settings = read_json(file.read_bytes()) if file else {}
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
