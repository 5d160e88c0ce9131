"""The built scripts are those of the sources, and the sources pass their unit tests."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kvlab.browser import STATIC
from tests.browser_scripts import fixtures

BROWSER = STATIC.parent
BUILT = sorted(STATIC.glob("*.js"))
HEADER = re.compile(
    r"// Built by `make browser`\.[^\n]*\n// Sources: ([^\n]*)\n"
    r"// SHA-256 of the sources: (\w{64})\n// SHA-256 of the code: (\w{64})\n"
)
NODE = shutil.which("node")
OLDEST_NODE = 20

needs_node = pytest.mark.skipif(NODE is None, reason="needs Node.js on the PATH")


def node(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert NODE is not None
    return subprocess.run([NODE, *arguments], cwd=BROWSER, capture_output=True, text=True, timeout=300)


def test_every_component_is_built_and_nothing_else() -> None:
    components = {path.name for path in (BROWSER / "src" / "components").glob("*.js")}
    assert {path.name for path in BUILT} == components | {"notebook.js", "talk-views.js", "live-replay.js"}


@pytest.mark.parametrize("path", BUILT, ids=lambda path: path.name)
def test_a_built_file_has_the_checksums_of_its_sources_and_of_its_code(path: Path) -> None:
    """A change of a source without `make browser`, or of a built file by hand, fails here without Node."""
    text = path.read_bytes().decode("utf-8")
    header = HEADER.match(text)
    assert header, f"{path.name} was not built by `make browser`"
    sources, checksum, code = header.groups()
    digest = hashlib.sha256()
    for source in sources.split(" "):
        digest.update(f"{source}\0".encode() + (BROWSER / source).read_bytes() + b"\0")
    assert digest.hexdigest() == checksum, f"{path.name} is older than its sources: run `make browser`"
    assert hashlib.sha256(text[header.end() :].encode()).hexdigest() == code, f"{path.name} was changed by hand"


def test_the_fixtures_of_the_unit_tests_are_what_python_computes() -> None:
    text = fixtures.PATH.read_text(encoding="utf-8")
    assert text == fixtures.text(), "run `python -m tests.browser_scripts.fixtures`"


@needs_node
def test_the_unit_tests_pass() -> None:
    version = int(node("--version").stdout.lstrip("v").split(".")[0])
    if version < OLDEST_NODE:
        pytest.skip(f"needs Node.js {OLDEST_NODE} or newer")
    ended = node("--test", *sorted((BROWSER / "tests").glob("*.test.js")))
    assert ended.returncode == 0, ended.stdout + ended.stderr


@needs_node
def test_the_build_gives_the_committed_files() -> None:
    if not (BROWSER / "node_modules" / "esbuild").is_dir():
        pytest.skip("needs esbuild: `make browser` installs it")
    ended = node("build.mjs", "--check")
    assert ended.returncode == 0, ended.stderr
