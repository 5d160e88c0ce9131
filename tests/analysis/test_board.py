"""The board says what the text, the events and the attention say: expected values come from plain loops over them."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.engine.restore.failed_run import Wanted as Rescued
from kvlab.evaluation.scoring.metrics import whole_match_all
from kvlab.trace import Run, open_run
from kvlab.trace.user_labels import Labels, load_labels, save_answer
from kvlab.views.frames import board
from kvlab.views.frames.facts import FATES, fact_fates, fact_positions, fate_shares, reading_heads
from kvlab.views.frames.verdict import MOST_CHARACTERS, answer_tokens, judge, token_at
from tests.synthetic.runs import write_synthetic_run

METHODS = (("full", 1.0), ("h2o", 0.2), ("h2o", 0.4), ("keepkv", 0.2), ("keepkv", 0.4), ("pool", 16))
DIGITS = st.text("0123456789", min_size=4, max_size=8)
WORDS = st.lists(st.sampled_from([" a", " lamp", ".", "\n", " the", "sea", " 48213", " it"]), max_size=6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    root = tmp_path_factory.mktemp("runs")
    options = {"prompt_tokens": 90, "steps": 14}
    return [open_run(write_synthetic_run(root, method=name, budget=budget, **options)) for name, budget in METHODS]


def asked_of(runs: list[Run], first: int = 3, last: int = 5) -> board.AnswerCheck:
    """The comparison asked for a few words of the full cache's own text, resting on some words of the prompt."""
    answer = "".join(board.reference_texts(runs)[first : last + 1])
    wanted = board.expected_answer(runs, Labels(answer=answer.strip(), facts=((20, 41), (100, 103))))
    assert wanted is not None
    return board.check_answer(runs, wanted)


# verdicts


@given(WORDS, WORDS, DIGITS)
def test_an_answer_between_words_is_right_and_says_where(before: list[str], after: list[str], answer: str):
    assume(answer not in "".join(before))
    texts = [*before, " ", *answer, ".", *after]
    verdict = judge(texts, answer)
    assert verdict.kind == "right"
    assert verdict.at == len(before) + 1
    assert answer_tokens(texts, answer) == (len(before) + 1, len(before) + len(answer))


@given(WORDS, DIGITS, st.integers(0, 7), st.integers(1, 9))
def test_one_wrong_token_is_nearly_right_from_the_half_on(before: list[str], answer: str, place: int, shift: int):
    place %= len(answer)
    before = [word for word in before if "4" not in word]
    changed = str((int(answer[place]) + shift) % 10)
    own = [*before, " ", *answer[:place], changed, *answer[place + 1 :], "."]
    verdict = judge(own, answer, [" ", *answer, "."])
    assert (verdict.kind == "nearly") == (place >= len(answer) / 2)
    assert verdict.kind in ("nearly", "wrong")
    if verdict.kind == "nearly":
        assert (verdict.wrong, verdict.expected) == (changed, answer[place])
        assert judge(own, answer).expected == answer[place:], "without a reference, the rest of the answer's word"


@given(st.lists(DIGITS, min_size=1, max_size=4, unique=True), st.data())
def test_any_of_several_answers_is_right(answers: list[str], data: st.DataObject):
    written = data.draw(st.sampled_from([*answers, "no number"]))
    verdict = board.judge_any(["It", " is ", written, "."], answers)
    assert verdict.kind == ("right" if written in answers else "wrong")
    alone = Rescued(answers[0], others=tuple(answers[1:]))
    assert alone.is_there([], ["It", " is ", written, "."]) == (written in answers)
    assert alone.rows(["It", " is ", written, "."]) == ((2, 2) if written in answers else (0, 0))


def test_other_answers_are_judged_and_named_until_somebody_says_another(runs: list[Run]):
    answer, other = "no such words", "".join(board.reference_texts(runs)[3:6]).strip()
    recorded = runs[0].record.model_copy(update={"answer": answer, "other_answers": (other,)})
    runs = [SimpleNamespace(record=recorded, tokens=runs[0].tokens), *runs[1:]]
    wanted = board.expected_answer(runs, Labels())
    assert wanted is not None and wanted.words == f"{answer} or {other}"
    asked = board.check_answer(runs, wanted)
    assert asked.reference.kind == "right" and asked.answer == answer_tokens(board.reference_texts(runs), other)
    changed = board.expected_answer(runs, Labels(answer="something else"))
    assert changed is not None and changed.answers == ("something else",)


