"""Periodic compression of generated tokens for methods that compress the prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from kvlab.core.contract.method import Method
from kvlab.core.contract.pipeline import Pipeline


class GoesOn(Method):
    """A method that compresses the prompt and, with `decode=budget`, again whenever `buffer` tokens have gathered.

    The newest queries are kept for these decisions (they count as bytes), and slots are rescored with them. A head
    never holds more than its budget plus `buffer` generated tokens.
    """

    decode: Literal["keep", "budget"] = Field("keep", description="keep generated tokens, or let them compete")
    buffer: int = Field(128, ge=1, description="with `decode=budget`: generated tokens kept before each decision")

    def going_on(self, prompt_only: Pipeline) -> Pipeline:
        """The pipeline with its behaviour while decoding."""
        return prompt_only if self.decode == "keep" else replace(prompt_only, decode=True, buffer=self.buffer)
