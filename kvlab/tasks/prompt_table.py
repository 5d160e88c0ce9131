"""One line of a table of prompts with their answers. Torch-free: a form checks it before the worker reads the file."""

from __future__ import annotations

from pydantic import AliasChoices, BaseModel, Field, field_validator

NEW_TOKENS = 32


class TableRecord(BaseModel):
    """A prompt (`context` or `prompt`) and what is right (`answer` or `answers`, a text or a list of texts)."""

    context: str = Field(min_length=1, validation_alias=AliasChoices("context", "prompt"))
    answer: list[str] = Field(min_length=1, validation_alias=AliasChoices("answer", "answers"))
    question: str = ""
    answer_prefix: str = ""
    max_new_tokens: int = Field(NEW_TOKENS, ge=1, le=4096)
    task: str = ""

    @field_validator("answer", mode="before")
    @classmethod
    def _as_list(cls, given: object) -> object:
        return [given] if isinstance(given, str) else given

    @field_validator("answer")
    @classmethod
    def _says_something(cls, answers: list[str]) -> list[str]:
        if not all(answer.strip() for answer in answers):
            raise ValueError("an answer is empty")
        return answers
