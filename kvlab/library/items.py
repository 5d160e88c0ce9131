"""One table of everything in a runs folder: comparisons (a batch of repeats is one), evaluations, benchmarks.

Columns, one row per item:

    kind, id          comparison, evaluation or benchmark, and its name; `members` are the ids of a batch's comparisons
    title, name       displayed title, and the user's name for it ("" if none)
    status            running, complete, cancelled or failed
    created           ISO 8601 in UTC; of results, time of their newest file
    model             comma-separated for results of several
    methods, budgets  tuples of text, without the full cache
    tokens            of the prompt; none for results
    runs              number of runs, or rows of results
    right, judged     compressed runs with the right answer, and number of judged ones
    answer            `4 of 6 right` as text
    least_kl          of the compressed run closest to the full cache, nats per token; `closest` names it
    score             mean score of the compressed rows of an evaluation (for most tasks 0 to 1)
    bytes             on disk; none if not read yet
    owner             user who requested it on a shared server
    tags, starred, note, archived   user labels (`kvlab.trace.user_labels`)
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.core import BYTE_SHARE, BYTES, FULL, SLOTS, Budget, UserError
from kvlab.trace import catalogue, restore_results
from kvlab.trace.catalogue import ComparisonEntry, RunEntry, by_batch, list_comparisons, worst_status
from kvlab.trace.reader import Run, open_run
from kvlab.trace.record import read_record
from kvlab.trace.user_labels import Kind, Labels, label_path, may_view
from kvlab.views.frames import board, compare
from kvlab.views.frames.labels import parse_label

MEASURES = ("mean_kl", "top1_agreement", "live_ratio")
NONE = Labels()
log = logging.getLogger(__name__)

AllLabels = Mapping[tuple[Kind, str], Labels]


def without_results(
    comparisons: Sequence[ComparisonEntry], known: Mapping[str, Mapping[str, object]], labels_of: AllLabels
) -> list[ComparisonEntry]:
    """Finished comparisons whose results are not cached, or were judged by another answer."""
    unread = []
    for entry in comparisons:
        answer = labels_of.get(("comparison", entry.comparison_id), NONE).answer
        are_known = all(known.get(run.run_id, {}).get("basis") == _basis(run, answer) for run in entry.runs)
        if entry.status != "running" and not are_known:
            unread.append(entry)
    return unread


def cache_results(
    root: Path, comparisons: Sequence[ComparisonEntry], labels_of: AllLabels, seconds: float = float("inf")
) -> int:
    """Compute and cache results for about `seconds`; returns how many comparisons are left."""
    until = time.monotonic() + seconds
    for place, entry in enumerate(comparisons):
        if time.monotonic() > until:
            return len(comparisons) - place
        labels = labels_of.get(("comparison", entry.comparison_id), NONE)
        table = _measured(root, entry, labels)
        found = []
        for run in entry.runs:
            row = table.loc[run.run_id] if run.run_id in table.index else pd.Series(dtype=object)
            values = {name: row.get(name) for name in MEASURES}
            found.append(
                {
                    "run_id": run.run_id,
                    "basis": _basis(run, labels.answer),
                    "verdict": row.get("verdict"),
                    "bytes": folder_bytes(root / run.run_id),
                    **{name: None if pd.isna(value) else float(value) for name, value in values.items()},
                }
            )
        catalogue.keep_results(root, found)
    return 0


def _measured(root: Path, entry: ComparisonEntry, labels: Labels) -> pd.DataFrame:
    """`headline` by run id, with verdicts if there is an answer; empty if the runs cannot be compared."""
    runs: list[Run] = []
    for run in entry.runs:
        try:
            runs.append(open_run(root / run.run_id))
        except UserError as error:
            log.warning("run %s cannot be read: %s", run.run_id, error)
    if not runs:
        return pd.DataFrame()
    try:
        wanted = board.expected_answer(runs, labels)
        table = compare.headline(runs) if wanted is None else board.verdicts(runs, board.check_answer(runs, wanted))
    except (UserError, ValueError, KeyError) as error:
        log.warning("comparison %s cannot be read: %s", runs[0].record.comparison_id, error)
        return pd.DataFrame()
    return table.set_index("run_id")


def folder_bytes(folder: Path) -> int:
    """Total size of a folder's files, without links."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            file = os.lstat(os.path.join(at, name))
            total += file.st_size if not os.path.islink(os.path.join(at, name)) else 0
    return total


def _basis(run: RunEntry, answer: str | None) -> str:
    """Key of a cached result: it changes with the run's status and the labelled answer."""
    return f"{run.status} {answer or ''}"


FOLDERS: dict[Kind, str] = {"evaluation": "eval", "benchmark": "bench"}
COLUMNS = (
    "kind", "id", "members", "title", "name", "status", "created", "model", "methods", "budgets", "tokens", "runs",
    "right", "judged", "answer", "least_kl", "closest", "score", "bytes", "owner", "tags",
    "starred", "note", "archived",
)  # fmt: skip
Known = Mapping[str, Mapping[str, object]]
NOTHING: Mapping[str, object] = {}
NO_LABELS = Labels()
SHOWN_LABELS = {"name", "tags", "starred", "note", "archived"}
NAMED_UNITS = (SLOTS, BYTES)


