"""The schema of result rows: one per sample, method and budget. Torch-free."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.core import Budget, MethodChoice, UserError

ROWS = pa.schema(
    [
        ("key", pa.string()),  # identifies the request: rows with equal keys are the same measurement
        ("task", pa.string()),
        ("difficulty", pa.string()),  # JSON, every parameter with its value
        ("content", pa.string()),  # hash of a user's prompt; empty for a generated one
        ("length", pa.int32()),  # requested tokens; 0 for a user's prompt
        ("prompt_tokens", pa.int32()),  # tokens of the prompt, BOS included
        ("tokens_in_sight", pa.int32()),  # of these, those present when the prompt was compressed
        ("depth", pa.float32()),  # null: spread or random
        ("index", pa.int32()),
        ("seed", pa.int64()),
        ("method", pa.string()),
        ("variant", pa.string()),  # empty where the method has none
        ("hyper_parameters", pa.string()),  # JSON, those given by the user
        ("budget", pa.float64()),  # requested: fraction of the prompt, slots per KV head, share of bytes, or bytes
        ("budget_unit", pa.string()),  # fraction | slots | share of bytes | bytes
        ("question_aware", pa.bool_()),  # the question was visible when the prompt was compressed
        ("model", pa.string()),
        ("model_digest", pa.string()),
        ("metric", pa.string()),
        ("score", pa.float64()),
        ("answer", pa.string()),  # JSON list
        ("prediction", pa.string()),
        ("slots", pa.float64()),  # live slots at the end, mean over layers and KV heads
        ("logical_tokens", pa.int32()),  # tokens seen at the end
        ("live_bytes", pa.int64()),  # at the end, per sample
        ("allocated_bytes", pa.int64()),
        ("seconds", pa.float64()),  # prompt_seconds and its share of the decode steps, per sample
        ("prompt_seconds", pa.float64()),  # until compressed, as if alone, a second pass included; null in older rows
        ("batch_rows", pa.int32()),  # prompts x choices that ran together; bytes and seconds are per sample
        ("bits_per_byte", pa.float64()),  # text tasks only, null elsewhere
        ("kl", pa.float64()),  # nats per token, full cache against this one
        ("top1_agreement", pa.float64()),
        # of the hidden statements' tokens, at the end; null where nothing was hidden, and in older rows
        ("hidden_own", pa.float64()),  # share with a slot of their own, mean over layers and KV heads
        ("hidden_merged", pa.float64()),  # share that is in a shared slot
        ("prefill_chunk", pa.int32()),  # tokens per prefill pass; null: all in one, or older rows
        ("device", pa.string()),  # this and the next: null in older rows
        ("versions", pa.string()),  # JSON, of Python and of every package whose change could change a number
        ("chat", pa.string()),  # JSON, settings of the chat template; null: plain text, or older rows
        ("bytes_read", pa.int64()),  # by a decode step, per sample, mean over steps; null in older rows: live_bytes
        ("settings", pa.string()),  # JSON, every hyper-parameter's value; null in older rows
        ("error", pa.string()),  # why the metric gave no score on this prompt; null: it did, or older rows
        # the following are null in older rows; of the hidden statements' tokens, at the end
        ("unreachable", pa.float64()),  # share with no slot in any layer and KV head (global eviction ratio)
        ("consensus", pa.float64()),  # share of layers and heads that hold a reachable token, mean over these
        ("answer_tokens", pa.float64()),  # generated, the one that ends an answer included; null for forced texts
        ("loop_tokens", pa.float64()),  # of these, the last ones that are one piece again and again
        ("parts", pa.string()),  # JSON, one object per rule or question: `kvlab.evaluation.work`
        ("joules", pa.float64()),  # of its batch's energy its share by `seconds`; null without a counter
        ("energy", pa.string()),  # the counter, or why there is none: `kvlab.engine.energy.describe_energy`
        ("hidden_at", pa.float64()),  # position of the hidden statements' first token; null: none, or older rows
        ("draws", pa.string()),  # JSON, what random draws at these decisions would leave: `scoring.survival.Draws`
    ]
)

# Columns that state the request as the user gave it.
REQUEST = [
    "task", "difficulty", "content", "length", "depth", "index", "seed", "method", "hyper_parameters", "budget",
    "budget_unit", "question_aware", "model", "model_digest", "prefill_chunk", "chat",
]  # fmt: skip

ANY_LENGTH = 0  # length of a prompt not requested by length


@dataclass(frozen=True)
class PromptIdentity:
    """Identifies a prompt: equal identities generate equal prompts."""

    task: str
    difficulty: str
    length: int
    depth: float | None
    index: int
    seed: int
    content: str = ""


def canonical_json(values: Mapping[str, object] | Sequence[str]) -> str:
    """JSON with sorted keys and no spaces, so that equal values give equal text."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def row_key(
    prompt: PromptIdentity,
    choice: MethodChoice,
    settings: Mapping[str, object],
    question_aware: bool,
    model: str,
    model_digest: str,
    prefill_chunk: int | None = None,
    chat: Mapping[str, object] | None = None,
) -> str:
    """Hash that identifies a measurement; without chunks or chat it equals the hash from before these existed.

    `settings` are all hyper-parameters with their values, so a changed default or preset is another measurement.
    """
    request = {
        "task": prompt.task,
        "difficulty": prompt.difficulty,
        "length": prompt.length,
        "depth": prompt.depth,
        "index": prompt.index,
        "seed": prompt.seed,
        "content": prompt.content,
        "method": choice.method,
        "hyper_parameters": settings,
        "budget": choice.budget,
        "budget_unit": budget_unit(choice),
        "question_aware": question_aware,
        "model": model,
        "model_digest": model_digest,
    }
    request |= {} if prefill_chunk is None else {"prefill_chunk": prefill_chunk}
    request |= {} if chat is None else {"chat": chat}
    return hashlib.sha256(canonical_json(request).encode()).hexdigest()[:32]


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop rows of the same request that were measured with older defaults.

    Of several measurements of one prompt, method, options and budget, the last with recorded settings is kept, else the
    last.
    """
    columns = [name for name in REQUEST if name in rows]
    if rows.empty or len(columns) < len(REQUEST) - 1:  # older rows have no chunks
        return rows
    known = rows["settings"].notna() if "settings" in rows else pd.Series(False, rows.index)
    stale = rows.assign(_known=known).sort_values("_known", kind="stable").duplicated(columns, keep="last")
    return rows[~stale.reindex(rows.index)]


def budget_unit(choice: MethodChoice) -> str:
    """The unit of a choice's budget."""
    return Budget(choice.budget).unit


