"""`kvlab safe-budget` as a person runs it: measured and again from its rows, exported, and refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from kvlab.cli import commands
from kvlab.cli.safe_budget import ordered_ladder
from kvlab.core.errors import UserError
from kvlab.library.prompts import save_prompt
from kvlab.requests.compare import OnePrompt
from tests.cli.running import PROMPT, kvlab


def test_it_measures_once_and_answers_again_from_its_rows(tiny_folder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "letters"
    texts.mkdir()
    for number in range(8):
        (texts / f"{number}.txt").write_text(f"{PROMPT} {number}")
    asked = ["safe-budget", "--by", "text", "--tolerance", "40%", "--confidence", "90%"]
    measure = ["--prompts", str(texts), "--set", "new_tokens=3", "--methods", "h2o,snapkv", "--budgets", "20%,90%,90%"]
    where = ["--model", str(tiny_folder), "--runs", str(tmp_path), "--csv", str(tmp_path / "table.csv")]
    first = kvlab(*asked, *measure, *where)
    assert "The ladder was put in order, without repeats: 90 %, 20 %." in first
    assert "Each of the 2 sequences (2 methods) has 95 % confidence (Bonferroni)" in first
    folder = tmp_path / "eval" / "safe-letters"
    told = json.loads(kvlab(*asked, "--from", str(folder), "--json"))
    assert told["sentences"][0] in first and told["least_prompts"] == 6
    table = pd.read_csv(tmp_path / "table.csv")
    assert [(line["arm"], line["asked"]) for line in told["table"]] == list(
        zip(table["arm"], table["asked"], strict=True)
    )
    assert table["asked"].tolist() == ["90 %", "20 %"] * 2 and (table["prompts"] == 8).all()


def test_saved_prompts_are_prompts(tiny_folder: Path, tmp_path: Path) -> None:
    for number in range(3):
        save_prompt(tmp_path, f"letter {number}", OnePrompt(prompt=f"{PROMPT} {number}", answer="fox"))
    told = json.loads(
        kvlab(
            *("safe-budget", "--saved", "letter", "--by", "text", "--tolerance", "90%", "--confidence", "50%"),
            *("--methods", "h2o", "--budgets", "50%", "--set", "new_tokens=2", "--json"),
            *("--model", str(tiny_folder), "--runs", str(tmp_path)),
        )
    )
    assert [line["prompts"] for line in told["table"]] == [3]


def test_a_ladder_is_ordered_and_has_one_unit() -> None:
    assert ordered_ladder("0.9,0.5,0.1") == ("0.9,0.5,0.1", [])
    assert ordered_ladder("0.1,0.5") == ("0.5,0.1", [])
    words, notes = ordered_ladder("0.1,50%,0.1,0.9")
    assert words == "0.9,0.5,0.1" and len(notes) == 1
    assert ordered_ladder("32,128")[0] == "128,32"
    with pytest.raises(UserError, match="one unit, not in fraction and slots"):
        ordered_ladder("0.1,128")


REFUSED = {
    "no prompts": ([], "Name your prompts"),
    "no such file": (["--prompts", "/nowhere/mine.jsonl"], "There is no file or folder /nowhere/mine.jsonl"),
    "two sources": (["--from", "runs/eval/x", "--tasks", "needle"], "leave out --prompts"),
    "no such folder": (["--from", "/nowhere"], "There is no folder /nowhere"),
    "tolerance in words": (["--tasks", "needle", "--tolerance", "little"], "--tolerance takes a share such as 2%"),
    "no tolerance": (["--tasks", "needle", "--tolerance", "0"], "A tolerance of 0 % cannot be certified"),
    "no change at all": (["--tasks", "needle", "--tolerance", "100%"], "A tolerance of 100 % cannot be certified"),
    "not CSV": (["--tasks", "needle", "--csv", "out.xlsx"], "--csv takes a file that ends in .csv"),
    "mixed ladder": (["--tasks", "needle", "--budgets", "20%,64"], "one unit, not in fraction and slots"),
    "no saved prompt": (["--saved", "nothing"], "No saved prompt matches 'nothing'"),
    "unknown measure": (["--tasks", "needle", "--by", "luck"], "measured by answer, score, text, kl"),
}


@pytest.mark.parametrize(("words", "sentence"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_one_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        commands(["safe-budget", *words, "--runs", str(tmp_path)], standalone_mode=False)
    assert sentence in str(refused.value) and str(refused.value).endswith(".")
    assert not list(tmp_path.glob("eval/*"))


def test_an_empty_folder_and_too_few_prompts_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    where = ["--model", str(tiny_folder), "--runs", str(tmp_path), "--methods", "h2o", "--budgets", "50%"]
    with pytest.raises(UserError, match="has no text to use as a prompt"):
        commands(["safe-budget", "--prompts", str(empty), *where], standalone_mode=False)
    (empty / "one.txt").write_text(PROMPT)
    asked = ["safe-budget", "--prompts", str(empty), "--by", "text", "--set", "new_tokens=1", *where]
    with pytest.raises(UserError, match="At least 149 prompts are needed"):
        commands(asked, standalone_mode=False)
