"""An installed kvlab, away from its checkout, finds its dashboard and its assets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from kvlab.common.build_hook import FOLDERS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("kvlab", "app", "assets", "pyproject.toml", "README.md", "LICENSE")
OF_THE_CHECKOUT = {"mini-60", "mini-half"}
SHIPPED = "kvlab/shipped/"
LARGE = 100_000
OPEN = """
from pathlib import Path
from streamlit.testing.v1 import AppTest
from kvlab.planning import choices
from kvlab.core import assets
choices.prefetch = lambda: None  # the first page shows no form
from kvlab.tasks.shipped_samples import shipped_samples
root = assets.project_root()
assert root.parent.parent == Path({installed!r}), root
assert shipped_samples()
page = AppTest.from_file(str(root / "app" / "main.py"), default_timeout=60).run()
assert not page.exception, page.exception
assert (root / "app" / ".streamlit" / "config.toml").exists()
print(page.title[0].value)
"""


def copy_or_touch(source: str, target: str) -> None:
    """A large asset, as weights and tables are, is packed and found by its name alone: its content takes seconds."""
    path = Path(source)
    if path.is_relative_to(ROOT / "assets") and path.stat().st_size > LARGE:
        Path(target).touch()
    else:
        shutil.copy2(source, target)


def test_the_wheel_holds_the_dashboard_and_it_runs_from_there(tmp_path: Path):
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for name in SOURCES:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "node_modules")
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=ignore, copy_function=copy_or_touch)
        else:
            shutil.copy(path, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path), "."]
    subprocess.run(pip, cwd=source, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {name.split("/")[0].split("-")[0] for name in archive.namelist()} == {"kvlab"}
        assert not any("__pycache__" in name for name in archive.namelist())
        packed = {name.removeprefix(SHIPPED) for name in archive.namelist()}
        files = (file for name in FOLDERS for file in (source / name).rglob("*") if file.is_file())
        wanted = {str(file.relative_to(source)) for file in files}
        assert {name for name in wanted - packed if not OF_THE_CHECKOUT & {*Path(name).parts}} == set()
        archive.extractall(installed)
    environment = os.environ | {"PYTHONPATH": str(installed), "KVLAB_RUNS": str(tmp_path / "runs")}
    line = [sys.executable, "-P", "-c", OPEN.format(installed=str(installed))]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "See what KV-cache compression does to tokens"
