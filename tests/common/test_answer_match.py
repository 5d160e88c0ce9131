"""An answer is found by one rule, whatever its Unicode form, and only where it stands alone."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvlab.common.answer_match import find_answer
from kvlab.evaluation.scoring.metrics import string_match_all, whole_match_all
from kvlab.views.frames.verdict import judge

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
SCRIPTS = [
    "Zürich",
    "Łódź",
    "straße",
    "Москва",
    "Αθήνας",
    "القاهرة",
    "ירושלים",
    "กรุงเทพ",
    "ភ្នំពេញ",
    "दिल्ली",
    "東京",
    "서울",
    "ガーナ",
    "x²",
]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("秘密号码是48213。", "48213"),
        ("号码48213号。", "48213"),
        ("秘密の番号は48213です。", "48213"),
        ("비밀 번호는 48213입니다.", "48213"),
        ("수도는 서울입니다.", "서울"),
        ("รหัสคือ48213ครับ", "48213"),
        ("ລະຫັດ48213ແມ່ນ", "48213"),
        ("លេខ48213គឺ", "48213"),
        ("作者是GPT团队。", "GPT"),
        ("เมืองหลวงคือกรุงเทพมหานคร", "กรุงเทพ"),
        ("It weighs 48213km.", "48213"),
        ("The code is _48213_.", "48213"),
        ("She lives in Zu\u0308rich.", "Z\u00fcrich"),
        ("She lives in Z\u00fcrich.", "Zu\u0308rich"),
        ("I don\u2019t know", "don't know"),
        ("I don't know", "don\u2019t know"),
        ("he said \u201cyes\u201d.", '"yes"'),
        ("range 10\u201320", "10-20"),
        ("the number ４８２１３", "48213"),
        ("the number 48213", "４８２１３"),
        ("الرقم ٤٨٢١٣", "48213"),
        ("HAUPTSTRASSE 5", "hauptstraße"),
        ("ΟΔΥΣΣΕΥΣ", "Οδυσσευς"),
        ("the ﬁrst", "first"),
        ("a\u00a0b and\n c", "B  AND C"),
        ("I \u2764\ufe0f it", "\u2764"),
        ("soft\u00adware", "software"),
    ],
)
def test_an_answer_is_found(text: str, answer: str):
    start, stop = find_answer(text, answer) or (0, 0)
    assert find_answer(text[start:stop], answer) == (0, stop - start)
    assert judge([text], answer).kind == "right" and whole_match_all(text, [answer]) == 1.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("spring", "ring"),
        ("rings", "ring"),
        ("51234", "123"),
        ("Московский", "Москов"),
        ("1½", "1"),
        ("½", "2"),
        ("cafe\u0301", "cafe"),
        ("がく", "か"),
        ("선생", "서"),
        ("दिल्ली", "दिल"),
        ("５１２３４", "123"),
        ("x", ""),
        ("", "x"),
    ],
)
def test_an_answer_within_a_word_a_number_or_a_letter_is_not_found(text: str, answer: str):
    assert find_answer(text, answer) is None
    assert judge([text], answer).kind != "right"


@pytest.mark.parametrize("word", SCRIPTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("other", FORMS)
def test_the_form_and_case_of_letters_make_no_difference(word: str, form: str, other: str):
    text = unicodedata.normalize(form, f"It is {word.upper()}, I think.")
    answer = unicodedata.normalize(other, word)
    start, stop = find_answer(text, answer) or (0, 0)
    assert text[start:stop] == unicodedata.normalize(form, word.upper())


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.text(max_size=4), st.text(max_size=12))
def test_a_text_holds_every_answer_set_off_by_spaces(before: str, answer: str, after: str):
    """Unless nothing of it is left once ignorable characters are dropped, or it begins with a mark of no letter."""
    folded = unicodedata.normalize("NFKD", answer).strip()
    assume(any(unicodedata.category(one)[0] in "LNPS" for one in folded))
    assume(unicodedata.category(folded[0])[0] != "M" and not 0x1160 <= ord(folded[0]) < 0x1200)
    assume("\u3164" not in answer and "\uffa0" not in answer)
    assert find_answer(f"{before} . {answer} . {after}", answer) is not None


@given(st.text("ab1 2;é東", max_size=12), st.text("ab12é東", min_size=1, max_size=3))
def test_the_place_found_is_the_answer_and_stands_alone(text: str, answer: str):
    """Against a plain loop over all places; without signs that join digits to one number, and 1 222 is one."""
    assume(re.search(r"\d \d{3}(?!\d)", text) is None)

    def alone(place: int) -> bool:
        around = [(text[i - 1], text[i]) for i in (place, place + len(answer)) if 0 < i < len(text)]
        return not any((a.isdigit() and b.isdigit()) or (a in "abé" and b in "abé") for a, b in around)

    places = [i for i in range(len(text)) if text.startswith(answer, i) and alone(i)]
    expected = (places[0], places[0] + len(answer)) if places else None
    assert find_answer(text, answer) == expected


# (answer, text that has it as a whole number of this value)
SAME = [
    ("48213", "The number is 48,213."),
    ("48,213", "The number is 48213."),
    ("48213", "48 213"),
    ("48213", "48\u202f213"),
    ("48213", "48\u00a0213"),
    ("48213", "48'213"),
    ("48213", "48’213"),
    ("48213", "48_213"),
    ("1048213", "1,048,213"),
    ("1048213", "1.048.213"),
    ("48213.5", "48.213,50"),
    ("48213.5", "48,213.5"),
    ("100000", "1,00,000"),
    ("3.5", "3.50"),
    ("3.50", "3.5"),
    ("3.5", "3,5"),
    ("0.5", ".5"),
    ("48.213", "48.213"),
    ("-5", "\u22125 degrees"),
    ("-5", "x=-5"),
    ("-5", "温度是-5度"),
    ("5", "+5"),
    ("5", "5-6"),
    ("6", "5-6"),
    ("6", "5–6"),
    ("0", "-0"),
    ("1/2", "½"),
    ("0.5", "1/2"),
    ("1.5", "1½"),
    ("1.5", "1 1/2"),
    ("1/3", "2/6"),
    ("12:30", "12:30pm"),
    ("9:30", "at 09:30"),
    ("5", "5 km"),
    ("5", "5km"),
    ("20", "20%"),
    ("5", "$5"),
    ("$5", "$5.00"),
    ("-$5", "-$5"),
    ("-5", "-$5"),
    ("-5", "−€5.00"),
    ("-5 km", "-5.0km"),
    ("5 km", "5.0km"),
    ("2024-05-12", "2024-5-12"),
    ("5", "It is 5."),
    ("5.", "It is 5"),
    ("5", "5..."),
    ("2", "1,2,3"),
    ("100000", "1e5"),
    ("1000000", "10^6"),
    ("100", "10²"),
    ("19", "COVID-19"),
    ("48213", "４８，２１３"),
    ("room 3", "room 3."),
    ("10-20", "10–20"),
    ("007", "agent 007"),
    ("300", "in 2024 300 people"),
    ("5", "\\boxed{5}"),
    ("1", "1. Paris"),
    ("5", "step 5: do"),
]
# (answer, text in which it is only a part of another number, or of another value)
OTHER = [
    ("3", "It is about 3.14."),
    ("14", "3.14"),
    ("12", "12.50 crowns"),
    ("5", "-5 degrees"),
    ("-5", "5 degrees"),
    ("1", "1,000"),
    ("123", "51234"),
    ("12", "12:30"),
    ("30", "12:30"),
    ("3", "3/4"),
    ("4", "3/4"),
    ("1", "1½"),
    ("1", "1 1/2"),
    ("1", "5/5"),
    ("-6", "5-6"),
    ("48213", "48.213"),
    ("1,000", "1.000"),
    ("2024", "2024-05-12"),
    ("5", "12/5/2024"),
    ("1.2", "1.2.3"),
    ("555", "555-1234-22"),
    ("7", "007"),
    ("007", "7"),
    ("5", "3,5"),
    ("5", ".5"),
    ("3", "3e5"),
    ("10", "10²"),
    ("5", "-$5"),
    ("$5", "$5.50"),
    ("-5", "-$5.50"),
    ("-5", "-$55"),
    ("-$5", "-€5"),
    ("5 km", "3.5 km"),
    ("5 km", "5 kmh"),
    ("room 3", "room 3.5"),
    ("10-20", "5-10-20"),
    ("100", "100 200 300"),
    ("0.333", "1/3"),
    ("99", "99.9%"),
    ("123", "1,2,3"),
    ("1", "$1,234.56"),
]


@pytest.mark.parametrize(("answer", "text"), SAME)
def test_a_number_is_found_by_value_however_it_is_written(answer: str, text: str):
    assert find_answer(text, answer) is not None and judge([text], answer).kind == "right"
    assert whole_match_all(f"so {text} then", [answer]) == 1.0


@pytest.mark.parametrize(("answer", "text"), OTHER)
def test_a_part_of_a_number_is_not_the_number(answer: str, text: str):
    assert find_answer(text, answer) is None and judge([text], answer).kind != "right"
    assert whole_match_all(f"so {text} then", [answer]) == 0.0


NUMBERS = st.decimals(-(10**7), 10**7, places=2, allow_nan=False)
WRITINGS = [("{:.2f}", ""), ("{:,.2f}", ""), ("{:,.3f}", ""), ("{:,.2f}", "\u202f"), ("{:,.2f}", "'"), ("{:,.2f}", "_")]


@given(NUMBERS, NUMBERS, st.sampled_from(WRITINGS), st.sampled_from(WRITINGS))
def test_two_numbers_match_where_their_values_are_equal(one: Decimal, other: Decimal, way: tuple, another: tuple):
    def written(number: Decimal, how: tuple[str, str]) -> str:
        text = how[0].format(number)
        return text.replace(",", how[1]) if how[1] else text

    text = f"It is {written(one, way)} in all."
    assert (find_answer(text, written(other, another)) is not None) == (one == other)
    place = find_answer(text, written(one, another))
    assert place is not None and text[slice(*place)] == written(one, way).removeprefix("" if one else "-")


def test_the_first_wrong_token_of_a_number_is_marked_whatever_its_separators():
    nearly = judge(["It is ", "48", ",2", "14"], "48213", ["48", "213"])
    assert (nearly.kind, nearly.at, nearly.wrong) == ("nearly", 1, "14")


def test_rulers_own_match_knows_no_edges():
    assert string_match_all("spring", ["ring"]) == 1.0 and whole_match_all("spring", ["ring"]) == 0.0
