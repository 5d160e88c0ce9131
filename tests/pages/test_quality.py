"""The page Scores: what the form sends, what results show, and the way from a cell to a recorded prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from app.base.text import plain
from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob, EvalRequest, SampleJob, TaskChoice
from kvlab.evaluation.results.rows import ROWS
from kvlab.forms import eval_form
from kvlab.planning import choices
from kvlab.results import quality_tables
from kvlab.views.base.palette import Theme
from kvlab.views.base.view import find_view
from tests.pages.test_board_page import told
from tests.papers.test_scores import row

Open = Callable[..., AppTest]
ROWS_MADE = 12


@pytest.fixture(autouse=True)
def nothing_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows of mini but those a test writes; reading the shipped ones takes seconds."""
    monkeypatch.setattr("app.evaluation.quality_form.shipped_rows", pd.DataFrame)


def results(root: Path, name: str = "mine", depths: tuple[float | None, ...] = (None,)) -> pd.DataFrame:
    """Twelve prompts of two tasks: keepkv is right everywhere, h2o on none, snapkv on all but the first."""
    made = []
    for task in ("needle", "key_value"):
        for depth in depths:
            for index in range(ROWS_MADE):
                right = {"full": 1.0, "h2o": 0.0, "snapkv": float(index > 0), "keepkv": 1.0}
                for method, score in right.items():
                    live = {"full": 100, "h2o": 20, "snapkv": 20, "keepkv": 24}[method]
                    made.append(
                        row(task, method, score, index)
                        | {"depth": depth, "live_bytes": live, "key": f"{task}{method}{index}{depth}",
                           "answer": '["7"]', "prediction": method, "prompt_tokens": 64}
                    )  # fmt: skip
    folder = root / "eval" / name
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(made, schema=ROWS), folder / "part-000000.parquet")
    return pd.read_parquet(folder / "part-000000.parquet").assign(name=name)


def test_ranks_respect_intervals_and_ties_are_level(runs_root: Path):
    table = quality_tables.ranks(results(runs_root), "20 %").set_index(["task", "arm"])
    for task in ("needle", "key_value", quality_tables.ALL_TASKS):
        # One prompt in twelve is no sure difference; none of twelve is.
        assert table.loc[task, "rank"].to_dict() == {"h2o": 3, "snapkv": 1, "keepkv": 1}
        assert table.loc[task, "level"].to_dict() == {"h2o": False, "snapkv": True, "keepkv": True}
    assert table.loc[("needle", "h2o"), "behind"] == 1
    assert table.loc[("needle", "snapkv"), "behind"] == pytest.approx(1 / ROWS_MADE)
    assert table.loc[(quality_tables.ALL_TASKS, "h2o"), "prompts"] == 2 * ROWS_MADE


def test_the_page_says_at_once_what_was_evaluated(runs_root: Path, open_page: Open):
    results(runs_root)
    said = [caption.value for caption in open_page("quality").caption]
    words = "needle and key_value · 24 prompts of 64 tokens · question in sight when compressed · 3 methods"
    assert any(plain(words) in line for line in said)


def test_one_prompt_ranks_nobody(runs_root: Path):
    rows = results(runs_root)
    assert (quality_tables.ranks(rows[rows["index"] == 0], "20 %")["rank"] == 1).all()


def test_the_frontier_holds_what_nothing_beats(runs_root: Path):
    table = quality_tables.by_bytes(results(runs_root)).set_index("arm")
    # snapkv: as small as h2o and better; keepkv: better and larger; the full cache: as good as keepkv and larger.
    assert table["frontier"].to_dict() == {"full": False, "h2o": False, "snapkv": True, "keepkv": True}


def test_an_arm_that_scores_nothing_is_not_on_the_frontier(runs_root: Path):
    rows = results(runs_root)
    rows.loc[rows["method"] == "h2o", "live_bytes"] = 1
    assert not quality_tables.by_bytes(rows).set_index("arm")["frontier"]["h2o"]


