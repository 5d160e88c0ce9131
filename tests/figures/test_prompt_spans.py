"""The map of prompt spans: a cell per span and run, strips that add up, outlines where a span is first lost."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kvlab.views.spans import describe_spans, draw_spans, draw_spans_by_budget


def frame_of(runs: list[tuple[str, str, float]], held: list[list[float]]) -> pd.DataFrame:
    """`runs` are (row, column, slots), `held` has a row per run and a column per span."""
    rows = []
    for (row, column, slots), shares in zip(runs, held, strict=True):
        for number, share in enumerate(shares):
            rows.append(
                {
                    "run_id": f"{row}-{column}", "label": f"{row} {column}", "method": row, "row": row,
                    "column": column, "slots": slots, "step": 3, "span": f"part {number}", "first": 10 * number,
                    "tokens": 10, "kept": share / 2, "merged": share / 2, "dropped": 1 - share, "held": share,
                    "unreachable": float(share == 0), "first_dead": share < 0.05, "verdict": "right",
                    "obeyed": pd.NA if number else share > 0.5,
                }
            )  # fmt: skip
    frame = pd.DataFrame(rows)
    return frame.assign(obeyed=frame["obeyed"].astype("boolean"))


RUNS = [("full", "its own budget", 1.0), ("h2o", "50 %", 0.5), ("h2o", "20 %", 0.2), ("snapkv", "20 %", 0.2)]
HELD = [[1.0, 1.0], [0.6, 0.4], [0.2, 0.01], [0.0, 0.5]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_cell_per_span_and_run_with_its_strip_and_the_answers_below(theme: str) -> None:
    frame = frame_of(RUNS, HELD)
    figure = draw_spans(frame, theme)
    ground, *strips, answers, _ = figure.data
    assert len(ground.x) == len(frame)
    total = sum(np.asarray(strip.width, float) for strip in strips)
    assert np.allclose(total, total[0]), "the three fates fill the strip of every cell"
    assert [cell[:2] for cell in ground.customdata] == frame[["run_id", "first"]].to_numpy().tolist()
    assert len(answers.x) == 2 * len(RUNS), "a row of answers and one of rules"
    assert min(answers.base) > max(ground.base)
    assert len(figure.layout.shapes) == 2 * int(frame["first_dead"].sum()), "each outline has an edge"
    texts = [note.text for note in figure.layout.annotations]
    assert {"30 % ✓", "10 % ✗", "1/1", "0/1", "✓ right"} <= set(texts)
    gaps = np.diff(sorted(set(ground.x)))
    assert gaps.min() == 1 and (gaps > 1).sum() == 2, "methods are apart, budgets of one are not"


def test_lines_over_budgets_leave_out_the_full_cache_and_fill_right_answers() -> None:
    figure = draw_spans_by_budget(frame_of(RUNS, HELD), "light")
    assert {line.name for line in figure.data} == {"h2o", "snapkv"}
    assert len(figure.data) == 4, "two methods in two panels"
    first = next(line for line in figure.data if line.name == "h2o")
    assert list(first.x) == [20, 50] and list(first.y) == [10, 30]
    assert set(first.marker.color) == {first.line.color}


def test_the_sentence_names_the_parts_kept_whole_most_and_least() -> None:
    told = describe_spans(frame_of(RUNS, HELD))
    assert told == "Averaged over the runs, most is kept whole of “part 1”, and least of “part 0”."
    assert "no compressed run" in describe_spans(frame_of(RUNS[:1], HELD[:1]))
