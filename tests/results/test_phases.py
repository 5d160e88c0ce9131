"""Shares found by the needle's place modulo the chunk, and the law of StreamingLLM's needles."""

from __future__ import annotations

import pandas as pd
import pytest

from kvlab.cli.options.tables import as_table, frame_of
from kvlab.core.errors import UserError
from kvlab.evaluation.self_check import judge_needles
from kvlab.results.phase import phase
from kvlab.views.base.view import find_view

METHODS = {
    "chunkkv": ('{"length":4}', lambda place: place % 4 == 0),  # found at the chunk's start alone
    "snapkv": ("{}", lambda place: place < 40),
}


@pytest.fixture
def rows() -> pd.DataFrame:
    """A needle at each of 80 places, found by rules that are known."""
    lines = []
    for method, (settings, finds) in METHODS.items():
        for place in range(80):
            line = {"key": f"{method} {place}", "task": "needle", "difficulty": "{}", "content": "", "length": 512}
            line |= {"depth": None, "index": place, "seed": 1, "method": method, "hyper_parameters": "{}"}
            line |= {"settings": settings, "budget": 0.25, "budget_unit": "fraction", "score": float(finds(place))}
            lines.append(line | {"hidden_at": place})
    return pd.DataFrame(lines)


def test_a_method_of_chunks_finds_by_phase_and_another_does_not(rows: pd.DataFrame) -> None:
    table = phase(rows)
    chunks = table[table["arm"] == "chunkkv"].set_index("phase")["score"]
    assert chunks.to_dict() == {0: 1, 1: 0, 2: 0, 3: 0}
    others = table[table["arm"] == "snapkv"]
    assert others["score"].tolist() == [0.5] * 4 and not others["chunked"].any() and set(others["chunk"]) == {4}
    assert set(table["samples"]) == {20} and (table["score_low"] <= table["score"]).all()


@pytest.mark.parametrize(
    ("settings", "chunk"),
    [('{"read":"quest"}', 16), ('{"read":"quest","read_page":8}', 8), ('{"page":16}', 16)],
)
def test_the_chunk_is_what_the_settings_say(rows: pd.DataFrame, settings: str, chunk: int) -> None:
    assert set(phase(rows.assign(settings=settings))["chunk"]) == {chunk}


def test_rows_without_a_known_place_are_one_sentence_and_others_are_printed(rows: pd.DataFrame) -> None:
    table = as_table(frame_of(rows, "phase"), "phase")
    assert table.row_count == 2
    for without in (rows.drop(columns="hidden_at"), rows.assign(hidden_at=None)):
        with pytest.raises(UserError, match="needle whose place was recorded"):
            frame_of(without, "phase")


def test_methods_of_single_tokens_alone_are_one_sentence(rows: pd.DataFrame) -> None:
    with pytest.raises(UserError, match="No method of these results keeps or reads several tokens together"):
        phase(rows[rows["method"] == "snapkv"])


def test_the_view_names_the_place_that_loses_most(rows: pd.DataFrame) -> None:
    drawn = find_view("phase").draw_frame(phase(rows), rows, source="made up")
    assert drawn.caption == (
        "Of the needles, chunkkv 25 % finds 0 at place 1 of 4 (n = 20) and 1 at 0 (n = 20); token by token, snapkv "
        "25 % finds 0.5 at place 0 of 4 (n = 20) and 0.5 at 0 (n = 20)."
    )
    chunked = phase(rows[rows["method"] == "chunkkv"])
    assert find_view("phase").describe(chunked, rows).endswith("; no method without chunks is here to compare.")
    lines = {trace.name: trace for trace in drawn.figure.data}
    chunks = next(trace for name, trace in lines.items() if name.endswith("(chunks of 4)"))
    others = lines["snapkv 25 %"]
    assert list(chunks.y) == [1, 0, 0, 0] and list(others.y) == [0.5] * 4
    assert (chunks.line.dash, others.line.dash) == ("solid", "dot")


@pytest.mark.parametrize(("found", "verdict"), [(12, "held"), (1, "FAILED"), (24, "FAILED")])
def test_the_law_holds_within_its_interval(found: int, verdict: str) -> None:
    """Half of 500 places kept, 40 tokens after them: 250 + 40 slots; all 24 needles in the full cache."""
    places = range(24)
    common = {"tokens_in_sight": 500, "logical_tokens": 540, "task": "needle"}
    full = [common | {"method": "full", "budget": 1.0, "slots": 540.0, "score": 1.0} for _ in places]
    ours = [
        common | {"method": "streaming-llm", "budget": 0.5, "slots": 290.0, "score": float(place < found)}
        for place in places
    ]
    ((name, said),) = judge_needles(pd.DataFrame(full + ours)).items()
    assert name == "needles at 50%" and said.startswith(f"{verdict}: StreamingLLM finds {found} of 24 needles")
    assert "expected 0.50: 0.50 of the text kept" in said
    weak = pd.DataFrame([line | {"score": 0.0} for line in full] + ours)
    ((_, said),) = judge_needles(weak).items()
    assert said.startswith("not judged, the full cache finds 0 of 24")


def test_page_sizes_are_those_of_sparse_attention() -> None:
    """Tables are read without the model stack, so they repeat the defaults."""
    from kvlab.core.methods.sparse_attention import SPARSE_ATTENTIONS
    from kvlab.results.phase import READ_PAGES

    fields = {name: SPARSE_ATTENTIONS[name].model_fields for name in READ_PAGES}
    assert {name: (found.get("page") or found["chunk"]).default for name, found in fields.items()} == READ_PAGES
