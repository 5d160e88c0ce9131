"""The house's walls: imports go one way, and what shows runs needs no model stack."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Set
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from kvlab.core.methods import registered

ROOT = Path(__file__).resolve().parent.parent
# The house, the ground first: a room imports only from rooms on lines above its own, and from itself. Rooms on one line
# do not know each other. `tests/ceilings.toml` counts which room uses which: a new pair takes a reason.
LAYERS = [
    {"core"},  # the cache for a transformers model, alone
    {"common"},  # text, files, numbers, the users of a shared server
    {"requests"},  # what can be requested, as data
    {"models", "browser"},  # models and what is known of them; scripts for browsers
    {"trace", "tasks"},  # run folders; prompts with their answers
    {"planning"},  # what can be chosen, and what it would hold
    {"views"},  # what is drawn of runs
    {"library", "checking"},  # the folder of runs; checks of methods
    {"engine", "report"},  # comparisons, kept prefixes, restored answers; exports
    {"evaluation", "live", "watch"},  # scores of many prompts; conversations; caches that were not written here
    {"bench", "results"},  # times; rows, verdicts, safe budgets
    {"jobs", "papers"},  # the queue and its worker; the papers
    {"forms"},  # what was typed, as a request
    {"app", "cli"},  # the dashboard's parts; the command line
    {"extras"},  # other engines
]
# What pages are made of, free of the model stack.
SHOWING = [
    "common", "trace", "views", "papers", "results", "jobs", "forms", "planning", "library",
    "report", "models/info", "tasks/documents",
]  # fmt: skip
# `kvlab.extend`: the one import of plug-ins; `kvlab.notebook`: comparisons and evaluations as objects.
ROOT_MODULES = {"__init__.py", "__main__.py", "extend.py", "notebook.py"}


# Floors of the core, the ground first: each imports only from those before it. Contract and methods are one floor: the
# base class of methods has the wrapper that keeps whole pages.
CORE_FLOORS = [
    {"errors", "table_growth"},
    {"assets", "validation"},
    {"budget", "method_spec", "plugins", "restore"},
    {"choice", "stores"},
    {"contract", "methods"},
    {"attention"},
    {"families", "fitted"},
    {"cache"},
]
CORE_PACKAGES = {"torch", "transformers", "safetensors", "pydantic", "pydantic_core", "numpy", "triton", "kvlab"}

# setuptools builds the package; pydantic brings its core; weights in 4 and 8 bit take what a person has installed;
# OpenVINO and vLLM have environments of their own (`make openvino`, `make vllm`).
UNDECLARED = {
    "setuptools", "pydantic_core", "bitsandbytes", "torchao", "openvino", "openvino_genai", "xllamacpp", "vllm",
}  # fmt: skip


# Registered names that are words of the field too.
WORDS = {"full", "window", "random", "packed", "sparse", "less", "cur", "cap", "compose"}


@cache
def imports(path: Path) -> list[tuple[str, list[str]]]:
    """Every import of a file, wherever in the file: a module, and the names taken from it (none: the module itself)."""
    found: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, [alias.name for alias in node.names]))
    return found


def imported(path: Path) -> set[str]:
    """Dotted names of every module a file imports, and of what it takes from them."""
    return {name for module, names in imports(path) for name in (module, *(f"{module}.{one}" for one in names))}


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_imports_go_one_way() -> None:
    below: set[str] = set()
    for layer in LAYERS:
        for room in layer:
            folder = room if room == "app" else f"kvlab/{room}"
            may_import = below | {room}
            for path in files(folder):
                unwanted = rooms_imported(path) - may_import
                assert not unwanted, f"{path.relative_to(ROOT)} imports {sorted(unwanted)}"
        below |= layer


def rooms_imported(path: Path) -> set[str]:
    modules = [name.split(".") for name in imported(path)]
    inside = {parts[1] for parts in modules if parts[0] == "kvlab" and len(parts) > 1} - {"__version__"}
    return inside | ({parts[0] for parts in modules} & {"app"})


def test_every_room_has_its_layer() -> None:
    rooms = {path.name for path in (ROOT / "kvlab").iterdir() if any(path.glob("*.py"))}
    layered = set().union(*LAYERS)
    assert rooms - layered == set()
    assert layered - rooms <= {"app", "views"}
    assert {path.name for path in (ROOT / "kvlab").glob("*.py")} == ROOT_MODULES


def test_nothing_imports_an_extra() -> None:
    """It is run as a module, `python -m kvlab.extras.NAME`, so that everything else works without it."""
    for path in files("kvlab", "app", "training"):
        found = {name for name in imported(path) if name.startswith("kvlab.extras")}
        assert not found or path.is_relative_to(ROOT / "kvlab/extras"), f"{path} imports {sorted(found)}"


def test_the_core_stands_alone_and_its_floors_go_one_way() -> None:
    """It imports nothing else of kvlab, and no package that `pip install kvlab` does not bring (Triton where it is)."""
    below: set[str] = set()
    for floor in CORE_FLOORS:
        for path in (path for room in floor for path in (*files(f"kvlab/core/{room}"), ROOT / f"kvlab/core/{room}.py")):
            names = imported(path) if path.exists() else set()
            packages = {name.split(".")[0] for name in names} - sys.stdlib_module_names
            assert packages <= CORE_PACKAGES, f"{path.relative_to(ROOT)} imports {sorted(packages - CORE_PACKAGES)}"
            ours = {name for name in names if name.startswith("kvlab.")}
            assert all(name.startswith("kvlab.core.") for name in ours), path.relative_to(ROOT)
            unwanted = {name.split(".")[2] for name in ours} - floor - below
            assert not unwanted, f"{path.relative_to(ROOT)} imports {sorted(unwanted)}"
        below |= floor
    there = {path.stem for path in (ROOT / "kvlab" / "core").iterdir() if path.name != "__pycache__"} - {"__init__"}
    assert there == below


@pytest.mark.parametrize("part", ["scorers", "allocators", "selectors", "settlers", "eviction", "merging", "whole"])
def test_the_cache_knows_no_method(part: str) -> None:
    """It dispatches on what a pipeline's parts declare (`kvlab.core.contract.parts`)."""
    for path in files("kvlab/core/cache", "kvlab/core/attention", "kvlab/core/stores"):
        assert not [name for name in imported(path) if name.startswith(f"kvlab.core.methods.{part}")], path


