"""The same run again, recorded, beside one that was given something back."""

from __future__ import annotations

from kvlab.requests import CompareRequest
from kvlab.returns import Return
from kvlab.trace.again import choice_of, model_fields
from kvlab.trace.schema import RunRecord


def given_back(record: RunRecord, returned: Return) -> CompareRequest:
    """A request for two runs over the same prompt: the method as it ran, and with `returned` on top of its budget."""
    as_it_was = choice_of(record)
    return CompareRequest(
        prompt=record.prompt,
        choices=(as_it_was, as_it_was.model_copy(update={"returned": returned})),
        max_new_tokens=record.max_new_tokens,
        level="full",
        compress_every=record.compress_every,
        record=record.recording,
        seed=record.seed,
        answer=record.answer,
        facts=record.facts,
        title=f"{record.label} {returned.words}",
        **model_fields(record),
    )
