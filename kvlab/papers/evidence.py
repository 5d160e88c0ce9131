"""The measurements that exhibits need, with results in the folders that the dashboard reads, and a head of a run."""

import hashlib
import io
import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from kvlab.common.atomic_write import replace_file
from kvlab.common.formatting import mean_words
from kvlab.common.intervals import Interval, mean_interval
from kvlab.core import UserError, format_spec, parse_spec
from kvlab.papers.exhibit import Needs
from kvlab.requests.measurement import Benchmark, Budgets, RecordedComparison
from kvlab.results.sources import BENCH_FOLDER, Sources
from kvlab.results.verdict import Basis
from kvlab.trace.reader import Run
from kvlab.views.base.provenance import as_published

# Keep on disk what was computed from recorded runs, by the state of its data and of the code that computed it.
#
# Files are in the hidden folder `.atlas` of the runs. A file of another state counts as missing; one that cannot be
# written, as in a folder that is read only, is left out.

FOLDER = ".atlas"
MOST_FILES = 6000  # of one kind: some 30 comparisons in both themes
CODE = ("papers", "analysis", "figures", "views", "results", "common")


class DiskCache:
    """Values of one `kind` in a folder of runs, one file per key with the state that it was computed from."""

    def __init__(self, root: Path, kind: str) -> None:
        self._folder = root / FOLDER / kind

    def _path(self, key: Sequence[str]) -> Path:
        return self._folder / hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()[:32]

    def read(self, key: Sequence[str], state: str) -> bytes | None:
        """What was kept; None if there is nothing of this state."""
        try:
            head, _, body = self._path(key).read_bytes().partition(b"\n")
        except OSError:
            return None
        return body if head == f"{_code()} {state}".encode() else None

    def write(self, key: Sequence[str], state: str, body: bytes) -> None:
        """Keep this in place of what the key had."""
        path = self._path(key)
        try:
            files = [] if path.exists() else list(self._folder.glob("*"))
            # The oldest quarter makes room if there are too many.
            if len(files) >= MOST_FILES:
                for file in sorted(files, key=lambda file: file.stat().st_mtime)[: MOST_FILES // 4]:
                    file.unlink(missing_ok=True)
            content = f"{_code()} {state}\n".encode() + body
            replace_file(path, lambda file: file.write_bytes(content))
        except (OSError, UserError) as error:
            logging.getLogger(__name__).info("%s could not be kept: %s", path, error)


@cache
def _code() -> str:
    """Digest of the code that draws and judges: a changed rule must not show an old verdict."""
    root = Path(__file__).parents[1]
    files = sorted(
        file for name in CODE for file in (root / name).rglob("*") if file.suffix in (".py", ".toml", ".csv")
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


MOST_PROMPTS = 12
MOST_KEPT = 2000
NAMES = ["prompt", "run", "method", "label"]
log = logging.getLogger(__name__)
_kept: dict[tuple[str, str, int], pd.DataFrame] = {}


@dataclass(frozen=True)
class Evidence:
    """Rows of one run behind a claim, one per (layer, head) or run; columns are defined by the claim's module.

    `methods` names the methods whose runs are used; empty: any run of the prompt, preferably the full cache's.
    """

    name: str
    of_run: Callable[[Run], pd.DataFrame]
    methods: tuple[str, ...] = ()


def gather(sources: Sources, evidence: Evidence, like: Sequence[Run] = ()) -> pd.DataFrame:
    """The rows of all prompts of the current model, with columns `NAMES`; repeated prompts count once.

    With `like`, only runs with the method, settings and budget of one of them count. Shipped rows are precomputed.
    """
    if sources.shipped is not None:
        found = sources.shipped.evidence(evidence.name)
        labels = {run.record.label for run in like}
        return found[found["label"].isin(labels)] if labels and len(found) else found
    frames: list[pd.DataFrame] = []
    prompts: set[str] = set()
    labels = {run.record.label for run in like}
    for runs in _by_prompt(sources, evidence, labels):
        prompt = prompt_id(runs[0])
        if prompt in prompts or not (parts := rows_of_prompt(runs, evidence, labels)):
            continue
        prompts.add(prompt)
        frames += parts
        if len(prompts) == MOST_PROMPTS:
            break
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=NAMES)


def prompt_id(run: Run) -> str:
    """Identify a prompt by its text."""
    return hashlib.sha256(run.record.prompt.encode()).hexdigest()[:12]


def kept_rows(run: Run, evidence: Evidence) -> pd.DataFrame:
    """The rows of one run with columns `NAMES`, from memory or disk where they were computed before; empty if the run
    lacks the data. Those of a run that is still going are not kept on disk."""
    key = (evidence.name, str(run.path), (run.path / "run.json").stat().st_mtime_ns)
    if key not in _kept:
        while len(_kept) >= MOST_KEPT:
            _kept.pop(next(iter(_kept)), None)
        record = run.record
        store = DiskCache(run.path.parent, "evidence") if record.status == "complete" else None
        place = (record.run_id, evidence.name)
        # The run's record and the list of its parts change with its data.
        files = (run.path / name for name in ("run.json", "parts.json"))
        state = hashlib.sha256(b"".join(file.read_bytes() for file in files if file.exists())).hexdigest()
        rows = None
        if store and (body := store.read(place, state)) is not None:
            with suppress(OSError, ValueError):  # cut off
                rows = pd.read_parquet(io.BytesIO(body))
        if rows is None:
            names = {"prompt": prompt_id(run), "run": record.run_id, "method": record.method, "label": record.label}
            try:
                rows = evidence.of_run(run).assign(**names)
            except UserError as error:
                log.info("%s is no evidence of %s: %s", run.path, evidence.name, error)
                rows = pd.DataFrame(columns=NAMES)
            rows.attrs.clear()
            if store:
                store.write(place, state, rows.to_parquet(compression="zstd", index=False))
        _kept[key] = rows
    return _kept[key]


def _by_prompt(sources: Sources, evidence: Evidence, labels: set[str]) -> Iterator[list[Run]]:
    """Candidate runs, comparison by comparison: the current one, then the folder's, newest first."""
    current = list(dict.fromkeys(run for run in (*sources.runs, sources.run) if run is not None))
    groups: dict[str, list[Run]] = {}
    for run in current:
        groups.setdefault(prompt_id(run), []).append(run)
    yield from groups.values()
    if not current:
        return
    here = {run.record.run_id for run in current}
    for entry in sources.folder.comparisons:
        if here & {run.run_id for run in entry.runs} or entry.runs[0].model != current[0].record.model.name:
            continue
        candidates = [
            run
            for run in entry.runs
            if run.level == "full"
            and run.status == "complete"
            and (not labels or run.label in labels)
            and (not evidence.methods or run.method in evidence.methods)
        ]
        # Without methods, the full cache's and the first, which holds the probe.
        if not evidence.methods:
            first = sorted(candidates, key=lambda run: run.run_id)[:1]
            candidates = list(dict.fromkeys([*(run for run in candidates if run.method == "full"), *first]))[:2]
        opened = [known for one in candidates if (known := sources.folder.run(one.run_id)) is not None]
        if opened:
            yield opened


def rows_of_prompt(runs: Sequence[Run], evidence: Evidence, labels: Collection[str] = ()) -> list[pd.DataFrame]:
    """The rows of a prompt's runs: of all runs of the methods, or without methods, of the first run that has any.

    Only one run of a comparison holds its probe. With `labels`, other runs do not count.
    """
    found = [run for run in runs if run.record.level == "full" and (not labels or run.record.label in labels)]
    if evidence.methods:
        found = [run for run in found if run.record.method in evidence.methods]
    else:
        found.sort(key=lambda run: run.record.method != "full")
    parts = (rows for run in found if len(rows := kept_rows(run, evidence)))
    return list(parts if evidence.methods else islice(parts, 1))


def over_prompts(frame: pd.DataFrame, column: str, prompt: str = "prompt") -> Interval | None:
    """Mean of a column with its interval over prompts, after averaging heads, steps and merges within a prompt."""
    values = frame.groupby(prompt, sort=False)[column].mean().dropna() if len(frame) else pd.Series(dtype=float)
    return interval_of(values.to_list())


def interval_of(values: Sequence[float]) -> Interval | None:
    """Mean of one value per prompt with its 95 % interval; None if there is none."""
    known = [float(value) for value in values if np.isfinite(value)]
    return mean_interval(known) if known else None


def basis_of(frame: pd.DataFrame, merges: int = 0) -> Basis:
    """Prompts and (layer, head) pairs of an evidence frame (`kvlab.papers.evidence`)."""
    place = [name for name in ("layer", "head") if name in frame]
    heads = len(frame[place].drop_duplicates()) if len(place) == 2 and len(frame) else 0
    return Basis(frame["prompt"].nunique() if len(frame) else 0, heads, merges)


def mean_text(found: Interval | None, show: Callable[[float], str]) -> str:
    """A mean over prompts as `0.25 (0.1 to 0.4, n = 20)`."""
    return "not measured" if found is None else mean_words(found.mean, found.low, found.high, found.n, show)


SAMPLE = "needle_in_a_story"


def comparison(sources: Sources, methods: Sequence[str], budgets: Budgets = (0.2,)) -> RecordedComparison:
    """A comparison of the current model over a shipped prompt, in full, each method under its paper's settings.

    `methods` are written as on the command line.
    """
    specs = map(parse_spec, methods)
    published = tuple(format_spec(name, as_published(name, options)) for name, options in specs)
    return RecordedComparison(SAMPLE, published, tuple(budgets), sources.root, model=sources.measured_model)


def benchmark(sources: Sources, preset: str, scale: int = 0, shorten: int = 0, device: str = "") -> Benchmark:
    """A preset's benchmark, smaller where `scale` or `shorten` are given."""
    return Benchmark(preset, sources.root / BENCH_FOLDER, device, scale, shorten)


def recorded_run(sources: Sources, *methods: str, budgets: tuple[float | int, ...] = (0.2,)) -> Run | Needs:
    """A fully recorded run of one of these methods, or what is needed for one; the first method is suggested."""
    run = sources.run_of(*methods)
    if run is not None and run.record.level == "full" and not run.steps.empty:
        return run
    why = "recorded with events" if run is not None else "in this comparison"
    return Needs(f"There is no run of {methods[0]} {why}.", comparison(sources, methods[:1], budgets))
