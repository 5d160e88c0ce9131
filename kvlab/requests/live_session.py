"""What a live session is asked to do, as a queued job. Torch-free: pages create these."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvlab.common.validation import Strict, Text
from kvlab.requests.compare import LARGEST_PROMPT_BYTES, LOADING, CompareRequest, MethodChoice, ModelRequest

MOST_LANES, MOST_NEW_TOKENS = 5, 2048
Action = Literal["start", "ask", "again", "lane", "restart", "heads"]
SessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")]


class LiveRequest(ModelRequest):
    """A context and the lanes beside the full cache."""

    context: Text = Field(min_length=1, max_length=LARGEST_PROMPT_BYTES)
    choices: tuple[MethodChoice, ...] = Field(min_length=1, max_length=MOST_LANES)
    seed: int = Field(0, ge=0, lt=2**31)


def comparison_of(request: LiveRequest, question: str, max_new_tokens: int) -> CompareRequest:
    """A recorded comparison of the lanes over context and question as one prompt: the question is in sight."""
    placed = {name: getattr(request, name) for name in ("model", *LOADING, "chat", "system", "thinking")}
    prompt = f"{request.context}\n\n{question}" if question else request.context
    return CompareRequest(
        prompt=prompt, choices=request.choices, max_new_tokens=max_new_tokens, seed=request.seed, **placed
    )


class LiveJob(Strict):
    """One action in a session, in turn with the other jobs of the queue.

    Every job carries the session's request: a worker that no longer holds the session reads the context again.
    """

    kind: Literal["live"] = "live"
    session: SessionId
    action: Action
    request: LiveRequest
    question: Text = Field("", max_length=LARGEST_PROMPT_BYTES)
    temperature: float = Field(0.0, ge=0, le=10)
    seed: int = Field(0, ge=0, lt=2**31, description="of tokens drawn at a temperature above 0")
    max_new_tokens: int = Field(128, ge=1, le=MOST_NEW_TOKENS)
    turn: int | None = Field(None, ge=0, description="action again: the question that is replaced; none: the last")
    lane: int | None = Field(
        None,
        ge=0,
        le=MOST_LANES,
        description="action lane: which one gets `choice`; action heads: whose heads are read",
    )
    choice: MethodChoice | None = None
    title: Text = ""
    private: bool = Field(True, description="on a shared server, visible only to its owner and administrators")

    @model_validator(mode="after")
    def _is_complete(self) -> LiveJob:
        if self.action in ("ask", "again") and not self.question.strip():
            raise ValueError("the question is empty: type one")
        if self.action == "lane" and (not self.lane or self.choice is None):
            raise ValueError("a lane beside the full cache and its new method are needed")
        if self.action == "heads" and self.lane is None:
            raise ValueError("a lane is needed")
        return self