def test_a_text_that_stops_within_the_answer_or_goes_on_after_it_is_nearly_right():
    early, longer = judge([" ", "4", "8", "2"], "48213"), judge([" ", "4821", "3", "7"], "48213")
    assert (early.kind, early.wrong) == ("nearly", "")
    assert (longer.kind, longer.wrong, longer.expected) == ("nearly", "7", "")
    assert judge([], "48213").kind == "unfinished"
    named = judge([" 44", "444"], "48213", [" 48", "213"])
    assert (named.kind, named.wrong, named.expected) == ("wrong", " 44", " 48")


def test_a_wrong_text_is_quoted_from_where_it_departs_from_the_full_caches():
    full = ["The", " secret", " number", " of", " the", " garden", " is", " 48213", "."]
    wrong = judge([*full[:7], " 12", "."], "48213", full)
    assert (wrong.kind, wrong.wrote) == ("wrong", "… 12.")
    long = judge([*full[:7], " 12", *[" and", " so", " on"] * 20], "48213", full).wrote
    assert long.startswith("… 12 and so on and so on") and len(long) == MOST_CHARACTERS + 2
    assert judge(["Nothing", " is", " known"], "48213", full).wrote == "Nothing is known"
    assert judge(full[:4], "48213", full).wrote == "The secret number of"
    assert judge(["I", " see"], "48213", ["I", " see"]).wrote == "I see", "the full cache's own text"


def test_special_tokens_are_no_part_of_what_is_judged(tmp_path: Path):
    run = open_run(write_synthetic_run(tmp_path, prompt_tokens=30, steps=6, method="h2o", budget=0.5))
    rows = run.tokens["phase"] == "free"
    last = run.tokens.index[rows][-1]
    run.tokens.loc[last, ["text", "special"]] = ["<|im_end|>", True]
    texts = board.phase_texts(run, "free")
    assert len(texts) == rows.sum() and texts[-1] == "" and "<|im_end|>" not in "".join(texts)
    early = judge([" 48", "2", ""], "48213")
    assert (early.kind, early.wrong) == ("nearly", ""), "it stops before the rest; the end token stands for no digit"


@given(st.text("ab \nAB.", max_size=14), st.text("ab AB", min_size=1, max_size=4))
def test_right_is_what_an_evaluation_counts_as_found(text: str, answer: str):
    assume(answer.strip() and text)
    assert (judge(list(text), answer).kind == "right") == (whole_match_all(text, [answer]) == 1.0)


@given(st.lists(st.text("xyz ", max_size=3), min_size=1, max_size=8), st.data())
def test_the_token_of_a_character(texts: list[str], data: st.DataObject):
    owner = [index for index, text in enumerate(texts) for _ in text]
    assume(owner)
    sign = data.draw(st.integers(0, len(owner) - 1))
    assert token_at(texts, sign) == owner[sign]


# facts


@given(st.lists(st.text("abc ", max_size=4), min_size=1, max_size=12), st.data())
def test_a_facts_tokens_are_those_that_hold_one_of_its_characters(pieces: list[str], data: st.DataObject):
    prompt = "".join(pieces)
    assume(prompt)
    start = data.draw(st.integers(0, len(prompt) - 1))
    stop = data.draw(st.integers(start + 1, len(prompt)))
    texts = ["<bos>", *pieces]
    table = pd.DataFrame({"phase": "prompt", "position": range(len(texts)), "text": texts})
    expected, at = [], 0
    for position, text in enumerate(texts[1:], start=1):
        if any(start <= sign < stop for sign in range(at, at + len(text))):
            expected.append(position)
        at += len(text)
    found = fact_positions(table, prompt, [(start, stop)]).tolist()
    assert [position for position in found if texts[position]] == expected


