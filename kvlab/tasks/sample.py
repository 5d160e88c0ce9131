"""One prompt with its right answers: what every task makes, every loader reads and the evaluation runs."""

from __future__ import annotations

from random import Random

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from kvlab.common.errors import UserError
from kvlab.models.mini.phrasing import TRAINING_SEED_START


class Sample(BaseModel):
    """A prompt is `context + question`; the model continues it and `metric` scores the continuation.

    The context may be compressed before the question is seen (question-aware off), so the two are kept apart and are
    tokenized apart (`kvlab.tasks.tokens.prompt_ids`). For the text tasks the question is empty and `answers[0]` is
    the continuation that is forced upon the model. A prompt that is prefilled as a whole gives its answer's first token
    away, since prefill attends to everything; a task whose answer is one token holds the prompt's last token back.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    index: int
    seed: int
    length: int = Field(description="tokens asked for; for a user's own file, tokens found")
    depth: float | None = Field(default=None, description="0: the context's start, 1: its end; None: spread out")
    context: str
    question: str
    answers: list[str]
    metric: str = Field(description="a name in kvlab.evaluate.scoring.metrics")
    max_new_tokens: int
    stop: str | None = Field(default="\n", description="the answer ends at this text; None: at EOS")
    temperature: float = Field(default=0.0, description="0: greedy; above: the answer is drawn")
    chat: bool = Field(default=True, description="may stand in a chat template; not a text that is to be gone on with")
    hold_back: int = Field(default=0, description="last tokens of the prompt that always go in after compression")
    meta: dict[str, JsonValue] = Field(default_factory=dict)


def check_seed(seed: int) -> int:
    """Return the seed; raises UserError for one that training uses."""
    if not 0 <= seed < TRAINING_SEED_START:
        raise UserError(f"Seed {seed} is out of range: evaluation takes 0 to {TRAINING_SEED_START - 1:,}.")
    return seed


def sample_random(task: str, length: int, seed: int, index: int) -> Random:
    """Return the random stream of one sample; depth is left out, so that a sample only moves its needle with depth."""
    return Random(f"{task}|{length}|{check_seed(seed)}|{index}")
