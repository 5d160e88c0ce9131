"""One line of a table of prompts with their answers. Torch-free: a form checks it before the worker reads the file."""

from __future__ import annotations

from pydantic import AliasChoices, BaseModel, Field, field_validator

NEW_TOKENS = 32


class TableRecord(BaseModel):
    """A prompt (`context` or `prompt`) and what is right (`answer` or `answers`: a text, a number, a list of them)."""

    context: str = Field(min_length=1, validation_alias=AliasChoices("context", "prompt"))
    answer: list[str] = Field(min_length=1, validation_alias=AliasChoices("answer", "answers"))
    question: str = ""
    answer_prefix: str = ""
    max_new_tokens: int = Field(NEW_TOKENS, ge=1, le=4096)
    task: str = ""
    metric: str = ""
    all_classes: list[str] = Field(default_factory=list)

    @field_validator("answer", mode="before")
    @classmethod
    def _as_list(cls, given: object) -> object:
        listed = given if isinstance(given, list) else [given]
        return [str(one) if isinstance(one, int | float) and not isinstance(one, bool) else one for one in listed]

    @field_validator("all_classes", mode="before")
    @classmethod
    def _none_of_them(cls, given: object) -> object:
        return [] if given is None else given

    @field_validator("answer")
    @classmethod
    def _says_something(cls, answers: list[str]) -> list[str]:
        if not all(answer.strip() for answer in answers):
            raise ValueError("an answer is empty")
        return answers