def item_table(root: Path, comparisons: Sequence[ComparisonEntry], known: Known, labels_of: AllLabels) -> pd.DataFrame:
    """The table, newest first; `known` are the cached results in the index, `labels_of` all labels."""
    rows = [_comparison(group, known, labels_of) for group in by_batch(comparisons)]
    for kind in FOLDERS:
        for name, path in result_paths(root, kind).items():
            labels = labels_of.get((kind, name), NO_LABELS)
            files = sorted(_parts(path)) if path.is_dir() else [path]
            stamps = tuple((str(file), file.stat().st_mtime_ns) for file in files)
            newest = datetime.fromtimestamp(max(stamp for _, stamp in stamps) / 1e9, UTC)
            rows.append(
                {
                    "kind": kind,
                    "id": name,
                    "members": (name,),
                    "title": labels.name or name,
                    "status": "complete",
                    "created": newest.isoformat(timespec="seconds"),
                    "tokens": None,
                    "right": None,
                    "judged": 0,
                    "answer": "",
                    "least_kl": None,
                    "closest": "",
                    "owner": labels.owner,
                    "bytes": folder_bytes(path) if path.is_dir() else path.stat().st_size,
                    **_summary(kind, stamps),
                    **labels.model_dump(include=SHOWN_LABELS),
                }
            )
    table = pd.DataFrame(rows, columns=COLUMNS)
    table = table.astype({"tokens": "Int64", "runs": "Int64", "right": "Int64", "judged": "Int64", "bytes": "Int64"})
    table = table.astype({"least_kl": float, "score": float, "starred": bool, "archived": bool})
    return table.sort_values("created", ascending=False, kind="stable", ignore_index=True)


def result_paths(root: Path, kind: Kind) -> dict[str, Path]:
    """The folders of evaluations, or files of benchmarks, that the current user may see, by the results' names."""
    folder = Path(root) / FOLDERS[kind]
    if kind == "benchmark":
        found = {path.stem: path for path in sorted(folder.glob("*.parquet")) if not path.name.startswith(".")}
    else:
        found = {path.name: path for path in sorted(folder.glob("*")) if path.is_dir() and next(_parts(path), None)}
    return {name: path for name, path in found.items() if may_view(root, name, kind)}


def result_path(root: Path, kind: Kind, name: str) -> Path:
    """Path of the results with this name."""
    return Path(root) / FOLDERS[kind] / (f"{name}.parquet" if kind == "benchmark" else name)


def _comparison(group: Sequence[ComparisonEntry], known: Known, labels_of: AllLabels) -> dict[str, object]:
    first = group[0]
    labels = labels_of.get(("comparison", first.comparison_id), NO_LABELS)
    runs = [run for entry in group for run in entry.runs]
    compressed = [run for run in runs if run.method != FULL.method]
    found = [known.get(run.run_id, NOTHING) for run in compressed]
    verdicts = [row["verdict"] for row in found if row.get("verdict") not in (None, "unfinished")]
    right = sum(verdict == "right" for verdict in verdicts)
    gaps: dict[str, list[float]] = {}  # of each method and budget, over the prompts
    for run, row in zip(compressed, found, strict=True):
        if isinstance(gap := row.get("mean_kl"), float):  # 0 is a valid KL
            gaps.setdefault(run.label, []).append(gap)
    means = {label: fmean(over) for label, over in gaps.items()}
    closest = min(means, key=means.__getitem__, default="")
    sizes = [known.get(run.run_id, NOTHING).get("bytes") for run in runs]
    return {
        "kind": "comparison",
        "id": first.comparison_id,
        "members": tuple(entry.comparison_id for entry in group),
        "title": labels.name or first.text or first.comparison_id,
        "status": worst_status({entry.status for entry in group}),
        "created": datetime.fromisoformat(first.created).astimezone(UTC).isoformat(timespec="seconds"),
        "model": first.runs[0].model,
        "methods": tuple(dict.fromkeys(run.method for run in compressed)),
        "budgets": tuple(dict.fromkeys(word for run in compressed if (word := parse_label(run).budget))),
        "tokens": first.runs[0].prompt_tokens,
        "runs": len(runs),
        "right": right if verdicts else None,
        "judged": len(verdicts),
        "answer": f"{right} of {len(verdicts)} right" if verdicts else "",
        "least_kl": means.get(closest),
        "closest": closest,
        "score": None,
        "owner": first.owner,
        "bytes": None if None in sizes else sum(sizes),  # type: ignore[arg-type]  # none of them is None here
        **labels.model_dump(include=SHOWN_LABELS),
    }


