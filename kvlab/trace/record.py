"""`run.json`: the record with its own checksum, written atomically and rejected if inconsistent."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from kvlab.common.atomic_write import replace_text
from kvlab.core import MethodChoice, UserError
from kvlab.requests.compare import CompareRequest
from kvlab.trace.schema import SCHEMA_VERSION, RunRecord

FILE = "run.json"
SEAL = "record_checksum"
REMEDY = "copy the folder again, or record the run again"


def write_record(path: Path, record: RunRecord) -> None:
    """Write or replace `run.json` in a run folder."""
    content = from_json(record.model_dump_json())
    replace_text(path / FILE, json.dumps(content | {SEAL: _seal(content)}, indent=2, ensure_ascii=False))


def read_record(path: Path) -> RunRecord:
    """The record of the run in this folder.

    Raises UserError if it is missing, truncated, modified, contradicts itself or the folder's name, or comes from a
    newer kvlab.
    """
    file = path / FILE
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{file.parent} is not a run folder (it has no {FILE}): give one created by kvlab compare."
        ) from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}.") from error
    try:
        # This parser rejects unpaired surrogates, deep nesting and NaN, which no run contains.
        content = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise UserError(f"{file} is cut off or damaged: {REMEDY}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is cut off or damaged: {REMEDY}.")
    version = content.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UserError(f"{file} has an unknown format version: {REMEDY}.")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{file.parent} was written by a newer kvlab (format {str(version)[:12]}, this one reads up to "
            f"{SCHEMA_VERSION}): update."
        )
    seal = content.pop(SEAL, None)
    if seal is not None and seal != _seal(content):
        raise UserError(f"{file} was changed after it was written (its checksum does not match): {REMEDY}.")
    try:
        record = RunRecord.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])).encode("ascii", "replace").decode()
        why = (f"{where}: " if where else "") + first["msg"].removeprefix("Value error, ")
        raise UserError(f"{file} is damaged or contradicts itself ({why[:200]}): {REMEDY}.") from error
    if record.run_id not in (path.name, path.resolve().name):
        raise UserError(f"{file} is the record of the run {record.run_id}, not of {path.name}: rename the folder back.")
    return record


def _seal(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


AS_BEFORE = (
    "prompt", "max_new_tokens", "compress_every", "seed", "answer", "other_answers", "facts", "private",
    "generation_config",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")


def model_fields(record: RunRecord) -> dict[str, Any]:
    """Model fields of `ChatRequest`; placement is left to the machine."""
    chat = record.chat
    settings: dict[str, Any] = {"chat": "no"}
    if chat is not None:
        settings = {"system": chat["system"], "thinking": chat["thinking"]}
    dtype = record.model.dtype if record.model.dtype in DTYPES else "auto"
    if chat is not None and chat.get("turns"):
        settings["turns"] = chat["turns"]
    return {"model": record.model.name, "dtype": dtype, **settings, **record.loading}


def repeat_request(record: RunRecord, other: MethodChoice, title: str) -> CompareRequest:
    """A request for two runs over the same prompt: the method as it ran, and `other`."""
    as_before = {name: getattr(record, name) for name in AS_BEFORE} | model_fields(record)
    choices = (choice_of(record), other)
    return CompareRequest(choices=choices, level="full", title=title, record=record.recording, **as_before)


def choice_of(record: RunRecord) -> MethodChoice:
    """The method with its budget and resolved settings, under the run's name."""
    extra = MethodChoice(method="", force_keep=record.force_keep, returned=record.returned, called=" ").label[1:]
    return MethodChoice(
        method=record.method,
        budget=record.budget,
        hyper_parameters=record.hyper_parameters,
        force_keep=record.force_keep,
        returned=record.returned,
        called=record.label.removesuffix(extra),
    )
