"""Run benchmark requests in order, also as a job of the queue. Each model is opened once, and every row stamped."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch

from kvlab.bench.bench import Bench, choice_fields
from kvlab.bench.competitors import method_label
from kvlab.bench.device import Peaks, measure_peaks
from kvlab.bench.models import BenchModel, open_model
from kvlab.bench.modes import MEASURE
from kvlab.bench.request import BenchJob, BenchRequest, parts_of, preset_requests
from kvlab.bench.rows import ResultFile, Row, read_rows
from kvlab.core.errors import is_out_of_memory
from kvlab.core.methods import make_method
from kvlab.engine.energy import describe_energy, energy_counter
from kvlab.engine.environment import device_name, versions
from kvlab.engine.out_of_memory import release_memory
from kvlab.models.load import pick_device
from kvlab.requests.compare import Progress

# Figures that are not about a cache.
BANDWIDTH = "copy bandwidth"
NOT_RUN = "not run"

Listener = Callable[[str, int, int], None]


@dataclass
class OpenModel:
    """The open model, at most one at a time, and the peak rates of its device."""

    key: tuple[object, ...] = ()
    model: BenchModel | None = None
    peaks: dict[tuple[str, str], Peaks] = field(default_factory=dict)

    def open(self, request: BenchRequest) -> tuple[BenchModel, Peaks]:
        """The request's model, opened unless it is already; raises what opening raises."""
        key = (request.model, request.scale, request.device, request.dtype, request.seed, request.hub)
        if self.model is None or key != self.key:
            self.close()
            self.model = open_model(
                request.model,
                scale=request.scale,
                device=request.device,
                dtype=request.dtype,
                seed=request.seed,
                hub=request.hub,
            )
            self.key = key
        place = (str(self.model.device), str(self.model.dtype))
        if place not in self.peaks:
            self.peaks[place] = measure_peaks(self.model.device, self.model.dtype)
        return self.model, self.peaks[place]

    def close(self) -> None:
        if self.model is not None:
            device = self.model.device
            self.model = None
            release_memory(device)


def run_requests(requests: Sequence[BenchRequest], *, listener: Listener | None = None) -> Iterator[Row]:
    """Yield rows as they are measured.

    Raises UserError, before anything runs, for an unknown method or device.
    """
    for request in requests:
        pick_device(request.device)
        for choice in request.choices:
            make_method(choice.method, **choice.hyper_parameters)
    opened = OpenModel()
    for index, request in enumerate(requests):
        if listener is not None:
            listener(f"{request.mode} {request.model}", index, len(requests))
        yield from _run(opened, request)
    opened.close()


def _run(opened: OpenModel, request: BenchRequest) -> Iterator[Row]:
    """The rows of one request; a generator of its own, so that nothing holds the model while the next one is opened."""
    try:
        model, peaks = opened.open(request)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        opened.close()
        stamped = stamp(request, None)
        for batch, context, choice in product(request.batches, request.contexts, request.choices):
            yield Row(
                mode=request.mode,
                figure=NOT_RUN,
                model=request.model,
                method=method_label(choice),
                batch=batch,
                context=request.shortened(context),
                unit="",
                asked_context=context,
                asked_new_tokens=request.new_tokens,
                status="oom",
                note=f"the model does not fit: {error}",
                **(stamped | choice_fields(choice)),
            )
        return
    stamped = stamp(request, model)
    yield Row(
        mode=request.mode,
        figure=BANDWIDTH,
        model=request.model,
        method="",
        batch=0,
        context=0,
        unit="GB/s",
        repeats=1,
        median=peaks.bytes_per_second / 1e9,
        iqr=0.0,
        note=f"bytes read and written; matrix products {peaks.flops_per_second / 1e12:.2f} TFLOP/s",
        **stamped,
    )
    for row in MEASURE[request.mode](Bench(model, request, peaks)):
        yield replace(row, **stamped)


def stamp(request: BenchRequest, model: BenchModel | None) -> dict[str, Any]:
    """The fields of `Row` about device, versions and time; without a model (it did not fit) from the request."""
    device = model.device if model is not None else pick_device(request.device)
    built = {"cuda": str(torch.version.cuda)} if device.type == "cuda" else {}
    return {
        "preset": request.preset,
        "scale": request.scale,
        "shorten": request.shorten,
        "compress_every": request.compress_every,
        "dtype": str(model.dtype).removeprefix("torch.") if model is not None else request.dtype,
        "device": device_name(device, model.rounding_kl if model is not None else None),
        "energy": describe_energy(energy_counter(device)),
        "versions": json.dumps(versions() | built, sort_keys=True),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
    }


FOLDER = "bench"


def run_bench(
    job: BenchJob, root: Path, *, progress: Callable[[Progress], None], cancelled: Callable[[], bool]
) -> Path:
    """Measure into `<root>/bench/<name>.parquet` and return the file; an interrupted part leaves no row.

    Raises as `kvlab.bench.harness.run_requests`.
    """
    results = ResultFile(Path(root) / FOLDER / f"{job.name}.parquet")
    results.path.parent.mkdir(parents=True, exist_ok=True)
    if results.path.exists():
        results.rows.extend(read_rows(results.path))
    requests = preset_requests(job.preset, **job.changes) if job.preset else job.requests
    parts = parts_of(requests)
    # A part is measured if the rows hold every method of it.
    measured = [row for row in results.rows if row.figure not in (BANDWIDTH, NOT_RUN)]
    missing = []
    for part in parts:
        setting = (part.mode, part.model, part.contexts[0], part.new_tokens, part.compress_every)
        methods = {
            row.method.partition(":")[0]
            for row in measured
            if (row.mode, row.model, row.asked_context, row.asked_new_tokens, row.compress_every) == setting
            and row.batch in part.batches
        }
        if not methods or not {choice.method for choice in part.choices} - {"full"} <= methods:
            missing.append(part)
    done = len(parts) - len(missing)
    waiting: list[Row] = []

    def listen(stage: str, index: int, total: int) -> None:
        """A part starts, so the previous one is complete."""
        keep()
        part = missing[index]
        words = f"{done + index + 1} of {len(parts)} · {stage}, batch {part.batches[0]}, {part.contexts[0]:,} tokens"
        progress(Progress(stage=words, done=done + index, total=len(parts)))

    def keep() -> None:
        if waiting:
            results.add(waiting)
            waiting.clear()

    for row in run_requests(missing, listener=listen):
        if cancelled():
            return results.path
        waiting.append(row)
    keep()
    progress(Progress(stage="measured", done=len(parts), total=len(parts)))
    return results.path
