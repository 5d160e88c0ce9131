"""How a task's question is put: as text to be continued, or as a question to a chat model.

Tasks are worded as `mini` was trained: the prompt ends with the first words of the answer. A chat model answers better
if the question is in the user's turn and these words begin its own, which is how RULER's answer prefix is used.
"""

from __future__ import annotations

from typing import Literal, get_args

from kvlab.models.mini.phrasing import split_query
from kvlab.tasks.sample import Sample

Style = Literal["continuation", "chat", "question"]
StyleChoice = Literal["auto", "continuation", "chat", "question"]
STYLES: tuple[Style, ...] = get_args(Style)
SENTENCE_TOKENS = 24  # an answer in the model's own words is a sentence around the requested one


def choose_style(requested: StyleChoice, has_chat: bool) -> Style:
    """The requested style; auto is `chat` for a model with a chat template, else `continuation`."""
    if requested == "auto":
        return "chat" if has_chat else "continuation"
    return requested


def apply_style(sample: Sample, style: Style) -> Sample:
    """The sample with its question in this style; samples without a generated question stay as they are."""
    parts = split_query(sample.question)
    if style == "continuation" or parts is None:
        return sample
    question, lead = parts
    text = f"\n\nQuestion: {question}"
    if style == "chat":
        return sample.model_copy(update={"question": text, "answer_start": lead})
    more = {"max_new_tokens": sample.max_new_tokens + SENTENCE_TOKENS, "stop": None}
    return sample.model_copy(update={"question": f"{text}\nAnswer:" if not sample.chat else text, **more})
