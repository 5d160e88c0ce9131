"""What a request is held against before it is queued or begun: how much its owner, the folder and the disk still have.

Every refusal is one sentence that says what is used and what is allowed.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from kvlab.common.errors import UserError
from kvlab.common.formatting import format_bytes
from kvlab.evaluate.request import EvalJob
from kvlab.jobs.disk_usage import bytes_by_owner, folder_room
from kvlab.jobs.work import Work
from kvlab.model_info.chat_template import Manner
from kvlab.model_info.token_count import count_tokens
from kvlab.requests.compare import CompareRequest
from kvlab.server.quotas import Limits, limits_of

DAY = 24 * 3600.0


def admit(connection: sqlite3.Connection, root: Path, work: Work, owner: str) -> None:
    """Nothing, where this person may queue this work now.

    Raises:
        UserError: it is more than they may ask for, they have used up what they may, or the disk is full.
    """
    _check_size(work, limits_of(owner))
    admit_again(connection, root, owner)


def admit_again(connection: sqlite3.Connection, root: Path, owner: str) -> None:
    """Nothing, where this person may have one more job in the queue; raises as `admit`."""
    limits = limits_of(owner)
    waiting = connection.execute(
        "SELECT COUNT(*) FROM jobs WHERE owner = ? AND state IN ('queued', 'running')", (owner,)
    ).fetchone()[0]
    if waiting >= limits.queued:
        raise UserError(
            f"You have {_count(waiting, 'job')} waiting or running, and {limits.queued:,} are allowed: wait until one "
            "ends, or cancel one."
        )
    check_used(connection, root, owner)


def check_used(connection: sqlite3.Connection, root: Path, owner: str) -> None:
    """Nothing, where this person's time and disk, and the folder itself, allow one more job; asked again as it begins.

    Raises:
        UserError: they do not.
    """
    limits = limits_of(owner)
    if limits.minutes is not None and (used := minutes_used(connection, owner)) >= limits.minutes:
        raise UserError(
            f"You have used {used:.0f} minutes of compute in the last 24 hours, and {limits.minutes:g} are allowed: "
            "wait, or ask an administrator."
        )
    if limits.disk is not None and (taken := bytes_by_owner(connection, root).get(owner, 0)) >= limits.disk:
        raise UserError(
            f"Your results take {format_bytes(taken)} of disk, and {format_bytes(limits.disk)} are allowed: "
            "delete some on the page Runs, and empty the bin."
        )
    if full := folder_room(root).full:
        raise UserError(f"Nothing more is run here: {full}. Delete or thin recordings.")


def minutes_used(connection: sqlite3.Connection, owner: str, now: float | None = None) -> float:
    """Minutes that jobs of this person ran in the last 24 hours."""
    now = time.time() if now is None else now
    rows = connection.execute(
        "SELECT COALESCE(started, ?) AS began, COALESCE(finished, ?) AS ended, spent FROM jobs WHERE owner = ? "
        "AND (started IS NOT NULL OR spent > 0) AND COALESCE(finished, ?) > ?",
        (now, now, owner, now, now - DAY),
    )
    return sum(row["spent"] + max(0.0, row["ended"] - max(row["began"], now - DAY)) for row in rows) / 60


def runs_of(work: Work) -> int:
    """Runs that a comparison makes, over all its repeats; of an evaluation its methods; else one."""
    if isinstance(work, CompareRequest):
        return len(work.runs) * max(1, len(work.repeats))
    return len(work.request.all_choices) if isinstance(work, EvalJob) else 1


def tokens_of(work: Work) -> int | None:
    """Tokens of all prompts and of what is generated, over all runs; None where they cannot be told beforehand."""
    if isinstance(work, CompareRequest):
        prompt = count_tokens(work.prompt, Manner.of(work))[0]
        return runs_of(work) * (prompt + work.max_new_tokens)
    if isinstance(work, EvalJob) and work.request.lengths:
        request = work.request
        cells = len(request.tasks) * len(request.depths or (0,)) * request.samples
        return runs_of(work) * cells * sum(work.request.lengths or ())
    return None


def _check_size(work: Work, limits: Limits) -> None:
    if (runs := runs_of(work)) > limits.runs:
        raise UserError(f"This asks for {runs:,} runs, and {limits.runs:,} a request are allowed: ask for fewer.")
    if limits.tokens is None:
        return
    tokens = tokens_of(work)
    if tokens is not None and tokens > limits.tokens:
        raise UserError(
            f"This would read and write about {tokens:,} tokens over all its runs, and {limits.tokens:,} a request are "
            "allowed: take a shorter prompt, fewer methods or budgets, or fewer new tokens."
        )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
