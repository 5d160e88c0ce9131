"""All kinds of jobs the queue accepts. Torch-free: the web side writes requests."""

from __future__ import annotations

from pydantic import TypeAdapter

from kvlab.bench.request import BenchJob
from kvlab.evaluation.request import EvalJob, SampleJob
from kvlab.models.fitting.request import FitJob
from kvlab.requests.compare import CompareRequest, RestoreRequest
from kvlab.requests.live_session import LiveJob

Work = CompareRequest | RestoreRequest | EvalJob | SampleJob | BenchJob | FitJob | LiveJob


def read_request(text: str | bytes) -> Work:
    """Parse a job's request from JSON; raises pydantic's ValidationError."""
    return TypeAdapter(Work).validate_json(text)
