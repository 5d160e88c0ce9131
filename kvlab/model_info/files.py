"""Find a model's files on this machine without loading it."""

from __future__ import annotations

import re
from pathlib import Path

from kvlab.common.assets import project_root
from kvlab.common.errors import UserError
from kvlab.model_info.gguf_files import described, gguf_file
from kvlab.server.offered_models import offered

HUB_NAME = re.compile(r"(?!.*(--|\.\.))\w[\w.-]*/\w(?:[\w.-]*\w)?", re.ASCII)
EMBEDDED = "mini"


def model_file(name: str, file: str) -> Path | None:
    """A file of the model `name` (mini, a folder or a hub name) if it is on this machine, else None."""
    folder = project_root() / "assets" / EMBEDDED if name == EMBEDDED else model_folder(name)
    if folder is not None:
        return folder / file if (folder / file).is_file() else None
    if not HUB_NAME.fullmatch(name) or name not in (offered() or [name]):
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(name, file)
    except ValueError:  # the hub's own rules for names are stricter
        return None
    return Path(path) if isinstance(path, str) else None


def model_folder(name: str) -> Path | None:
    """The folder with a local model's config and tokenizer, if it exists: for a GGUF file, where it is described."""
    models = offered()
    place = name if models is None else models.get(name, "")
    if models is not None and not Path(place).is_absolute():
        return None
    if (file := gguf_file(place)) is not None:
        try:
            return described(file)
        except UserError:  # `model_faults.fault` gives the reason
            return None
    try:
        folder = Path(place).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError):  # a name too long for a path, or an unknown home
        return None
