"""The field's own files: what a record becomes, options of a file, and what cannot be used."""

from __future__ import annotations

import json

import pytest

from kvlab.core.errors import UserError
from kvlab.evaluation.request import FileChoice, split_file
from kvlab.evaluation.scoring import metrics
from kvlab.evaluation.scoring import metrics as boxed_answer
from kvlab.tasks.loaders import about, jsonl, load_file, options_of
from kvlab.tasks.loaders.haystack import NEEDLE
from kvlab.tasks.loaders.longbench import LONGBENCH_TASKS
from kvlab.tasks.tokens import count_tokens, hidden_positions, prompt_ids
from tests import benchmark_files as files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return files.write_all(tmp_path_factory.mktemp("benchmarks"))


def test_a_table_is_the_same_as_parquet_json_list_and_json_lines(tmp_path, small_tokenizer):
    rows = [files.table(number) for number in range(3)]
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=2))
    written = [
        files.write_parquet(tmp_path / "table.parquet", rows),
        files.write_lines(tmp_path / "lines.jsonl", rows),
        tmp_path / "list.json",
    ]
    one, *others = [load_file("table", path, small_tokenizer).samples for path in written]
    assert all(found == one for found in others)
    assert [sample.metric for sample in one] == ["string_match_all"] * 3  # RULER's task, as its name says
    assert one[0].question == "\nWho fell?\nAnswer:"


def test_a_table_without_a_column_and_a_damaged_one_are_one_sentence(tmp_path, small_tokenizer):
    path = files.write_parquet(tmp_path / "x.parquet", [{"context": "c", "reply": "a"}])
    with pytest.raises(UserError, match=r"has no column 'answer' or 'answers': its columns are context, reply\.$"):
        load_file("table", path, small_tokenizer)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match="damaged Parquet"):
        load_file("table", path, small_tokenizer)
    path = files.write_parquet(tmp_path / "y.parquet", [files.table(0), files.table(1) | {"answer": None}])
    with pytest.raises(UserError, match=r"y\.parquet:2: there is no field 'answer'"):
        load_file("table", path, small_tokenizer)
    assert len(load_file("table", path, small_tokenizer, skip_malformed=True).samples) == 1


@pytest.mark.parametrize(
    ("row", "metric", "answers"),
    [
        ({"answer": 70}, "string_match_part", ["70"]),
        ({"answer": "x", "metric": "f1", "task": "vt"}, "f1", ["x"]),
        ({"answer": ["x"], "task": "samsum"}, "rouge_l", ["x"]),
        ({"answer": ["x"], "task": "qa_1"}, "string_match_part", ["x"]),
    ],
)
def test_a_row_of_a_table_is_scored_by_what_it_says_or_is_named(tmp_path, small_tokenizer, row, metric, answers):
    path = files.write_lines(tmp_path / "mine.jsonl", [{"context": "c", **row}])
    [sample] = load_file("table", path, small_tokenizer).samples
    assert (sample.metric, sample.answers) == (metric, answers)


def test_longbench_2_asks_with_its_own_prompt(folder, small_tokenizer):
    samples = load_file("longbench2", folder / "data.json", small_tokenizer).samples
    assert [sample.answers for sample in samples] == [["A"], ["B"], ["C"]]
    prompt = samples[0].context + samples[0].question
    assert prompt.startswith("Please read the following text and answer the question below.\n\n<text>\n")
    assert prompt.endswith(
        "\n</text>\n\nWhat is the correct answer to this question: Who fell?\nChoices:\n(A) Alice\n(B) The rabbit\n"
        '(C) The queen\n(D) Nobody\n\nFormat your response as follows: "The correct answer is (insert answer here)".'
    )
    assert samples[0].max_new_tokens == 128


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("The correct answer is (B).", "B"),
        ("**The correct answer is (C)**", "C"),
        ("The correct answer is D", "D"),
        ("The correct answer is A, no: The correct answer is (B)", "B"),  # brackets are looked for first
        ("B", None),
        ("the correct answer is (B)", None),
    ],
)
def test_a_letter_is_read_by_longbench_2s_two_patterns(said, letter):
    scores = {one: metrics.score("letter_choice", said, [one]) for one in "ABCD"}
    assert scores == {one: float(one == letter) for one in "ABCD"}


def test_a_helm_prompt_is_the_whole_article_and_its_summary_ends_at_the_stop(folder, small_tokenizer):
    samples = load_file("helm", folder / "xsum_3shot.jsonl", small_tokenizer).samples
    line = json.loads((folder / "xsum_3shot.jsonl").read_text().splitlines()[0])
    one = samples[0]
    assert (one.context, one.question, one.answers) == (line["article"], "", [line["summary_gt"]])
    assert (one.stop, one.max_new_tokens, one.temperature, one.chat) == ("###", 64, 0.0, False)
    drawn = load_file("helm", folder / "xsum_3shot.jsonl", small_tokenizer, temperature=0.3).samples
    assert [sample.temperature for sample in drawn] == [0.3] * 3


