"""A user's own files: what each format becomes, and how a malformed line is named."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.evaluation.scoring.metrics import METRICS
from kvlab.tasks.loaders import LOADERS, load_file
from kvlab.tasks.loaders.longbench import FIRST_LINE_TASKS, LONGBENCH_TASKS
from kvlab.tasks.tokens import count_tokens, prompt_ids, shorten, text_ids

LINES: dict[str, dict[str, object]] = {
    "ruler": {"input": "Some text.\nWhat is the number?", "outputs": ["12"], "answer_prefix": " The number is"},
    "longbench": {
        "input": "Who?",
        "context": "Alice fell.",
        "answers": ["Alice"],
        "all_classes": None,
        "dataset": "qasper",
    },
    "gsm8k": {"question": "What is 1 + 1?", "answer": "It is 2.\n#### 2"},
    "summaries": {"document": "A long story.", "summary": "A story."},
    "table": {"context": "Some text.", "question": " What is it?", "answer": "text"},
    "helm": {"article": "###\nArticle: Some text.\n\nSummarize.\n", "summary_gt": "Text."},
    "math": {"problem": "What is 1 + 1?", "answer": "2"},
    "pairs": {"ordered_kv_records": [["a1", "b2"], ["c3", "d4"], ["e5", "f6"]], "key": "c3", "value": "d4"},
    "mt_bench": {"question_id": 1, "category": "writing", "turns": ["Write of the sea.", "Now in capitals."]},
    "search": {
        "graph": {"nodes": [0, 1, 2, 3], "edges": [[0, 2], [0, 1], [1, 3]]},
        "start_node": 0,
        "steps": 3,
        "answer": {"current_node": 1, "stack": [0, 1]},
    },
    "longbench2": {
        "context": "Alice fell.",
        "question": "Who?",
        "answer": "B",
        **{f"choice_{letter}": f"choice {letter}" for letter in "ABCD"},
    },
}


def written(folder, name, lines):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return path


def test_ruler_keeps_the_question_apart_and_scores_as_ruler_does(tmp_path, small_tokenizer):
    for task, metric in (("niah_single_2", "string_match_all"), ("qa_1", "string_match_part")):
        path = written(tmp_path, f"{task}/validation.jsonl", [LINES["ruler"] | {"index": 7}])
        [sample] = load_file("ruler", path, small_tokenizer).samples
        assert (sample.task, sample.index, sample.metric) == (f"ruler/{task}", 7, metric)
        assert (sample.context, sample.question) == ("Some text.", "\nWhat is the number? The number is")
        assert sample.length == count_tokens(small_tokenizer, sample.context, sample.question)


def test_a_table_takes_kvpress_columns_and_anybodys_own(tmp_path, small_tokenizer):
    own = {"prompt": "A cat sat.", "answers": ["cat", "dog"], "task": "pets", "max_new_tokens": 3}
    path = written(tmp_path, "mine.jsonl", [LINES["table"] | {"answer_prefix": " It is"}, own])
    one, other = load_file("table", path, small_tokenizer).samples
    assert (one.task, one.context, one.question, one.answers) == (
        "mine", "Some text.", " What is it? It is", ["text"],
    )  # fmt: skip
    assert (other.task, other.context, other.question, other.max_new_tokens) == ("pets", "A cat sat.", "", 3)
    assert METRICS[other.metric]("the dog", other.answers, ()) == 1


@settings(deadline=None)
@given(st.text(st.sampled_from("ab .\n"), min_size=1, max_size=40))
def test_splitting_a_question_off_loses_nothing(tmp_path_factory, small_tokenizer, prompt):
    file = tmp_path_factory.mktemp("ruler") / "niah.jsonl"
    file.write_text(json.dumps({"input": prompt, "outputs": ["12"]}), encoding="utf-8")
    (sample,) = load_file("ruler", file, small_tokenizer).samples
    assert sample.context + sample.question == prompt
    assert sample.question.strip() == "" or "\n" not in sample.question.strip()


@pytest.mark.parametrize("name", sorted(LONGBENCH_TASKS))
def test_longbench_prompts_hold_context_and_input_once(tmp_path, small_tokenizer, name):
    line = {
        "input": "INPUT",
        "context": "CONTEXT {input}",
        "answers": ["a"],
        "all_classes": ["a", "b"],
        "dataset": f"{name}_e",
    }
    [sample] = load_file("longbench", written(tmp_path, "any.jsonl", [line]), small_tokenizer).samples
    assert sample.context.endswith("CONTEXT {input}")
    assert sample.question.count("INPUT") == LONGBENCH_TASKS[name].prompt.count("{input}")
    assert "{" not in sample.question
    assert sample.metric in METRICS
    assert sample.meta["classes"] == ["a", "b"]
    assert (sample.stop == "\n") == (name in FIRST_LINE_TASKS)


def test_longbench_takes_the_task_from_the_file_name_and_refuses_others(tmp_path, small_tokenizer):
    line = {key: value for key, value in LINES["longbench"].items() if key != "dataset"}
    [sample] = load_file("longbench", written(tmp_path, "hotpotqa.jsonl", [line]), small_tokenizer).samples
    assert (sample.task, sample.max_new_tokens) == ("longbench/hotpotqa", 32)
    with pytest.raises(UserError, match="dureader"):
        load_file("longbench", written(tmp_path, "dureader.jsonl", [line]), small_tokenizer)


def test_gsm8k_shows_the_first_problems_and_asks_the_others(tmp_path, small_tokenizer):
    lines = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(11)]
    samples = load_file("gsm8k", written(tmp_path, "test.jsonl", lines), small_tokenizer, shots=8).samples
    assert [sample.index for sample in samples] == [8, 9, 10]
    assert all(sample.context.count("####") == 8 for sample in samples)
    assert samples[0].question == "Question: What is 8 + 1?\nAnswer:"
    assert len(load_file("gsm8k", written(tmp_path, "two.jsonl", lines[:2]), small_tokenizer).samples) == 1


def test_summaries_take_both_spellings(tmp_path, small_tokenizer):
    other = {"article": "A long story.", "highlights": "A story."}
    samples = load_file("summaries", written(tmp_path, "x.jsonl", [LINES["summaries"], other]), small_tokenizer).samples
    assert samples[0].context == samples[1].context == "Article: A long story."
    assert samples[0].answers == samples[1].answers == ["A story."]


@settings(max_examples=20, deadline=None)
@given(st.integers(100, 400), st.integers(2, 60), st.integers(200, 1200))
def test_plain_text_windows_cover_the_text_in_order(tmp_path_factory, small_tokenizer, length, continuation, words):
    text = " ".join(f"word{i}" for i in range(words))
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(text, encoding="utf-8")
    samples = load_file("text", path, small_tokenizer, length=length, continuation=continuation).samples
    pieces = [sample.context + sample.answers[0] for sample in samples]
    starts = [text.index(piece) for piece in pieces]
    assert starts == sorted(set(starts))
    for sample in samples:
        context, _ = prompt_ids(small_tokenizer, sample)
        assert len(context) + len(text_ids(small_tokenizer, sample.answers[0])) <= length + 2
        assert sample.task == "text/story"


BAD = {
    "ruler": [("{", "not valid JSON"), ('{"input": "x"}', "outputs"), ('{"input": "x", "outputs": []}', "outputs")],
    "longbench": [
        ("[1]", "object"),
        ('{"answers": ["a"]}', "context"),
        ('{"context": "c", "answers": "a"}', "answers"),
    ],
    "gsm8k": [('{"question": "q", "answer": "42"}', "answer"), ("null", "object"), ('"text"', "object")],
    "helm": [('{"article": "a"}', "summary_gt"), ('{"article": "a", "summary_gt": "s", "stop": 3}', "stop")],
    "math": [('{"problem": "p"}', "answer"), ('{"problem": "p", "answer": true}', "answer")],
    "longbench2": [(json.dumps(LINES["longbench2"] | {"answer": "E"}), "answer"), ('{"context": "c"}', "question")],
    "table": [('{"context": "c"}', "answer"), ('{"context": "c", "answer": " "}', "empty"), ("[1]", "object")],
    "summaries": [('{"document": "", "summary": "s"}', "document"), ('{"document": 3, "summary": "s"}', "document")],
}


@pytest.mark.parametrize(("form", "line", "reason"), [(form, *case) for form, cases in BAD.items() for case in cases])
def test_a_malformed_line_is_named_and_the_rest_runs_if_wished(tmp_path, small_tokenizer, form, line, reason):
    path = written(tmp_path, "qasper.jsonl", [LINES[form], line, "", LINES[form]])
    with pytest.raises(UserError) as error:
        load_file(form, path, small_tokenizer)
    assert f"{path}:2: " in str(error.value)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    loaded = load_file(form, path, small_tokenizer, skip_malformed=True)
    assert len(loaded.skipped) == 1
    assert f"{path}:2: " in loaded.skipped[0]
    assert len(loaded.samples) == (1 if form == "gsm8k" else 2)


@pytest.mark.parametrize("form", sorted(LOADERS))
def test_unusable_files_are_one_sentence(tmp_path, small_tokenizer, form):
    empty, binary = tmp_path / "qasper.jsonl", tmp_path / "binary.jsonl"
    empty.write_text("")
    binary.write_bytes(b'{"a": "\xff\xfe"}')
    for path, reason in ((empty, str(empty)), (binary, "UTF-8"), (tmp_path / "none.jsonl", "cannot be read")):
        with pytest.raises(UserError, match=reason):
            load_file(form, path, small_tokenizer)


def test_a_text_of_a_few_words_is_one_sentence(tmp_path, small_tokenizer):
    path = tmp_path / "short.txt"
    path.write_text("Too short.")
    with pytest.raises(UserError, match="too few"):
        load_file("text", path, small_tokenizer)


def test_an_unknown_format_names_what_is_like_it_and_where_all_are_listed(tmp_path, small_tokenizer):
    with pytest.raises(UserError, match=r"longbench.*kvlab tasks"):
        load_file("longbenhc", tmp_path / "x", small_tokenizer)
    with pytest.raises(UserError, match="no loader called 'squad'; `kvlab tasks` lists all"):
        load_file("squad", tmp_path / "x", small_tokenizer)


@settings(max_examples=30, deadline=None)
@given(st.integers(60, 700))
def test_long_prompts_keep_their_first_and_last_half_as_in_longbench(tmp_path_factory, small_tokenizer, most):
    line = {"document": " ".join(f"word{i}" for i in range(150)), "summary": "s"}
    path = written(tmp_path_factory.mktemp("long"), "x.jsonl", [line])
    [sample] = load_file("summaries", path, small_tokenizer).samples
    cut = shorten(small_tokenizer, sample, most)
    if sample.length <= most:
        assert cut == sample
        return
    assert cut.length <= most
    assert cut.meta["shortened_from"] == sample.length
    assert cut.question == sample.question
    # LongBench's pred.py on the whole prompt: ids[:half] and ids[-half:].
    context, question = prompt_ids(small_tokenizer, sample)
    half, ids = most // 2, context + question
    if len(question) < half:
        text = small_tokenizer.decode(ids[1:half]) + small_tokenizer.decode(ids[-half:])
        ours = cut.context + cut.question
        allowed = 2 * max(len(small_tokenizer.decode([one])) for one in set(ids))  # joined, a token or two may be more
        assert len(text) - allowed <= len(ours) <= len(text)
        first = len(small_tokenizer.decode(ids[1 : half - 2]))
        assert ours[:first] == text[:first]
        assert ours[-1] == text[-1]
    else:
        assert cut.context == sample.context[: len(cut.context)]


@pytest.mark.parametrize("most", range(80, 92))
def test_a_text_is_never_cut_within_a_character(tmp_path, small_tokenizer, most):
    line = {"document": "東京と京都、Łódź 🚀 " * 30, "summary": "s"}
    [sample] = load_file("summaries", written(tmp_path, "x.jsonl", [line]), small_tokenizer).samples
    assert "\ufffd" not in shorten(small_tokenizer, sample, most).context


@pytest.mark.parametrize(("cut", "first", "last"), [("start", False, True), ("end", True, False)])
def test_a_prompt_may_lose_its_start_or_its_end_instead(tmp_path, small_tokenizer, cut, first, last):
    line = {"document": " ".join(f"word{i}" for i in range(150)), "summary": "s"}
    [sample] = load_file("summaries", written(tmp_path, "x.jsonl", [line]), small_tokenizer).samples
    short = shorten(small_tokenizer, sample, 200, cut)
    assert 190 <= short.length <= 200
    assert short.context in sample.context
    assert (sample.context.startswith(short.context), sample.context.endswith(short.context)) == (first, last)


def test_a_question_that_fills_the_window_is_one_sentence(tmp_path, small_tokenizer):
    [sample] = load_file("summaries", written(tmp_path, "x.jsonl", [LINES["summaries"]]), small_tokenizer).samples
    with pytest.raises(UserError, match="question alone"):
        shorten(small_tokenizer, sample, 10)


def test_pairs_ask_for_one_key_of_an_object_and_know_its_place(tmp_path, small_tokenizer):
    path = written(tmp_path, "kv.jsonl", [LINES["pairs"]])
    [sample] = load_file("pairs", path, small_tokenizer).samples
    held = json.loads(sample.context.partition("JSON data:\n")[2])
    key = re.search(r'Key: "(\w+)"', sample.question).group(1)
    assert held == {"a1": "b2", "c3": "d4", "e5": "f6"} and [held[key]] == sample.answers
    assert sample.depth == 0.5 and sample.meta["statements"] == ['"c3": "d4"'] and sample.metric == "string_match_part"
    lost = written(tmp_path, "lost.jsonl", [LINES["pairs"] | {"value": "f6"}])
    with pytest.raises(UserError, match=r"lost.jsonl:1: the asked key and its value are no pair"):
        load_file("pairs", lost, small_tokenizer)


def test_turns_of_mt_bench_keep_their_answers(tmp_path, small_tokenizer):
    path = written(tmp_path, "mt.jsonl", [LINES["mt_bench"], LINES["mt_bench"] | {"reference": ["a", "b"]}])
    one, other = load_file("mt_bench", path, small_tokenizer).samples
    assert one.context == "Write of the sea." and [turn.question for turn in one.further] == ["\n\nNow in capitals.\n"]
    assert (
        one.keeps_answers and one.task == "mt_bench/writing" and one.answers == ["", ""] and other.answers == ["a", "b"]
    )
    assert [part.kind for part in one.parts] == ["turn 1", "turn 2"] and one.new_tokens == 2 * one.max_new_tokens


def test_a_search_ends_where_a_plain_walk_of_the_graph_ends(tmp_path, small_tokenizer):
    """The rule in the prompt, followed step by step, gives the file's answer."""
    path = written(tmp_path, "dfs.json", [json.dumps([LINES["search"]])])
    [sample] = load_file("search", path, small_tokenizer).samples
    edges = [tuple(map(int, pair)) for pair in re.findall(r"^(\d+) - (\d+)$", sample.context, re.MULTILINE)]
    start = int(re.search(r"starts at node (\d+)", sample.context).group(1))
    stack, visited = [start], {start}
    for _ in range(int(re.search(r"first (\d+) steps", sample.question).group(1))):
        near = sorted({b for a, b in edges if a == stack[-1]} | {a for a, b in edges if b == stack[-1]})
        ahead = next((node for node in near if node not in visited), None)
        stack = stack[:-1] if ahead is None else [*stack, ahead]
        visited.add(stack[-1])
    assert sample.answers == [f"node {stack[-1]}", f"stack {', '.join(map(str, stack))}"]
    assert METRICS["last_line"](f"x\nNode {stack[-1]}, stack {', '.join(map(str, stack))}.", sample.answers) == 1
