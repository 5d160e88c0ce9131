"""New run takes an expected answer and facts, or plants both; samples bring theirs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from app.new_run import model_section
from kvlab import jobs
from kvlab.common.liveness import host_id
from kvlab.core.choice import MethodChoice
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db
from kvlab.jobs.batch import repeat_request
from kvlab.models.info.mini import NEEDLE_PHRASINGS
from kvlab.requests.compare import CompareRequest
from kvlab.tasks.shipped_samples import shipped_sample
from kvlab.trace import open_run
from kvlab.trace.catalogue import list_runs
from tests.jobs.by_hand import STAND_IN, work_off
from tests.pages.forms import submitted
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
TEXT = "It was late. The old lamp went out. Then the door opened. Rain came in."


@pytest.fixture
def form(runs_root: Path, open_page: Open) -> AppTest:
    page = open_page("new_run").segmented_control(key="source").set_value("Paste").run()
    return page.text_area(key="pasted").input(TEXT).run()


def test_a_typed_answer_and_its_facts_are_queued(form: AppTest, runs_root: Path):
    form.text_input(key="answer").input(" out ")
    page = form.text_area(key="facts").input("old lamp\n\n Rain ").run()
    request = submitted(page, runs_root)
    assert request.answer == "out"
    assert [TEXT[start:stop] for start, stop in request.facts] == ["old lamp", "Rain"]


def test_the_only_sentence_that_holds_the_answer_is_its_fact_unless_declined(
    form: AppTest, runs_root: Path, open_page: Open
):
    page = form.text_input(key="answer").input("lamp").run()
    box = page.checkbox(key="propose_fact")
    assert box.value and "The old lamp went out" in box.label
    assert [TEXT[start:stop] for start, stop in submitted(page, runs_root).facts] == ["The old lamp went out."]
    linked = open_page("new_run", source="Paste", text=TEXT, answer="lamp", propose_fact="false")
    assert not linked.checkbox(key="propose_fact").value
    linked.button(key="run").click().run()
    newest = jobs.request_of(runs_root, jobs.list_jobs(runs_root)[0].job_id)
    assert isinstance(newest, CompareRequest) and newest.facts == ()
    chosen = open_page("new_run", source="Paste", text=TEXT, answer="lamp", facts="Rain")
    assert not [box for box in chosen.checkbox if box.key == "propose_fact"], "the facts of a link stay as they are"


def test_of_several_sentences_with_the_answer_one_click_takes_one(form: AppTest, runs_root: Path):
    page = form.text_area(key="pasted").input(f"{TEXT} The lamp was red.").run()
    page = page.text_input(key="answer").input("lamp").run()
    assert any("2 sentences hold the answer" in caption.value for caption in page.caption)
    page = next(button for button in page.button if "was red" in button.label).click().run()
    request = submitted(page, runs_root)
    assert [request.prompt[start:stop] for start, stop in request.facts] == ["The lamp was red."]


def test_no_answer_is_asked_for_where_none_was_typed(form: AppTest, runs_root: Path):
    request = submitted(form, runs_root)
    assert (request.prompt, request.answer, request.facts) == (TEXT, None, ())


def test_a_fact_that_the_text_lacks_is_one_sentence_and_nothing_is_queued(form: AppTest, runs_root: Path):
    page = form.text_area(key="facts").input("a cat").run()
    assert page.button(key="run").disabled
    assert {"letter by letter" in element.value for element in page.error} == {True}
    assert jobs.list_jobs(runs_root) == []


@pytest.mark.parametrize("kind", [0, 3])
def test_a_planted_needle_is_answer_and_fact_in_one_in_words_mini_was_taught(form: AppTest, runs_root: Path, kind: int):
    page = form.toggle(key="plant").set_value(True).run()
    page = page.slider(key="plant_depth").set_value(50).run()
    page = page.selectbox(key="plant_kind").set_value(kind).run()
    request = submitted(page, runs_root)
    ((start, stop),) = request.facts
    planted = request.prompt[start:stop]
    before, after = NEEDLE_PHRASINGS[kind].statement.split("{name}")[0], request.prompt[stop:]
    assert planted.startswith(before)
    assert planted.endswith(f"{request.answer}.")
    assert request.answer not in after
    assert "\nQuestion: " in after
    assert after.rstrip() == after, "the answer follows at once"
    assert TEXT.split() == (request.prompt[:start] + after.split("\nQuestion: ")[0]).split()


def test_repeats_are_one_request_whose_needles_differ(form: AppTest, runs_root: Path):
    page = form.toggle(key="plant").set_value(True).run()
    page = page.number_input(key="plant_repeats").set_value(7).run()
    assert any("7 prompts, one after another" in element.value for element in page.caption)
    assert page.segmented_control(key="level").value == "light", "many prompts are recorded lightly"
    request = submitted(page, runs_root)
    assert (request.prompt, request.answer, request.facts, request.level) == (TEXT, None, (), "light")
    assert len({planting.draw for planting in request.repeats}) == 7
    assert {planting.wording for planting in request.repeats} == set(range(len(NEEDLE_PHRASINGS)))
    made = [repeat_request(request, "b", number) for number in range(1, 8)]
    assert len({one.answer for one in made}) == 7


def test_repeats_vary_only_what_is_asked_for(form: AppTest, runs_root: Path):
    page = form.toggle(key="plant").set_value(True).run()
    page = page.number_input(key="plant_repeats").set_value(3).run()
    page = page.pills(key="plant_vary").set_value([]).run()
    page = page.slider(key="plant_depth").set_value(70).run()
    request = submitted(page, runs_root)
    assert [(one.wording, one.depth) for one in request.repeats] == [(0, 0.7)] * 3


def test_minis_wordings_and_limits_are_named_beside_its_name_and_not_beside_others(form: AppTest):
    names = [row for frame in form.dataframe for row in frame.value.get("statement", [])]
    for wording in NEEDLE_PHRASINGS:
        assert any(name.startswith(wording.statement.split("{")[0]) for name in names)
    assert any("copying a passage" in str(element.value) for element in form.caption)
    other = form.text_input(key="model").input("some/folder").run()
    assert not any("taught" in str(element.value) for element in other.caption)


def test_a_sample_brings_its_answer(runs_root: Path, open_page: Open):
    sample = shipped_sample("needle_in_a_story")
    page = open_page("new_run")
    assert any(sample.answer in element.value for element in page.caption)
    request = submitted(page, runs_root)
    assert request.answer == sample.answer
    assert [request.prompt[start:stop] for start, stop in request.facts] == list(sample.facts)


@pytest.mark.parametrize("right", [True, False])
def test_the_full_cache_is_asked_by_itself_and_its_run_is_in_no_list(
    form: AppTest, runs_root: Path, tmp_path: Path, right: bool
):
    # The stand-in's run depends on its sizes only, so the answer can be read from one like it.
    like = write_synthetic_run(tmp_path / "like", method="full", prompt_tokens=16, steps=2)
    wrote = open_run(like).record.free_text
    page = form.text_input(key="answer").input(wrote.split()[0] if right else "no such words").run()
    assert not page.exception
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert isinstance(request, CompareRequest) and request.aside
    assert [choice.method for choice in request.choices] == ["full"]
    assert (request.prompt, request.level) == (TEXT, "off")
    work_off(runs_root, STAND_IN)
    page = page.run()
    assert not page.exception
    assert ["which is right" in element.value for element in page.success] == [True] * right
    failing = [element.value for element in page.warning if "own answer is another one" in element.value]
    assert len(failing) == (0 if right else 1)
    ways = [button for button in page.button if button.key == "try_chat_model"]
    assert len(ways) == (0 if right else 1), "a way out where mini cannot answer"
    assert list_runs(runs_root) == []
    another = page.text_input(key="answer").input("another answer").run()
    assert len(jobs.list_jobs(runs_root)) == 1, "the same text is judged by another answer"
    assert not another.success and another.button(key="ask-full").disabled
    changed = page.text_area(key="pasted").input(TEXT + " More.").run()
    assert not changed.success, "what was written to another text says nothing of this one"


@pytest.mark.parametrize("is_here", [True, False])
def test_the_chat_model_is_taken_and_asked_where_mini_cannot_answer(
    form: AppTest, runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_here: bool
):
    downloaded: list[str] = []

    def get_model(name: str) -> Iterator[tuple[int, int]]:
        downloaded.append(name)
        yield 1, 1

    monkeypatch.setattr(model_section, "get_model", get_model)
    monkeypatch.setattr(model_section, "find_spec", lambda name: name)
    fields = {"name": "smollm2", "package": "p", "about": "A chat model", "licence": "free", "wheel_bytes": 93_000_000}
    model = SimpleNamespace(**fields, file=lambda: tmp_path if is_here or downloaded else None)
    monkeypatch.setattr(model_section, "PACKAGED", {"smollm2": model})
    form.text_input(key="answer").input("no such words").run()
    work_off(runs_root, STAND_IN)
    page = form.run()
    way = page.button(key="try_chat_model")
    assert ("93 MB" in way.label) == (not is_here)
    page = way.click().run()
    assert not page.exception
    assert downloaded == ([] if is_here else ["smollm2"])
    assert page.text_input(key="model").value == "smollm2"
    assert not [button for button in page.button if button.key == "try_chat_model"]


def test_a_link_asks_nothing_by_itself_but_its_button_does(runs_root: Path, open_page: Open):
    page = open_page("new_run", source="Paste", text=TEXT, answer="out")
    assert jobs.list_jobs(runs_root) == [], "opening a page starts nothing"
    page.button(key="ask-full").click().run()
    assert [job.title for job in jobs.list_jobs(runs_root)] == ["The full cache's answer"]


def test_the_full_cache_waits_for_nobody_and_makes_room_for_the_comparison(form: AppTest, runs_root: Path):
    other = jobs.submit(runs_root, CompareRequest(prompt="x", choices=(MethodChoice(method="h2o"),)))
    page = form.text_input(key="answer").input("out").run()
    assert [job.job_id for job in jobs.list_jobs(runs_root)] == [other], "the queue is not idle"
    jobs.cancel(runs_root, other)
    page = page.run()
    asked = next(job for job in jobs.list_jobs(runs_root) if job.job_id != other)
    assert any("Asking the full cache" in caption.value for caption in page.caption)
    page = page.button(key="run").click().run()
    assert jobs.status(runs_root, asked.job_id).state == "cancelled"
    assert [job.position for job in jobs.list_jobs(runs_root, open_only=True)] == [1]


def test_another_question_withdraws_the_one_that_is_asked(form: AppTest, runs_root: Path):
    page = form.text_input(key="answer").input("out").run()
    (first,) = jobs.list_jobs(runs_root)
    with queue_db.database(runs_root) as connection:
        worker_slots.take_slot(connection, os.getpid())
        queue_db.claim(connection, os.getpid(), host_id())
    page = page.text_area(key="pasted").input(f"{TEXT} More.").run()
    assert jobs.status(runs_root, first.job_id).cancelling
    assert len(jobs.list_jobs(runs_root)) == 1
    assert any("as soon as the question before" in caption.value for caption in page.caption)
    with queue_db.database(runs_root) as connection:
        queue_db.finish(connection, first.job_id, "cancelled", "Cancelled.")
    page.run()
    second = jobs.list_jobs(runs_root)[0]
    request = jobs.request_of(runs_root, second.job_id)
    assert isinstance(request, CompareRequest) and request.prompt == f"{TEXT} More." and request.aside
