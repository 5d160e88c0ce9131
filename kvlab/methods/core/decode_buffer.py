"""Methods that compress a prompt, and may go on so while decoding: every so many tokens, with these on top."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from kvlab.methods.core.method import Method
from kvlab.methods.core.pipeline import Pipeline


class GoesOn(Method):
    """A method that acts once, after the prompt; with `decode=budget` again whenever `buffer` tokens have gathered.

    The newest queries are kept for these decisions (they count as bytes), and slots are scored anew by them. A head
    then never holds more than its budget and `buffer` generated tokens.
    """

    decode: Literal["keep", "budget"] = Field("keep", description="generated tokens stay on top, or compete")
    buffer: int = Field(128, ge=1, description="with `decode=budget`: generated tokens on top before each decision")

    def going_on(self, prompt_only: Pipeline) -> Pipeline:
        """The pipeline as it acts while decoding."""
        return prompt_only if self.decode == "keep" else replace(prompt_only, decode=True, buffer=self.buffer)