@lru_cache(maxsize=2_000)
def _summary(kind: Kind, stamps: tuple[tuple[str, int], ...]) -> Mapping[str, object]:
    """Summary of result rows; the stamps make it recomputed when a file changes."""
    names = ["method", "model", "budget", "budget_unit", *(["score"] if kind == "evaluation" else [])]
    tables = []
    for file, _ in stamps:
        with contextlib.suppress(pa.ArrowException, OSError):
            tables.append(pq.read_table(file, columns=names).to_pandas())
    rows = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=names)
    compressed = rows[rows["method"] != FULL.method]
    asked = compressed[["budget", "budget_unit"]].dropna().drop_duplicates()
    budgets = [
        Budget.from_number(amount, unit).description
        if unit in NAMED_UNITS
        else f"{100 * amount:g} %{' of the bytes' if unit == BYTE_SHARE else ''}"
        for amount, unit in asked.itertuples(index=False)
    ]
    return {
        "model": ", ".join(rows["model"].dropna().unique()),
        "methods": tuple(filter(None, compressed["method"].dropna().unique())),
        "budgets": tuple(dict.fromkeys(budgets)),
        "runs": len(rows),
        "score": compressed["score"].mean() if len(compressed) and kind == "evaluation" else None,
    }


def _parts(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.parquet") if not path.name.startswith("."))


def item_paths(root: Path, kind: Kind, names: Sequence[str]) -> list[Path]:
    """All paths of these comparisons, evaluations or benchmarks: recordings, results, labels.

    Raises:
        UserError: there is no such item, or one of the comparisons is still running.
    """
    root = Path(root)
    paths: list[Path] = []
    for name in names:
        if kind == "comparison":
            found = find_comparison(root, name)
            if found.status == "running":
                raise UserError(f"{found.title[:60]} is still running: wait until it ends, or cancel it first.")
            name = found.comparison_id
            made = [Path(run.run_id) for run in found.runs] + [Path(restore_results.FOLDER) / name]
        else:
            asked = result_path(root, kind, name)
            made = [path.relative_to(root) for path in result_paths(root, kind).values() if path == asked]
            if not made:
                raise UserError(f"There is no {kind} {name[:80]!r} in {root}: `kvlab runs ls` lists all.")
        labels = label_path(root, name, kind).relative_to(root)
        paths += [path for path in (*made, labels) if (root / path).exists()]
    return paths


def find_comparison(root: Path, name: str) -> ComparisonEntry:
    """The comparison with this id, or with a run of this id; raises UserError if there is none."""
    for entry in list_comparisons(root):
        if name == entry.comparison_id or any(run.run_id == name for run in entry.runs):
            return entry
    raise UserError(f"There is no comparison {name[:80]!r} in {root}: `kvlab runs ls` lists all.")


SEPARATOR = "/"  # not part of any comparison id
MOST = 12


def joint_id(ids: Sequence[str]) -> str:
    """URL name of these comparisons together."""
    return SEPARATOR.join(dict.fromkeys(ids))


def split_joint_id(text: str) -> list[str]:
    """The ids in a `joint_id` of several comparisons; empty for a single one."""
    ids = list(dict.fromkeys(filter(None, text.split(SEPARATOR))))
    return ids if SEPARATOR in text else []


def join_comparisons(root: Path, asked: str, comparisons: Sequence[ComparisonEntry]) -> ComparisonEntry:
    """Join the comparisons in `joint_id`: the first's full cache, then all compressed runs, oldest first.

    The first comparison's labels apply. The other full caches are left out as duplicates.

    Raises:
        UserError: one is missing, there are too many, or they differ in prompt, model or the full cache's text.
    """
    by_id = {entry.comparison_id: entry for entry in comparisons}
    ids = split_joint_id(asked) or [asked]
    missing = [one for one in ids if one not in by_id]
    if missing:
        raise UserError(f"There is no comparison {missing[0][:60]!r} in this folder of runs: choose others on Runs.")
    if len(ids) > MOST:
        raise UserError(f"At most {MOST} comparisons can be viewed together, not {len(ids)}.")
    entries = [by_id[one] for one in ids]
    # The full caches, else the first runs, say what the comparisons are over; complete ones are preferred.
    records = []
    for entry in entries:
        complete = [run for run in entry.runs if run.status == "complete"] or list(entry.runs)
        reference = next((run for run in complete if run.method == FULL.method), complete[0])
        records.append(read_record(root / reference.run_id))
    known = records[0]
    for record in records[1:]:
        other = f"{record.title or record.comparison_id}"[:60]
        if record.prompt != known.prompt:
            raise UserError(
                f"{other!r} is over another prompt: only runs over the same prompt can be compared by token. For means "
                "over several prompts use a batch of repeats, or an evaluation (page Many prompts)."
            )
        if (record.model.name, record.model.dtype, record.chat) != (known.model.name, known.model.dtype, known.chat):
            raise UserError(f"{other!r} has another model or chat template, so the runs cannot be compared.")
        if record.forced_text != known.forced_text:
            raise UserError(
                f"{other!r} was compared along another continuation (its length or seed differs): run them again with "
                "the same number of new tokens."
            )
    first, *others = entries
    further = [run for entry in others for run in entry.runs if run.method != FULL.method]
    return ComparisonEntry.from_runs(joint_id(ids), (*first.runs, *further))
