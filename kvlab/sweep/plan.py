"""The plan of a sweep: blocks of prompts, each measured by one worker with all methods and budgets. Torch-free."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.validation import Strict
from kvlab.evaluate.request import EvalRequest

NAME = r"^[0-9a-f]{32}$"


class Shard(Strict):
    """A block of prompts of one task and length with one model, and all methods and budgets of the request."""

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


class SweepPlan(Strict):
    """All shards in the order in which workers take them: model by model, the most expensive first."""

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


class ShardOfFormat1(Strict):
    """One method and budget on a block of prompts."""

    name: str = Field(pattern=NAME)
    request: int = Field(ge=0)
    choice: int = Field(ge=0)
    start: int = Field(ge=0)
    stop: int = Field(ge=1)
    task: str
    length: int
    label: str
    cost: int = Field(ge=0)


class PlanOfFormat1(Strict):
    """A plan as format 1 wrote it."""

    format: Literal[1]
    versions: dict[str, str]
    requests: tuple[EvalRequest, ...]
    block: int
    shards: tuple[ShardOfFormat1, ...]

    def joined(self) -> SweepPlan:
        """The same work in the current format, in the same order; each shard knows the names of those that it joins.

        Raises UserError if the shards of a block are not one per choice of its request.
        """
        blocks: dict[tuple[int, int, int], list[ShardOfFormat1]] = {}
        for shard in self.shards:
            blocks.setdefault((shard.request, shard.start, shard.stop), []).append(shard)
        return SweepPlan(
            versions=self.versions,
            requests=self.requests,
            block=self.block,
            shards=tuple(self._join(parts) for parts in blocks.values()),
        )

    def _join(self, parts: list[ShardOfFormat1]) -> Shard:
        first, parts = parts[0], sorted(parts, key=lambda part: part.choice)
        choices = self.requests[first.request].all_choices if first.request < len(self.requests) else ()
        if [part.choice for part in parts] != list(range(len(choices))):
            raise UserError("a block of prompts lacks a method")
        names = tuple(part.name for part in parts)
        shared = first.model_dump(include={"request", "start", "stop", "task", "length", "cost"})
        return Shard(name=hash_of(names), format_1=names, **shared)
