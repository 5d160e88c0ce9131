"""Pack a filled runs folder as the results shipped with kvlab (`kvlab.papers.model_exhibits`)."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kvlab.common.formatting import format_bytes
from kvlab.core.errors import UserError
from kvlab.evaluation.results.rows import newest
from kvlab.papers.evidence import rows_of_prompt
from kvlab.papers.exhibit import RECORDED, Choice, Exhibit, Needs
from kvlab.papers.gvote import probe
from kvlab.papers.keepkv import attention, merging
from kvlab.papers.kvmerger import compression, explainers, similarity
from kvlab.papers.model_exhibits import card_row, rows_of
from kvlab.papers.pyramid_pool import recordings
from kvlab.papers.registry import EXHIBITS, find
from kvlab.papers.zsmerge import contents
from kvlab.requests.measurement import MINI
from kvlab.results.shipped_folder import CARDS, DRAWN, EVIDENCE, MADE, MODELS, Shipped
from kvlab.results.sources import BENCH_FOLDER, EVAL_FOLDER, Sources
from kvlab.trace.catalogue import list_comparisons
from kvlab.trace.reader import Run, open_run
from kvlab.views.base.palette import THEMES

FILL = "python -m kvlab.cli.atlas fill"
ROWS_TOGETHER = 8  # figures per row group, because a page reads those of one exhibit
LARGEST = 15_000_000  # bytes of the results of all models
LEFT_OUT = ["prediction", "answer"]  # evaluation columns that no figure uses
# Evidence read from recorded runs and shipped with kvlab; that of the head shares (`beyond`) is not shipped.
ALL_EVIDENCE = (
    attention.CONCENTRATION,
    attention.RETURNING,
    attention.IN_TIME_ROWS,
    attention.PREDICTING,
    compression.WEIGHTS,
    compression.RATIOS,
    similarity.LOCALITY,
    explainers.WINDOWS,
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


@dataclass(frozen=True)
class Packed:
    """Result of `pack`: size in bytes, number of exhibits with data, and keys of the exhibits without."""

    size: int
    exhibits: int
    left_out: tuple[str, ...]


def pack(runs: Path, to: Path, machine: str = "two CPU cores", model: str = "") -> Packed:
    """Write all data behind the atlas on one model to `to`, with a description of the machine.

    Exhibits without data are left out. Benchmarks time no model and ship with mini's results. `model` may be empty if
    the folder has data of one model alone. What was in `to` stays if this fails.

    Raises:
        UserError: the folder holds data of several models and `model` is empty, no recorded comparison of it, or the
            shipped results of all models would be too large.
    """
    model = model or _only_model(runs)
    every = _all_recorded(runs, model)
    sources = Sources(runs, every[0][0], every[0])
    figures, cards = _drawings(sources, EXHIBITS)
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".packing-") as place:
        fresh = Path(place)
        _tables(sources, fresh)
        _write_recorded(fresh, every, figures, cards)
        # Where the results come from.
        record = every[0][0].record
        rows = sources.model_evaluations
        made = {
            "versions": record.versions,
            "model": record.model.name,
            "digest": str(rows["model_digest"].iloc[0]) if len(rows) else "",
            "device": record.device,
            "machine": machine,
            "created": record.created,
            "texts": len(every),
        }
        (fresh / MADE).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
        root = to.parent.parent if to.parent.name == MODELS else to
        others = _size(root) - (_size(to, without=MODELS) if to != root or to.exists() else 0)
        size = _size(fresh) + others
        if size > LARGEST:
            takes = f"{format_bytes(size)} of at most {format_bytes(LARGEST)}"
            raise UserError(f"The shipped results of all models would take {takes}: record fewer texts.")
        # The packed files replace those of `to`; the folder of other models stays.
        for old in to.glob("*"):
            if old.name != MODELS:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        to.mkdir(exist_ok=True)
        for new in fresh.glob("*"):
            new.rename(to / new.name)
    known = set(cards["exhibit"])
    models_own = [one for one in EXHIBITS if one.source != "calculator" and (one.source != "bench" or model == MINI)]
    lacking = (one.key for one in models_own if one.key not in known)
    return Packed(_size(to, without=MODELS), len(known), tuple(lacking))


def _only_model(runs: Path) -> str:
    """The model of the folder's data; raises UserError if there are several."""
    models = Sources(runs).models
    if len(models) > 1:
        raise UserError(f"{runs} holds data of {', '.join(models)}: name one of them with --model.")
    return models[0] if models else MINI