def test_shared_code_names_no_method() -> None:
    """Neither as an identifier nor as a string: it asks for what a part declares. The full cache is the reference."""
    names = {re.sub("[^a-z0-9]", "", name) for name in registered() if name not in WORDS}
    for path in files("kvlab/core/cache", "kvlab/core/attention", "kvlab/core/stores", "kvlab/engine"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            texts = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "value", "asname", "module")]
            words = [word for text in texts if isinstance(text, str) for word in text.lower().split(".")]
            named = names & {re.sub("[^a-z0-9]", "", word) for word in words}
            assert not named, f"{path.relative_to(ROOT)} names {named}"


def test_nothing_looks_for_attributes_of_parts() -> None:
    """What a part can do is its `capabilities`, or asked for by `optional`, which knows the names."""
    for path in files("kvlab/core/methods", "kvlab/core/cache"):
        if path.name == "parts.py":
            continue
        part = r"(?:getattr|hasattr)\(\s*(?:self\.|pipeline\.)?(?:score|scorer|select|settle|allocate|inner)\b"
        found = re.findall(part, path.read_text())
        assert not found, path


def test_no_modules_import_in_a_circle() -> None:
    """Wherever the import stands: one inside a function, or for types alone, ties two modules as well."""
    paths = files("kvlab", "app")
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    ties = {name: imported_modules(path, named.keys()) - {name} for name, path in named.items()}
    TopologicalSorter(ties).prepare()  # raises CycleError, which names the circle


def imported_modules(path: Path, known: Set[str]) -> set[str]:
    """Those of `known` that a file imports; of a package's module only the module, not the package around it."""
    found: set[str] = set()
    for module, names in imports(path):
        inside = {f"{module}.{name}" for name in names} & known
        found |= inside if names and len(inside) == len(set(names)) else inside | {module}
    return found & known


def test_streamlit_stays_in_the_web_rooms() -> None:
    for path in files("kvlab"):
        assert not {name for name in imported(path) if name.split(".")[0] == "streamlit"}, path


def test_plotting_stays_out_of_frames() -> None:
    for path in files("kvlab/views/frames", "kvlab/trace"):
        assert not {name for name in imported(path) if name.split(".")[0] == "plotly"}, path


