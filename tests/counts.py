"""Counts of the code base that may only fall: `python -m tests.counts` prints them beside their ceilings.

Files of `kvlab` and `app`; docs and tests are not counted.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import typer

from kvlab.cli import commands
from kvlab.core.contract.parts import Capabilities

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = Path(__file__).with_name("ceilings.toml")
SMALL = 80  # lines of a module that may as well stand in its only importer
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def sources() -> dict[str, str]:
    """Text of every module by its dotted name."""
    paths = (path for folder in ("kvlab", "app") for path in sorted((ROOT / folder).rglob("*.py")))
    kept = (path for path in paths if "node_modules" not in path.parts)
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8") for path in kept}


@cache
def nodes() -> list[ast.AST]:
    return [node for text in sources().values() for node in ast.walk(ast.parse(text))]


def small_modules_with_one_importer() -> list[str]:
    """Modules of fewer than `SMALL` lines that one other module imports."""
    importers: Counter[str] = Counter()
    for name, text in sources().items():
        found = {module for module in _imported(text) if module in sources() and module != name}
        importers.update(found)
    small = [name for name, text in sources().items() if text.count("\n") < SMALL and not name.endswith("__init__")]
    return [name for name in small if importers[name] == 1]


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions_used_once() -> list[str]:
    """Names of functions and methods that stand twice in the whole tree: where they are defined, and once more."""
    words = Counter(word for text in sources().values() for word in re.findall(r"\b[A-Za-z_]\w*\b", text))
    defined = Counter(node.name for node in nodes() if isinstance(node, FUNCTIONS))
    return sorted(name for name, times in defined.items() if times == 1 and words[name] == 2)


def command_options() -> dict[str, int]:
    """Number of options by command."""
    found: dict[str, int] = {}

    def visit(command: Any, name: str) -> None:
        if hasattr(command, "list_commands"):
            for part in command.list_commands(None):  # with those that are loaded when they are asked for
                visit(command.get_command(None, part), f"{name} {part}".strip())
        else:
            found[name] = sum(one.param_type_name == "option" and one.name != "help" for one in command.params)

    visit(typer.main.get_command(commands), "")
    return found


def arrows() -> set[tuple[str, str]]:
    """Pairs of rooms, the packages below `kvlab` with `app`, of which the first imports the second."""
    found = set()
    for name, text in sources().items():
        for module in _imported(text):
            if module in sources() or module.split(".")[0] in ("kvlab", "app"):
                found.add((_room(name), _room(module)))
    return {(here, there) for here, there in found if here != there and "" not in (here, there)}


def _room(module: str) -> str:
    parts = module.split(".")
    if parts[0] != "kvlab":
        return parts[0]
    return parts[1] if len(parts) > 1 and (ROOT / "kvlab" / parts[1]).is_dir() else ""


def counts() -> dict[str, float]:
    """Every count by its name in `ceilings.toml`; shares are in percent."""
    lines = sum(text.count("\n") for text in sources().values())
    imports = [node for node in nodes() if isinstance(node, ast.Import | ast.ImportFrom)]
    assigned = [node for node in nodes() if isinstance(node, ast.Assign | ast.AnnAssign)]
    packed = [
        node
        for node in assigned
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Tuple) for target in node.targets)
        and isinstance(node.value, ast.Tuple | ast.GeneratorExp)
    ]
    options = command_options()
    pairs = arrows()
    rows = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split("|---|---|---|")[1].split("\n\n")[0]
    return {
        "files": len(sources()),
        "functions": sum(isinstance(node, FUNCTIONS) for node in nodes()),
        "functions_used_once": len(functions_used_once()),
        "small_modules_with_one_importer": len(small_modules_with_one_importer()),
        "import_lines_percent": round(100 * sum(node.end_lineno - node.lineno + 1 for node in imports) / lines, 2),
        "packed_assignments_percent": round(100 * len(packed) / len(assigned), 2),
        "unformatted": sum(text.count("# fmt: skip") for text in sources().values()),
        "commands": len(options),
        "command_options": sum(options.values()),
        "capabilities": len(fields(Capabilities)),
        "rooms": len({room for pair in pairs for room in pair}),
        "arrows": len(pairs),
        "glossary_rows": rows.strip().count("\n") + 1,
    }


def ceilings() -> dict[str, float]:
    return {name: row["most"] for name, row in tomllib.loads(CEILINGS.read_text(encoding="utf-8")).items()}


def main() -> None:
    """Print a table of counts and ceilings."""
    known = ceilings() if CEILINGS.exists() else {}
    for name, count in counts().items():
        print(f"{name:34} {count:>9}   ceiling {known.get(name, '-')}")


if __name__ == "__main__":
    main()
