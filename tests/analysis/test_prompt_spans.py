"""Spans of a prompt: every token is in one, they spell the parts of the prompt, and their shares equal a count."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest

from kvlab.core.errors import UserError
from kvlab.requests.conversation import Turn, as_text
from kvlab.tasks.rules import draw_rules, obeys, stated_rule
from kvlab.trace.reader import Run, open_run
from kvlab.views import spans as span_shares
from kvlab.views.frames.facts import fact_fates
from kvlab.views.frames.prompt_spans import (
    MOST_BLOCKS,
    TEMPLATE,
    Span,
    find_spans,
    parse_spans,
    parts_of_prompt,
    write_spans,
)
from kvlab.views.frames.wall import wall_of
from tests.synthetic.runs import write_synthetic_run

RULES = ("- The greeting is: Ahoy Frog.", "- The city is: Oslo.", "- The letters are: small letters.")


def run_of(root: Path, prompt: str, **fields: object) -> Run:
    return open_run(write_synthetic_run(root, prompt=prompt, steps=4, **fields))


def words_of(run: Run, span: Span) -> str:
    texts = run.tokens.query("phase == 'prompt'").set_index("position")["text"]
    return "".join(texts[position] for position in span.positions.tolist())


def labels_by_loop(read: str, parts: list[tuple[str, str]], texts: list[str]) -> list[str]:
    """The label of each token: that of the part which holds its last visible character, or the last one's before."""
    owner, place = [TEMPLATE] * len(read), 0
    for label, text in parts:
        place = read.index(text, place)
        for at in range(place, place + len(text)):
            owner[at] = label
        place += len(text)
    labels, start = [], 0
    for text in texts:
        shown = [at for at in range(start, start + len(text)) if not read[at].isspace()]
        labels.append(owner[shown[-1] if shown else start + len(text) - 1])
        start += len(text)
    return labels


@pytest.mark.parametrize("turns", [False, True])
def test_spans_are_the_parts_that_a_loop_over_the_template_finds(tmp_path: Path, turns: bool) -> None:
    head, rules = "Answer in a friendly way.\n", "\n".join(RULES)
    if turns:
        said = [("system", head + rules), ("user", "Hello there."), ("assistant", "Good day."), ("user", "And now?")]
        prompt = as_text([Turn(role=role, content=text) for role, text in said])
        rest = [("turn 1 (user)", "Hello there."), ("turn 2 (assistant)", "Good day."), ("question", "And now?")]
        chat = {"system": "", "thinking": None, "turns": [{"role": role, "content": text} for role, text in said]}
    else:
        rest = [
            ("paragraph 1", "Once upon a time.\n\n"),
            ("paragraph 2", "A frog came by.\n\n"),
            ("question", "Who came?"),
        ]
        prompt, chat = "".join(text for _, text in rest), {"system": head + rules, "thinking": None}
    lines = [("system prompt", head), *((f"rule {at}", f"{rule}\n") for at, rule in enumerate(RULES, 1))]
    lines[-1] = ("rule 3", RULES[-1])
    messages = said if turns else [("system", head + rules), ("user", prompt)]
    texts = ["<s>"]
    for role, text in messages:  # a template's names of roles are tokens of their own
        texts += [f"<|{role}|>", "\n", *(text[at : at + 4] for at in range(0, len(text), 4)), "<|end|>", "\n"]
    tokens = pd.DataFrame({"phase": "prompt", "position": range(len(texts)), "text": texts})
    run = SimpleNamespace(tokens=tokens, record=SimpleNamespace(prompt=prompt, chat=chat, label="a run"))
    labels = labels_by_loop("".join(texts), [*lines, *rest], texts)
    spans = find_spans(cast(Run, run))
    found = {position: span.label for span in spans for position in span.positions.tolist()}
    assert [found[position] for position in range(len(texts))] == labels
    assert sum(len(span.positions) for span in spans) == len(texts), "no token is in two"
    assert [span.first for span in spans] == sorted(span.first for span in spans)


def test_a_fact_is_a_span_of_its_own_and_leaves_a_gap_in_the_part_around_it(tmp_path: Path) -> None:
    prompt = "One line of text. The number is 48213, they say.\n\nMore of it.\n\nWhat is the number?"
    start = prompt.index("48213")
    run = run_of(tmp_path, prompt)
    spans = {span.label: span for span in find_spans(run, [(start, start + 5)])}
    assert "48213" in words_of(run, spans["fact"])
    assert len(spans["paragraph 1"].ranges) == 2
    assert words_of(run, spans["question"]).strip().endswith("What is the number?")
    assert spans["paragraph 1"].first < spans["fact"].first < spans["paragraph 2"].first
    rule = "Rules:\n- The city is: Oslo.\n- The colour is: Green.\n\nText.\n\nWrite."
    inside = rule.index("The city is: Oslo.")
    labels = [span.label for span in find_spans(run_of(tmp_path, rule, seed=1), [(inside, inside + 18)])]
    assert "rule 1" in labels
    assert "fact" not in labels