@pytest.mark.parametrize("folder", ["kvlab/trace", "kvlab/views", "kvlab/papers", "app"])
def test_what_shows_runs_never_names_torch(folder: str) -> None:
    for path in files(folder):
        named = {name.split(".")[0] for name in imported(path)}
        assert not named & {"torch", "transformers"}, path


def test_opening_runs_loads_no_model_stack() -> None:
    """Importing everything the dashboard imports leaves torch and transformers out of the process."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in files(*(f"kvlab/{room}" for room in SHOWING))
        if path.name != "worker.py"
    ]
    code = f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
    code += "print(sorted({'torch', 'transformers', 'streamlit'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == "[]"


def test_pages_are_thin() -> None:
    """A page of the menu shows; what it would compute belongs to views."""
    for path in files("app/entries"):
        assert not {name.split(".")[0] for name in imported(path)} & {"numpy", "plotly", "pyarrow"}, path


def test_nothing_is_pickled_and_no_remote_code_is_trusted() -> None:
    for path in files("kvlab", "app"):
        names = imported(path)
        assert not names & {"pickle", "torch.save", "torch.load", "joblib"}, path
        text = path.read_text()
        assert "trust_remote_code=True" not in text, path
        assert "torch.load(" not in text, path
        assert "torch.save(" not in text, path


def test_every_package_that_is_imported_is_declared_and_bounded() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {re.split(r"[<>=\[;]", line)[0] for line in lines} | UNDECLARED
    names = {name.split(".")[0] for path in files("kvlab", "app") for name in imported(path)}
    owners = packages_distributions()
    packages = {name: {one.lower() for one in owners.get(name, [name])} for name in names - sys.stdlib_module_names}
    known = {name.lower().replace("-", "_") for name in declared}
    missing = {name for name, found in packages.items() if not {one.replace("-", "_") for one in found} & known}
    assert missing <= {"kvlab", "app", "training"}
    assert not [line for line in lines if "<" not in line and not line.startswith("kvlab[")]


def test_the_image_takes_torch_from_the_index_of_cpu_wheels() -> None:
    """At the version of the constraints, and the constraints that come after it cannot bring another."""
    image = (ROOT / "Dockerfile").read_text()
    torch = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch and f'ARG TORCH="torch=={torch[1]}"' in image
    assert 'ARG TORCH_INDEX="https://download.pytorch.org/whl/cpu"' in image
    first, second = re.findall(r"pip install (.+)", image)
    assert "$TORCH_INDEX" in first and '"$TORCH"' in first
    assert "/tmp/constraints.txt" in second and "grep -v '^torch=='" in image


def attributes(path: Path) -> list[ast.Attribute]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]


def test_one_module_reads_and_writes_the_url() -> None:
    """Others call its functions; `query_params` as a keyword gives the parameters of a link."""
    owner, links = ROOT / "app/session/url_state.py", ROOT / "app/base/links.py"
    for path in files("app"):
        if path == owner:
            continue
        assert not [node.lineno for node in attributes(path) if node.attr == "query_params"], path
        tree = ast.parse(path.read_text())
        keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
        assert "bind" not in keywords, f"{path}: widgets are bound to the URL by `url_state.in_url`"
        assert path == links or "query_params" not in keywords, path


def test_one_module_uses_the_private_api_of_streamlit() -> None:
    public = {"streamlit", "streamlit.config", "streamlit.delta_generator", "streamlit.errors"}
    for path in files("app"):
        if path == ROOT / "app/session/streamlit_internals.py":
            continue
        modules = {module for module, _ in imports(path) if module.split(".")[0] == "streamlit"}
        names = {name for module, names in imports(path) for name in names if module == "streamlit"}
        assert modules <= public and not names & {"runtime", "web", "elements", "proto"}, path
        private = {node.attr for node in attributes(path) if node.attr.startswith("_") and not is_own(node)}
        assert not private - {"_exit"} and "__file__" not in streamlit_attributes(path), path  # `os._exit`


def is_own(node: ast.Attribute) -> bool:
    return node.attr.startswith("__") or (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))


def streamlit_attributes(path: Path) -> set[str]:
    """The attributes of `streamlit` itself that a file uses."""
    named = [node for node in attributes(path) if isinstance(node.value, ast.Name)]
    return {node.attr for node in named if isinstance(node.value, ast.Name) and node.value.id in ("st", "streamlit")}
