"""Pack a filled runs folder as the results shipped with kvlab (`kvlab.atlas.shipped_exhibits`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pandas as pd

from kvlab.atlas.evidence import Evidence, evidence_rows
from kvlab.atlas.exhibit import RECORDED, Choice, Exhibit, Needs
from kvlab.atlas.gvote import probe
from kvlab.atlas.keepkv import attention, merging
from kvlab.atlas.kvmerger import explainers, similarity, sparsity, weights
from kvlab.atlas.pyramid_pool import recordings
from kvlab.atlas.registry import EXHIBITS, find
from kvlab.atlas.shipped_exhibits import card_row, rows_of
from kvlab.atlas.zsmerge import contents
from kvlab.common.errors import UserError
from kvlab.common.formatting import format_bytes
from kvlab.evaluate.results.rows import newest
from kvlab.figures.base.palette import Theme
from kvlab.results.shipped_folder import CARDS, DRAWN, EVIDENCE, MADE
from kvlab.results.sources import BENCH_FOLDER, EVAL_FOLDER, Sources
from kvlab.trace.catalogue import list_comparisons
from kvlab.trace.reader import Run, open_run

ROWS_TOGETHER = 8  # figures per row group, because a page reads those of one exhibit
LARGEST = 15_000_000
THEMES: tuple[Theme, ...] = ("light", "dark")
LEFT_OUT = ["prediction", "answer"]  # evaluation columns that no figure uses
# Evidence read from recorded runs and shipped with kvlab; that of the head shares (`beyond`) is not shipped.
ALL_EVIDENCE = (
    attention.CONCENTRATION,
    attention.RETURNING,
    attention.IN_TIME_ROWS,
    attention.PREDICTING,
    weights.EVIDENCE,
    sparsity.EVIDENCE,
    similarity.EVIDENCE,
    explainers.EVIDENCE,
    recordings.AXES,
    recordings.LINES,
    recordings.WINDOWS,
    recordings.DISTANCES,
    merging.SAG,
    probe.CHANNELS,
    probe.QUERIES,
    merging.INFLUENCE,
    contents.DRIFT,
    contents.FILLED,
)


def pack(runs: Path, to: Path, machine: str = "two CPU cores") -> int:
    """Write all data behind the atlas to `to`, with a description of the machine; returns the size in bytes.

    Raises:
        UserError: the folder holds no recorded comparison, or the result would be too large.
    """
    every = _all_recorded(runs)
    shutil.rmtree(to, ignore_errors=True)
    newest = Sources(runs, every[0][0], every[0])
    _tables(newest, to)
    _evidence(every, to)
    _write_drawings(to, *_drawings(newest, EXHIBITS))
    record, rows = every[0][0].record, newest.evaluations
    digest = str(rows["model_digest"].iloc[0]) if len(rows) else ""
    made = {
        "versions": record.versions, "model": record.model.name, "digest": digest, "device": record.device,
        "machine": machine, "created": record.created, "texts": len(every),
    }  # fmt: skip
    (to / MADE).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in to.rglob("*") if file.is_file())
    if size > LARGEST:
        raise UserError(f"{to} takes {format_bytes(size)} of at most {format_bytes(LARGEST)}: record fewer texts.")
    return size


def pack_recorded(runs: Path, to: Path) -> int:
    """Replace the evidence, figures and cards of recorded runs in the output of `pack`; returns the size in bytes.

    Raises:
        UserError: the folder holds no recorded comparison, or lacks runs of a figure that ships.
    """
    every = _all_recorded(runs)
    exhibits = [exhibit for exhibit in EXHIBITS if exhibit.source in RECORDED]
    figures, cards = _drawings(Sources(runs, every[0][0], every[0]), exhibits)
    known = pd.read_parquet(to / CARDS)
    ours = known["exhibit"].isin([exhibit.key for exhibit in exhibits])
    if lacking := sorted(set(known.loc[ours, "exhibit"]) - set(cards["exhibit"])):
        raise UserError(f"Nothing was recorded for {', '.join(lacking)}: kvlab atlas fill --out {runs} --only them.")
    _evidence(every, to)
    _write_drawings(to, figures, pd.concat([known[~ours], cards], ignore_index=True))
    made = json.loads((to / MADE).read_text(encoding="utf-8")) | {"texts": len(every)}
    (to / MADE).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return sum(file.stat().st_size for file in to.rglob("*") if file.is_file())


def pack_also(runs: Path, to: Path, keys: Sequence[str]) -> int:
    """Add the rows and cards of some evaluation exhibits to the output of `pack`; returns the total size in bytes.

    Raises:
        UserError: an exhibit needs more than evaluations, or nothing was measured for it.
    """
    fresh, cards = Sources(runs), []
    for exhibit in (find(*key.split("/")) for key in keys):
        if exhibit.source != "eval":
            raise UserError(f"{exhibit.key} needs more than evaluations: pack everything, without --only.")
        for theme in THEMES:
            drawn = exhibit.draw(fresh, Choice(), theme)
            if isinstance(drawn, Needs):
                raise UserError(f"Nothing was measured for {exhibit.key}: kvlab atlas fill --out {runs} --only it.")
            cards.append(card_row(exhibit, drawn, theme))
    for name, group in fresh.evaluations.groupby("name"):
        file = to / EVAL_FOLDER / str(name) / "part-000000.parquet"
        rows = newest(pd.concat([pd.read_parquet(file), _kept(group)], ignore_index=True))
        rows.to_parquet(file, compression="zstd", index=False)
    known = pd.read_parquet(to / CARDS)
    cards_now = pd.concat([known[~known["exhibit"].isin(keys)], pd.DataFrame(cards)], ignore_index=True)
    cards_now.to_parquet(to / CARDS, compression="zstd", compression_level=12)
    return sum(file.stat().st_size for file in to.rglob("*") if file.is_file())


def recorded(runs: Path) -> Iterator[list[Run]]:
    """The runs of every complete comparison recorded at level full, oldest first."""
    for entry in reversed(list_comparisons(runs)):
        if entry.status == "complete" and all(run.level == "full" for run in entry.runs):
            yield [open_run(runs / run.run_id) for run in entry.runs]


def _all_recorded(runs: Path) -> list[list[Run]]:
    """All recorded comparisons; raises UserError if there are none."""
    every = list(recorded(runs))
    if not every:
        raise UserError(f"{runs} holds no recorded comparison: fill it with kvlab atlas fill --out {runs} first.")
    return every


def _evidence(every: Sequence[list[Run]], to: Path) -> None:
    (to / EVIDENCE).mkdir(parents=True, exist_ok=True)
    for evidence in ALL_EVIDENCE:
        if found := [rows for group in every for rows in _shown(group, evidence)]:
            rows = pd.concat(found, ignore_index=True)
            rows.drop(columns="run").to_parquet(to / EVIDENCE / f"{evidence.name}.parquet", compression="zstd")


def _write_drawings(to: Path, figures: pd.DataFrame, cards: pd.DataFrame) -> None:
    figures.to_parquet(to / DRAWN, compression="zstd", compression_level=12, row_group_size=ROWS_TOGETHER)
    cards.to_parquet(to / CARDS, compression="zstd", compression_level=12)


def _shown(group: list[Run], evidence: Evidence) -> list[pd.DataFrame]:
    """The rows of one prompt: of all runs of the methods, or without methods, of the first run that has any.

    Only one run of a comparison holds its probe.
    """
    methods = evidence.methods
    mine = [run for run in group if run.record.method in methods]
    runs = mine if methods else sorted(group, key=lambda run: run.record.method != "full")
    found = (rows for run in runs if len(rows := evidence_rows(run, evidence)))
    return list(found if methods else islice(found, 1))


def _tables(sources: Sources, to: Path) -> None:
    for folder, rows in ((EVAL_FOLDER, sources.evaluations), (BENCH_FOLDER, sources.benchmarks)):
        for name, group in rows.groupby("name") if len(rows) else ():
            file = to / folder / (f"{name}/part-000000.parquet" if folder == EVAL_FOLDER else f"{name}.parquet")
            file.parent.mkdir(parents=True, exist_ok=True)
            _kept(group).to_parquet(file, compression="zstd", index=False)


def _kept(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns=["name", *[column for column in LEFT_OUT if column in rows]])


def _drawings(sources: Sources, exhibits: Sequence[Exhibit]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The figures of recorded runs, and the cards of these exhibits except calculators."""
    figures: list[dict[str, str]] = []
    cards = []
    for exhibit in exhibits:
        for theme in THEMES if exhibit.source != "calculator" else ():
            drawn = exhibit.draw(sources, Choice(), theme)
            if isinstance(drawn, Needs):
                continue
            cards.append(card_row(exhibit, drawn, theme))
            if exhibit.source in RECORDED:
                figures += rows_of(exhibit, drawn, theme)
    # Largest first, so that exhibits with the same maps share a row group and compress well.
    return pd.DataFrame(sorted(figures, key=_room(figures))), pd.DataFrame(cards)


def _room(figures: Sequence[dict[str, str]]) -> Callable[[dict[str, str]], int]:
    """Sort key: the largest figure of the exhibit, which keeps an exhibit's figures in order."""
    largest: dict[str, int] = {}
    for row in figures:
        largest[row["exhibit"]] = max(largest.get(row["exhibit"], 0), len(row["frame"]))
    return lambda row: -largest[row["exhibit"]]