def test_aime_and_math_are_one_format(folder, small_tokenizer):
    [math, *_] = load_file("math", folder / "math500.jsonl", small_tokenizer, max_new_tokens=99).samples
    [aime, *_] = load_file("math", folder / "aime24.jsonl", small_tokenizer).samples
    assert (math.task, math.answers, math.max_new_tokens) == ("math/math500", [r"\frac{1}{2}"], 99)
    assert (aime.context, aime.answers, aime.metric) == ("Add 1 and 2.", ["3"], "boxed")


def test_gsm8k_may_take_its_examples_from_another_file(folder, small_tokenizer):
    train = str(folder / "train.jsonl")
    samples = load_file("gsm8k", folder / "test.jsonl", small_tokenizer, shots_from=train, shots=5).samples
    assert [sample.index for sample in samples] == [0, 1, 2]  # every problem is asked
    assert samples[0].context.count("Question:") == 5
    assert "Ann has 50 cats" in samples[0].context
    with pytest.raises(UserError, match="8 problems, fewer than the 9 shots"):
        load_file("gsm8k", folder / "test.jsonl", small_tokenizer, shots_from=train, shots=9)
    with pytest.raises(UserError, match="cannot be read"):
        load_file("gsm8k", folder / "test.jsonl", small_tokenizer, shots_from=str(folder / "none.jsonl"))


def test_what_ruler_places_is_followed_by_the_models_own_tokens(folder, small_tokenizer):
    for sample in load_file("ruler", folder / "niah_single_2" / "validation.jsonl", small_tokenizer).samples:
        places = hidden_positions(small_tokenizer, sample)
        context, _ = prompt_ids(small_tokenizer, sample)
        assert small_tokenizer.decode([context[place] for place in places]).strip(" .") == sample.answers[0]
        before = sample.context[: sample.context.find(sample.answers[0])]  # RULER's own rule
        assert abs(places[0] - count_tokens(small_tokenizer, before)) <= 1
        assert sample.index < 3  # and not the place in letters that such a file has as index
    listed = load_file("ruler", folder / "cwe" / "validation.jsonl", small_tokenizer).samples
    assert "statements" not in listed[0].meta


def test_longbench_says_which_prompts_no_template_goes_around_and_keeps_its_own_spelling(folder, small_tokenizer):
    wrapped = {
        name: load_file("longbench", folder / f"{name}.jsonl", small_tokenizer).samples[0].chat
        for name in files.LONGBENCH
    }
    plain = {name for name, chat in wrapped.items() if not chat}
    assert plain == {"trec", "triviaqa", "samsum", "lcc", "repobench-p"}
    assert LONGBENCH_TASKS["narrativeqa"].prompt.count(" asconcisely as you can") == 2


def test_a_needle_stands_in_the_users_own_text_at_every_length_and_depth(folder, small_tokenizer):
    path, cells = folder / "essays.txt", [(length, depth) for length in (400, 9000) for depth in (0.0, 0.5, 1.0)]
    samples = load_file("haystack", path, small_tokenizer, lengths=(400, 9000), depths=(0.0, 0.5, 1.0)).samples
    assert [(sample.length, sample.depth) for sample in samples] == cells
    for sample in samples:
        found = count_tokens(small_tokenizer, sample.context, sample.question)
        assert sample.length - 20 <= found <= sample.length
        assert sample.context.count(NEEDLE) == 1
        at = sample.context.find(NEEDLE) / max(len(sample.context) - len(NEEDLE), 1)
        assert abs(at - sample.depth) < 0.15
    with pytest.raises(UserError, match="10 tokens cannot hold"):
        load_file("haystack", path, small_tokenizer, lengths=(10,))


def test_options_stand_behind_the_path():
    assert split_file("gsm8k=/a/b c.jsonl:shots=5:shots_from=/d/train.jsonl") == (
        "gsm8k", "/a/b c.jsonl", {"shots": 5, "shots_from": "/d/train.jsonl"},
    )  # fmt: skip
    assert split_file("helm=x:y.jsonl:temperature=0.3") == ("helm", "x:y.jsonl", {"temperature": 0.3})
    for text in ("x.jsonl", "=x", "ruler=", "ruler= "):
        with pytest.raises(ValueError, match="no file"):
            split_file(text)
    file = FileChoice(form="gsm8k", path="/a/test.jsonl", options={"shots": 5, "shots_from": "/d/train.jsonl"})
    assert file.named == {"file": "test.jsonl", "shots": 5, "shots_from": "train.jsonl"}


