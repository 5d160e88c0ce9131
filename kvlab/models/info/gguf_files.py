"""GGUF files: which file a name stands for, and its config and tokenizer as files that transformers would save.

A second process reads a GGUF file once (`python -m kvlab.models.describe_gguf`); everything but the weights then comes
from the folder that it writes, as for any other model.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvlab.core.assets import cache_folder
from kvlab.core.errors import UserError
from kvlab.models.info.packaged_models import packaged_file

SUFFIX = ".gguf"
ABOUT = "gguf.json"
SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
NEEDED = ("gguf", "accelerate")
COMMAND = (sys.executable, "-P", "-m", "kvlab.models.describe_gguf")
VERSION = 2  # of what a description holds: rises when the same file is described otherwise
SECONDS_ALLOWED = 600  # a checksum of a large file on a slow disk


def gguf_file(name: str) -> Path | None:
    """The GGUF file that a model's name stands for: `smollm2`, a file, or a folder with one and no config.json."""
    if (packaged := packaged_file(name)) is not None:
        return packaged
    try:
        place = Path(name).expanduser()
        if place.suffix.lower() == SUFFIX and place.is_file():
            return place
        if not place.is_dir() or (place / "config.json").is_file():
            return None
        files = [file for file in place.iterdir() if file.suffix.lower() == SUFFIX]
        return files[0] if len(files) == 1 else None
    except (OSError, RuntimeError, ValueError):  # no valid path, no permission, or an unknown home
        return None


def gguf_fault(file: Path, called: str) -> str:
    """Why a GGUF file, shown as `called`, cannot be loaded; empty if it can."""
    try:
        description_folder(file, called)
    except UserError as error:
        return str(error)
    return ""


def description_folder(file: Path, called: str = "") -> Path:
    """Folder with the config and tokenizer of a GGUF file, and what `about` reads; written once per file.

    Raises UserError if the file is part of a split one, is damaged, or is no model that can be loaded.
    """
    called = called or str(file)
    if split := SPLIT.fullmatch(file.name):
        raise UserError(
            f"{called!r} is part {int(split[2])} of {int(split[3])} of a split GGUF file: merge the parts with "
            "`llama-gguf-split --merge` of llama.cpp and give the merged file."
        )
    folder = cache_folder("gguf", _key(file))
    if not (folder / ABOUT).is_file():
        if missing := [package for package in NEEDED if find_spec(package) is None]:
            raise UserError(
                f"Reading the GGUF file {called!r} needs {' and '.join(missing)}: pip install 'kvlab[gguf]'."
            )
        _describe(file, folder, called)
    return folder


def about(folder: Path) -> dict[str, Any]:
    """Properties of the GGUF file that `folder` describes: `quantization`, `checksum`, `parameters`, `file`,
    `notes`."""
    return json.loads((folder / ABOUT).read_text(encoding="utf-8"))


def _key(file: Path) -> str:
    """Changes with the file's path, size and time, which are read faster than its content, and with `VERSION`."""
    found = file.stat()
    words = f"{VERSION}\n{file.resolve()}\n{found.st_size}\n{found.st_mtime_ns}"
    return hashlib.sha256(words.encode()).hexdigest()[:24]


def _describe(file: Path, folder: Path, called: str) -> None:
    try:
        done = subprocess.run(
            [*COMMAND, str(file), str(folder)], capture_output=True, text=True, timeout=SECONDS_ALLOWED, check=True
        )
        error = json.loads(done.stdout.splitlines()[-1])["error"]
    except (subprocess.SubprocessError, OSError, ValueError, LookupError):
        error = "the process that reads it gave no answer"
    if error:
        raise UserError(f"The GGUF file {called!r} cannot be loaded: {error}.")
