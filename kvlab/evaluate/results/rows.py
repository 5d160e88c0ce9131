"""One result row: a sample under one method with one budget. Torch-free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from kvlab.requests.budget import Budget
from kvlab.requests.compare import MethodChoice

ROWS = pa.schema(
    [
        ("key", pa.string()),  # names what was asked: two rows with one key are the same measurement
        ("task", pa.string()),
        ("difficulty", pa.string()),  # JSON, every parameter with its value
        ("content", pa.string()),  # hash of a user's own prompt; empty for a generated one
        ("length", pa.int32()),  # tokens asked for; 0 for a user's own prompt
        ("prompt_tokens", pa.int32()),  # tokens of the prompt, BOS included
        ("tokens_in_sight", pa.int32()),  # of these, how many were there when the prompt was compressed
        ("depth", pa.float32()),  # null: spread or random
        ("index", pa.int32()),
        ("seed", pa.int64()),
        ("method", pa.string()),
        ("variant", pa.string()),  # empty where the method has none
        ("hyper_parameters", pa.string()),  # JSON, those that were given
        ("budget", pa.float64()),  # asked: fraction of the prompt, slots per KV head, share of bytes, or bytes
        ("budget_unit", pa.string()),  # fraction | slots | share of bytes | bytes
        ("question_aware", pa.bool_()),  # the question was in sight when the prompt was compressed
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
        ("seconds", pa.float64()),  # prefill and answer, per sample
        ("prompt_seconds", pa.float64()),  # of these, until it was compressed, a rehearsal included; null in older rows
        ("batch_rows", pa.int32()),  # samples that ran together; bytes and seconds are their share
        ("bits_per_byte", pa.float64()),  # text tasks only, null elsewhere
        ("kl", pa.float64()),  # nats per token, full cache against this one
        ("top1_agreement", pa.float64()),
        # of the tokens of hidden statements, at the end; null where nothing was hidden, or in rows older than these
        ("hidden_own", pa.float64()),  # share with a slot of their own, mean over layers and KV heads
        ("hidden_merged", pa.float64()),  # share that lives in a slot with others
        ("prefill_chunk", pa.int32()),  # tokens a pass of the prompt; null: all in one, or rows older than these
        ("device", pa.string()),  # this and the next: null in rows older than these
        ("versions", pa.string()),  # JSON, of Python and of every package whose change could change a number
        ("chat", pa.string()),  # JSON, how the prompt stood in the chat template; null: plain text, or older rows
        ("settings", pa.string()),  # JSON, every hyper-parameter as it was; null in rows older than these
    ]
)

# What was asked for in the user's own words.
ASKED = [
    "task", "difficulty", "content", "length", "depth", "index", "seed", "method", "hyper_parameters", "budget",
    "budget_unit", "question_aware", "model", "model_digest", "prefill_chunk", "chat",
]  # fmt: skip

ANY_LENGTH = 0  # the length of a prompt that was not asked for by length


@dataclass(frozen=True)
class PromptIdentity:
    """What names a prompt: the same identity always makes the same prompt."""

    task: str
    difficulty: str
    length: int
    depth: float | None
    index: int
    seed: int
    content: str = ""


def canonical_json(values: Mapping[str, object] | Sequence[str]) -> str:
    """Return JSON with sorted names and no spaces, so that equal values give equal text."""
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
    """Return the hash that names one measurement; one without chunks or chat is named as before there were any.

    `settings` are all hyper-parameters with their values: a default or a preset that changes makes another measurement.
    """
    asked = {
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
    asked |= {} if prefill_chunk is None else {"prefill_chunk": prefill_chunk}
    asked |= {} if chat is None else {"chat": chat}
    return hashlib.sha256(canonical_json(asked).encode()).hexdigest()[:32]


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without those that were asked for in the same words when these had other defaults.

    Of several measurements of one prompt by one method, options and budget as given, the last that says its settings
    stays, else the last.
    """
    asked = [name for name in ASKED if name in rows]
    if rows.empty or len(asked) < len(ASKED) - 1:  # without chunks: older than these
        return rows
    known = rows["settings"].notna() if "settings" in rows else pd.Series(False, rows.index)
    stale = rows.assign(_known=known).sort_values("_known", kind="stable").duplicated(asked, keep="last")
    return rows[~stale.reindex(rows.index)]


def budget_unit(choice: MethodChoice) -> str:
    """Return the unit of a choice's budget."""
    return Budget(choice.budget).unit
