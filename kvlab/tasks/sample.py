"""A prompt with its right answers, for tasks, loaders and the evaluation, and the style its question is put in."""

import json
from collections.abc import Mapping
from random import Random
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from kvlab.core.errors import UserError
from kvlab.models.info.mini import TRAINING_SEED_START, split_query

UNSCORED = "unscored"  # the metric of prompts without answers, whose score is null


class Part(BaseModel):
    """A part of a prompt with a score of its own, such as one of several rules: part i is scored by answer i.

    `text` is the statement in the context that the score depends on; empty if there is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    text: str = ""


class Further(BaseModel):
    """A question asked after the sample's own, of the same cache; it is answered by the sample's next answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str
    answer_start: str = ""


class Sample(BaseModel):
    """A prompt is `context + question`; the model continues it and `metric` scores the continuation.

    The context may be compressed before the question is read (question-aware off), so the two are stored and tokenized
    separately (`kvlab.tasks.tokens.prompt_ids`). For text tasks the question is empty and `answers[0]` is the forced
    continuation. `decoded` text enters between context and question as if the model had written it, a decode step a
    token; in a chat it is the model's turn. Prefill attends to everything and so predicts the answer's first token
    without compression; a task with a one-token answer therefore holds back the prompt's last token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    index: int
    seed: int
    length: int = Field(description="requested tokens; for a user's file, its tokens")
    depth: float | None = Field(default=None, description="0: the context's start, 1: its end; None: spread out")
    context: str
    decoded: str = Field(default="", description="text that enters token by token once the context is compressed")
    question: str
    answer_start: str = Field(default="", description="first words of the answer; in a chat they open the model's turn")
    answers: list[str]
    metric: str = Field(description="a name in kvlab.evaluation.scoring.metrics")
    max_new_tokens: int
    stop: str | None = Field(default="\n", description="the answer ends at this text; None: at EOS")
    temperature: float = Field(default=0.0, description="0: greedy; above: the answer is sampled")
    chat: bool = Field(default=True, description="may be put into a chat template; not if the text is to be continued")
    hold_back: int = Field(default=0, description="last tokens of the prompt that always follow after compression")
    system: str = Field(default="", description="the context's beginning that is a chat's system prompt")
    parts: tuple[Part, ...] = Field(default=(), description="in the order of `answers`")
    further: tuple[Further, ...] = Field(default=(), description="more questions about the same compressed context")
    keeps_answers: bool = Field(default=False, description="further questions follow the answers given so far")
    meta: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def new_tokens(self) -> int:
        """The most tokens that are written after the prompt and kept, in all turns."""
        return self.max_new_tokens * (1 + len(self.further) * self.keeps_answers)

    @property
    def compresses_context_alone(self) -> bool:
        """Whether no question may be in sight at compression: text lies before it, or several are asked of copies."""
        return bool(self.decoded or (self.further and not self.keeps_answers))


def check_seed(seed: int) -> int:
    """Return the seed; raises UserError for a seed reserved for training."""
    if not 0 <= seed < TRAINING_SEED_START:
        raise UserError(f"Seed {seed} is out of range: evaluation takes 0 to {TRAINING_SEED_START - 1:,}.")
    return seed


def sample_random(task: str, length: int, seed: int, index: int) -> Random:
    """Return the random stream of one sample; independent of depth, so that depth only moves the needle."""
    return Random(f"{task}|{length}|{check_seed(seed)}|{index}")


Style = Literal["continuation", "chat", "question"]
StyleChoice = Literal["auto", "continuation", "chat", "question"]
STYLES: tuple[Style, ...] = get_args(Style)
SENTENCE_TOKENS = 24  # an answer in the model's own words is a sentence around the requested one


def choose_style(requested: StyleChoice, has_chat: bool) -> Style:
    """The requested style; auto is `chat` for a model with a chat template, else `continuation`."""
    if requested == "auto":
        return "chat" if has_chat else "continuation"
    return requested


def with_style(difficulty: Mapping[str, object], style: Style) -> dict[str, object]:
    """The difficulty as rows record it: with the style, unless it is `continuation`, which older rows do not name."""
    return {**difficulty} if style == "continuation" else {**difficulty, "style": style}


def current_difficulty(recorded: str) -> dict[str, JsonValue]:
    """A row's difficulty (JSON) with today's parameters: older rows have `turn` for `place` (1: system, 2: start)."""
    found: dict[str, JsonValue] = json.loads(recorded or "{}")
    turn = found.pop("turn", None)
    return found if turn is None else {**found, "place": "start" if turn == 2 else "system"}


def apply_style(sample: Sample, style: Style) -> Sample:
    """The sample with its questions in this style; samples without a generated question stay as they are.

    Tasks are worded as `mini` was trained: the prompt ends with the first words of the answer. A chat model answers
    better if the question is in the user's turn and these words begin its own, as RULER's answer prefix is used.
    """
    if style == "continuation" or split_query(sample.question) is None:
        return sample
    question, lead = _styled(sample.question, sample.chat, style)
    later = [_styled(one.question, sample.chat, style) for one in sample.further]
    more: dict[str, object] = {"further": tuple(Further(question=text, answer_start=start) for text, start in later)}
    if style == "question":
        more |= {"max_new_tokens": sample.max_new_tokens + SENTENCE_TOKENS, "stop": None}
    return sample.model_copy(update={"question": question, "answer_start": lead, **more})


def _styled(prompt: str, chat: bool, style: Style) -> tuple[str, str]:
    """(question, first words of the answer) of a query's prompt in a style other than `continuation`."""
    question, lead = split_query(prompt) or (prompt, "")
    text = f"\n\nQuestion: {question}"
    if style == "chat":
        return text, lead
    return text if chat else f"{text}\nAnswer:", ""
