"""Collect what the documentation site is built of: `python -m dev.docs_site FOLDER`, then `mkdocs build` (`make docs`).

README.md, docs/ and every file that they link to keep their places to each other, so that all links work as they do in
the repository. A page each lists the public names of `kvlab` and `kvlab.extend`, whose docstrings mkdocstrings reads.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import kvlab
import kvlab.extend

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def collect(folder: Path) -> None:
    """Write the site's source into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    waiting = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.*"))]
    found = set[Path]()
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        if file.suffix == ".md":
            links = [link for link in LINK.findall(file.read_text(encoding="utf-8")) if "://" not in link]
            waiting += [(file.parent / link).resolve() for link in links]
    for module in (kvlab, kvlab.extend):
        (folder / f"{module.__name__}.md").write_text(reference(module), encoding="utf-8")


def reference(module: ModuleType) -> str:
    """A page of the module's public names, each where it is defined."""
    parts = [f"# {module.__name__}\n\n{(module.__doc__ or '').strip()}\n"]
    for name, home in sorted(module._HOME.items()):
        name, _, known_as = name.partition(":")
        parts.append(f"## {name}\n\n::: {home}.{known_as or name}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    collect(Path(sys.argv[1]).resolve())