def test_the_worst_prompt_comes_first_and_presets_are_told_apart(runs_root: Path):
    rows = results(runs_root)
    found = quality_tables.prompts_behind(rows, "needle", "snapkv", "20 %")
    assert found["index"].iloc[0] == 0 and found["lost"].iloc[0] == 1 and (found["full"] == 1).all()
    paper = rows[rows["method"] == "keepkv"].assign(hyper_parameters='{"preset":"paper"}')
    arms = set(quality_tables.ranks(pd.concat([rows, paper]), "20 %")["arm"])
    assert {"keepkv", "keepkv:preset=paper"} <= arms


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_rows_have_views_of_which_two_may_be_refused(runs_root: Path, theme: Theme):
    rows = results(runs_root, depths=(0.0, 1.0))
    for name, title in (("ranks", "Ranks at 20 %"), ("score_by_budget", "Score by budget"), ("needles", "Needle")):
        drawn = find_view(name).draw(rows, theme)
        assert drawn.figure.layout.title.text.startswith(title) and drawn.caption.endswith(".") and len(drawn.frame)
    by_bytes = find_view("score_by_bytes").draw(rows, theme, axis="live_bytes")
    assert by_bytes.frame.equals(quality_tables.by_bytes(rows))
    assert by_bytes.caption.startswith("Not beaten in both score and memory")
    with pytest.raises(UserError, match="several depths"):
        find_view("needles").draw(rows.assign(depth=0.5), theme)
    with pytest.raises(UserError, match="no frontier"):
        find_view("score_by_bytes").draw(rows.assign(metric="bits_per_byte"), theme)


def test_results_are_drawn_and_a_cell_leads_to_a_recorded_prompt(runs_root: Path, open_page: Open):
    results(runs_root, depths=(0.0, 1.0))
    page = open_page("quality", cell_task="key_value", cell_arm="snapkv")
    assert not page.exception
    text = told(page)
    assert "As good as the best in every task" in text and "Not beaten in both score and memory" in text
    assert "the hidden fact is" in text, "the needle map"
    offered = {button.proto.label for button in page.get("download_button")}
    assert {"Scores as Markdown", "Scores as LaTeX"} <= offered
    shown = page.dataframe[0].value
    assert shown["prompt"].iloc[0] == 1 and shown["score"].iloc[0] == 0 and shown["answer"].iloc[0] == "7"
    page.button(key="record_sample").click().run()
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert isinstance(request, SampleJob)
    asked = request.request
    assert (asked.tasks[0].task, asked.lengths, asked.samples, asked.chat) == ("key_value", (64,), 1, "no")
    assert asked.choices == (MethodChoice(method="snapkv", budget=0.2),)


def test_the_form_sends_what_it_shows_and_says_what_it_takes(
    runs_root: Path, open_page: Open, started_workers: list, commands_here: None
):
    results(runs_root)
    page = open_page("new_run", ask="Many prompts", tasks="key_value", methods="H2O", budgets="0.1,64")
    assert not page.exception
    page.number_input(key="key_value.pairs").set_value(16)
    page.number_input(key="samples").set_value(5)
    page.text_input(key="lengths").set_value("200, 300")
    page.toggle(key="question_aware").set_value(False)
    page.text_input(key="eval_name").set_value("tonight")
    page = page.run()
    # 2 lengths of 5 prompts under 3 caches.
    assert "10 prompts under 3 caches" in told(page) and "30 measurements" in told(page)
    page.button(key="evaluate").click().run()
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert isinstance(request, EvalJob) and request.name == "tonight"
    asked = request.request
    assert asked.tasks == (TaskChoice(task="key_value", difficulty={"pairs": 16}),)
    assert asked.choices == tuple(MethodChoice(method="h2o", budget=budget) for budget in (0.1, 64))
    assert (asked.lengths, asked.samples, asked.question_aware) == ((200, 300), 5, False)
    assert started_workers


def test_a_parameter_that_is_a_word_is_chosen(
    runs_root: Path, open_page: Open, started_workers: list, commands_here: None
):
    page = open_page("new_run", ask="Many prompts", tasks="instructions", methods="H2O", budgets="0.1")
    page.selectbox(key="instructions.place").set_value("end")
    page = page.run()
    assert not page.exception
    page.button(key="evaluate").click().run()
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert request.request.tasks == (TaskChoice(task="instructions", difficulty={"place": "end"}),)


def test_a_length_that_cannot_hold_its_task_is_said_before_anything_is_queued(
    runs_root: Path,
    open_page: Open,
    registered_methods: list[choices.MethodEntry],
    commands_here: None,
    monkeypatch: pytest.MonkeyPatch,
):
    """As is a window that takes up a method's whole budget, once for all lengths where it does."""
    windowed = [entry.model_copy(update={"window": 32}) for entry in registered_methods]
    monkeypatch.setattr(choices, "methods", lambda: windowed)
    page = open_page("new_run", ask="Many prompts", tasks="key_value", methods="H2O", budgets="32,64")
    page = page.text_input(key="lengths").set_value("100, 512").run()
    assert "key_value: 100 tokens cannot hold this task: ask for at least " in told(page)
    assert "evaluate" not in {button.key for button in page.button}
    assert told(page).count("The budget of 32 slots per head does not exceed the observation window of 32: H2O") == 1
    assert "The budget of 64" not in told(page)


