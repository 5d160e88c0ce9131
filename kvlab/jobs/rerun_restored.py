"""The same run again, recorded, beside one that was given something back."""

from __future__ import annotations

from kvlab.requests.compare import CompareRequest
from kvlab.requests.restore import Return
from kvlab.trace.rerun_request import choice_of, request_again
from kvlab.trace.schema import RunRecord


def given_back(record: RunRecord, returned: Return) -> CompareRequest:
    """A request for two runs over the same prompt: the method as it ran, and with `returned` on top of its budget."""
    with_it = choice_of(record).model_copy(update={"returned": returned})
    return request_again(record, with_it, f"{record.label} {returned.words}")
