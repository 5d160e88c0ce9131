"""Evaluation rows made up for tests, in the folder where the atlas looks for them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.core.methods import make_method
from kvlab.evaluation.request_parser import parse_request
from kvlab.evaluation.results.rows import ROWS, canonical_json
from kvlab.papers.evaluations import Arm, Experiment
from kvlab.requests.measurement import command_line
from kvlab.results.sources import Sources
from tests.papers.test_scores import row

Score = Callable[[Arm, float, int], tuple[float, float]]  # arm, budget, prompt -> (score, share kept)


def evaluated(
    root: Path,
    arms: Sequence[Arm],
    score: Score,
    budgets: Sequence[float] = (0.1, 0.4),
    tasks: Sequence[str] = ("needle",),
) -> Sources:
    """Eight prompts a task: the full cache scores 1, every arm what `score` says."""
    rows = []
    for task in tasks:
        for index in range(8):
            rows.append(row(task, "full", 1.0, index) | {"slots": 80.0})
            for arm in arms:
                for budget in budgets if make_method(arm.method, **arm.published).needs_budget else (1.0,):
                    value, kept = score(arm, budget, index)
                    own = {"hyper_parameters": canonical_json(arm.published), "slots": 80 * kept}
                    own["key"] = f"{arm.name}{task}{budget}{index}"
                    rows.append(row(task, arm.method, value, index, budget) | own)
    folder = root / "eval" / "made-up"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=ROWS), folder / "part-000000.parquet")
    return Sources(root)


def can_be_run(experiment: Experiment, root: Path) -> None:
    """The experiment's command parses, and every method it names can be made with its options."""
    words = shlex.split(command_line(experiment.needs(Sources(root)).measurement))
    assert words[:2] == ["kvlab", "eval"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    request = parse_request(
        model="mini", tasks=options["--tasks"], files=[], methods=options["--methods"], budgets=options["--budgets"],
        lengths=options.get("--lengths"), depths=None, samples=int(options["--samples"]), seed=0, question_aware="yes",
        batch_rows=None, skip_malformed=False,
    )  # fmt: skip
    for choice in request.choices:
        make_method(choice.method, **choice.hyper_parameters).pipeline()
    asked = {(choice.method, canonical_json(choice.hyper_parameters)) for choice in request.choices}
    assert asked == {(arm.method, canonical_json(arm.published)) for arm in experiment.arms}  # so rows are found again
