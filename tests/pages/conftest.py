"""What page tests share: a folder of synthetic runs, a registry of methods that asks no second process, AppTest."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from streamlit import config
from streamlit.components.v2 import manifest_scanner
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.testing.v1 import AppTest, app_test, local_script_runner
from streamlit.util import calc_hash

from app.base import component
from app.base.links import FIRST, START
from app.navigation.menu import page_names
from kvlab.planning import choices
from tests.papers.shipped_drawings import drawn_once as drawn_once
from tests.synthetic.runs import write_synthetic_run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # as app/main.py does, for pages that are run alone
Open = Callable[..., AppTest]
PATIENCE_SECONDS = 30
RUN = "newer-keepkv-25pc-0"  # of `synthetic_runs` and `shared_runs`
PAGES = sorted(page_names())

# Every AppTest reads the metadata of all installed packages and every run compiles the scripts: once is enough for all.
manifest_scanner.scan_component_manifests = functools.cache(manifest_scanner.scan_component_manifests)
app_test.ScriptCache = local_script_runner.ScriptCache = functools.cache(ScriptCache)
# As in app/.streamlit/config.toml: Streamlit would look at each command's arguments to report their types.
config.set_option("browser.gatherUsageStats", False)
config.set_option("runner.postScriptGC", False)  # as `kvlab app` starts the server
component.HEAD_START_SECONDS = 0  # no browser waits for what was drawn so far

# It looks every millisecond whether a script has ended, which took a tenth of the time of two files of these tests.
_ended_in_time = local_script_runner.require_widgets_deltas


def _wait_for_the_script(runner: local_script_runner.LocalScriptRunner, timeout: float = 3) -> None:
    if runner._script_thread is not None:
        runner._script_thread.join(timeout)
    _ended_in_time(runner, 1.0 if runner.script_stopped() else 0.0)


local_script_runner.require_widgets_deltas = _wait_for_the_script

METHODS = [
    choices.MethodEntry(name="full", family="reference", title="Full cache", needs_budget=False),
    choices.MethodEntry(
        name="h2o",
        family="eviction",
        title="H2O",
        paper="https://arxiv.org/abs/2306.14048",
        summary="Keeps heavy hitters & the *most* recent tokens.",
        parameters={"properties": {"recent": {"type": "number", "default": 0.5, "exclusiveMinimum": 0, "maximum": 1}}},
    ),
    choices.MethodEntry(
        name="keepkv",
        family="merging",
        title="KeepKV",
        merges=True,
        presets={
            "paper": choices.PresetEntry(
                about="the paper's experiments",
                values={
                    "rule": choices.PresetValue(value="paper", source="equation 7"),
                    "sinks": choices.PresetValue(value=7, source="appendix"),
                },
            )
        },
        parameters={
            "properties": {
                "rule": {"enum": ["bias", "paper"], "default": "bias", "type": "string", "description": "key rule"},
                "sinks": {"type": "integer", "default": 4, "minimum": 0},
                "guarded": {"type": "boolean", "default": True},
                "window": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                "weights": {"type": "array", "default": [1, 2]},
            }
        },
    ),
]


@pytest.fixture
def runs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty runs folder that the pages use."""
    root = tmp_path / "runs"
    root.mkdir()
    monkeypatch.setenv("KVLAB_RUNS", str(root))
    return root


@pytest.fixture(scope="session")
def made_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparisons `older` and `newer`, to copy: full cache, an evicting and a merging method."""
    root = tmp_path_factory.mktemp("made")
    for comparison in ("older", "newer"):
        for method in ("full", "h2o", "keepkv"):
            write_synthetic_run(root, method=method, comparison_id=comparison, title=f"the {comparison} one")
    return root


@pytest.fixture
def synthetic_runs(made_runs: Path, runs_root: Path) -> Path:
    """The runs folder with the comparisons `older` and `newer`, for this test alone."""
    shutil.copytree(made_runs, runs_root, dirs_exist_ok=True)
    return runs_root


@pytest.fixture(scope="session")
def shared_folder(made_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(made_runs, tmp_path_factory.mktemp("shared") / "runs")


@pytest.fixture
def shared_runs(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `synthetic_runs`, one folder for all tests that only look: what one read and drew is kept for the next."""
    monkeypatch.setenv("KVLAB_RUNS", str(shared_folder))
    return shared_folder


