"""A model in a folder is called by the folder's name everywhere; its path is in the bar's tooltip and in run.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab.report.contents import provenance, subject_of
from kvlab.trace.reader import open_run
from kvlab.trace.record import read_record, write_record
from kvlab.views.base.provenance import of_comparison, of_run
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
FOLDER = "/data/models/smollm2"


@pytest.fixture
def run_of_a_folder(runs_root: Path) -> Path:
    path = write_synthetic_run(runs_root, comparison_id="folder")
    write_synthetic_run(runs_root, method="h2o", comparison_id="folder")
    for one in runs_root.glob("folder-*"):
        record = read_record(one)
        write_record(one, record.model_copy(update={"model": record.model.model_copy(update={"name": FOLDER})}))
    return path


@pytest.mark.parametrize("name", ["timeline", "compare", "wall", "memory", "runs", "start"])
def test_pages_show_the_name_of_the_folder(run_of_a_folder: Path, open_page: Open, name: str):
    page = open_page(name, comparison="folder")
    assert not page.exception
    shown = [element.value for element in (*page.caption, *page.markdown)]
    tables = "".join(element.value.to_csv() for element in page.dataframe)
    assert "/data" not in "".join(map(str, shown)) + tables
    assert "smollm2" in "".join(map(str, shown)) + tables


def test_the_path_stays_in_the_tooltip_of_the_bar_and_in_the_record(run_of_a_folder: Path, open_page: Open):
    page = open_page("timeline", run=run_of_a_folder.name)
    line = next(caption for caption in page.caption if "smollm2" in caption.value)
    assert FOLDER in line.help
    assert json.loads((run_of_a_folder / "run.json").read_text())["model"]["name"] == FOLDER


def test_a_model_with_a_name_needs_no_tooltip(runs_root: Path, open_page: Open):
    run = write_synthetic_run(runs_root)
    page = open_page("timeline", run=run.name)
    line = next(caption for caption in page.caption if "synthetic" in caption.value)
    assert "folder" not in line.help


def test_exports_name_the_folder(run_of_a_folder: Path):
    run = open_run(run_of_a_folder)
    told = (subject_of([run], {}), provenance([run]), str(of_run(run)), str(of_comparison([run])))
    for words in told:
        assert "smollm2" in words and "/data" not in words
