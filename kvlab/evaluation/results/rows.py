"""The schema of result rows: one per sample, method and budget. Torch-free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from kvlab.core.budget import Budget
from kvlab.core.choice import MethodChoice

ROWS = pa.schema(
    [
        ("key", pa.string()),  # identifies the request: rows with equal keys are the same measurement
        ("task", pa.string()),
        ("difficulty", pa.string()),  # JSON, every parameter with its value
        ("content", pa.string()),  # hash of a user's prompt; empty for a generated one
        ("length", pa.int32()),  # requested tokens; 0 for a user's prompt
        ("prompt_tokens", pa.int32()),  # tokens of the prompt, BOS included
        ("tokens_in_sight", pa.int32()),  # of these, those present when the prompt was compressed
        ("depth", pa.float32()),  # null: spread or random
        ("index", pa.int32()),
        ("seed", pa.int64()),
        ("method", pa.string()),
        ("variant", pa.string()),  # empty where the method has none
        ("hyper_parameters", pa.string()),  # JSON, those given by the user
        ("budget", pa.float64()),  # requested: fraction of the prompt, slots per KV head, share of bytes, or bytes
        ("budget_unit", pa.string()),  # fraction | slots | share of bytes | bytes
        ("question_aware", pa.bool_()),  # the question was visible when the prompt was compressed
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
        ("seconds", pa.float64()),  # prompt_seconds and its share of the decode steps, per sample
        ("prompt_seconds", pa.float64()),  # until compressed, as if alone, a second pass included; null in older rows
        ("batch_rows", pa.int32()),  # prompts x choices that ran together; bytes and seconds are per sample
        ("bits_per_byte", pa.float64()),  # text tasks only, null elsewhere
        ("kl", pa.float64()),  # nats per token, full cache against this one
        ("top1_agreement", pa.float64()),
        # of the hidden statements' tokens, at the end; null where nothing was hidden, and in older rows
        ("hidden_own", pa.float64()),  # share with a slot of their own, mean over layers and KV heads
        ("hidden_merged", pa.float64()),  # share that is in a shared slot
        ("prefill_chunk", pa.int32()),  # tokens per prefill pass; null: all in one, or older rows
        ("device", pa.string()),  # this and the next: null in older rows
        ("versions", pa.string()),  # JSON, of Python and of every package whose change could change a number
        ("chat", pa.string()),  # JSON, settings of the chat template; null: plain text, or older rows
        ("bytes_read", pa.int64()),  # by a decode step, per sample, mean over steps; null in older rows: live_bytes
        ("settings", pa.string()),  # JSON, every hyper-parameter's value; null in older rows
        ("error", pa.string()),  # why the metric gave no score on this prompt; null: it did, or older rows
        # the following are null in older rows; of the hidden statements' tokens, at the end
        ("unreachable", pa.float64()),  # share with no slot in any layer and KV head (global eviction ratio)
        ("consensus", pa.float64()),  # share of layers and heads that hold a reachable token, mean over these
        ("answer_tokens", pa.float64()),  # generated, the one that ends an answer included; null for forced texts
        ("loop_tokens", pa.float64()),  # of these, the last ones that are one piece again and again
        ("parts", pa.string()),  # JSON, one object per rule or question: `kvlab.evaluation.work`
        ("joules", pa.float64()),  # of its batch's energy its share by `seconds`; null without a counter
        ("energy", pa.string()),  # the counter, or why there is none: `kvlab.engine.energy.describe_energy`
        ("hidden_at", pa.int32()),  # of the first of the hidden statements' tokens, its position in the prompt
    ]
)

# Columns that state the request as the user gave it.
REQUEST = [
    "task", "difficulty", "content", "length", "depth", "index", "seed", "method", "hyper_parameters", "budget",
    "budget_unit", "question_aware", "model", "model_digest", "prefill_chunk", "chat",
]  # fmt: skip

ANY_LENGTH = 0  # length of a prompt not requested by length


@dataclass(frozen=True)
class PromptIdentity:
    """Identifies a prompt: equal identities generate equal prompts."""

    task: str
    difficulty: str
    length: int
    depth: float | None
    index: int
    seed: int
    content: str = ""


def canonical_json(values: Mapping[str, object] | Sequence[str]) -> str:
    """JSON with sorted keys and no spaces, so that equal values give equal text."""
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
    """Hash that identifies a measurement; without chunks or chat it equals the hash from before these existed.

    `settings` are all hyper-parameters with their values, so a changed default or preset is another measurement.
    """
    request = {
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
    request |= {} if prefill_chunk is None else {"prefill_chunk": prefill_chunk}
    request |= {} if chat is None else {"chat": chat}
    return hashlib.sha256(canonical_json(request).encode()).hexdigest()[:32]


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop rows of the same request that were measured with older defaults.

    Of several measurements of one prompt, method, options and budget, the last with recorded settings is kept, else the
    last.
    """
    columns = [name for name in REQUEST if name in rows]
    if rows.empty or len(columns) < len(REQUEST) - 1:  # older rows have no chunks
        return rows
    known = rows["settings"].notna() if "settings" in rows else pd.Series(False, rows.index)
    stale = rows.assign(_known=known).sort_values("_known", kind="stable").duplicated(columns, keep="last")
    return rows[~stale.reindex(rows.index)]


def budget_unit(choice: MethodChoice) -> str:
    """The unit of a choice's budget."""
    return Budget(choice.budget).unit
