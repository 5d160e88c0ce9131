"""Small files in the exact formats of the field's benchmarks: `python -m tests.benchmark_files DIR` writes all."""

from __future__ import annotations

import json
import sys
from itertools import cycle, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.core.assets import asset_path

LONGBENCH = [
    "narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "gov_report", "multi_news", "trec",
    "triviaqa", "samsum", "passage_count", "passage_retrieval_en", "lcc", "repobench-p",
]  # fmt: skip
CLASSES = ["Number of something", "Definition of something", "City", "Individual"]


def prose(words: int, start: int = 0) -> str:
    """Words of a shipped book, so many and from there on."""
    text = (asset_path("prompts/haystack") / "alice_in_wonderland.txt").read_text(encoding="utf-8").split()
    return " ".join(islice(cycle(text), start, start + words))


def longbench(task: str, number: int) -> dict[str, object]:
    """A record with LongBench's eight fields."""
    context = prose(700, 997 * number)
    asked, answers, classes = "Where did she sit?", ["by her sister"], None
    if task == "trec":
        asked, answers, classes = "Question: What is a rabbit ?\nType:", [CLASSES[1]], CLASSES
    elif task in ("gov_report", "multi_news", "lcc"):
        asked, answers = "", [prose(12, 40)]
    elif task == "passage_count":
        asked, answers = "", ["3"]
    elif task == "passage_retrieval_en":
        asked, answers = "She sat by her sister.", ["Paragraph 4"]
    return {
        "input": asked, "context": context, "answers": answers, "length": 700, "dataset": task, "language": "en",
        "all_classes": classes, "_id": f"{task}-{number:08x}",
    }  # fmt: skip


def longbench2(number: int) -> dict[str, object]:
    """A question with the fields of LongBench v2's data.json."""
    return {
        "_id": f"66f{number:021x}", "domain": "Single-Document QA", "sub_domain": "Literary", "difficulty": "easy",
        "length": "short", "question": "Who fell?", "choice_A": "Alice", "choice_B": "The rabbit",
        "choice_C": "The queen", "choice_D": "Nobody", "answer": "ABCD"[number % 4], "context": prose(500, 31 * number),
    }  # fmt: skip


def helm(number: int, shots: int = 3) -> dict[str, object]:
    """A few-shot prompt with the fields of H2O's summarization data."""
    asked = "\n\nSummarize the above article in 1 sentence.\n"
    shown = [
        f"###\nArticle: {prose(60, 100 * i)}{asked}{prose(10, 100 * i)}\n\n" for i in range(number, number + shots)
    ]
    return {
        "article": "".join(shown) + f"###\nArticle: {prose(80, 77 * number)}{asked}",
        "summary_gt": prose(12, 77 * number), "logprobs": 1,
        "max_tokens": 64, "n": 1, "stop": ["###"], "temperature": 0.3, "top_p": 1,
    }  # fmt: skip


def ruler(number: int) -> dict[str, object]:
    """A needle with the fields of RULER's newer files; its answer stands after 40 words."""
    value = str(7_654_321 + number)
    needle = f"One of the special magic numbers for odd-cat is: {value}."
    body = (
        "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about "
        f"the number afterwards.\n{prose(40)} {needle} {prose(200, 50)}\nWhat is the special magic number for odd-cat "
        "mentioned in the provided text?"
    )
    return {
        "index": body.find(value), "input": body, "outputs": [value], "length": 400, "length_w_model_temp": 400,
        "answer_prefix": " The special magic number for odd-cat mentioned in the provided text is",
        "token_position_answer": 81,
    }  # fmt: skip


def common_words(number: int) -> dict[str, object]:
    """RULER's cwe."""
    words = ["acorn", "badger"] * 6 + ["cloud", "dune", "ember"]
    listed = " ".join(f"{place}. {word}" for place, word in enumerate(words, start=1))
    return {
        "index": number, "input": f"Below is a numbered list of words. Memorize the ones that appear most often.\n"
        f"{listed}\nQuestion: What are the 10 most common words in the above list?", "outputs": ["acorn", "badger"],
        "length": 200, "length_w_model_temp": 200, "answer_prefix": " Answer: The top 10 words are:",
    }  # fmt: skip


def gsm8k(number: int) -> dict[str, object]:
    """A problem with its worked answer."""
    return {
        "question": f"Ann has {number} cats and buys 2. How many has she?",
        "answer": f"She has {number} + 2 = <<{number}+2={number + 2}>>{number + 2}.\n#### {number + 2}",
    }


def table(number: int) -> dict[str, object]:
    """A row with kvpress's columns."""
    return {
        "context": prose(120, number), "question": "\nWho fell?", "answer_prefix": "\nAnswer:", "answer": ["Alice"],
        "max_new_tokens": 8, "task": "niah_single_1",
    }  # fmt: skip


def write_lines(path: Path, lines: list[dict[str, object]]) -> Path:
    """Write JSON lines, with the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write the rows as Parquet, with the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_all(folder: Path, count: int = 3) -> Path:
    """Write every benchmark as people's folders have them: `count` records each."""
    numbers = range(count)
    for task in LONGBENCH:
        write_lines(folder / f"{task}.jsonl", [longbench(task, number) for number in numbers])
    (folder / "data.json").write_text(json.dumps([longbench2(number) for number in numbers], indent=1))
    for name in ("xsum_3shot", "cnn_dailymail_3shot"):
        write_lines(folder / f"{name}.jsonl", [helm(number) for number in numbers])
    write_lines(folder / "niah_single_2" / "validation.jsonl", [ruler(number) for number in numbers])
    write_lines(folder / "cwe" / "validation.jsonl", [common_words(number) for number in numbers])
    write_lines(folder / "test.jsonl", [gsm8k(number) for number in numbers])
    write_lines(folder / "train.jsonl", [gsm8k(number + 50) for number in range(8)])
    write_parquet(folder / "table.parquet", [table(number) for number in numbers])
    (folder / "essays.txt").write_text(prose(900), encoding="utf-8")
    problem = {
        "problem": "What is half of one?", "solution": "It is $\\boxed{\\frac{1}{2}}$.", "answer": "\\frac{1}{2}",
        "subject": "Algebra", "level": 1, "unique_id": "test/algebra/1.json",
    }  # fmt: skip
    write_lines(folder / "math500.jsonl", [problem] * count)
    write_lines(folder / "aime24.jsonl", [{"ID": "2024-I-1", "Problem": "Add 1 and 2.", "Answer": 3}] * count)
    return folder


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
