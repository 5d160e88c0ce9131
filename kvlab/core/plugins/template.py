"""Write a plug-in to start from: a method with its own scorer, and its test."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from kvlab.core.errors import UserError


def write_plugin(name: str, folder: Path) -> list[Path]:
    """Write `NAME.py` and `test_NAME.py` into the folder and return their paths.

    Raises UserError if the name is invalid, or a file exists already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or len(name) > 60:
        raise UserError(f"{name!r} cannot be the name of a method: use small letters, digits and hyphens.")
    stem = name.replace("-", "_")
    texts = {f"{stem}.py": "method.py.txt", f"test_{stem}.py": "test.py.txt"}
    words = [word.capitalize() for word in stem.split("_")]
    values = {"name": name, "cls": "".join(words), "title": " ".join(words), "file": f"{stem}.py"}
    existing = [file for file in texts if (folder / file).exists()]
    if existing:
        raise UserError(f"There is a file {existing[0]} in {folder} already: take another name, or another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for file, template in texts.items():
        text = (files("kvlab.core.plugins") / "templates" / template).read_text(encoding="utf-8")
        (folder / file).write_text(text.format(**values, test=f"test_{stem}.py"), encoding="utf-8")
    return [folder / file for file in texts]
