"""Pieces of generated text join to what the tokenizer decodes, in every script, and the answer is judged on that."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from kvlab.engine.prompt import continuation, prompt_pieces
from kvlab.evaluation.scoring.metrics import whole_match_all
from kvlab.trace import open_run
from kvlab.trace.schema import RunRecord
from kvlab.trace.token_text import align, restore_texts, split_text
from kvlab.views.frames.board import phase_texts
from kvlab.views.frames.verdict import answer_tokens, judge
from tests.families import tiny_folder
from tests.synthetic.runs import write_synthetic_run

ASSETS = Path(__file__).resolve().parents[2] / "assets"
TOKENIZERS = ("mini", "mini-half")
# 30 words in 14 scripts, and signs that byte-level tokenizers spell with several tokens.
WORDS = (  # noqa: SIM905 (a list of 30 strings takes a line each)
    "Zürich café naïve Łódź Reykjavík straße Москва Київ Αθήνα λόγος Երևան თბილისი القاهرة کراچی ירושלים "
    "กรุงเทพ ວຽງຈັນ ភ្នំពេញ दिल्ली ঢাকা சென்னை 東京 北京 さくら カタカナ 서울 €500 50°C x² 4821½ 🚀 👩‍👩‍👧"
).split()


@cache
def tokenizer(name: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(ASSETS / name)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_join_to_the_decoded_text_wherever_it_stops(name: str, word: str):
    own = tokenizer(name)
    ids = own(f"It is {word}, {word}{word}.", add_special_tokens=False)["input_ids"]
    for stop in range(len(ids) + 1):
        found = continuation(own, ids[:stop], set())
        assert "".join(found.pieces) == found.text == own.decode(ids[:stop])
        assert found.shown == found.pieces and not any(found.special)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_answer_in_any_script_is_right_and_its_tokens_spell_it(name: str, word: str):
    own = tokenizer(name)
    before, inside = (own(part, add_special_tokens=False)["input_ids"] for part in ("It is", f" {word}"))
    ids = [*before, *inside, *own(", I think.", add_special_tokens=False)["input_ids"]]
    found = continuation(own, ids, set())
    verdict = judge(found.pieces, word)
    assert verdict.kind == "right" and whole_match_all(found.text, [word]) == 1.0
    first, last = answer_tokens(found.pieces, word) or (0, 0)
    assert len(before) <= first <= last < len(before) + len(inside)
    assert "".join(found.pieces[first : last + 1]).strip() == word


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 700), max_size=24), st.sampled_from(TOKENIZERS))
def test_pieces_of_any_tokens_join_to_the_decoded_text(ids: list[int], name: str):
    found = continuation(tokenizer(name), ids, set())
    assert "".join(found.pieces) == tokenizer(name).decode(ids, skip_special_tokens=True)
    assert len(found.pieces) == len(found.shown) == len(found.special) == len(ids)


def test_a_decoder_that_writes_one_mark_a_byte_gives_each_character_to_one_token():
    """As Llama 2's byte tokens do: bytes that are no character yet are decoded as so many unknown ones."""

    def decode(ids: list[int]) -> str:
        try:
            return bytes(ids).decode()
        except UnicodeDecodeError:
            whole = bytes(ids).decode(errors="ignore")
            return whole + "\ufffd" * (len(ids) - len(whole.encode()))

    assert split_text(decode, list("a東京!".encode())) == ["a", "東", "", "", "京", "", "", "!"]
    assert split_text(decode, list("東".encode()[:2])) == ["\ufffd", "\ufffd"]


def test_special_and_end_tokens_are_shown_by_name_and_are_no_part_of_the_text():
    own = tokenizer("mini")
    ids = own(" 48213", add_special_tokens=False)["input_ids"]
    end = own(".", add_special_tokens=False)["input_ids"][0]
    found = continuation(own, [own.bos_token_id, *ids, own.eos_token_id], {own.eos_token_id})
    assert found.text == own.decode(ids)
    assert (found.shown[0], found.shown[-1]) == (own.bos_token, own.eos_token)
    assert found.special == [True, *[False] * len(ids), True]
    assert continuation(own, [own.bos_token_id, *ids], frozenset()).shown == found.shown[:-1]
    assert continuation(own, [*ids, end], {end}).text == own.decode(ids), "an end token need not be a special one"


def broken_pieces(own: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """Pieces as earlier versions recorded them: a character of several tokens is lost."""
    pieces = []
    for index in range(len(ids)):
        before = ids[max(0, index - 8) : index]
        pieces.append(own.decode([*before, ids[index]])[len(own.decode(before) if before else "") :])
    return pieces


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("runs")
    return open_run(write_synthetic_run(folder, prompt_tokens=12, steps=4, method="h2o", budget=0.5)).record


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("word", WORDS)
def test_a_run_recorded_before_is_shown_with_all_its_characters(recorded: RunRecord, word: str, known: bool):
    """From its ids where the tokenizer is there, else from the recorded text."""
    own = tokenizer("mini")
    ids = [*own(f" It is {word}.", add_special_tokens=False)["input_ids"], own.eos_token_id]
    text = own.decode(ids, skip_special_tokens=True)
    model = recorded.model.model_copy(update={"name": "mini" if known else "/not/here"})
    record = recorded.model_copy(update={"free_text": text, "model": model})
    pieces = broken_pieces(own, ids)
    columns = {"phase": "free", "position": range(len(ids)), "id": ids, "text": pieces, "special": None}
    restored = restore_texts(pd.DataFrame(columns), record)
    written = restored["text"][~restored["special"]].tolist()
    assert "".join(written) == text
    assert restored["text"].tolist()[-1] == own.eos_token and restored["special"].tolist()[-1]
    assert judge(written, word).kind == "right"
    if known:
        assert restored["text"].tolist() == continuation(own, ids, {own.eos_token_id}).shown


def test_sound_runs_stay_as_they_are(tmp_path: Path):
    run = open_run(write_synthetic_run(tmp_path, prompt_tokens=12, steps=6, method="h2o", budget=0.5))
    assert "".join(phase_texts(run, "free")) == run.record.free_text
    assert not run.tokens["special"].any()


@given(st.lists(st.sampled_from(["a", " b", "", "\ufffd", "cd"]), max_size=8), st.text("ab cd東京", max_size=10))
def test_aligned_pieces_join_to_the_text(pieces: list[str], text: str):
    aligned, outside = align(pieces, text)
    assert len(aligned) == len(outside) == len(pieces)
    if pieces:
        assert "".join(aligned) == text


def test_special_tokens_that_mark_thinking_stay_in_the_text(tmp_path: Path):
    own = AutoTokenizer.from_pretrained(tiny_folder(tmp_path / "model"))
    own.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "<turn>"]})
    ids = own("[THINK]48213?[/THINK]11111<turn>", add_special_tokens=False)["input_ids"]
    found = continuation(own, [*ids, own.eos_token_id], {own.eos_token_id})
    assert found.text == "".join(found.pieces) == "[THINK]48213?[/THINK]11111"
    assert judge(found.pieces, "48213").kind == "wrong" and judge(found.pieces, "11111").kind == "right"


def test_spaces_that_offsets_leave_out_stay_in_the_prompts_pieces():
    inner = Tokenizer(models.WordLevel({"loved": 0, "to": 1, "sing": 2, "<s>": 3}, "<s>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    own = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")
    prompt = "loved to <s> sing"
    pieces = prompt_pieces(own, prompt, own(prompt)["input_ids"])
    assert "".join(pieces) == prompt and pieces[-1].strip() == "sing"
