"""Tables of evaluations on the command line: no row is left out, and a number that is not there is a dash."""

from __future__ import annotations

import pandas as pd

from kvlab.cli.options.tables import as_table
from kvlab.evaluation.results.rows import ROWS
from kvlab.results.part_tables import reasoning_table
from tests.papers.test_scores import row


def test_a_row_without_a_length_or_a_score_is_shown() -> None:
    answers = {"answer_tokens": 10, "loop_tokens": 0}
    rows = [row("walk", "full", 1.0, index) | {"key": str(index)} | answers for index in range(2)]
    rows[1]["length"] = None
    frame = reasoning_table(pd.DataFrame(rows, columns=ROWS.names))
    frame.loc[frame["length"].isna(), ["score", "score_low", "score_high"]] = None
    shown = as_table(frame, "reasoning")
    assert shown.row_count == 2
    scores = next(list(column.cells) for column in shown.columns if column.header == "score (95 %)")
    assert scores[1] == "–" and scores[0].startswith("1.00")
