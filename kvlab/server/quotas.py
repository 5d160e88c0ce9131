"""How much a person may ask for: the table `[limits]` of the lab's file, and one for whoever is named in it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.errors import UserError
from kvlab.common.validation import in_one_sentence
from kvlab.requests.compare import MOST_RUNS
from kvlab.server.settings import lab
from kvlab.server.units import Amount

MOST_QUEUED = 1000
Positive = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """Of one person; None: as much as there is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs: Positive = Field(MOST_RUNS, description="runs a request")
    queued: Positive = Field(MOST_QUEUED, description="jobs that wait or run")
    tokens: Positive | None = Field(None, description="tokens a request: of its prompts and new ones, over all runs")
    minutes: Annotated[float, Field(gt=0)] | None = Field(None, description="of compute in 24 hours")
    disk: Annotated[Amount, Field(ge=1)] | None = Field(None, description="bytes of what a person made")


class _Table(Limits):
    people: dict[str, dict[str, Any]] = {}


def limits_of(name: str) -> Limits:
    """The limits of the person of this name: their own where the file names them, else everybody's.

    Raises:
        UserError: the lab's file says what cannot be.
    """
    found = lab()
    if found is None:
        return Limits()
    try:
        table = _Table.model_validate(found.limits)
        everybody = table.model_dump(exclude={"people"})
        return Limits.model_validate(everybody | table.people.get(name, {}))
    except ValidationError as error:
        raise UserError(f"In the lab's file, [limits]: {in_one_sentence(error)}") from error
