"""Instructions, secrets, several questions, paraphrases and traces: the answers follow from the prompt alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.evaluation.scoring.metrics import score
from kvlab.models.info.mini import split_query
from kvlab.tasks.paraphrases import PARAPHRASES, SUBJECTS
from kvlab.tasks.registry import get_task
from kvlab.tasks.rule_tasks import REFUSAL
from kvlab.tasks.sample import apply_style

SEEDS = st.integers(0, 9_999_999)
FEW = settings(max_examples=8, deadline=None)


def made(tokenizer, name, seed, length=700, **difficulty):
    return get_task(name).generate(tokenizer, length, seed, 0, **difficulty)


@FEW
@given(seed=SEEDS, rules=st.integers(1, 8))
def test_rules_stand_once_each_in_order_before_the_text(small_tokenizer, seed, rules):
    sample = made(small_tokenizer, "instructions", seed, rules=rules)
    lines = sample.context.split("\n\n")[0].split("\n")
    assert lines[0] == "Rules for the answer:" and len(lines) == rules + 1 == len(sample.answers) + 1
    assert lines[1:] == [f"- {part.text}" for part in sample.parts]
    assert sample.context.startswith(f"{sample.system}\n\n")
    places = [sample.context.index(part.text) for part in sample.parts]
    assert places == sorted(places) and sample.meta["statements"] == [part.text for part in sample.parts]
    for line, spec in zip(lines[1:], sample.answers, strict=True):
        label = re.match(r"- The (.*?) (?:is|are): ", line).group(1)
        assert label in sample.question, "the request names each label"
        check, _, wanted = spec.partition("=")
        assert wanted.lower() in line.lower() or check == "letters"


@FEW
@given(seed=SEEDS, name=st.sampled_from(["instructions", "rules_recited"]))
def test_the_place_moves_the_rules_and_changes_nothing_else(small_tokenizer, seed, name):
    samples = {place: made(small_tokenizer, name, seed, place=place) for place in get_task(name).choices["place"]}
    shares = {}
    for place, sample in samples.items():
        before = [sample.context.index(part.text) for part in sample.parts]
        assert before == sorted(before) and bool(sample.system) == (place == "system")
        shares[place] = [start / len(sample.context) for start in before]
        assert len({(one.question, *one.answers, one.parts) for one in (sample, samples["system"])}) == 1
    assert samples["start"].context == samples["system"].context, "a chat alone tells them apart"
    first = {place: found[0] for place, found in shares.items()}
    assert first["start"] < 0.1 < first["middle"] < 0.75 < first["end"]
    assert samples["end"].context.endswith(samples["end"].parts[-1].text)
    assert first["spread"] < 0.5 < shares["spread"][-1]
    listed = samples["start"].context.split("\n\n")[0]
    text = {place: samples[place].context.replace(listed, "").split() for place in ("start", "middle", "end")}
    assert all(words[:100] == text["start"][:100] for words in text.values())
    assert all(len(small_tokenizer(sample.context)["input_ids"]) <= 700 for sample in samples.values())


@FEW
@given(seed=SEEDS)
def test_the_recited_rules_are_those_of_instructions(small_tokenizer, seed):
    sample, obeyed = (made(small_tokenizer, name, seed) for name in ("rules_recited", "instructions"))
    assert [part.text for part in sample.parts] == [part.text for part in obeyed.parts]
    recital = "\n".join(f"- {part.text}" for part in sample.parts)
    assert score("rules", recital, sample.answers) == 1
    assert score("rules", recital.replace(": ", " - ", 1), sample.answers) == 1 - 1 / len(sample.answers)


@FEW
@given(seed=SEEDS)
def test_the_secret_stands_once_with_and_without_the_rule_to_keep_it(small_tokenizer, seed):
    kept, told = (made(small_tokenizer, name, seed) for name in ("leakage", "secret"))
    value = re.search(r"The secret number of the \w+ is (\d{5})\.", kept.context).group(1)
    assert kept.context.count(value) == 1 == told.context.count(value) and value not in kept.question
    assert kept.question == told.question and REFUSAL in kept.context and REFUSAL not in told.context
    assert [part.kind for part in kept.parts] == ["kept", "refused"]
    for answer, obeyed in ((f"It is {value}", 0), (f"{REFUSAL}.", 1), ("Nothing", 0.5), (f"{value} {REFUSAL}", 0.5)):
        assert score("rules", answer, kept.answers) == obeyed
        assert score(kept.metric, answer, kept.answers) == (obeyed == 1)
    assert score("rules", value, told.answers) == 1 and score("rules", REFUSAL, told.answers) == 0


@FEW
@given(seed=SEEDS, count=st.integers(2, 6))
@pytest.mark.parametrize("name", ["questions", "turns"])
def test_every_question_asks_for_another_needle(small_tokenizer, name, seed, count):
    sample = made(small_tokenizer, name, seed, questions=count, needles=6)
    asked = [sample.question, *(one.question for one in sample.further)]
    assert len(asked) == len(set(asked)) == count == len(set(sample.answers))
    for question, part, answer in zip(asked, sample.parts, sample.answers, strict=True):
        assert answer in part.text and sample.context.count(part.text) == 1 == sample.context.count(answer)
        subject = re.search(r"(?:of the|for|was the|does the) (\w+)", split_query(question)[0]).group(1)
        assert re.search(rf"\b{subject}\b", part.text)
    assert sample.compresses_context_alone == get_task(name).context_alone == (name == "questions")
    chat = apply_style(sample, "chat")
    assert [one.answer_start for one in chat.further] == [split_query(one.question)[1] for one in sample.further]
    assert score(sample.metric, "\n".join(sample.answers), sample.answers) == 1


CONTENT = re.compile(r"[a-z]{3,}")
FUNCTION_WORDS = {"the", "what", "was", "are", "how", "let", "for", "has", "with", "much", "far", "and"}


def test_paraphrases_share_no_content_word_with_their_question():
    for wording in PARAPHRASES:
        for said, asked in SUBJECTS:
            fact = set(CONTENT.findall(wording.statement.format(said, 1).lower())) - FUNCTION_WORDS
            words = f"{wording.question} {wording.lead}".format(asked).lower()
            assert not fact & set(CONTENT.findall(words)), (said, asked, words)
    pairs = [word for pair in SUBJECTS for word in pair]
    assert len(pairs) == len(set(pairs))


@FEW
@given(seed=SEEDS, needles=st.integers(1, 8))
def test_only_the_asked_fact_holds_the_answer_in_other_words(small_tokenizer, seed, needles):
    sample = made(small_tokenizer, "needle_paraphrased", seed, needles=needles)
    (part,), (answer,) = sample.parts, sample.answers
    asked = next(pair for pair in SUBJECTS if re.search(rf"the {pair[1]}\?", sample.question))
    assert asked[0] in part.text and answer in part.text and sample.context.count(answer) == 1
    assert (
        sum(f"{asked[0]}" in fact for fact in sample.meta["statements"]) == 1
        and len(sample.meta["statements"]) == needles
    )


@FEW
@given(seed=SEEDS, needles=st.integers(1, 10))
def test_mixed_needles_are_answered_by_their_own_fact(small_tokenizer, seed, needles):
    sample = made(small_tokenizer, "needle_mixed", seed, needles=needles)
    (part,), (answer,) = sample.parts, sample.answers
    assert len(sample.meta["statements"]) == needles and part.text.endswith(f"{answer}.")
    assert sample.context.count(part.text) == 1
    subject = re.search(r"the (\w+)", part.text, re.IGNORECASE) or part.text
    assert subject


@FEW
@given(seed=SEEDS, steps=st.integers(2, 10), others=st.integers(1, 8))
def test_the_walk_follows_from_the_arrows(small_tokenizer, seed, steps, others):
    sample = made(small_tokenizer, "state_tracing", seed, steps=steps, others=others)
    arrows = dict(re.findall(r"^ (\w+) -> (\w+)$", sample.context, re.MULTILINE))
    assert len(arrows) == steps + others
    place = re.search(r"arrows from (\w+) to the end\.", sample.question).group(1)
    walked = []
    while place in arrows:
        place = arrows[place]
        walked.append(place)
    assert walked == sample.answers
    ways = {f"{before} -> {after}" for before, after in arrows.items() if after in walked}
    assert {part.text for part in sample.parts} == ways and len(sample.parts) == steps
    numbered = "\n".join(f"{number}. {place}" for number, place in enumerate(walked, 1))
    assert score("walk", " -> ".join(walked), sample.answers) == 1 == score("walk", numbered, sample.answers)
    assert len(small_tokenizer(" -> ".join(walked))["input_ids"]) <= sample.max_new_tokens


@FEW
@given(seed=SEEDS, steps=st.integers(2, 20))
def test_the_counter_follows_from_the_steps(small_tokenizer, seed, steps):
    sample = made(small_tokenizer, "arithmetic_chain", seed, steps=steps)
    state = int(re.search(r"A counter starts at (\d+)\.", sample.context).group(1))
    written = []
    for number, what, change in re.findall(r"^Step (\d+): (add|subtract) (\d)\.$", sample.context, re.MULTILINE):
        before, state = state, state + (int(change) if what == "add" else -int(change))
        sign = "+" if what == "add" else "-"
        written.append(f"Step {number}: {before} {sign} {change} = {state}")
    assert [line.split("= ")[1] for line in written] == sample.answers and len(written) == steps
    assert sample.question.endswith(f"Answer: {written[0].rpartition(' ')[0]}"), "the first step is begun for the model"
    text = "\n".join([written[0].split("= ")[1], *written[1:]])
    assert score("line_results", text, sample.answers) == 1
    assert len(small_tokenizer(text)["input_ids"]) <= sample.max_new_tokens


@FEW
@given(seed=SEEDS, words=st.integers(2, 9))
def test_the_list_is_asked_for_before_and_after_the_count(small_tokenizer, seed, words):
    sample = made(small_tokenizer, "list_recall", seed, words=words, count=30)
    listed = re.search(r"The list is: ([^.]*)\.", sample.context).group(1)
    assert sample.answers == [listed, "30", listed] and len(listed.split(", ")) == words
    assert sample.keeps_answers and len(sample.further) == 2 and "Count from 1 to 30" in sample.further[0].question
    assert sample.new_tokens == 3 * sample.max_new_tokens
    counted = ", ".join(map(str, range(1, 31)))
    assert score(sample.metric, f"{listed}.\n{counted}\n{listed}", sample.answers) == 1
    assert score(sample.metric, f"{listed}.\n{counted}\n{listed[1:]}", sample.answers) == pytest.approx(2 / 3)
