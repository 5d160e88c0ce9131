"""Plans of format 1, which had a shard for each method and budget. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvlab.common.errors import UserError
from kvlab.evaluate.request import EvalRequest
from kvlab.sweep.plan import NAME, Shard, SweepPlan, hash_of


class ShardOfFormat1(BaseModel):
    """One method and budget on a block of prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NAME)
    request: int = Field(ge=0)
    choice: int = Field(ge=0)
    start: int = Field(ge=0)
    stop: int = Field(ge=1)
    task: str
    length: int
    label: str
    cost: int = Field(ge=0)


class PlanOfFormat1(BaseModel):
    """A plan as format 1 wrote it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
