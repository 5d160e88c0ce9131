"""Comparisons, evaluations and folders as objects; examples and notebooks run as they stand."""

from __future__ import annotations

import inspect
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pandas as pd
import pytest

import kvlab
from kvlab import notebook
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalRequest
from kvlab.requests.compare import CompareRequest
from kvlab.views.base import export
from kvlab.views.base.view import all_views

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
TEXT = "The access code of the lab is 48213. " + "Nobody had been there, and the door was heavy. " * 6
ASKED = TEXT + "The access code of the lab is"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> notebook.Comparison:
    return kvlab.compare(
        ASKED,
        methods=["snapkv", "keepkv:rule=votes"],
        budgets=[0.2, 64],
        answer="48213",
        new_tokens=3,
        out=tmp_path_factory.mktemp("notebook") / "runs",
    )


def test_a_comparison_has_a_row_and_a_run_for_each_choice(result: notebook.Comparison):
    assert [run.record.method for run in result] == ["full", "snapkv", "snapkv", "keepkv", "keepkv"] and len(
        result
    ) == 5
    assert result["keepkv:rule=votes", 64].record.budget == 64 and result["snapkv", 0.2].record.budget == 0.2
    assert result["full"] is result[0] is result[result[0].record.run_id]
    frame = result.frame
    assert set(frame["verdict"]) <= {"right", "nearly", "wrong", "unfinished"}
    last = result[1].memory.query("step == step.max()")
    assert frame["live_bytes"][1] == last["live_bytes"].sum()


def test_objects_say_what_they_are(result: notebook.Comparison):
    assert "5 runs of 1 comparison in" in repr(kvlab.open_folder(result.folder))
    assert f"Comparison {result.comparison_id}" in repr(result) and "KL to full, nats/token" in repr(result)
    assert result._repr_html_().count("<tr") == 6
    assert repr(result[1]).startswith("<kvlab run snapkv 20 %") and "wall" in result[1]._repr_html_()
    again = kvlab.open_folder(result.folder)[result.comparison_id]
    assert isinstance(again, notebook.Comparison)
    pd.testing.assert_frame_equal(again.frame, result.frame)


def test_a_run_draws_views_that_stay_without_a_kernel(result: notebook.Comparison, tmp_path: Path):
    run = result["snapkv", 0.2]
    assert {"wall", "timeline"} <= set(run.views)
    drawn = run.view("timeline", layer=1, head=0)
    assert drawn.save(tmp_path / "timeline.csv").read_bytes() == drawn.to("csv")
    quality = result.view("quality")
    assert quality.frame["live_bytes"].tolist() == result.frame["live_bytes"].tolist()
    assert len(quality.frame) == len(result)
    bundle = drawn._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert drawn.caption in bundle["text/plain"]
    try:
        drawn.to("png")
    except UserError:
        pytest.skip("pictures need Chromium")
    assert len(bundle["image/png"]) > 1000
    assert ('src="data:image/png;base64,iVBOR' in result._repr_html_()) == ("quality" in all_views())


def test_a_live_view_tells_what_was_clicked_and_follows_the_step(result: notebook.Comparison):
    run = result["keepkv:rule=votes", 0.2]
    wall = run.view("wall")
    assert wall.selection is None and wall.widgets is not None
    part = wall.widgets[1]
    sent = part.content, part.shared
    part.place = [2, 1, 9]
    assert wall.selection == notebook.Selection(layer=2, head=1, step=part.step, token=9)
    part.place, part.step = [0, 3, -1], 0
    assert wall.selection == notebook.Selection(layer=0, head=3, step=0, token=None)
    assert part.content != sent[0] and part.shared is sent[1], "texts and fates are sent once"
    strip = run.view("timeline", layer=1, head=0)
    assert strip.widgets is not None
    strip.widgets[1].token = 5
    assert strip.selection == notebook.Selection(layer=1, head=0, step=strip.widgets[1].step, token=5)


