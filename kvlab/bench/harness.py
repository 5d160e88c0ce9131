"""Run benchmark requests in order: open each model once, stamp every row, stop at the time limit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from kvlab.bench.bench import Bench, choice_fields
from kvlab.bench.competitors import method_label
from kvlab.bench.device_memory import Peaks, is_out_of_memory, measure_peaks, release_memory
from kvlab.bench.models import BenchModel, open_model
from kvlab.bench.modes import MEASURE
from kvlab.bench.request import BenchRequest
from kvlab.bench.rows import Row, Status
from kvlab.common.formatting import format_duration
from kvlab.engine.environment import device_name, versions
from kvlab.methods import make_method
from kvlab.models.load import pick_device

Listener = Callable[[str, int, int], None]


class OpenModel:
    """The open model, at most one at a time, and the peak rates of its device."""

    def __init__(self) -> None:
        self.key: tuple[object, ...] = ()
        self.model: BenchModel | None = None
        self.peaks: dict[tuple[str, str], Peaks] = {}

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
            device, self.model = self.model.device, None
            release_memory(device)


def run_requests(
    requests: Sequence[BenchRequest], *, seconds: float | None = None, listener: Listener | None = None
) -> Iterator[Row]:
    """Yield rows as they are measured. After `seconds`, requests not yet started become rows of status `skipped`.

    Raises UserError, before anything runs, for an unknown method or device.
    """
    _check(requests)
    opened, begun = OpenModel(), time.monotonic()
    for index, request in enumerate(requests):
        if listener is not None:
            listener(f"{request.mode} {request.model}", index, len(requests))
        if seconds is not None and time.monotonic() - begun > seconds:
            yield from _not_run(request, "skipped", f"the time limit of {format_duration(seconds)} was reached")
            continue
        yield from _run(opened, request)
    opened.close()


def _run(opened: OpenModel, request: BenchRequest) -> Iterator[Row]:
    try:
        model, peaks = opened.open(request)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        opened.close()
        yield from _not_run(request, "oom", f"the model does not fit: {error}")
        return
    stamped = stamp(request, model)
    yield replace(_bandwidth(request, peaks), **stamped)
    for row in MEASURE[request.mode](Bench(model, request, peaks)):
        yield replace(row, **stamped)


def _bandwidth(request: BenchRequest, peaks: Peaks) -> Row:
    return Row(
        mode=request.mode,
        figure="copy bandwidth",
        model=request.model,
        method="",
        batch=0,
        context=0,
        unit="GB/s",
        repeats=1,
        median=peaks.bytes_per_second / 1e9,
        iqr=0.0,
        note=f"bytes read and written; matrix products {peaks.flops_per_second / 1e12:.2f} TFLOP/s",
    )


def _not_run(request: BenchRequest, status: Status, why: str) -> Iterator[Row]:
    stamped = stamp(request, None)
    for batch in request.batches:
        for context in request.contexts:
            for choice in request.choices:
                yield Row(
                    mode=request.mode,
                    figure="not run",
                    model=request.model,
                    method=method_label(choice),
                    batch=batch,
                    context=request.shortened(context),
                    unit="",
                    asked_context=context,
                    asked_new_tokens=request.new_tokens,
                    status=status,
                    note=why,
                    **(stamped | choice_fields(choice)),
                )


def _check(requests: Sequence[BenchRequest]) -> None:
    for request in requests:
        pick_device(request.device)
        for choice in request.choices:
            make_method(choice.method, **choice.hyper_parameters)


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
        "device": device_name(device),
        "versions": json.dumps(versions() | built, sort_keys=True),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
    }
