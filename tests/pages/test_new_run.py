"""The form asks for exactly what was typed, and says in one sentence what cannot run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.forms import plan_preview
from kvlab.planning.plan import Machine
from kvlab.requests.compare import LARGEST_PROMPT_BYTES
from kvlab.requests.recording import Recording
from tests.pages.forms import previews

Open = Callable[..., AppTest]
NASTY = "<script>alert(1)</script> & **bold** `code` $x$"
# What may stand in a field and cannot run, and how the sentence about it begins.
UNUSABLE = {
    "budgets": {
        "0": "The budget 0 cannot be used",
        "abc": "The budget 'abc' cannot be used",
        "1e9": "The budget 1000000000.0 cannot be used",
        "0.2, -3": "The budget -3.0 cannot be used",
        " ": "Give at least one budget",
    },
    "model": {
        "no such model": "There is no model 'no such model'",
        "./nowhere": "There is no model './nowhere'",
        "": "Name a model",
    },
    "keepkv.weights": {"[1,": "keepkv: weights is not valid JSON"},
}


def paste(page: AppTest, text: str) -> AppTest:
    page = page.segmented_control(key="source").set_value("Paste").run()
    return page.text_area(key="pasted").input(text).run()


def submit(page: AppTest) -> AppTest:
    """The page after a click on Run, or as it is where the button is disabled for the reason that the bar states."""
    button = page.button(key="run")
    return page if button.disabled else button.click().run()


def only_job(root: Path) -> jobs.JobStatus:
    (job,) = jobs.list_jobs(root)
    return job


def messages(page: AppTest) -> list[str]:
    assert not page.exception
    return [element.value.replace("\\", "") for element in page.error]


def test_a_pasted_prompt_is_queued_as_it_was_typed(form: AppTest, runs_root: Path, started_workers: list[Path]):
    page = paste(form, NASTY)
    page = page.text_input(key="budgets").input("0.1, 20% 128").run()
    page = page.multiselect(key="methods").set_value(["full", "keepkv"]).run()
    page = submit(page)
    assert messages(page) == []
    job = only_job(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert request.prompt == NASTY
    assert [(choice.method, choice.budget) for choice in request.choices] == [
        ("full", 1.0),
        ("keepkv", 0.1),
        ("keepkv", 0.2),
        ("keepkv", 128),
    ]
    assert (request.model, request.level, request.max_new_tokens) == ("mini", "full", 64)
    assert runs_root in started_workers
    assert page.query_params["job"] in (job.job_id, [job.job_id])
    assert NASTY in [element.value for element in page.text], "the prompt is shown as text, not as Markdown"
    assert not any("<script>" in element.value for element in page.markdown)


def test_only_hyper_parameters_that_were_changed_are_sent(form: AppTest, runs_root: Path):
    page = paste(form, "some text")
    page.selectbox(key="keepkv.rule").select("paper")
    page.number_input(key="keepkv.sinks").set_value(0)
    page.toggle(key="keepkv.guarded").set_value(False)
    page = submit(page.run())
    assert messages(page) == []
    by_method = {choice.method: choice for choice in jobs.request_of(runs_root, only_job(runs_root).job_id).choices}
    assert by_method["keepkv"].hyper_parameters == {"rule": "paper", "sinks": 0, "guarded": False}
    assert by_method["h2o"].hyper_parameters == {}


def test_one_click_takes_every_method_to_its_papers_settings(form: AppTest, runs_root: Path):
    """And what is changed on top of them is sent beside the preset; a method without one keeps its defaults."""
    page = paste(form, "some text")
    page = page.button_group(key="settings_of_all").set_value("paper").run()
    assert page.selectbox(key="keepkv.paper.rule").value == "paper"
    assert page.number_input(key="keepkv.paper.sinks").value == 7
    page.toggle(key="keepkv.paper.guarded").set_value(False)
    page = submit(page.run())
    assert messages(page) == []
    by_method = {choice.method: choice for choice in jobs.request_of(runs_root, only_job(runs_root).job_id).choices}
    assert by_method["keepkv"].hyper_parameters == {"preset": "paper", "guarded": False}
    assert by_method["keepkv"].label == "keepkv 20 % (paper, guarded=False)"
    assert by_method["h2o"].hyper_parameters == {}


@pytest.mark.parametrize(("widget", "value"), [(widget, value) for widget in UNUSABLE for value in UNUSABLE[widget]])
def test_what_cannot_run_is_one_sentence_and_nothing_is_queued(form: AppTest, runs_root: Path, widget: str, value: str):
    page = paste(form, "some text")
    page = submit(page.text_input(key=widget).input(value).run())
    found = messages(page)
    assert found
    assert all(message.startswith(UNUSABLE[widget][value]) for message in found)
    assert jobs.list_jobs(runs_root) == []


def test_a_value_on_an_open_limit_is_refused(form: AppTest, runs_root: Path):
    page = paste(form, "some text")
    page.number_input(key="h2o.recent").set_value(0.0)
    assert messages(submit(page.run())) == ["h2o: recent is 0, and must be greater than 0 and at most 1."]
    assert jobs.list_jobs(runs_root) == []


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_prompt_and_no_method_are_one_sentence(form: AppTest, runs_root: Path, text: str):
    page = paste(form, text)
    assert page.button(key="run").disabled and messages(page) == [], "an empty form is no error"
    told = [caption.value.replace("\\", "") for caption in page.caption]
    assert "The prompt is empty: paste some text, upload a file or take a sample." in told
    page = paste(page, "text").multiselect(key="methods").set_value([]).run()
    assert messages(submit(page)) == ["Choose at least one method."]
    assert jobs.list_jobs(runs_root) == []


def test_a_budget_beyond_the_prompt_is_allowed_and_explained(form: AppTest, runs_root: Path):
    page = paste(form, "a short prompt")
    page = page.text_input(key="budgets").input("1000000000").run()
    assert any("nothing in it is dropped" in element.value for element in page.info)
    page = submit(page)
    assert messages(page) == []
    assert only_job(runs_root).state == "queued"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "The prompt is empty"),
        (b"\xff\xfa\x00broken", "The file prompt.txt is not UTF-8 text (byte 0 cannot be read)"),
        (b"PK\x00\x01binary", "The file prompt.txt holds bytes that are no text"),
        (b"a" * (LARGEST_PROMPT_BYTES + 1), "The file prompt.txt has 2 MiB and the most is 2 MiB"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(form: AppTest, content: bytes, sentence: str):
    page = form.segmented_control(key="source").set_value("Upload").run()
    page = page.file_uploader(key="upload").upload("prompt.txt", content, "text/plain").run()
    (found,) = messages(page)
    assert found.startswith(sentence)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_an_uploaded_file_is_shown_as_text_and_queued(form: AppTest, runs_root: Path, encoding: str):
    text = NASTY + "\nzweite Zeile: é 漢"
    page = form.segmented_control(key="source").set_value("Upload").run()
    page = page.file_uploader(key="upload").upload("p.md", text.encode(encoding), "text/markdown").run()
    assert text in [element.value for element in page.text]
    assert messages(submit(page)) == []
    assert jobs.request_of(runs_root, only_job(runs_root).job_id).prompt == text


def test_every_sample_can_be_shown(form: AppTest):
    for title in form.selectbox(key="sample").options:
        form = form.selectbox(key="sample").select(title).run()
        assert messages(form) == []
        assert previews(form)[0]


@pytest.mark.parametrize("asked", ["abc", "1.5", "-4", "99999999999999999999"])
def test_numbers_of_an_address_that_cannot_be_used_are_left_out(runs_root: Path, open_page: Open, asked: str):
    page = open_page("new_run", max_new_tokens=asked, seed=asked)
    assert messages(page) == []
    assert 1 <= page.number_input(key="max_new_tokens").value <= 4096


def test_the_plan_is_shown_before_the_start(form: AppTest):
    page = paste(form, "some text " * 40)
    assert any("It fits: at least" in caption.value.replace("\\", "") for caption in page.caption)
    parts = next(table.value for table in page.dataframe if "what it is" in table.value)
    assert {"weights", "full cache", "logits"} < set(parts["part"])


def test_what_is_too_big_is_said_before_the_start_and_refused(
    runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plan_preview, "_machine", lambda *_: Machine("cpu", "a small machine", 10**6, 10**6))
    page = paste(open_page("new_run"), "some text")
    assert "a small machine has 977 KiB free" in messages(page)[0] and page.button(key="run").disabled
    assert jobs.list_jobs(runs_root) == []


def test_a_device_that_is_not_here_is_not_judged(form: AppTest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvlab.planning.plan.cards", list)
    page = paste(form, "some text")
    page = page.selectbox(key="device").select("cuda").run()
    assert not page.exception
    assert not page.warning


def test_what_is_recorded_is_sent_and_bad_values_are_one_sentence(
    form: AppTest, runs_root: Path, started_workers: list[Path]
):
    page = paste(form, "some text")
    for layers, heads, sentence in (
        ("0-", "", "What to record cannot be 'layers=0-': write layers=0-3,8,heads=0,every=4, or some of the three."),
        ("99", "", "Layer 99 cannot be recorded: the model's layers are numbered 0 to 5."),
        ("", "9", "KV head 9 cannot be recorded: the model's KV heads are numbered 0 to 3."),
    ):
        page.text_input(key="record_layers").input(layers)
        page.text_input(key="record_heads").input(heads)
        page = submit(page.run())
        assert [text.replace("\\", "") for text in messages(page)] == [sentence]
    page.text_input(key="record_layers").input("0-1, 3")
    page.text_input(key="record_heads").input("")
    page.number_input(key="record_every").set_value(4)
    page = submit(page.run())
    assert messages(page) == []
    assert jobs.request_of(runs_root, only_job(runs_root).job_id).record == Recording.parse("layers=0,1,3,every=4")


def test_a_chunk_and_the_generation_config_are_sent(form: AppTest, runs_root: Path, started_workers: list[Path]):
    page = paste(form, "some text")
    page.number_input(key="prefill_chunk").set_value(64)
    page.session_state["generation_config"] = "honour"
    page = submit(page.run())
    assert messages(page) == []
    asked = jobs.request_of(runs_root, only_job(runs_root).job_id)
    assert (asked.prefill_chunk, asked.generation_config) == (64, "honour")


def test_the_forms_of_other_questions_open_from_here(form: AppTest, open_page: Callable[..., AppTest]):
    page = form.segmented_control(key="ask").set_value("A guarantee").run()
    assert page.text_input(key="budgets").value.startswith("90%"), "a guarantee asks for a ladder of budgets"
    page = open_page("quality", quality_view="New evaluation", tasks="needle")  # links of before
    assert not page.exception
    assert page.segmented_control(key="ask").value == "Many prompts" and page.multiselect(key="tasks").value == [
        "needle"
    ]
    assert any("Evaluate" in button.label for button in page.button), "its form, not its results"
