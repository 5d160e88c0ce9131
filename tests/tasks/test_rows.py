"""A file of rows means the same to the command line, the forms, evaluations and `kvlab tasks --check`."""

from __future__ import annotations

import codecs
import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.cli.options.prompt import PromptOptions
from kvlab.core.errors import UserError
from kvlab.forms.uploads import notes_of, prompts_of, read_upload
from kvlab.library.prompts import load_prompt, save_prompt
from kvlab.requests.compare import OnePrompt
from kvlab.tasks.documents.html import read_html
from kvlab.tasks.loaders import load_file
from kvlab.tasks.loaders.jsonl import read_text
from kvlab.tasks.prompt_table import as_row

ROWS = [
    {"context": "The lamp is red.\nIt is old: é 漢 🚀", "question": "What colour?", "answer": "red"},
    {"context": 'A "number", 48213;\n\nand more.', "question": "Which number?", "answer": "48213"},
]
WHOLE = [f"{row['context']}\n\n{row['question']}" for row in ROWS]
ENCODINGS = {
    "utf-8": b"",
    "utf-8-sig": b"",
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
}


def as_csv(rows: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def upper(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with columns named in another way."""
    return [{f" {name.title()} ": value for name, value in row.items()} for row in rows]


FILES: dict[str, Any] = {
    "t.jsonl": as_lines(ROWS),
    "lines.json": as_lines(ROWS),
    "list.json": json.dumps(ROWS, indent=1),
    "t.csv": as_csv(ROWS),
    "upper.jsonl": as_lines(upper(ROWS)),
    "upper.csv": as_csv(upper(ROWS)),
}


def read_by_all(path: Path, tokenizer: Any) -> list[tuple[str, tuple[str, ...]]]:
    """The prompts of a file and what is right, which every reader must agree about."""
    uploaded = prompts_of([read_upload(path.name, path.read_bytes())])
    given = PromptOptions(file=[path]).read_all(path.parent)
    samples = load_file("table", path, tokenizer).samples
    checked = json.loads(CliRunner().invoke(commands, ["tasks", "--check", str(path), "--json"]).stdout)
    assert given == uploaded
    assert (checked["form"], checked["count"], checked["malformed"]) == ("table", len(given), [])
    asked = [(one.prompt, tuple(filter(None, (one.answer, *one.other_answers)))) for one in given]
    assert [(one.context + one.question, tuple(one.answers)) for one in samples] == asked
    return asked


@pytest.mark.parametrize("name", FILES)
def test_every_reader_reads_the_same_prompts_and_answers(tmp_path: Path, small_tokenizer: Any, name: str) -> None:
    path = tmp_path / name
    path.write_text(FILES[name], encoding="utf-8")
    assert read_by_all(path, small_tokenizer) == list(zip(WHOLE, [("red",), ("48213",)], strict=True))


def test_parquet_with_cells_that_are_missing_is_read_alike(tmp_path: Path, small_tokenizer: Any) -> None:
    """A column of whole numbers where one is missing is stored as one of fractions."""
    rows = [{"prompt": "a b", "answer": 48213.0, "note": None}, {"prompt": "c d", "answer": 0.5, "note": "x"}]
    path = tmp_path / "t.parquet"
    path.write_bytes(as_parquet(rows))
    assert read_by_all(path, small_tokenizer) == [("a b", ("48213",)), ("c d", ("0.5",))]
    path.write_bytes(as_parquet([*rows, {"prompt": "e f", "answer": float("nan"), "note": None}]))
    assert [one.answer for one in PromptOptions(file=[path]).read_all(tmp_path)] == ["48213", "0.5", None]


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_text_has_the_same_characters_in_every_encoding(
    tmp_path: Path, small_tokenizer: Any, encoding: str, breaks: str
) -> None:
    """As a text, as rows, as a conversation, and as a page of the web."""
    text = "First line: é 漢 🚀\nsecond\n\n“third”"

    def written(name: str, words: str) -> Path:
        path = tmp_path / name
        path.write_bytes(ENCODINGS[encoding] + words.replace("\n", breaks).encode(encoding))
        return path

    plain = written("a.txt", text)
    assert PromptOptions(file=[plain]).read() == read_upload(plain.name, plain.read_bytes()).text == text
    assert read_text(plain) == text
    for name in ("t.jsonl", "list.json", "t.csv"):
        assert [one for one, _ in read_by_all(written(name, FILES[name]), small_tokenizer)] == WHOLE
    turns = written("c.json", json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=False))
    assert PromptOptions(file=[turns]).read() == f"User: {text}\n\nAssistant:"
    lines = f"{turns.name}l"
    assert read_upload(lines, turns.read_bytes()).one(0).turns[0].content == text
    page = ENCODINGS[encoding] + f'<meta charset="utf-8"><pre>{text}</pre>'.replace("\n", breaks).encode(encoding)
    assert read_html(page).text == text


def test_line_breaks_of_other_systems_inside_of_a_row_and_on_the_command_line_are_line_feeds(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"prompt": "a\r\nb\rc"}))
    assert PromptOptions(file=[path]).read() == PromptOptions(prompt="\ufeffa\r\nb\rc").read() == "a\nb\nc"


def test_files_that_were_put_one_after_another_keep_no_mark_within(tmp_path: Path) -> None:
    line = b'\xef\xbb\xbf{"prompt": "a"}\n'
    assert [one.prompt for one in prompts_of([read_upload("t.jsonl", line * 2)])] == ["a", "a"]


def test_a_saved_prompt_is_read_with_a_mark_before_it(tmp_path: Path) -> None:
    save_prompt(tmp_path, "mine", OnePrompt(prompt="a b", answer="a", other_answers=("b",), notes=("1 image.",)))
    [file] = (tmp_path / ".prompts").glob("*.json")
    file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    asked = load_prompt(tmp_path, "mine").asked
    assert (asked.prompt, asked.answer, asked.other_answers, asked.notes) == ("a b", "a", ("b",), ("1 image.",))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.json"])
@pytest.mark.parametrize("content", [b"caf\xe9 is latin", b"\xff\xfe\x00\xd8", "a,b\nc,d".encode("utf-16-le")])
def test_bytes_that_are_no_text_are_one_sentence_everywhere(
    tmp_path: Path, small_tokenizer: Any, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for read in (
        lambda: PromptOptions(file=[path]).read(),
        lambda: read_upload(name, content),
        lambda: load_file("text", path, small_tokenizer),
    ):
        with pytest.raises(
            UserError, match=r"is not UTF-(8|16) text \(byte \d+ cannot be read\)|bytes that are no text"
        ):
            read()


@pytest.mark.parametrize(
    ("value", "right"),
    [
        (48213, ("48213",)), (4.5, ("4.5",)), (3.0, ("3",)), (-2, ("-2",)), (10**20, (str(10**20),)), (0, ("0",)),
        (True, ("true",)), (None, ()), ("", ()), (" yes ", ("yes",)), ([], ()), ([None], ()),
        (["48213", "forty-eight"], ("48213", "forty-eight")), ([48213, "48213"], ("48213",)),
        ([["a"], "b"], ("a", "b")),
        ({"text": ["a", "b"], "answer_start": [3, 9]}, ("a", "b")), ('["a", "b"]', ("a", "b")), ("[1, 2]", ("[1, 2]",)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("column", ["answer", "answers", "Answer ", "target"])
def test_an_answer_of_any_kind_is_carried(value: Any, right: tuple[str, ...], column: str) -> None:
    content = json.dumps({"prompt": "a b", column: value}).encode()
    one = read_upload("t.jsonl", content).one(0)
    assert tuple(filter(None, (one.answer, *one.other_answers))) == right
    assert one.notes == ()


@pytest.mark.parametrize(
    ("row", "prompt", "left_out"),
    [
        ({"prompt": "short?", "completion": "much longer than the prompt", "answer": "x"}, "short?", ["completion"]),
        ({"context": "c.", "question": "q?"}, "c.\n\nq?", []),
        ({"question": "q?", "context": "c.\n"}, "c.\nq?", []),
        ({"input": "i?", "context": "c.", "answers": ["x"], "length": 3}, "c.\n\ni?", []),
        ({"instruction": "do", "input": "", "output": "o"}, "do", ["output"]),
        ({"instruction": "do", "input": "this", "output": "o"}, "do\n\nthis", ["output"]),
        ({"instruction": "do", "context": "c.", "response": "r"}, "do\n\nc.", ["response"]),
        ({"context": "c.", "prompt": "p?"}, "c.\n\np?", []),
        ({"prompt": "p", "question": "q?", "answer_prefix": " It is"}, "p\n\nq? It is", []),
        ({"input": "i\nq?", "outputs": ["x"], "answer_prefix": " It is"}, "i\nq? It is", ["outputs"]),
        ({"document": "d", "summary": "s"}, "d", ["summary"]),
        ({"text": "t", "label": 1}, "t", []),
        ({"PROMPT": "p", "Other": "much longer than it"}, "p", ["Other"]),
        ({"note": "n", "story of it": "the longest here"}, "the longest here", ["note"]),
        ({"context": ["one", "two"], "question": "q?"}, "one\n\ntwo\n\nq?", []),
        ({"context": "c", "question": "q", "choice_A": "a", "choice_B": "b"}, "c\n\nq", ["choice_A", "choice_B"]),
        ({"answer": "a", "answers": ["b"], "prompt": "p"}, "p", ["answers"]),
    ],
)
def test_the_prompt_is_what_its_columns_say_and_what_is_left_out_is_named(
    row: dict[str, Any], prompt: str, left_out: list[str]
) -> None:
    one = read_upload("t.jsonl", json.dumps(row).encode()).one(0)
    assert one.prompt == prompt
    named = " and ".join(left_out)
    expected = f"Left out of the prompt: the column{'s' * (len(left_out) > 1)} {named}."
    assert one.notes == ((expected,) if left_out else ())


def test_a_column_that_is_chosen_is_the_prompt_alone() -> None:
    upload = read_upload("t.jsonl", as_lines([{"context": "c.", "question": "q?", "answer": "a"}]).encode())
    assert (upload.usual, upload.fields) == ("context, question", ["context", "question", "answer"])
    one = upload.one(0, "question")
    assert (one.prompt, one.notes) == ("q?", ("Left out of the prompt: the column context.",))


@pytest.mark.parametrize("column", ["messages", "Messages", "conversation", "prompt", "conversations"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_a_conversation_is_found_in_every_kind_of_file(tmp_path: Path, column: str, kind: str) -> None:
    names = ("from", "value") if column == "conversations" else ("role", "content")
    messages = [dict(zip(names, pair, strict=True)) for pair in (("system", "Be brief."), ("user", "Which?"))]
    row = {column: messages, "answer": 17}
    content = {
        "jsonl": as_lines([row]).encode(),
        "parquet": as_parquet([row]),
        "csv": as_csv([{column: json.dumps(messages), "answer": 17}]).encode(),
    }[kind]
    one = read_upload(f"t.{kind}", content).one(0)
    assert [(turn.role, turn.content) for turn in one.turns] == [("system", "Be brief."), ("user", "Which?")]
    assert (one.answer, one.notes) == ("17", ())


def test_what_messages_hold_beside_text_is_said_of_the_rows_that_hold_it(tmp_path: Path, small_tokenizer: Any) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    with_picture = {"messages": [{"role": "user", "content": [picture, "What is it?"]}], "answer": "a cat"}
    plain = {"messages": [{"role": "user", "content": "And this?"}], "answer": "a dog"}
    path = tmp_path / "t.jsonl"
    path.write_text(as_lines([with_picture, plain, plain]))
    found = prompts_of([read_upload(path.name, path.read_bytes())])
    assert [one.notes for one in found] == [("1 image was left out.",), (), ()]
    assert notes_of(found) == ["One prompt: 1 image was left out."]
    assert load_file("table", path, small_tokenizer).notes == [f"{path}, one prompt: 1 image was left out."]
    told = CliRunner().invoke(commands, ["tasks", "--check", str(path)]).stdout
    assert f"note: {path}, one prompt: 1 image was left out." in told


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "prompt,answer\nOne, two, three,4\n", "Row 1 of a.csv has 4 cells under 2 columns"),
        ("a.csv", " prompt ,prompt\na,b\n", "two columns of the same name"),
        ("a.json", "[]", "a.json is an empty list"),
        ("a.json", '{"a": ', "a.json is not JSON"),
        ("a.jsonl", '{"prompt": "", "question": "q?"}', "The prompt is empty"),
        ("a.parquet", "PAR1 and nothing", "a.parquet is no Parquet file or a damaged one"),
        ("a.jsonl", '{"messages": [{"role": "tool", "content": "x"}]}', "give system, user or assistant"),
    ],
)
def test_a_row_that_cannot_be_used_is_one_sentence(name: str, content: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        prompts_of([read_upload(name, content.encode())])


def test_a_row_says_who_reads_it_where_it_holds_no_text() -> None:
    with pytest.raises(UserError, match="Line 3 of it holds no text"):
        as_row({"n": 3}, "Line 3 of it")


@pytest.mark.parametrize("written", ["3.50", "1e5", "12345678901234567890.50", "0.00001", "-0.250", "48213"])
def test_a_number_of_a_json_file_keeps_its_text_as_an_answer(written: str) -> None:
    content = f'{{"prompt": "a b", "answer": {written}}}'.encode()
    assert read_upload("t.jsonl", content).one(0).answer == written


FRUIT = ["car", "apple", "dog", "sky"]
LETTERED = [{"label": label, "text": text} for label, text in zip("ABCD", FRUIT, strict=True)]
LISTED = "Which is a fruit?\n\n- car\n- apple\n- dog\n- sky"
ASKED = {"question": "Which is a fruit?"}
OPTIONS = {f"option{number}": text for number, text in enumerate(FRUIT, 1)}
LETTERS = {f"choice_{letter}": text for letter, text in zip("ABCD", FRUIT, strict=True)}


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({**ASKED, "choices": FRUIT, "answer": 1}, LISTED),
        ({**ASKED, "choices": FRUIT, "answer": 1.0}, LISTED),
        ({**ASKED, "choices": FRUIT, "answer": "b"}, LISTED),
        ({**ASKED, "choices": FRUIT, "answer": "(B)"}, LISTED),
        ({**ASKED, "choices": FRUIT, "answer": "apple"}, LISTED),
        ({**ASKED, "choices": json.dumps(FRUIT), "answer": "1"}, LISTED),
        ({**ASKED, "options": FRUIT, "answer": "B", "answer_index": 1}, LISTED),
        ({**ASKED, "options": dict(zip("ABCD", FRUIT, strict=True)), "answer_idx": "B"}, LISTED),
        ({**ASKED, "choices": {"text": FRUIT, "label": list("ABCD")}, "answerKey": "B"}, LISTED),
        ({**ASKED, "choices": {"text": FRUIT, "label": list("1234")}, "answerKey": "2"}, LISTED),
        ({**ASKED, "choices": LETTERED, "answerKey": "B"}, LISTED),
        ({"id": "r1", "question": {"stem": ASKED["question"], "choices": LETTERED}, "answerKey": "B"}, LISTED),
        ({"id": "r1", "stem": ASKED["question"], "choices": LETTERED, "answerKey": "B"}, LISTED),
        ({**ASKED, **OPTIONS, "answer": "2"}, LISTED),
        ({**ASKED, **OPTIONS, "label": 1}, LISTED),
        ({**ASKED, **LETTERS, "answer": "B"}, LISTED),
        ({**ASKED, "answers": FRUIT, "label": 1}, LISTED),
        ({"ind": 4, "activity_label": "a b", "ctx": "An", "endings": FRUIT, "label": "1"}, "An"),
    ],
)
@pytest.mark.parametrize("reader", ["upload", "table"])
def test_an_answer_that_refers_to_a_choice_is_the_text_of_that_choice(
    tmp_path: Path, small_tokenizer: Any, row: dict[str, Any], prompt: str, reader: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(as_lines([row]))
    if reader == "table":
        [sample] = load_file("table", path, small_tokenizer).samples
        assert (sample.context + sample.question, sample.answers) == (prompt, ["apple"])
        return
    one = read_upload(path.name, path.read_bytes()).one(0)
    assert (one.prompt, one.answer, one.other_answers) == (prompt, "apple", ())
    assert any("by label or by index from 0" in note for note in one.notes) == (row.get("answer") != "apple")


@pytest.mark.parametrize(
    ("row", "answer", "note"),
    [
        ({"choices": [3, 4, 5], "answer": 4}, "4", ""),
        ({"choices": ["0", "4", "2"], "answer": "4"}, "4", ""),
        ({"choices": ["0", "4", "2"], "answer": 1}, "4", "by index from 0"),
        ({"choices": ["x", "y"], "answer": 2}, "2", "none of the row's choices: it is taken as it is written"),
        ({"choices": ["x", "y"], "label": -1}, None, "none of the row's choices: there is no answer"),
        ({"answerA": "x", "answerB": "y", "label": "1"}, None, "none of the row's choices: there is no answer"),
        ({"choices": ["x", "y"], "answer": True}, "true", "Left out of the prompt: the column choices"),
        ({"choices": ["x", "y"], "answer": "B", "metric": "letter_choice"}, "B", "the column choices"),
    ],
)
def test_a_choice_is_never_guessed(row: dict[str, Any], answer: str | None, note: str) -> None:
    one = read_upload("t.jsonl", json.dumps({"question": "q?", **row}).encode()).one(0)
    assert one.answer == answer
    assert note in " ".join(one.notes)


@pytest.mark.parametrize("context", [None, "", "  \n", [], [""]])
@pytest.mark.parametrize("column", ["context", "Passage", "support"])
def test_a_row_without_a_context_asks_its_question_alone(
    tmp_path: Path, small_tokenizer: Any, context: Any, column: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(as_lines([{column: context, "question": "Which town?", "answer": "Paris"}]))
    assert read_by_all(path, small_tokenizer) == [("Which town?", ("Paris",))]


NESTED = [
    {"context": "Red.", "qas": [{"id": "1", "question": "What?", "answers": [{"text": "red", "answer_start": 0}]}]},
    {
        "context": "Two.",
        "qas": [{"question": "How many?", "answers": ["2", "two"]}, {"question": "Who?", "answers": "I"}],
    },
]
UNNESTED = [("Red.\n\nWhat?", ("red",)), ("Two.\n\nHow many?", ("2", "two")), ("Two.\n\nWho?", ("I",))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("squad.json", json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": NESTED}]})),
        ("squad.json", json.dumps({"data": NESTED, "version": "a version of many words, longer than its rows"})),
        (
            "rows.json",
            json.dumps({"features": [{"name": "q"}], "rows": [{"row_idx": 0, "row": one} for one in NESTED]}),
        ),
        ("mrqa.jsonl", as_lines(NESTED)),
        ("squad.jsonl", json.dumps({"version": "1.1", "data": NESTED}, indent=1)),
        ("list.json", json.dumps(NESTED)),
    ],
)
def test_every_question_of_a_nested_data_set_is_a_row(
    tmp_path: Path, small_tokenizer: Any, name: str, content: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert read_by_all(path, small_tokenizer) == UNNESTED
    assert [sample.index for sample in load_file("table", path, small_tokenizer).samples] == [0, 1, 2]


@pytest.mark.parametrize(
    ("column", "row"),
    [
        ("id", {"id": "a b c", "answerKey": "B", "label": "a long label"}),
        ("version", {"version": "1.0 of the data", "data": {"question": ["a?", "b?"]}}),
        ("qid", {"qid": "one two", "name": "n", "split": "train", "url": "http://a.example/b c"}),
        ("called", {"called": "abc", "payload": {"inner": "the text that one may want"}}),
        ("called", {"called": "abc", "pairs": [["key", "value"], ["other", "more"]]}),
    ],
)
def test_a_row_whose_columns_are_no_prompt_is_refused_with_their_names(
    tmp_path: Path, small_tokenizer: Any, column: str, row: dict[str, Any]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(as_lines([row]))
    sentence = f"no column that is a prompt .its columns: .*{column}"
    with pytest.raises(UserError, match=sentence):
        read_upload(path.name, path.read_bytes()).one(0)
    with pytest.raises(UserError, match=sentence):
        load_file("prompts", path, small_tokenizer)
    assert read_upload(path.name, path.read_bytes()).one(0, column).prompt == row[column]


def test_a_context_that_is_no_text_is_refused_and_not_left_out_in_silence() -> None:
    row = {"context": [["Title", ["One.", "Two."]]], "question": "q?", "answer": "x"}
    with pytest.raises(UserError, match="the column context is no text"):
        read_upload("t.jsonl", json.dumps(row).encode()).one(0)


@pytest.mark.parametrize(
    ("value", "right"),
    [
        ("2 + 2 = <<2+2=4>>4\n#### 4", ("4",)),
        ({"value": "Paris", "aliases": ["City of Light"], "normalized_value": "paris"}, ("Paris", "City of Light")),
        ({"spans": ["4", "four"], "types": ["number"]}, ("4", "four")),
        ([{"text": "A", "tokens": ["A"]}, {"text": "B"}], ("A", "B")),
    ],
)
def test_answers_of_common_data_sets_are_their_texts(value: Any, right: tuple[str, ...]) -> None:
    one = read_upload("t.jsonl", json.dumps({"question": "q?", "answer": value}).encode()).one(0)
    assert (one.answer, *one.other_answers) == right