@pytest.mark.parametrize(
    ("prompt", "labels"),
    [
        ("Q: 1+1?\nA: 2\n\nQ: 2+2?\nA: 4\n\nQ: 3+3?\nA:", ["shot 1", "shot 2", "question"]),
        ("First words. Second words. Third?", ["sentence 1", "sentence 2", "question"]),
        ("A line\nAnother line\nQuestion: which?\nAnswer: the", ["line 1", "line 2", "question"]),
        ("words without an end", ["question"]),
        ("One.\n\nTwo.\n\nThe end.", ["paragraph 1", "paragraph 2", "end of the prompt"]),
        ("- a b\n- c d\n\nText.\n\nAnd?", ["rule 1", "rule 2", "text", "question"]),
    ],
)
def test_parts_follow_the_text(prompt: str, labels: list[str]) -> None:
    parts = parts_of_prompt(prompt)
    assert [part.label for part in parts] == labels
    assert "".join(prompt[part.start : part.stop] for part in parts) == prompt


def test_the_end_of_a_user_turn_is_a_request_without_a_question_mark() -> None:
    assert [part.label for part in parts_of_prompt("One.\n\nWrite.", {"system": ""})] == ["text", "question"]
    assert [part.label for part in parts_of_prompt("One.\n\nWrite.")] == ["text", "end of the prompt"]


def test_many_paragraphs_are_joined_to_few_blocks() -> None:
    prompt = "\n\n".join(f"Paragraph number {number} has some words." for number in range(50)) + "\n\nWhat?"
    parts = parts_of_prompt(prompt)
    assert len(parts) == MOST_BLOCKS + 1
    assert "".join(prompt[part.start : part.stop] for part in parts) == prompt
    sizes = [part.stop - part.start for part in parts[:-1]]
    assert max(sizes) < 2 * min(sizes)


def test_written_spans_are_read_again_and_bad_ones_get_one_sentence() -> None:
    spans = (Span("rule 1", ((0, 3), (7, 7))), Span("the end", ((8, 9),)))
    for separator in ("\n", ";"):
        assert parse_spans(write_spans(spans, separator), 10) == spans
    for text, said in (
        ("", "Give 1 to"),
        ("rule 1 3-4", "is not a span"),
        (": 3-4", "is not a span"),
        ("a: 3-x", "is not a span"),
        ("a: 3-12", "both from 0 to 9"),
        ("a: 5-3", "both from 0 to 9"),
        ("a: 1-4\nb: 4-5", "Token 4 is in 'a' and in 'b'"),
        ("a: 1\na: 2", "same label"),
        ("a: " + "9" * 40, "is not a span"),
        ("x" * 9_000, "Give 1 to"),
    ):
        with pytest.raises(UserError, match=said):
            parse_spans(text, 10)


@pytest.mark.parametrize("method", ["h2o", "keepkv", "full"])
def test_shares_equal_a_loop_over_fates(tmp_path: Path, method: str) -> None:
    run = open_run(write_synthetic_run(tmp_path, method=method, steps=8))
    spans = (Span("a", ((0, 3), (10, 12))), Span("b", ((20, 63),)))
    for step in (0, 5, 8):
        table = span_shares.shares_of_spans(wall_of(run), spans, step).set_index("span")
        for span in spans:
            fates = fact_fates(run, span.positions, step)
            for fate in ("kept", "merged", "dropped"):
                count = sum(one == fate for one in fates["fate"])
                assert table.loc[span.label, fate] == pytest.approx(count / len(fates)), (step, fate)
            gone = [all(group["fate"] == "dropped") for _, group in fates.groupby("token")]
            assert table.loc[span.label, "unreachable"] == pytest.approx(sum(gone) / len(gone))


def test_the_largest_budget_at_which_a_span_is_dead_is_marked(tmp_path: Path) -> None:
    paths = [write_synthetic_run(tmp_path, method="h2o", budget=budget, steps=4) for budget in (0.1, 0.9, 0.3)]
    runs = [open_run(path) for path in (*paths, write_synthetic_run(tmp_path, method="full", steps=4))]
    spans = tuple(Span(f"token {place}", ((place, place),)) for place in range(64))
    frame = span_shares.spans_by_run(runs, [wall_of(run) for run in runs], spans, 4)
    assert frame["row"].iloc[0] == "full"
    for _, lines in frame.groupby(["row", "span"]):
        sizes, dead = lines["slots"].tolist(), lines["dead"].tolist()
        assert sizes == sorted(sizes, reverse=True)
        assert lines["first_dead"].tolist() == [here and not any(dead[:at]) for at, here in enumerate(dead)]
    assert frame["first_dead"].any()
    assert not frame.loc[frame["method"] == "full", "dead"].any()


def test_a_rule_is_read_back_from_the_sentence_that_states_it() -> None:
    for seed in range(40):
        for rule in draw_rules(Random(seed), 6):
            assert stated_rule(f"- {rule.text}\n") == rule
    assert stated_rule("The weather is: fine.") is None
    rule = stated_rule(RULES[0])
    assert rule is not None
    assert obeys("Ahoy Frog, hello", rule.spec)