def test_a_token_that_shares_its_character_with_the_one_before_goes_with_it():
    texts = ["<bos>", "a", "\N{SNOWMAN}", "", "", "b"]
    table = pd.DataFrame({"phase": "prompt", "position": range(6), "text": texts})
    assert fact_positions(table, "a\N{SNOWMAN}b", [(1, 2)]).tolist() == [2, 3, 4]
    assert fact_positions(table, "a\N{SNOWMAN}b", [(2, 3)]).tolist() == [5]


def test_a_chat_template_around_the_prompt_moves_no_fact():
    texts = ["<bos>", "User:", " red", " lamp", "<eos>", "Answer:"]
    table = pd.DataFrame({"phase": "prompt", "position": range(6), "text": texts})
    assert fact_positions(table, "  red lamp\n", [(6, 10)]).tolist() == [3]


def test_tokens_that_do_not_spell_the_prompt_are_one_sentence():
    table = pd.DataFrame({"phase": ["prompt"], "position": [0], "text": ["other"]})
    with pytest.raises(UserError, match="do not spell"):
        fact_positions(table, "words", [(0, 2)])


@pytest.mark.parametrize("step", [0, 4, 14])
def test_fates_are_those_of_the_slots_replayed_event_by_event(runs: list[Run], step: int):
    positions = np.array([0, 5, 6, 7, 30, 31, 60, 85])
    for run in runs:
        fates = fact_fates(run, positions, step).set_index(["layer", "head", "token"])["fate"]
        for layer in range(2):
            for head in range(2):
                slots = {token: {token} for token in range(run.record.prompt_tokens + run.record.max_new_tokens)}
                for event in run.select("events", layer, head).itertuples():
                    if event.step <= step:
                        leaving = slots.pop(event.source)
                        if event.target >= 0:
                            slots[event.target] |= leaving
                for token in positions:
                    held = next((inside for inside in slots.values() if token in inside), None)
                    expected = "dropped" if held is None else "kept" if held == {token} else "merged"
                    assert fates[layer, head, token] == expected, (run.record.label, layer, head, token)


def test_shares_are_counts_over_heads_or_over_tokens(runs: list[Run]):
    positions = np.arange(20, 30)
    fates = fact_fates(runs[3], positions, 3)
    by_token = fate_shares(fates, "token").set_index("token")
    by_head = fate_shares(fates, "layer", "head").set_index(["layer", "head"])
    for fate in FATES:
        for token in positions:
            count = sum(line.token == token and line.fate == fate for line in fates.itertuples())
            assert by_token.loc[token, fate] == count / 4
        assert by_head[fate].mean() == pytest.approx(by_token[fate].mean())


def test_the_reading_head_is_the_one_whose_answer_rows_hold_most_of_the_fact(runs: list[Run]):
    positions, best, most = np.array([10, 11, 12]), None, -1.0
    for layer in range(2):
        for head in range(2):
            rows = runs[0].attention(layer, head)[0].astype(float)
            mass = sum(rows[row][token] for row in (3, 4, 5) for token in positions) / 3
            best, most = ((layer, head), mass) if mass > most else (best, most)
    first = reading_heads(runs[0], positions, (3, 5)).iloc[0]
    assert (first["layer"], first["head"]) == best
    assert first["mass"] == pytest.approx(most, rel=1e-3)


# the board


def test_a_comparison_asked_for_its_own_words_has_them_in_its_reference(runs: list[Run]):
    asked = asked_of(runs)
    assert asked.reference.kind == "right"
    assert asked.answer is not None
    texts = board.reference_texts(runs)
    assert asked.expected.answer in "".join(texts[asked.answer[0] : asked.answer[1] + 1])
    assert asked.step == asked.answer[1] - 1
    table = board.verdicts(runs, asked).set_index("run_id")
    for run in runs:
        kl = run.tokens.loc[run.tokens["phase"] == "forced", "kl"].tolist()[asked.answer[0] : asked.answer[1] + 1]
        assert table.loc[run.record.run_id, "kl_answer"] == pytest.approx(math.fsum(kl) / len(kl))
        free = "".join(run.tokens.loc[run.tokens["phase"] == "free", "text"])
        assert (table.loc[run.record.run_id, "verdict"] == "right") == (
            whole_match_all(free, [asked.expected.answer]) == 1.0
        )


