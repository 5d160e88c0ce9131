"""The plan of a sweep: blocks of prompts, each measured by one worker with all methods and budgets. Torch-free."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvlab.evaluate.request import EvalRequest
from kvlab.requests.compare import MethodChoice

NAME = r"^[0-9a-f]{32}$"


class Shard(BaseModel):
    """A block of prompts of one task and length with one model, and all methods and budgets of the request."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Hash of its rows' keys without the digest of the weights, which only a worker knows.
    name: str = Field(pattern=NAME)
    request: int = Field(ge=0, description="index of the plan's request")
    start: int = Field(ge=0, description="index of the first prompt in the request")
    stop: int = Field(ge=1, description="index after the last prompt")
    task: str
    length: int = Field(description="requested tokens of a prompt; 0 for prompts of files")
    cost: int = Field(ge=0, description="tokens of its prompts; the largest go first")
    format_1: tuple[str, ...] = Field((), description="names of the shards of format 1 that it joins, one per choice")

    @property
    def label(self) -> str:
        """Its task and length, such as `needle, 4,096 tokens`."""
        return f"{self.task}, {self.length:,} tokens" if self.length else self.task


class SweepPlan(BaseModel):
    """All shards in the order in which workers take them: model by model, the most expensive first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[2] = 2
    versions: dict[str, str]
    requests: tuple[EvalRequest, ...]
    block: int
    shards: tuple[Shard, ...]

    @model_validator(mode="after")
    def _check_indices(self) -> SweepPlan:
        if any(shard.request >= len(self.requests) for shard in self.shards):
            raise ValueError("a shard names no request")
        return self

    def choices(self, shard: Shard) -> tuple[MethodChoice, ...]:
        """The methods and budgets that a shard is measured with, the full cache first."""
        return self.requests[shard.request].all_choices

    @property
    def num_rows(self) -> int:
        """Number of rows of all shards."""
        return sum((shard.stop - shard.start) * len(self.choices(shard)) for shard in self.shards)


def hash_of(names: Sequence[str]) -> str:
    """A name of 32 hexadecimal digits for a list of names."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


def shard_name(keys_of_choices: Sequence[Sequence[str]]) -> str:
    """The name of a shard from its rows' keys, choice by choice.

    A hash of hashes: a choice's hash was the name of its shard in plans of format 1, which are joined by these names.
    """
    return hash_of([hash_of(keys) for keys in keys_of_choices])