def _size(folder: Path, without: str = "") -> int:
    """Bytes of the files in a folder, except those in its subfolder `without`."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files if file.relative_to(folder).parts[0] != without)


def pack_recorded(runs: Path, to: Path) -> int:
    """Replace the evidence, figures and cards of recorded runs in the output of `pack`; returns the size in bytes.

    Raises:
        UserError: the folder holds no recorded comparison of the model of `to`, or lacks runs of a figure that ships.
    """
    every = _all_recorded(runs, Shipped(to).model if (to / MADE).exists() else _only_model(runs))
    exhibits = [exhibit for exhibit in EXHIBITS if exhibit.source in RECORDED]
    figures, cards = _drawings(Sources(runs, every[0][0], every[0]), exhibits)
    known = pd.read_parquet(to / CARDS)
    ours = known["exhibit"].isin([exhibit.key for exhibit in exhibits])
    if lacking := sorted(set(known.loc[ours, "exhibit"]) - set(cards["exhibit"])):
        raise UserError(f"Nothing was recorded for {', '.join(lacking)}: {FILL} --out {runs} --only them.")
    _write_recorded(to, every, figures, pd.concat([known[~ours], cards], ignore_index=True))
    made = json.loads((to / MADE).read_text(encoding="utf-8")) | {"texts": len(every)}
    (to / MADE).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return sum(file.stat().st_size for file in to.rglob("*") if file.is_file())


def pack_also(runs: Path, to: Path, keys: Sequence[str]) -> int:
    """Add the rows and cards of some evaluation exhibits to the output of `pack`; returns the total size in bytes.

    Raises:
        UserError: an exhibit needs more than evaluations, or nothing was measured for it.
    """
    fresh = Sources(runs, named=Shipped(to).model if (to / MADE).exists() else "")
    cards = []
    for exhibit in (find(*key.split("/")) for key in keys):
        if exhibit.source != "eval":
            raise UserError(f"{exhibit.key} needs more than evaluations: pack everything, without --only.")
        for theme in THEMES:
            drawn = exhibit.draw(fresh, Choice(), theme)
            if isinstance(drawn, Needs):
                raise UserError(f"Nothing was measured for {exhibit.key}: {FILL} --out {runs} --only it.")
            cards.append(card_row(exhibit, drawn, theme))
    for name, group in fresh.model_evaluations.groupby("name"):
        file = to / EVAL_FOLDER / str(name) / "part-000000.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        there = [pd.read_parquet(file)] if file.exists() else []
        rows = newest(pd.concat([*there, group.drop(columns=["name", *LEFT_OUT], errors="ignore")], ignore_index=True))
        rows.to_parquet(file, compression="zstd", index=False)
    known = pd.read_parquet(to / CARDS)
    cards_now = pd.concat([known[~known["exhibit"].isin(keys)], pd.DataFrame(cards)], ignore_index=True)
    cards_now.to_parquet(to / CARDS, compression="zstd", compression_level=12)
    return sum(file.stat().st_size for file in to.rglob("*") if file.is_file())


def _all_recorded(runs: Path, model: str) -> list[list[Run]]:
    """The runs of every complete comparison of the model recorded at level full, oldest first; raises UserError if
    there are none."""
    every = []
    for entry in reversed(list_comparisons(runs)):
        whole = entry.status == "complete" and all(run.level == "full" for run in entry.runs)
        if whole and entry.runs[0].model == model:
            every.append([open_run(runs / run.run_id) for run in entry.runs])
    if not every:
        option = "" if model == MINI else f" --model {model}"
        raise UserError(
            f"{runs} holds no recorded comparison of {model}: fill it with {FILL}{option} --out {runs} first."
        )
    return every


def _write_recorded(to: Path, every: Sequence[list[Run]], figures: pd.DataFrame, cards: pd.DataFrame) -> None:
    """Write the evidence of recorded runs, the figures and the cards."""
    (to / EVIDENCE).mkdir(parents=True, exist_ok=True)
    for evidence in ALL_EVIDENCE:
        if found := [rows for group in every for rows in rows_of_prompt(group, evidence)]:
            rows = pd.concat(found, ignore_index=True)
            rows.drop(columns="run").to_parquet(to / EVIDENCE / f"{evidence.name}.parquet", compression="zstd")
    figures.to_parquet(to / DRAWN, compression="zstd", compression_level=12, row_group_size=ROWS_TOGETHER)
    cards.to_parquet(to / CARDS, compression="zstd", compression_level=12)


def _tables(sources: Sources, to: Path) -> None:
    benchmarks = sources.benchmarks.iloc[: None if sources.model == MINI else 0]
    for folder, rows in ((EVAL_FOLDER, sources.model_evaluations), (BENCH_FOLDER, benchmarks)):
        for name, group in rows.groupby("name") if len(rows) else ():
            file = to / folder / (f"{name}/part-000000.parquet" if folder == EVAL_FOLDER else f"{name}.parquet")
            file.parent.mkdir(parents=True, exist_ok=True)
            kept = group.drop(columns=["name", *LEFT_OUT], errors="ignore")
            kept.to_parquet(file, compression="zstd", index=False)


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
    # Exhibits with the largest figure first, so that those with the same maps share a row group and compress well.
    largest: dict[str, int] = {}
    for row in figures:
        largest[row["exhibit"]] = max(largest.get(row["exhibit"], 0), len(row["frame"]))
    figures.sort(key=lambda row: -largest[row["exhibit"]])
    # A frame that is the same in another theme is written once.
    first: dict[tuple[str, str], str] = {}
    rows = []
    for row in figures:
        key = row["exhibit"], row["name"]
        rows.append(row | {"frame": ""} if first.get(key) == row["frame"] else row)
        first.setdefault(key, row["frame"])
    return pd.DataFrame(rows), pd.DataFrame(cards)
