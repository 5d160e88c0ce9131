"""All kinds of work that the queue knows. Torch-free: the web side writes requests."""

from __future__ import annotations

from pydantic import TypeAdapter

from kvlab.bench.request import BenchJob
from kvlab.evaluate.request import EvalJob, SampleJob
from kvlab.fitting.request import FitJob
from kvlab.requests.compare import CompareRequest, RescueRequest

Work = CompareRequest | RescueRequest | EvalJob | SampleJob | BenchJob | FitJob


def read_request(text: str | bytes) -> Work:
    """A request for the queue from its JSON; raises pydantic's ValidationError where it is none."""
    return TypeAdapter(Work).validate_json(text)
