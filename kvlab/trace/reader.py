"""Read a run folder lazily: tables as pandas frames, and only the requested parts of array files."""

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from operator import and_
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from kvlab.core import UserError, path_of
from kvlab.trace.checksums import SUMS, Index, known_checksum, not_recorded, read_parts, state_of, why_no_array
from kvlab.trace.record import FILE, REMEDY, read_record
from kvlab.trace.schema import HISTORY, TABLES, RunRecord
from kvlab.trace.table_parts import contradictions, sound_parts
from kvlab.trace.token_text import restore_texts

ORDER = ("step", "layer", "head")
DAMAGED = "is cut off or damaged (its checksum does not match)"


class Run:
    """One recorded run. `problems` has one sentence per table part that could not be read.

    Tables are verified against their checksums on opening, arrays when first read. Raises UserError if the record
    contradicts the recorded data.
    """

    def __init__(self, path: Path, record: RunRecord) -> None:
        self.path = path
        self.record = record
        self.parts, self.problems = sound_parts(path, record)  # the sound parts of each table, in order
        for sentence in contradictions(path, record, self.parts, whole=not self.problems):
            raise UserError(f"{path / FILE} contradicts what was recorded: {sentence}; {REMEDY}.")

    def __repr__(self) -> str:
        record = self.record
        tokens = f"{record.prompt_tokens:,} + {record.max_new_tokens} tokens of {record.model.name}"
        return f"<kvlab run {record.label}: {tokens}, level {record.level}, {record.status}, {self.path}>"

    @property
    def unchecked(self) -> str | None:
        """Why the run's files have no checksums, as a clause; None if they have."""
        if self.record.checksums is not None:
            return None
        if self.record.status == "running":
            return "no checksums: the run is still running, or its worker was killed"
        return f"no checksums: recorded by kvlab {self.record.versions.get('kvlab', 'of an unknown version')}"

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """The tokens table (`schema.TOKENS`): prompt, then forced, then free."""
        return restore_texts(self.select("tokens"), self.record)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The steps table (`schema.STEPS`), ordered by step, layer, head."""
        return self.select("steps")

    @cached_property
    def events(self) -> pd.DataFrame:
        """The events table (`schema.EVENTS`), ordered by step, layer, head, then as recorded.

        Long runs have millions of events: use `select("events", layer, head)` for one head.
        """
        return self.select("events")

    @cached_property
    def memory(self) -> pd.DataFrame:
        """The memory table (`schema.MEMORY`), ordered by step, layer."""
        return self.select("memory")

    def select(
        self,
        table: str,
        layer: int | None = None,
        head: int | None = None,
        columns: Sequence[str] | None = None,
        ordered: bool = True,
    ) -> pd.DataFrame:
        """Rows of one table, optionally of one layer and KV head; only the requested columns are read.

        `ordered=False` keeps the storage order, which is faster. Raises UserError if the run has no such layer or head,
        or the table was damaged since the run was opened.
        """
        schema = TABLES[table]
        order = [name for name in ORDER if name in schema.names and ordered]
        wanted = list(columns) if columns is not None else schema.names
        rows = self._read(table, wanted + [name for name in order if name not in wanted], self._condition(layer, head))
        if order:
            rows = rows.sort_by([(name, "ascending") for name in order])
        return rows.select(wanted).to_pandas()

    def head_events(self, layer: int, head: int, step: int | None = None) -> pd.DataFrame:
        """The events of one KV head (`schema.HISTORY`), by step, then as recorded; raises as `select`.

        With `step`, those of that step with all columns.
        """
        here = self._condition(layer, head)
        if step is None or here is None:
            return self._read("events", list(HISTORY), here).sort_by("step").to_pandas()
        return self._read("events", TABLES["events"].names, here & (pc.field("step") == step)).to_pandas()

    def keys(self, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """Unit keys (tokens, head_dim) float16 as cached (rotated), and their norms (tokens,)."""
        return self._pair("keys", layer, head, ("unit", "norm"))

    def values(self, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """Unit values (tokens, head_dim) float16 and their norms (tokens,)."""
        return self._pair("values", layer, head, ("unit", "norm"))

    def attention(self, layer: int, head: int, thinned: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """True mass of each token and mass of each slot, both (steps, tokens) float16; see `schema.ARRAYS`.

        With `thinned` row r is that of step r * `attention_every`; without, a thinned run raises. Raises UserError if
        they were not recorded.
        """
        if not thinned:
            self._check_every_step()
        return self._pair("attention", layer, head, ("true_mass", "slot_mass"), (slice(None),))

    def true_mass(self, layer: int, head: int) -> np.ndarray:
        """The true mass of `attention`, of every step, (steps, tokens) float16, without reading the slots'.

        Raises UserError if it was not recorded at every step.
        """
        self._check_every_step()
        (true,) = self._slices("attention", layer, head, ("true_mass",), (slice(None),))
        return true

    def slots_read(self, layer: int, head: int) -> np.ndarray:
        """Whether each step read the slot named by each position, (steps, tokens) bool; of no meaning without a slot.

        With grouped queries: whether any query head of the group did. Raises UserError if it was not recorded, as in
        runs that read every slot.
        """
        (bits,) = self._slices("slots_read", layer, head, ("read",), (slice(None),))
        return np.unpackbits(bits, axis=1, bitorder="little").astype(bool)

    @property
    def sparse_layers(self) -> tuple[int, ...]:
        """Layers of which `slots_read` were recorded: those that left slots out at some step."""
        files = sorted((self.path / "arrays").glob("slots_read-layer-*.safetensors"))
        return tuple(int(file.stem.rsplit("-", 1)[1]) for file in files) if self.record.status != "running" else ()

    def _check_every_step(self) -> None:
        if self.attention_every > 1:
            raise UserError(
                f"Attention rows were recorded only every {self.attention_every} steps, and this needs every step: "
                "record the run again with fewer layers or heads and every=1."
            )

    def attention_row(self, layer: int, head: int, row: int) -> tuple[np.ndarray, np.ndarray] | None:
        """One row of `attention`'s arrays, (tokens,); None beyond the end. Raises UserError if not recorded."""
        try:
            return self._pair("attention", layer, head, ("true_mass", "slot_mass"), (row,))
        except IndexError:
            return None

    def decision(self, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """Score (float32) and whether it stayed (1 or 0) of each prompt token in the prompt's compression.

        Raises UserError if it was not recorded.
        """
        return self._pair("decision", layer, head, ("score", "kept"))

    def history(self, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """Mass and log exp score of each token for the probe's queries, both (rows, tokens) float16."""
        return self._pair("history", layer, head, ("mass", "log_score"), (slice(None),))

    def probe(self, name: str, layer: int) -> dict[str, np.ndarray]:
        """All tensors of the probe's `hidden` or `sampled` arrays of a layer, float32; see `schema.ARRAYS`.

        Raises UserError if the run has no probe of this layer.
        """
        self._check_indices(layer, None)
        path = self.path / "arrays" / f"{name}-layer-{layer:03d}.safetensors"
        self.check_array(path)
        try:
            with safe_open(path, framework="numpy") as tensors:
                return {key: tensors.get_tensor(key).astype(np.float32) for key in tensors.keys()}  # noqa: SIM118
        except (FileNotFoundError, SafetensorError) as error:
            raise UserError(why_no_array(self.record, path, layer)) from error

    @property
    def attention_every(self) -> int:
        """Attention rows were recorded every this many steps, from step 0."""
        return self.record.attention_rows.every

    def has_probe(self, name: str) -> bool:
        """Whether this run has the probe's `history`, `hidden` or `sampled` arrays."""
        return any((self.path / "arrays").glob(f"{name}-layer-*.safetensors"))

    @property
    def has_arrays(self) -> bool:
        """Whether keys, values and attention rows were recorded (level `full`) and the run has ended.

        A running run is read as it was when opened: its arrays may exist before its tokens.
        """
        return self.record.status != "running" and any((self.path / "arrays").glob("*.safetensors"))

    def check_array(self, path: Path) -> None:
        """Verify an array file's checksum, once per state of it; raises UserError if it was changed or is missing."""
        if self.record.checksums is None:
            return
        written = self.record.checksums.get(f"arrays/{path.name}")
        try:
            if path.exists() and known_checksum(path, state_of(path)) != written:
                raise UserError(f"{path} {DAMAGED}: {REMEDY}.")
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror or error}): {REMEDY}.") from None
        if written is not None and not path.exists():
            raise UserError(f"{path} is missing, though the run wrote it: {REMEDY}.")

    @cached_property
    def _block_sums(self) -> Mapping[str, np.ndarray]:
        """Block hashes of each array file; empty if there are none or they are damaged."""
        written = (self.record.checksums or {}).get(SUMS)
        try:
            file = self.path / SUMS
            sound = written is not None and known_checksum(file, state_of(file)) == written
            return load_file(file) if sound else {}
        except (OSError, SafetensorError):
            return {}

    def _read(self, table: str, columns: list[str], condition: pc.Expression | None) -> pa.Table:
        parts = [str(part) for part in self.parts[table]]
        whole = condition is None  # for one head, threads cost more than they save
        try:
            rows = ds.dataset(parts, schema=TABLES[table], format="parquet")
            return rows.to_table(columns, filter=condition, use_threads=whole)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"The table {self.path / table} changed while it was open: open the run again.") from error

    def _condition(self, layer: int | None, head: int | None) -> pc.Expression | None:
        self._check_indices(layer, head)
        wanted = {"layer": layer, "head": head}
        conditions = [pc.field(name) == index for name, index in wanted.items() if index is not None]
        return reduce(and_, conditions) if conditions else None

    def _check_indices(self, layer: int | None, head: int | None) -> None:
        model = self.record.model
        limits = (("layer", layer, model.num_hidden_layers), ("KV head", head, model.num_key_value_heads))
        for name, index, count in limits:
            if index is not None and not 0 <= index < count:
                raise UserError(f"This run has no {name} {index}: its {name}s are numbered 0 to {count - 1}.")

    def _pair(
        self, name: str, layer: int, head: int, tensors: tuple[str, str], before: Index = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        one, other = self._slices(name, layer, head, tensors, before)
        return one, other

    def _slices(self, name: str, layer: int, head: int, tensors: Sequence[str], before: Index = ()) -> list[np.ndarray]:
        self._check_indices(layer, head)
        path = self.path / "arrays" / f"{name}-layer-{layer:03d}.safetensors"
        heads = self.record.recording.of_heads(self.record.model.num_key_value_heads)
        if head not in heads:
            raise UserError(not_recorded(self.record, f"KV head {head}"))
        if self.record.status == "running":
            raise UserError(why_no_array(self.record, path, layer))
        index = (*before, heads.index(head))
        # Parts of an array file's tensors, verified by block or whole-file hashes.
        has_checksum = f"arrays/{path.name}" in (self.record.checksums or {})
        sums = self._block_sums.get(path.name) if has_checksum and path.exists() else None
        if sums is None:
            self.check_array(path)
        try:
            found = read_parts(path, sums, dict.fromkeys(tensors, index))
        except FileNotFoundError as error:
            raise UserError(why_no_array(self.record, path, layer)) from error
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror or error}): {REMEDY}.") from None
        except (SafetensorError, ValueError, KeyError) as error:  # not what was written
            found = None
            if sums is None:
                raise UserError(why_no_array(self.record, path, layer)) from error
        if found is None:
            raise UserError(f"{path} {DAMAGED}: {REMEDY}.")
        return [found[tensor] for tensor in tensors]


def open_run(path: Path | str, strict: bool = False) -> Run:
    """Open the run in this folder; with `strict`, damaged or missing parts raise instead of being listed in `problems`.

    Raises UserError if it is not a run folder, or `run.json` is damaged, from a newer kvlab, or contradicts the data.
    """
    path = path_of(path, "The run")
    run = Run(path, read_record(path))
    if strict and run.problems:
        raise UserError(run.problems[0])
    return run