def test_the_board_has_a_cell_a_compressed_run_and_a_row_a_token_of_the_fact(runs: list[Run]):
    asked = asked_of(runs)
    frame = board.board(runs, asked, board.verdicts(runs, asked))
    assert set(frame["run_id"]) == {run.record.run_id for run in runs[1:]}
    cells = frame.drop_duplicates("run_id")[["row", "column"]].itertuples(index=False, name=None)
    assert list(cells) == [
        ("h2o", "20 %"),
        ("h2o", "40 %"),
        ("keepkv", "20 %"),
        ("keepkv", "40 %"),
        ("pool", "16 slots"),
    ]
    texts = runs[0].tokens.loc[runs[0].tokens["phase"] == "prompt", "text"].tolist()
    for _, strip in frame.groupby("run_id"):
        assert strip["position"].tolist() == asked.positions.tolist()
        assert strip["text"].tolist() == [texts[position] for position in asked.positions]
        assert strip[list(FATES)].sum(axis=1).tolist() == pytest.approx([1.0] * len(strip))
    assert runs[0].record.prompt[20:41] in "".join(frame.loc[frame["run_id"] == runs[1].record.run_id, "text"])


def test_runs_of_one_method_and_budget_get_places_of_their_own(runs: list[Run]):
    assert len(set(board.places([runs[1], runs[1], runs[1], *runs]))) == 3 + len(runs)


def test_every_run_is_ranked_or_left_out_with_a_reason_and_answers_go_first(runs: list[Run]):
    table = board.verdicts(runs, asked_of(runs)).assign(
        verdict=["right", "wrong", "nearly", "right", "wrong", "nearly"]
    )
    for shown in (table, table.drop(columns="verdict"), table.assign(mean_kl=float("nan"))):
        ranking, left = board.rank_runs(shown)
        inside = [label for _, groups in ranking for group in groups for label in group["label"]]
        assert sorted([*inside, *(label for label, _ in left)]) == sorted(table["label"])
        assert all(reason for _, reason in left)
        assert table.loc[table["method"] == "full", "label"].item() in dict(left)
    ranking, left = board.rank_runs(table)
    assert [kind for kind, _ in ranking] == ["right", "nearly", "wrong"]
    assert len(left) == 1, "with an answer a run needs no rival of its size"
    for kind, groups in ranking:
        for group in groups:
            assert set(group["verdict"]) == {kind}
            assert group["mean_kl"].is_monotonic_increasing
            assert group["live_bytes"].max() <= 1.12 * group["live_bytes"].min()
    unknown = table.assign(live_bytes=float("nan"))
    assert {reason for _, reason in board.rank_runs(unknown)[1]} >= {"its bytes were not recorded"}


def test_an_answer_said_later_is_scored_and_lies_beside_the_runs(runs: list[Run], tmp_path: Path):
    assert board.expected_answer(runs, Labels()) is None
    prompt = runs[0].record.prompt
    word = prompt.split()[4]
    save_answer(tmp_path, "some", prompt, f" {word} ", [prompt[10:20].strip()])
    labels = load_labels(tmp_path, "some")
    assert labels.answer == word
    assert [prompt[slice(*fact)] for fact in labels.facts] == [prompt[10:20].strip()]
    with pytest.raises(UserError, match="no such"):
        save_answer(tmp_path, "some", prompt, word, ["no such words"])
    assert load_labels(tmp_path, "some") == labels, "what was said before stays"
    assumed = board.expected_answer(runs, Labels(answer=word))
    assert assumed is not None and assumed.assumed
    assert prompt[slice(*assumed.facts[0])] == word
    (tmp_path / "labels" / "some.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        load_labels(tmp_path, "some")


def test_where_the_reference_lacks_the_answer_nothing_is_claimed_of_it(runs: list[Run]):
    asked = board.check_answer(runs, board.ExpectedAnswer("no such words at all", ((4, 9),), False))
    assert asked.reference.kind == "wrong"
    assert (asked.answer, asked.step) == (None, 0)
    table = board.verdicts(runs, asked)
    assert table["kl_answer"].isna().all()
    assert board.readers(runs, asked).empty
