"""Uploaded tables become texts one can take, or one sentence; a cut prompt fits and hides nothing."""

from __future__ import annotations

import csv
import html
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.new_run.prompt_view import cut_as_html, tokens_as_html
from kvlab.core.errors import UserError
from kvlab.forms.uploads import KEEPS, TruncatedPrompt, excess_tokens, read_upload, token_spans, truncate_prompt
from kvlab.models.info.chat_template import ChatFormat
from kvlab.models.info.names import context_length
from kvlab.models.info.token_count import count_tokens

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=("Cs",)), min_size=1)

MINI = ChatFormat("mini")


@given(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=5))
def test_json_lines_give_back_every_text(texts: list[str]):
    content = "\n".join(json.dumps({"id": 3, "prompt": text}) for text in texts).encode()
    upload = read_upload("prompts.jsonl", content)
    assert [upload.one(row, "prompt").prompt for row in range(len(texts))] == texts
    assert upload.fields == ["prompt"]


@settings(deadline=None)
@given(st.lists(st.text("abc ,;\"'\n", min_size=1).filter(str.strip), min_size=1, max_size=5))
def test_csv_gives_back_every_cell(texts: list[str]):
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([["name", "text"], *([f"n{row}", text] for row, text in enumerate(texts))])
    upload = read_upload("prompts.csv", file.getvalue().encode())
    assert [upload.one(row, "text").prompt for row in range(len(texts))] == texts


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", '{"text": "one"}\n{"text": ', "Line 2 of a.jsonl is not JSON"),
        ("a.jsonl", '{"n": 3}', "Line 1 of a.jsonl holds no text"),
        ("a.csv", "text\n", "a.csv has a header but no rows"),
        ("a.csv", "text,text\na,b\n", "two columns of the same name"),
        ("a.csv", 'name,text\na,"open', "a.csv is not a table"),
        ("a.md", " ", "The prompt is empty"),
        ("a.md", "a\0b", "The file a.md holds bytes that are no text"),
        ("a.jsonl", "[" * 100_000, "Line 1 of a.jsonl is not JSON"),
        ("a.jsonl", '{"text": "one", "n": ' + "9" * 5000 + "}", "Line 1 of a.jsonl is not JSON"),
        ("a.jsonl", '{"text": "half \\ud800"}', "Line 1 of a.jsonl is not JSON"),
        ("a.jsonl", '{"text": "one", "n": NaN}', "Line 1 of a.jsonl is not JSON"),
    ],
)
def test_a_bad_file_is_one_sentence(name: str, content: str, sentence: str):
    with pytest.raises(UserError, match=sentence):
        read_upload(name, content.encode())


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("new_tokens", [1, 64])
def test_a_cut_prompt_fits_and_its_parts_are_the_prompt(keep: str, new_tokens: int):
    room = context_length("mini")
    text = "It was the best of times, it was the worst of times. " * (room // 8)
    assert excess_tokens(text, MINI, new_tokens) > 0
    cut = truncate_prompt(text, MINI, new_tokens, keep)
    assert cut.before + cut.removed + cut.after == text
    assert excess_tokens(cut.text, MINI, new_tokens) == 0
    assert count_tokens(cut.text, MINI)[0] + new_tokens > room - 40, "no more is cut than must be"
    assert bool(cut.before) == (keep != "end") and bool(cut.after) == (keep != "beginning")


def test_a_prompt_that_fits_is_not_cut():
    assert truncate_prompt("Short.", MINI, 8, "end") == TruncatedPrompt("Short.")


@settings(deadline=None)
@given(st.text("ab <>&\"' \n", max_size=60))
def test_previews_show_every_letter_and_no_markup(text: str):
    shown = (
        tokens_as_html(text, token_spans(text, "mini") or []).split('data-testid="tokens">')[1].removesuffix("</div>")
    )
    assert html.unescape(re.sub(r"</?i>", "", shown)) == text
    assert "<script" not in cut_as_html(TruncatedPrompt("<script>", "<script>", "<script>"))