@pytest.mark.usefixtures("commands_here")
def test_tasks_that_the_model_cannot_do_are_marked_before_they_are_measured(runs_root: Path, open_page: Open):
    rows = results(runs_root)
    lost = rows[rows["method"] == "full"].assign(difficulty='{"pairs":32}', length=512, key="w" + rows["key"])
    lost = lost[lost["task"] == "key_value"].assign(score=[1.0] * 4 + [0.0] * 8)
    pq.write_table(
        pa.Table.from_pandas(lost[ROWS.names], schema=ROWS, preserve_index=False),
        runs_root / "eval" / "mine" / "part-000001.parquet",
    )
    page = open_page("new_run", ask="Many prompts", tasks="needle,key_value", methods="H2O", budgets="0.1")
    assert not page.exception
    assert [warning.value for warning in page.warning if "Not informative on mini" in warning.value] == [
        plain(
            "Not informative on mini: key_value: full cache right in 4 of 12 prompts of 512 tokens: 0.333 (0.138 to "
            "0.609, 95 % interval)."
        )
    ]
    assert "is not known here" not in told(page)
    page = page.number_input(key="key_value.pairs").set_value(7).run()
    assert not [warning for warning in page.warning if "Not informative" in warning.value]
    assert "Whether mini can do key_value is not known here:" in told(page)
    assert f"kvlab tasks --model mini --out {runs_root / 'eval' / 'tasks'}" in told(page)


def test_how_tasks_ask_is_chosen_by_the_model_and_sent(
    runs_root: Path, open_page: Open, started_workers: list, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.evaluation.quality_form.has_template", lambda model: model == "mini")
    page = open_page("new_run", ask="Many prompts", tasks="needle", methods="H2O", budgets="0.1")
    assert page.selectbox(key="style").options[0] == "chosen by the model: chat"
    page = page.selectbox(key="style").set_value("question").run()
    page.button(key="evaluate").click().run()
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert isinstance(request, EvalJob) and request.request.style == "question"


def test_the_recorded_prompt_asks_as_the_row_did(runs_root: Path):
    rows = results(runs_root)
    asked = eval_form.sample_job(rows.iloc[0].to_dict() | {"difficulty": '{"pairs":8,"style":"chat"}'}, {}).request
    assert (asked.style, asked.tasks[0].difficulty) == ("chat", {"pairs": 8})
    assert eval_form.sample_job(rows.iloc[0].to_dict(), {}).request.style == "continuation"


def test_files_that_are_named_are_checked(runs_root: Path, tmp_path: Path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "A cat.", "answer": "cat"}\n')
    for line in ("ruler", "=x", "ruler=/nowhere/x.jsonl"):
        with pytest.raises(eval_form.UserError):
            eval_form.read_files(line)
    assert eval_form.read_files(f"ruler={file}\n")[0].path == file
    [with_option] = eval_form.read_files(f"helm={file}:temperature=0.3")
    assert (with_option.path, with_option.options) == (file, {"temperature": 0.3})


def test_a_job_is_followed_by_its_link_and_goes_on(runs_root: Path, open_page: Open):
    job = EvalJob(name="mine", request=EvalRequest(tasks=(TaskChoice(task="needle"),)), title="Evaluation mine")
    first = jobs.submit(runs_root, job)
    page = open_page("quality", job=first)
    assert not page.exception and "No results yet" in told(page)
    page.button(key="cancel_job").click().run()
    results(runs_root)
    page = open_page("quality", job=first)
    assert not page.exception and "As good as the best in every task" in told(page)
    page.button(key="go_on").click().run()
    (again,) = jobs.list_jobs(runs_root)
    assert (again.job_id, again.state) == (first, "queued") and jobs.request_of(runs_root, first) == job
    assert not open_page("new_run", job=first).exception
    assert "There is no job nope" in told(open_page("quality", job="nope"))


def test_rows_from_a_file_need_the_file(runs_root: Path):
    rows = results(runs_root)
    from_file = rows.iloc[0].to_dict() | {"content": "abc", "difficulty": json.dumps({"file": "p.jsonl"})}
    with pytest.raises(eval_form.UserError, match="not known here"):
        eval_form.sample_job(from_file, {})