@pytest.fixture(autouse=True)
def registered_methods(monkeypatch: pytest.MonkeyPatch) -> list[choices.MethodEntry]:
    """The methods that forms offer; nobody is asked what they hold as they are set."""
    monkeypatch.setattr(
        "kvlab.planning.method_footprints._ask", lambda unknown: dict.fromkeys(unknown, choices.MethodFootprint())
    )
    answered: Future[list[choices.MethodEntry]] = Future()
    answered.set_result(METHODS)
    before = choices._reading
    monkeypatch.setattr(choices, "_reading", lambda what: answered if what == "methods" else before(what))
    return METHODS


@pytest.fixture(autouse=True)
def listed_tasks(monkeypatch: pytest.MonkeyPatch) -> choices.TaskList:
    """The tasks and formats that forms offer."""
    needle = choices.TaskEntry(name="needle", summary="one number in a story", lengths=(1024,), uses_depth=True)
    pairs = choices.TaskEntry(name="key_value", summary="pairs", lengths=(512,), parameters={"pairs": 32})
    rules = choices.TaskEntry(
        name="instructions", summary="rules", parameters={"place": "system"}, choices={"place": ("system", "end")}
    )
    listed = choices.TaskList(tasks=(needle, pairs, rules), formats=("ruler", "table"))
    answered: Future[choices.TaskList] = Future()
    answered.set_result(listed)
    before = choices._reading
    monkeypatch.setattr(choices, "_reading", lambda what: answered if what == "tasks" else before(what))
    return listed


@pytest.fixture(autouse=True)
def started_workers(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs folders for which a page asked for a worker; none is started."""
    asked: list[Path] = []
    monkeypatch.setattr("kvlab.jobs.ensure_worker", lambda root: asked.append(root) or 0)
    return asked


@pytest.fixture(autouse=True)
def one_process(templates_here: None) -> None:
    """Pages render chat templates in this process."""


@pytest.fixture(autouse=True)
def first_chart_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page draws all at once, as where the browser has painted its first chart; or it would be drawn twice.

    That it waits for that is asked in tests/pages/test_lazy_views.py.
    """
    monkeypatch.setattr(component, "WAITS", False)


def switch_to(page: AppTest, name: str) -> AppTest:
    """Make a page the one of the next run: `AppTest.switch_page` takes pages that are files."""
    page._page_hash = calc_hash(FIRST if name == START else name)
    return page


@pytest.fixture
def open_page() -> Open:
    """Opens a page inside the app, as an address with these query parameters does, and waits for its end."""

    def opened(name: str, **query: str) -> AppTest:
        page = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=PATIENCE_SECONDS)
        for key, value in query.items():
            page.query_params[key] = value
        return switch_to(page, name).run()

    return opened


@pytest.fixture
def form(runs_root: Path, open_page: Open) -> AppTest:
    """The page New."""
    return open_page("new_run")


@pytest.fixture(scope="session")
def _looked_at() -> dict[str, AppTest]:
    return {}


@pytest.fixture
def look(
    shared_runs: Path, open_page: Callable[..., AppTest], _looked_at: dict[str, AppTest]
) -> Callable[..., AppTest]:
    """`look(name)`: a page on the run `RUN` of `shared_runs`, opened once for all tests, which click nothing on it."""

    def looked(name: str) -> AppTest:
        if name not in _looked_at:
            shown = {"comparison": "newer", "run": RUN, "a": RUN, "b": "newer-h2o-25pc-0", "words": "the"}
            _looked_at[name] = open_page(name, **shown)
        return _looked_at[name]

    return looked
