"""Conventions of the code base: names, docstrings of the core, counts that may only fall, tables and links."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.counts import CEILINGS, counts
from tests.methods.method_table import PATH, text

ROOT = Path(__file__).resolve().parents[1]
CODE = [
    path
    for folder in ("kvlab", "app", "training")
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
    "kvlab/core/methods/whole/full.py", "kvlab/core/methods/composition/composed.py",
    "kvlab/core/methods/allocators/model_wide.py", "kvlab/core/contract/in_place.py",
}  # fmt: skip
# Functions whose name is a method's metric, a command, a figure, a decorator, or exported by `kvlab.extend`.
PARTICIPLES = {
    "boxed", "disabled", "drafted", "measured", "published", "recorded", "registered", "shared", "shipped",
    "split", "spread",
}  # fmt: skip

# Names of variables that say nothing of what they hold.
VAGUE = {"told", "wish", "of", "seen", "own"}
# Names that files, settings of methods or plug-ins have: module -> name.
KEPT_NAMES = {
    "kvlab/core/contract/view.py": "seen",
    "kvlab/core/methods/eviction/cur.py": "of",
    "kvlab/core/methods/merging/keepkv.py": "own",
    "kvlab/core/contract/pipeline.py": "of",
    "kvlab/requests/repeats.py": "of",
    "kvlab/trace/stories.py": "of",
}

SLACK = 0.03  # a ceiling may stand this far above its count


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
    bare = {name for _, name in names if name in BANNED - {"may"} or re.fullmatch("[a-z]*[^e]ed", name)}
    assert bare - NOUNS <= PARTICIPLES


def _defined_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_names_say_what_they_hold() -> None:
    """A text is a `sentence` or a `caption`, the rows of one head are `head_rows`; `own` and `told` say neither."""
    paths = {path.relative_to(ROOT).as_posix(): path for path in CODE}
    vague = {(name, found) for name, path in paths.items() for found in _defined_names(path) if found in VAGUE}
    assert vague == set(KEPT_NAMES.items())


def test_public_names_of_the_core_have_a_docstring() -> None:
    """What others take without the lab says what it does; elsewhere a name that explains itself is enough."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    missing = []
    for path in CODE:
        if path.is_relative_to(ROOT / "kvlab" / "core"):
            public = (node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, kinds))
            names = [node.name for node in public if not node.name.startswith("_") and not ast.get_docstring(node)]
            missing += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    assert not missing


def test_counts_do_not_rise_and_ceilings_follow_them_down() -> None:
    """`python -m tests.counts` prints both. A ceiling rises by a line with its reason, and falls with the count."""
    rows, counted = tomllib.loads(CEILINGS.read_text(encoding="utf-8")), counts()
    assert rows.keys() == counted.keys()
    above = {name: count for name, count in counted.items() if count > rows[name]["most"]}
    assert not above, "unify before you add, or raise the ceiling with a reason (tests/ceilings.toml)"
    slack = {name: count for name, count in counted.items() if count < rows[name]["most"] * (1 - SLACK)}
    assert not slack, "lower these ceilings to what the code has now"


def test_the_table_of_methods_is_up_to_date() -> None:
    assert PATH.read_text(encoding="utf-8") == text(), "run `python -m tests.methods.method_table`"


DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_of_documents_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not urlparse(target).scheme and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target
