"""Conventions of the code base: module names, docstrings, sizes of folders, the table of methods and links."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.methods.method_table import PATH, text

ROOT = Path(__file__).resolve().parents[1]
CODE = [
    path
    for folder in ("kvlab", "app", "pages", "training")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "node_modules" not in path.parts
]
MODULES = [path for path in CODE if path.name not in ("__init__.py", "__main__.py")]
# A module is named by a noun, or by the verb of its one function: words that say neither.
BANNED = {
    "again", "ahead", "alive", "all", "alone", "asked", "at", "beside", "found", "given", "going", "held", "here",
    "just", "kept", "later", "left", "made", "may", "meanwhile", "more", "never", "not", "now", "once", "only",
    "other", "said", "seen", "shown", "spoken", "telling", "then", "there", "told", "whole", "written",
}  # fmt: skip
# Words that end like a participle or an adverb and are nouns, or adjectives before a noun (`packed_table`).
NOUNS = {
    "assembly", "binding", "calibration", "embedding", "family", "feed", "fitting", "formatting", "gate", "matching",
    "merging", "need", "packing", "padding", "phrasing", "planning", "pooling", "pruning", "ranking",
    "reading", "recording", "ring", "rounding", "scaling", "scoring", "seed", "serving", "shed", "speed", "string",
    "thinning", "timing", "tracking", "training", "warning",
}  # fmt: skip
# Named after what they hold: a method, a task, a page with its address, a published term.
NAMED_AFTER = {
    "kvlab/core/methods/whole/packed.py", "kvlab/core/methods/composition/composed.py", "pages/killed.py",
    "kvlab/core/methods/allocators/model_wide.py", "kvlab/core/contract/in_place.py",
}  # fmt: skip
# Functions whose name is a method's metric, a command, a figure, a decorator, or exported by `kvlab.extend`.
PARTICIPLES = {
    "boxed", "disabled", "drafted", "killed", "measured", "published", "recorded", "registered", "shared", "shipped",
    "split", "spread",
}  # fmt: skip
MOST_MODULES = 20
# Folders of like things: one method, task, command, figure, page or benchmark mode a file.
LIKE_THINGS = {"kvlab/core/methods/eviction", "kvlab/core/methods/merging", "kvlab/figures", "kvlab/cli", "pages"}


def _ends_in_a_noun(stem: str) -> bool:
    last = stem.split("_")[-1]
    return last in NOUNS or not re.search(r"(?:[a-z]ed|[a-z]ing|ly)$", last)


def test_a_module_is_named_by_a_noun() -> None:
    named = [name for path in MODULES if (name := path.relative_to(ROOT).as_posix()) not in NAMED_AFTER]
    banned = [name for name in named if BANNED & set(Path(name).stem.split("_"))]
    assert not banned, "name what it holds, in the field's words"
    assert not [name for name in named if not _ends_in_a_noun(Path(name).stem)], "a module name ends in a noun"


def test_no_function_is_named_by_a_participle_alone() -> None:
    """A verb says what a function does, a noun what it returns; `shown` says neither."""
    names = [
        (path.relative_to(ROOT).as_posix(), node.name)
        for path in CODE
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert len(names) > 1000
    bare = {name for _, name in names if name in BANNED - {"may"} or re.fullmatch("[a-z]*[^e]ed", name)}
    assert bare - NOUNS <= PARTICIPLES


def _undocumented(path: Path) -> list[str]:
    """Public names of a module without a docstring; of a page, which is a script, the module alone counts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not tree.body:
        return []
    missing = [] if ast.get_docstring(tree) else ["the module"]
    if path.is_relative_to(ROOT / "pages"):
        return missing
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return missing + [node.name for node in public if not ast.get_docstring(node)]


def test_every_public_name_has_a_docstring() -> None:
    found = {path.relative_to(ROOT).as_posix(): names for path in CODE if (names := _undocumented(path))}
    assert not found


def test_no_folder_is_too_full() -> None:
    sizes = Counter(path.relative_to(ROOT).parent.as_posix() for path in MODULES)
    full = {folder: size for folder, size in sizes.items() if size > MOST_MODULES and folder not in LIKE_THINGS}
    assert not full, "put what belongs together into a folder of its own"


def test_the_table_of_methods_is_up_to_date() -> None:
    assert PATH.read_text(encoding="utf-8") == text(), "run `python -m tests.methods.method_table`"


DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_of_documents_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not urlparse(target).scheme and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target