@pytest.mark.parametrize(
    ("form", "name", "options", "said"),
    [
        ("helm", "xsum_3shot.jsonl", {"shots": 2}, "no option 'shots'"),
        ("gsm8k", "test.jsonl", {"shots": -1}, "whole number"),
        ("gsm8k", "test.jsonl", {"shots_from": 3}, "give a name"),
        ("helm", "xsum_3shot.jsonl", {"temperature": "hot"}, "a number from 0 to 10"),
        ("helm", "xsum_3shot.jsonl", {"max_new_tokens": 0}, "whole number from 1"),
        ("text", "essays.txt", {"metric": "f1"}, "force a given text"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_sentence(folder, small_tokenizer, form, name, options, said):
    with pytest.raises(UserError, match=said) as error:
        load_file(form, folder / name, small_tokenizer, **options)
    assert str(error.value).count(". ") == 0


def test_a_file_that_is_too_large_or_none_is_one_sentence(tmp_path, small_tokenizer, monkeypatch):
    path = files.write_lines(tmp_path / "x.jsonl", [files.table(0)])
    monkeypatch.setattr(jsonl, "LARGEST_FILE_BYTES", 100)
    with pytest.raises(UserError, match="too large: give one of at most 100 bytes"):
        load_file("table", path, small_tokenizer)
    with pytest.raises(UserError, match="a pipe or a device"):
        load_file("table", tmp_path.joinpath("/dev/zero"), small_tokenizer)


def test_every_format_says_what_it_is():
    from kvlab.tasks.loaders import LOADERS

    assert all(20 < len(about(form)) < 250 for form in LOADERS)
    assert set(options_of("gsm8k")) == {"shots", "shots_from"}


@pytest.mark.parametrize(
    ("text", "held"),
    [
        (r"so \boxed{1}, no \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{a \} b}", r"a \} b"),
        (r"\boxed{1} then \boxed{2", "1"),
        ("none", None),
    ],
)
def test_the_last_box_counts_with_its_braces(text, held):
    assert boxed_answer.last_box(text) == held


def test_a_metric_whose_package_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    for metric, extra in (("boxed", "math"), ("rouge_2_longbench", "rouge")):
        with pytest.raises(UserError, match=rf"pip install 'kvlab\[{extra}\]'"):
            metrics.score(metric, "x", ["x"])


def test_rouge_counts_shared_words_and_pairs():
    said, right = "the cat sat on the mat", "the cat lay on a mat"
    # shared words: the, cat, on, mat of 6 and 6; shared pairs: "the cat" of 5 and 5; in order: the cat on mat
    assert metrics.score("rouge_1", said, [right]) == pytest.approx(4 / 6)
    assert metrics.score("rouge_2", said, [right]) == pytest.approx(1 / 5)
    assert metrics.score("rouge_l", said, [right]) == pytest.approx(4 / 6)
    assert metrics.score("rouge_2", said, ["x y", said]) == 1


def test_longbenchs_rouge_is_the_package_rouge():
    pytest.importorskip("rouge", reason="pip install 'kvlab[rouge]'")
    said, right = "the cat sat on the mat", "the cat lay on a mat"
    # this package counts each word of a text once: 5 different ones said, 6 right, 4 shared
    assert metrics.score("rouge_1_longbench", said, [right]) == pytest.approx(2 * 4 / (5 + 6), abs=1e-6)
    assert metrics.score("rouge_2_longbench", said, [right]) == pytest.approx(1 / 5, abs=1e-6)
    assert metrics.score("rouge_l_longbench", "", [right]) == 0


def test_boxed_answers_are_compared_as_mathematics_in_threads_too():
    pytest.importorskip("math_verify", reason="pip install 'kvlab[math]'")
    from concurrent.futures import ThreadPoolExecutor

    cases = [
        (r"\boxed{0.5}", r"\frac{1}{2}", 1), (r"\boxed{\dfrac{1}{2}}", r"\frac{1}{2}", 1),
        (r"\boxed{\boxed{3}}", "3", 1), (r"\boxed{x^2+2x+1}", "(x+1)^2", 1), (r"\boxed{3}", "2", 0), ("3", "3", 0),
    ]  # fmt: skip
    want = [float(right) for _, _, right in cases]
    assert [metrics.score("boxed", said, [answer]) for said, answer, _ in cases] == want
    with ThreadPoolExecutor(1) as threads:
        assert list(threads.map(lambda case: metrics.score("boxed", case[0], [case[1]]), cases)) == want