# Store an evaluation's rows as Parquet parts in one folder, written atomically as the evaluation runs.
#
# A part is renamed when complete, so a killed evaluation leaves only complete parts. Rows are identified by their key;
# a key in two parts counts once. Torch-free.

FLUSH_SECONDS = 2.0  # the most work a kill can lose, besides the interrupted sample
MOST_PARTS = 64
SHARDS = "shards"


@dataclass(eq=False)
class ResultStore:
    """Append rows to a folder and read them back; use `opened`, so that only one process writes, or each its own file.

    Rows of one of many stores that write to a folder at once are in `file`, which is replaced as it grows.
    """

    folder: Path
    file: Path | None = None
    damaged: list[Path] = field(default_factory=list)
    _waiting: list[Mapping[str, object]] = field(default_factory=list, init=False)
    _flushed: float = field(default_factory=time.monotonic, init=False)

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, shared: bool = False) -> Iterator[ResultStore]:
        """Open the store of a folder, created if missing; raises UserError if another process writes to it.

        `shared`: beside the stores of other processes, in a file of its own.
        """
        place = folder / SHARDS if shared else folder
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{place} cannot be used for results ({error.strerror}): choose another --out.") from error
        if shared:
            store = cls(folder, place / f"{secrets.token_hex(16)}.parquet")
            try:
                yield store
            finally:
                store.flush()
            return
        lock = filelock.FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise UserError(f"Another evaluation writes to {folder}: wait for it or choose another --out.") from error
        store = cls(folder)
        try:
            for path in folder.glob("*.unfinished"):  # left by a killed process
                path.unlink()
            parts = store._parts()
            if len(parts) > MOST_PARTS:  # many small parts become one
                whole = pa.concat_tables(store._tables(None, parts)).to_pandas()
                frame = whole.drop_duplicates("key", ignore_index=True)
                store._write(pa.Table.from_pandas(frame, schema=ROWS, preserve_index=False), store._next_part())
                # A kill before this loop ends leaves duplicates, which `frame` drops and the next start joins.
                for path in parts:
                    if path not in store.damaged:
                        path.unlink()
                del whole, frame  # before anything is measured
            yield store
        finally:
            store.flush()
            lock.release()

    def append(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Add rows; they are written at most `FLUSH_SECONDS` later."""
        self._waiting.extend(rows)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows as a new part, or all rows so far to a file of its own."""
        if self._waiting:
            table = pa.Table.from_pylist([dict(row) for row in self._waiting], schema=ROWS)
            self._write(table, self.file or self._next_part())
            if self.file is None:
                self._waiting.clear()
        self._flushed = time.monotonic()

    def keys(self) -> set[str]:
        tables = self._tables(["key"])
        return {key for table in tables for key in table.column("key").to_pylist()}

    def frame(self) -> pd.DataFrame:
        """All rows on disk, each key once, in the order written."""
        tables = [*self._tables(None), ROWS.empty_table()]
        return pa.concat_tables(tables).to_pandas().drop_duplicates("key", ignore_index=True)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    def _tables(self, columns: list[str] | None, paths: Sequence[Path] | None = None) -> Iterator[pa.Table]:
        if paths is None:
            paths = [*self._parts(), *sorted((self.folder / SHARDS).glob("[!._]*.parquet"))]
        for path in paths:
            try:
                yield pq.read_table(path, columns=columns, schema=None if columns else ROWS)
            except (pa.ArrowInvalid, OSError):
                if path not in self.damaged:
                    self.damaged.append(path)

    def _next_part(self) -> Path:
        parts = self._parts()
        number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
        return self.folder / f"part-{number:06d}.parquet"

    def _write(self, table: pa.Table, path: Path) -> None:
        unfinished = path.with_suffix(".unfinished")
        try:
            pq.write_table(table, unfinished)
            os.replace(unfinished, path)
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{self.folder} cannot be written to ({reason}): free some space and run again.") from error


def read_results(folder: Path) -> pd.DataFrame:
    """The newest rows of an evaluation folder, each key once; raises UserError if there are none."""
    frame = newest(ResultStore(folder).frame()).reset_index(drop=True)
    if frame.empty:
        raise UserError(f"{folder} contains no results: run `kvlab eval --out {folder}` first.")
    return frame
