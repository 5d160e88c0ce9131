"""Uploaded files of prompts: what `kvlab eval --data` reads is kept as the loaders read it, or it is one sentence."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvlab.core.errors import UserError
from kvlab.forms import eval_form, prompt_files
from kvlab.forms.prompt_files import LARGEST_TEXT, LARGEST_UPLOAD, save_prompts
from kvlab.models.chat import load_tokenizer
from kvlab.tasks.loaders import load_file
from tests import benchmark_files as files

PROMPT = {"context": "The cat sat on the mat.", "question": "Who sat?", "answer": ["cat"], "answer_prefix": " The",
          "max_new_tokens": 8, "task": "niah_single_1"}  # fmt: skip


def as_parquet(rows: list[dict]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def as_csv(rows: list[dict]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(row | {"answer": row["answer"][0]} for row in rows)
    return text.getvalue().encode()


@pytest.mark.usefixtures("commands_here")
def test_the_same_prompts_come_out_of_every_kind_of_file(tmp_path: Path):
    rows = [PROMPT, PROMPT | {"context": 'A "dog", too;\nand more.', "answer": ["dog"]}]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    kinds = {
        "t.jsonl": lines,
        "t.json": json.dumps(rows).encode(),
        "t.parquet": as_parquet(rows),
        "t.csv": as_csv(rows),
    }
    tokenizer, _ = load_tokenizer("mini")
    for name, content in kinds.items():
        choice, checked = save_prompts(tmp_path / name, name, content)
        assert (choice.form, checked.count, choice.path.name) == ("table", 2, "t.jsonl"), name
        samples = load_file("table", choice.path, tokenizer).samples
        assert [(one.context, one.question, one.answers, one.max_new_tokens, one.task) for one in samples] == [
            (row["context"], "\n\nWho sat? The", row["answer"], 8, "niah_single_1") for row in rows
        ], name
        assert eval_form.known_files(tmp_path / name) == {"t.jsonl": choice}


@pytest.mark.usefixtures("commands_here")
def test_a_benchmark_s_own_file_is_told_by_its_fields(tmp_path: Path):
    folder = files.write_all(tmp_path / "theirs", 2)
    for name, form in (("qasper.jsonl", "longbench"), ("data.json", "longbench2"), ("table.parquet", "table")):
        choice, checked = save_prompts(tmp_path, name, (folder / name).read_bytes())
        assert (choice.form, checked.count) == (form, 2)
    ruler = (folder / "niah_single_2" / "validation.jsonl").read_bytes()
    assert save_prompts(tmp_path, "niah_single_2.jsonl", ruler)[1].benchmark == "RULER niah_single_2"
    with pytest.raises(UserError, match="does not say which task of RULER"):
        save_prompts(tmp_path, "validation.jsonl", ruler)
    choice, _ = save_prompts(tmp_path, "odd.jsonl", (folder / "aime24.jsonl").read_bytes(), "math")
    assert choice.form == "math"


@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("p.jsonl", b'{"prompt": "x", "answer": "y"}\n{"prompt": "x"}', r"Line 2 of p\.jsonl"),
        ("p.jsonl", b'{"prompt": "x", "answer": "y"}\n[1]', r"Line 2 of p\.jsonl"),
        ("p.jsonl", b'{"prompt": "", "answer": "a"}', r"Line 1 of p\.jsonl"),
        ("p.csv", b"prompt,answer\nx, \n", r"Line 1 of p\.csv"),
        ("p.csv", b"prompt,answer\n", "has a header but no rows"),
        ("p.csv", b"name,age\nx,3\n", "p.csv is no benchmark that kvlab knows .*: choose its format"),
        ("p.parquet", b"PAR1 and nothing", "p.parquet is no Parquet file or a damaged one"),
        ("p.parquet", b"text", "p.parquet is no Parquet file or a damaged one"),
        ("p.jsonl", b"\xff\xfe\x00\xd8", "p.jsonl is not UTF-16 text"),
        ("p.jsonl", b"a\0b", "holds bytes that are no text"),
        ("p.jsonl", b"x" * (LARGEST_UPLOAD + 1), "4 MiB or more and the most is 4 MiB"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence_and_is_not_kept(tmp_path: Path, name: str, content: bytes, sentence: str):
    with pytest.raises(UserError, match=sentence) as told:
        save_prompts(tmp_path, name, content)
    assert str(tmp_path) not in str(told.value) and "--" not in str(told.value)
    assert not prompt_files.known_files(tmp_path)


def test_a_small_file_that_holds_very_much_is_refused_before_it_is_unpacked(tmp_path: Path):
    bomb = as_parquet([{"context": "x" * 2**18, "answer": "a"}] * (4 * LARGEST_TEXT // 2**18))
    assert len(bomb) < LARGEST_UPLOAD
    with pytest.raises(UserError, match="the most is 16 MiB"):
        save_prompts(tmp_path, "bomb.parquet", bomb)


@pytest.mark.usefixtures("commands_here")
def test_the_command_itself_is_asked_once_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    content = json.dumps(PROMPT).encode()
    choice, checked = save_prompts(tmp_path, "my prompts!.jsonl", content)
    assert (choice.path.name, choice.form, checked.count) == ("my-prompts.jsonl", "table", 1)
    assert "niah_single_1" in checked.description and "1 prompt, median" in checked.description
    monkeypatch.setattr(prompt_files, "run_command", None)
    assert save_prompts(tmp_path, "my prompts!.jsonl", content) == (choice, checked)
