"""From a run's record back to what was asked for: the same model spoken to in the same way, the same method."""

from __future__ import annotations

from typing import Any

from kvlab.requests.compare import CompareRequest, MethodChoice
from kvlab.trace.schema import RunRecord

AS_BEFORE = (
    "prompt", "max_new_tokens", "compress_every", "seed", "answer", "other_answers", "facts", "private",
    "generation_config",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")


def model_fields(record: RunRecord) -> dict[str, Any]:
    """Fields of `ChatRequest`; where its weights go is left to the machine."""
    chat = record.chat
    spoken: dict[str, Any] = (
        {"chat": "no"} if chat is None else {"system": chat["system"], "thinking": chat["thinking"]}
    )
    dtype = record.model.dtype if record.model.dtype in DTYPES else "auto"
    if chat is not None and chat.get("turns"):
        spoken["turns"] = chat["turns"]
    return {"model": record.model.name, "dtype": dtype, **spoken, **record.loading}


def request_again(record: RunRecord, other: MethodChoice, title: str) -> CompareRequest:
    """A request for two runs over the same prompt: the method as it ran, and `other`."""
    as_before = {name: getattr(record, name) for name in AS_BEFORE}
    choices = (choice_of(record), other)
    return CompareRequest(
        choices=choices, level="full", title=title, record=record.recording, **as_before, **model_fields(record)
    )


def choice_of(record: RunRecord) -> MethodChoice:
    """The method with its budget and settings, defaults filled in, under the name that the run has."""
    extra = MethodChoice(method="", force_keep=record.force_keep, returned=record.returned, called=" ").label[1:]
    return MethodChoice(
        method=record.method,
        budget=record.budget,
        hyper_parameters=record.hyper_parameters,
        force_keep=record.force_keep,
        returned=record.returned,
        called=record.label.removesuffix(extra),
    )
