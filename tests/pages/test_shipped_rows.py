"""Rows that ship with kvlab can be copied into a results folder: every reader of rows takes them, texts or not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from app.evaluation.quality_results import NO_TEXTS
from kvlab import jobs
from kvlab.cli.options.tables import Kind, as_table, frame_of
from kvlab.core.assets import project_root
from kvlab.core.errors import UserError
from kvlab.evaluation.request import SampleJob
from kvlab.evaluation.results.rows import ResultStore, read_results
from kvlab.evaluation.scoring.metrics import rescore
from kvlab.results import quality_tables
from kvlab.results.risk.losses import losses, measurable
from kvlab.results.sources import Sources

Open = Callable[..., AppTest]
ASSETS = project_root() / "assets"
FILES = sorted(file for part in ("evidence/*", "results/eval") for file in ASSETS.glob(f"{part}/*/*.parquet"))
FOLDERS = sorted({file.parent for file in FILES})
WITHOUT_TEXTS = next(file.parent for file in FILES if "prediction" not in pq.read_schema(file).names)
TABLES: tuple[Kind, ...] = ("deaths", "reach", "reasoning")


def first_prompts(folder: Path) -> pa.Table:
    """Two prompts of a folder's first task under the full cache and one method, with the columns that it has."""
    table = pq.read_table(sorted(folder.glob("*.parquet"))[0], partitioning=None)
    full = pc.equal(table["method"], "full")
    others = table.filter(pc.invert(full))
    wanted = pc.less(table["index"], 2)
    for name in ("task", "difficulty", "length", "depth", "question_aware", "hyper_parameters", "budget"):
        one = others if len(others) else table
        same = pc.equal(table[name], one[name][0]) if one[name][0].is_valid else pc.is_null(table[name])
        wanted = pc.and_(wanted, pc.or_(same, full) if name in ("hyper_parameters", "budget") else same)
    kept = pc.or_(full, pc.equal(table["method"], others["method"][0])) if len(others) else full
    return table.filter(pc.and_(wanted, kept))


def copied(folder: Path, root: Path) -> Path:
    """A results folder with the first prompts of a shipped one."""
    to = root / "eval" / folder.name
    to.mkdir(parents=True)
    pq.write_table(first_prompts(folder), to / "part-000000.parquet")
    return to


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_every_reader_takes_shipped_rows(folder: Path, tmp_path: Path):
    there = copied(folder, tmp_path)
    rows = Sources(tmp_path).every_evaluation
    assert len(rows) and set(rows["key"]) == set(read_results(there)["key"]) == ResultStore(there).keys()
    compressed = quality_tables.label_rows(rows[rows["method"] != "full"])
    for line in compressed.head(1).itertuples():
        found = quality_tables.prompts_behind(rows, line.task, line.arm, line.asked)
        assert set(found["key"]) <= set(rows["key"]) and len(found)
        for name in measurable(rows):
            assert losses(rows, name)["loss"].between(0, 1).all()
    for kind in TABLES:
        with suppress(UserError):  # these rows have nothing for this table
            assert as_table(frame_of(rows, kind), kind).row_count


def test_without_texts_no_text_is_compared_or_scored_again(tmp_path: Path):
    copied(WITHOUT_TEXTS, tmp_path)
    rows = Sources(tmp_path).evaluations
    assert rows["prediction"].isna().all() and "text" not in measurable(rows)
    with pytest.raises(UserError, match=r"No row has a generated text: .*shipped"):
        losses(rows, "text")
    with pytest.raises(UserError, match="shipped without their texts: evaluate them again"):
        rescore(rows, "f1")


def test_quality_says_that_texts_were_not_shipped_and_records_a_prompt(runs_root: Path, open_page: Open):
    copied(WITHOUT_TEXTS, runs_root)
    page = open_page("quality", evaluation=WITHOUT_TEXTS.name)
    assert not page.exception and not page.error
    assert NO_TEXTS in [caption.value for caption in page.caption]
    (shown,) = [element.value for element in page.dataframe if "score" in element.value]
    assert "generated text" not in shown and len(shown)
    page = page.button(key="record_sample").click().run()
    (job,) = jobs.list_jobs(runs_root)
    asked = jobs.request_of(runs_root, job.job_id)
    assert isinstance(asked, SampleJob) and asked.request.model == "mini"


def test_safe_budget_offers_what_the_rows_have(runs_root: Path, open_page: Open):
    copied(WITHOUT_TEXTS, runs_root)
    page = open_page("safe_budget", evaluation=WITHOUT_TEXTS.name)
    assert not page.exception and not page.error
    (ways,) = [group for group in page.button_group if group.key == "changed_by"]
    assert [option.content for option in ways.proto.options] == ["the right answer is lost", "the score falls"]
