"""Prompts as people have them, on the form: documents, several files, tables, conversations, and those of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from kvlab.library.prompts import load_prompt, save_prompt, saved_prompts
from kvlab.requests.compare import CompareRequest, OnePrompt
from kvlab.requests.conversation import Turn
from tests.pages.forms import previews, submitted
from tests.tasks import document_files as files

Open = Callable[..., AppTest]
WORD = "application/octet-stream"


def told(page: AppTest) -> str:
    assert not page.exception
    every = [*page.markdown, *page.caption, *page.info, *page.warning, *page.error, *page.success]
    return "\n".join(str(element.value).replace("\\", "") for element in every)


def request_of(page: AppTest, root: Path) -> CompareRequest:
    """What the form asks for."""
    request = submitted(page, root)
    assert [error.value for error in page.error] == []
    return request


def upload(page: AppTest, *named: tuple[str, bytes]) -> AppTest:
    page.file_uploader(key="upload").set_value([(name, content, WORD) for name, content in named])
    return page.run()


def test_a_document_is_shown_as_it_will_be_read_and_what_is_missing_is_said(runs_root: Path, open_page: Open):
    body = files.paragraph("It was late.") + "<w:p><w:r><w:drawing><a:blip/></w:drawing></w:r></w:p>"
    page = upload(open_page("new_run", source="Upload"), ("memo.docx", files.docx(body)))
    assert "It was late." in [element.value for element in page.text]
    assert "1 image was left out." in told(page)
    request = request_of(page, runs_root)
    assert (request.prompt, request.title) == ("It was late.", "memo.docx")


@pytest.mark.parametrize("source", ["Upload", "Paste"])
def test_a_question_is_asked_after_the_text(runs_root: Path, open_page: Open, source: str):
    page = open_page("new_run", source=source)
    if source == "Upload":
        page = upload(page, ("memo.docx", files.docx(files.paragraph("The key hangs by the door."))))
        page = page.text_input(key="upload_question").input("Where is the key?").run()
        assert "The key hangs by the door.\n\nWhere is the key?" in previews(page)
    else:
        page = page.text_area(key="pasted").input("The key hangs by the door.").run()
        page = page.text_input(key="pasted_question").input("Where is the key?").run()
    assert request_of(page, runs_root).prompt == "The key hangs by the door.\n\nWhere is the key?"


def test_several_documents_get_the_question_and_rows_keep_their_own(runs_root: Path, open_page: Open):
    rows = json.dumps({"context": "One.", "question": "Which?"}).encode()
    page = upload(open_page("new_run", source="Upload"), ("a.txt", b"Some text."), ("b.jsonl", rows))
    page = page.text_input(key="upload_question").input("Who?").run()
    assert [one.prompt for one in request_of(page, runs_root).prompts] == ["Some text.\n\nWho?", "One.\n\nWhich?"]
    only_rows = upload(open_page("new_run", source="Upload"), ("b.jsonl", rows))
    assert not [field for field in only_rows.text_input if field.key == "upload_question"]


def test_several_files_and_rows_are_a_batch_of_prompts_with_their_answers(runs_root: Path, open_page: Open):
    rows = [{"prompt": f"The number is {n}. Which is it?", "answer": str(n), "facts": [str(n)]} for n in (17, 48)]
    table = "\n".join(map(json.dumps, rows)).encode()
    page = upload(open_page("new_run", source="Upload"), ("a.txt", b"Some text."), ("b.jsonl", table))
    assert "**3 prompts**, with one comparison each" in told(page) and "2 of them have an answer" in told(page)
    page = page.selectbox(key="upload_look").select_index(2).run()
    assert "The number is 48. Which is it?" in previews(page)
    assert any("<mark>48</mark>" in element.proto.body for element in page.get("html")), "its fact is marked"
    request = request_of(page, runs_root)
    assert [(one.prompt, one.answer) for one in request.prompts] == [
        ("Some text.", None), ("The number is 17. Which is it?", "17"), ("The number is 48. Which is it?", "48"),
    ]  # fmt: skip
    assert [[one.prompt[start:stop] for start, stop in one.facts] for one in request.prompts] == [[], ["17"], ["48"]]
    assert (request.level, request.comparisons) == ("light", 3)


def test_one_row_brings_its_answer_and_several_are_chosen_by_number(runs_root: Path, open_page: Open):
    table = "\n".join(json.dumps({"prompt": f"text {n}", "answer": f"answer {n}"}) for n in range(1, 6)).encode()
    page = upload(open_page("new_run", source="Upload", upload_row="2"), ("b.jsonl", table))
    assert "The right answer is **answer 2**" in told(page)
    linked = open_page("new_run", source="Upload", upload_many="true", upload_first="2", upload_last="4")
    page = upload(linked, ("b.jsonl", table))
    assert page.number_input(key="upload_first").value == 2
    assert [one.prompt for one in request_of(page, runs_root).prompts] == ["text 2", "text 3", "text 4"]


def test_of_few_rows_those_that_are_ticked_are_run(runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch):
    ticked = [False, True, True]
    monkeypatch.setattr("streamlit.data_editor", lambda lines, **_: lines.assign(run=ticked))
    table = "\n".join(json.dumps({"prompt": f"text {n}"}) for n in range(1, 4)).encode()
    page = upload(open_page("new_run", source="Upload"), ("b.jsonl", table))
    assert not [field for field in page.number_input if field.key == "upload_first"]
    assert [one.prompt for one in request_of(page, runs_root).prompts] == ["text 2", "text 3"]
    ticked[1:] = [False, False]
    assert "No row is ticked" in told(upload(open_page("new_run", source="Upload"), ("b.jsonl", table)))


def test_every_row_of_an_upload_is_run_unless_the_reader_says_otherwise(runs_root: Path, open_page: Open):
    rows: list[dict[str, object]] = [
        {"context": f"The lamp is number {n}.", "question": "Which?", "answer": [n, f"number {n}"]} for n in (17, 48)
    ]
    table = "\n".join(json.dumps(row | {"hint": "look up"}) for row in rows).encode("utf-16")
    page = upload(open_page("new_run", source="Upload"), ("b.jsonl", table))
    assert page.toggle(key="upload_many").value is True
    assert "**2 prompts**, with one comparison each" in told(page) and "each has an answer" in told(page)
    assert "Left out of the prompt: the column hint." in told(page)
    assert page.dataframe[0].value["answer"].tolist() == ["17 or number 17", "48 or number 48"]
    request = request_of(page, runs_root)
    assert [one.prompt for one in request.prompts] == [
        f"The lamp is number {n}.\n\nWhich?" for n in (17, 48)
    ] and request.level == "light"
    assert [(one.answer, one.other_answers) for one in request.prompts] == [
        ("17", ("number 17",)), ("48", ("number 48",)),
    ]  # fmt: skip
    assert request.prompts[0].notes == ("Left out of the prompt: the column hint.",)


def test_answers_of_several_files_are_typed_in_the_table(
    runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    def typed(lines: pd.DataFrame, **_: object) -> pd.DataFrame:
        return lines.assign(answer=[" red ", None])

    monkeypatch.setattr("streamlit.data_editor", typed)
    rows = json.dumps({"prompt": "The lamp is green.", "answer": "green"}).encode()
    page = upload(open_page("new_run", source="Upload"), ("a.txt", b"The lamp is red."), ("b.jsonl", rows))
    assert "1 of them have an answer" in told(page)
    assert [one.answer for one in request_of(page, runs_root).prompts] == ["red", None]


def test_a_chosen_column_is_run_alone_and_what_a_file_leaves_out_is_in_the_request(runs_root: Path, open_page: Open):
    row = json.dumps({"context": "The lamp is red.", "question": "Which?", "answer": "red"}).encode()
    page = upload(open_page("new_run", source="Upload", upload_field="question"), ("b.jsonl", row))
    request = request_of(page, runs_root)
    assert (request.prompt, request.answer) == ("Which?", "red")
    assert request.notes == ("Left out of the prompt: the column context.",)


def test_turns_are_added_ordered_and_removed_and_opened_by_their_link(runs_root: Path, open_page: Open):
    page = open_page("new_run", source="Chat")
    page = page.text_area(key="turn-text-1").input("Hello").run()
    page = page.button(key="turn-add").click().run()
    assert page.selectbox(key="turn-role-2").value == "assistant", "after the user's turn"
    page = page.text_area(key="turn-text-2").input("Hi.").run()
    assert "The last turn is the assistant's: end with one of the user's" in told(page)
    page = page.button(key="turn-up-2").click().run()
    page = page.button(key="turn-remove-0").click().run()
    assert "Hello" not in str(page.query_params) and "turns" not in page.query_params
    again = open_page("new_run", source="Chat", turns_draft="".join(page.query_params["turns_draft"]))
    request = request_of(again, runs_root)
    assert request.turns == (Turn(role="assistant", content="Hi."), Turn(role="user", content="Hello"))
    assert request.prompt == "Assistant: Hi.\n\nUser: Hello\n\nAssistant:"


@pytest.mark.parametrize("turns", ["", "[", "[[3]]", '[["tool", "x"]]', "[]"])
def test_turns_of_an_address_that_cannot_be_used_are_left_out(runs_root: Path, open_page: Open, turns: str):
    assert not open_page("new_run", source="Chat", turns=turns).exception


def test_a_prompt_is_saved_under_a_name_and_its_link_fills_the_form(runs_root: Path, open_page: Open):
    page = open_page("new_run", source="Paste", text="The number is 17. Which is it?", answer="17", facts="17")
    page = page.text_input(key="prompt-save-name").input("my number").run()
    page = page.button(key="prompt-save").click().run()
    assert "Saved as my number" in told(page)
    linked = open_page("new_run", prompt="my number")
    assert linked.segmented_control(key="source").value == "Saved"
    assert "The right answer is **17**" in told(linked)
    request = request_of(linked, runs_root)
    assert (request.prompt, request.answer, request.title) == ("The number is 17. Which is it?", "17", "my number")
    assert request.facts == load_prompt(runs_root, "my number").facts == ((14, 16),)


def test_saved_prompts_are_searched_renamed_removed_and_brought_back(runs_root: Path, open_page: Open):
    chat = OnePrompt.model_validate({"turns": [{"role": "user", "content": "A lamp?"}]})
    save_prompt(runs_root, "one", OnePrompt(prompt="The old lamp."))
    save_prompt(runs_root, "two", chat)
    save_prompt(runs_root, "three", OnePrompt(prompt="Rain."))
    page = open_page("new_run", source="Saved", prompt_words="lamp")
    assert page.selectbox(key="prompt").options == ["one", "two"]
    page = page.text_input(key="prompt-name-one").input("first").run()
    page = page.button(key="prompt-rename").click().run()
    assert page.selectbox(key="prompt").value == "first"
    page = page.button(key="prompt-remove").click().run()
    assert page.selectbox(key="prompt").options == ["two"]
    # Else a browser goes on to name what was removed over the text of another.
    assert page.selectbox(key="prompt").proto.set_value and page.selectbox(key="prompt").value == "two"
    page = page.button(key="prompt-undo").click().run()
    assert page.selectbox(key="prompt").value == "first"
    page = page.selectbox(key="prompt").select("two").run()
    page = page.button(key="prompt-edit").click().run()
    assert page.segmented_control(key="source").value == "Chat"
    assert page.text_area(key="turn-text-0").value == "A lamp?"
    assert [one.name for one in saved_prompts(runs_root)] == ["first", "three", "two"]