def test_a_scrubber_draws_the_figure_again(result: notebook.Comparison):
    spans = result.view("spans", step=2)
    assert spans.widgets is not None
    box, scrubber = spans.widgets
    chart = box.children[1]
    assert chart.layout.title.text == spans.figure.layout.title.text and spans.selection is None
    scrubber.step = 1
    expected = result.view("spans", step=1)
    assert chart.layout.title.text == expected.figure.layout.title.text != spans.figure.layout.title.text
    assert len(chart.data) == len(expected.figure.data)
    assert spans.selection == notebook.Selection(layer=None, head=None, step=1, token=None)
    assert result.view("quality").widgets is None


def test_without_anywidget_a_view_is_the_chart(result: notebook.Comparison, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    drawn = result[1].view("timeline", layer=1, head=0)
    bundle = drawn._repr_mimebundle_()
    assert drawn.selection is None and "application/vnd.jupyter.widget-view+json" not in bundle
    assert drawn.caption in bundle["text/plain"]


def test_a_bar_in_a_notebook_leaves_an_empty_output(monkeypatch: pytest.MonkeyPatch):
    shown: list[str] = []

    class Output:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            shown.append(bundle["text/plain"])

    monkeypatch.setattr(notebook, "_is_in_kernel", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda *what, **how: Output())
    with notebook._Bar() as bar:
        bar.set_description_str("reading")
    assert any("reading" in text for text in shown) and shown[-1] == ""


def test_bad_input_is_one_sentence_and_shows_no_frames_of_ours(result: notebook.Comparison, tmp_path: Path):
    def message(act: Any) -> str:
        with pytest.raises(UserError) as caught:
            act()
        assert caught.value._render_traceback_() == [f"UserError: {caught.value}"]
        return str(caught.value)

    assert "There is no view called 'wal'" in message(lambda: result[1].view("wal"))
    assert "is of one run" in message(lambda: result.view("wall"))
    assert "names 2 runs" in message(lambda: result["snapkv"])
    assert "names no run" in message(lambda: result["snapkv", 0.9])
    assert "There are no runs" in message(lambda: kvlab.open_folder(tmp_path))
    assert "takes no layr" in message(lambda: result[1].view("timeline", layr=1))
    assert "nothing to resume" in message(result.resume)
    opened = kvlab.open_folder(result.folder)[result.comparison_id]
    assert "complete ones cannot be resumed" in message(opened.resume)
    assert "budget" in message(lambda: kvlab.compare(ASKED, methods=["snapkv"], budgets=[-1], out=tmp_path))
    assert "at least one method" in message(lambda: kvlab.compare(ASKED, methods=[], out=tmp_path))
    assert message(lambda: kvlab.compare(ASKED, methods="snapkv", new_token=3, out=tmp_path)) == (
        "There is no setting 'new_token': check its spelling."
    )
    light = kvlab.compare(ASKED, methods="snapkv", new_tokens=2, level="light", out=tmp_path)
    assert [run.record.method for run in light] == ["full", "snapkv"]
    assert "--level full" in message(lambda: light["snapkv"].view("wall"))
    assert "wall" not in light["snapkv"].views and "memory" in light["snapkv"].views
    for name in light["snapkv"].views:
        if name.startswith("restored"):
            assert "is not searched yet: `kvlab restore" in message(lambda name=name: light["snapkv"].view(name))
        else:
            light["snapkv"].view(name)
    assert "window" in message(lambda: kvlab.compare("word " * 20_000, methods="snapkv", out=tmp_path))


def test_settings_of_editors_and_of_the_page_are_fields_of_the_requests(tmp_path: Path):
    page = (ROOT / "docs" / "python.md").read_text()
    for settings, request in ((notebook.CompareSettings, CompareRequest), (notebook.EvaluateSettings, EvalRequest)):
        names = get_type_hints(settings)
        assert names and names.keys() <= request.model_fields.keys()
        assert not [name for name in names if f"`{name}`" not in page]
        for name, kind in names.items():
            if get_origin(kind) is Literal:
                assert get_args(kind) == get_args(request.model_fields[name].annotation), name
    for function in (kvlab.compare, kvlab.evaluate):
        given = inspect.signature(function).parameters
        assert not [
            name for name in given if name not in ("prompt", "root", "tasks", "fields") and f"`{name}`" not in page
        ]
    with pytest.raises(UserError, match="sampels"):
        kvlab.evaluate("needle", methods="snapkv", sampels=3, out=tmp_path)


def test_a_request_gives_the_paths_of_its_runs_as_before(tmp_path: Path):
    choices = ({"method": "snapkv", "budget": 0.5},)
    request = CompareRequest.model_validate({"prompt": TEXT, "choices": choices, "max_new_tokens": 2, "level": "off"})
    (path,) = kvlab.compare(request, tmp_path)
    assert kvlab.open_run(path).record.method == "snapkv"


def test_scores_have_n_and_an_interval_and_a_stop_keeps_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: dict[str, Any] = {"methods": ["snapkv"], "budgets": [0.5], "lengths": [128], "out": tmp_path / "eval"}
    bar = notebook._Bar

    class Stops(notebook._Bar):
        def report(self, progress: Any) -> None:
            if progress.done >= 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(notebook, "_Bar", Stops)
    stopped = kvlab.evaluate(["needle"], samples=4, **asked)
    assert 0 < len(stopped.rows) < 8 and "the same call goes on" in stopped.about
    monkeypatch.setattr(notebook, "_Bar", bar)
    scores = kvlab.evaluate(["needle"], samples=4, **asked)
    assert len(scores.rows) == 8 and set(stopped.rows["key"]) <= set(scores.rows["key"])
    line = scores.frame.set_index("method").loc["snapkv"]
    assert line["samples"] == 4 and line["score_low"] <= line["score"] <= line["score_high"]
    assert line["score"] == scores.rows.query("method == 'snapkv'")["score"].mean()
    assert "score" in repr(scores) and "<table" in scores._repr_html_()


def test_a_stopped_comparison_says_so_and_goes_on_from_its_folder(
    result: notebook.Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Stops(notebook._Bar):
        def report(self, progress: Any) -> None:
            if progress.stage.startswith("decoding"):
                raise KeyboardInterrupt

    bar = notebook._Bar
    monkeypatch.setattr(notebook, "_Bar", Stops)
    asked: dict[str, Any] = {"methods": ["snapkv", "keepkv:rule=votes"], "budgets": [0.2, 64], "answer": "48213"}
    stopped = kvlab.compare(ASKED, new_tokens=3, out=tmp_path, **asked)
    monkeypatch.setattr(notebook, "_Bar", bar)
    assert not stopped.runs and set(stopped.frame["status"]) == {"cancelled"}
    assert "result.resume() goes on" in repr(stopped) and "cancelled" in stopped._repr_html_()
    opened = kvlab.open_folder(tmp_path)[stopped.comparison_id]
    assert isinstance(opened, notebook.Comparison) and "result.resume() goes on" in repr(opened)
    resumed = opened.resume()
    same = ["label", "verdict", "live_bytes", "mean_kl", "top1_agreement"]
    pd.testing.assert_frame_equal(resumed.frame[same], result.frame[same])


def test_reading_runs_loads_no_model_stack(result: notebook.Comparison):
    code = f"import sys, kvlab; print(kvlab.open_run({str(result[1].path)!r}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """In a process of its own, where it registers something."""
    assert len((EXAMPLES / name).read_text().splitlines()) <= 40
    arguments = [str(ROOT / "assets" / "mini")] if name == "generate.py" else []
    if name == "write_a_method.py":
        command = [sys.executable, str(EXAMPLES / name)]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
        assert done.returncode == 0 and b"long-values" in done.stdout, done.stderr.decode()
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert len(capsys.readouterr().out) > 100


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.ipynb")))
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "ImageWriter", _NoPictures)  # drawn in other tests
    cells = json.loads((EXAMPLES / name).read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec("".join(cell["source"]), names)
    assert any(isinstance(value, notebook.Comparison | notebook.Scores) for value in names.values())


class _NoPictures:
    def __init__(self) -> None:
        raise UserError("no Chromium")
