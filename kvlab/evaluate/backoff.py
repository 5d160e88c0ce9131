"""Prompts that run together, as many as memory allows: where it runs out, half of them go on."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from kvlab.common.errors import UserError
from kvlab.engine.out_of_memory import is_out_of_memory, release_memory
from kvlab.evaluate.results.outcome import Loaded
from kvlab.models.placement import input_device
from kvlab.requests.compare import MethodChoice


class Sized(Protocol):
    """A prompt of so many tokens."""

    @property
    def prompt_tokens(self) -> int: ...


Prompt = TypeVar("Prompt", bound=Sized)
Found = TypeVar("Found")


class Backoff(Generic[Prompt, Found]):
    """Remembers, for as long as an evaluation runs, how many prompts did not fit together."""

    def __init__(self, loaded: Loaded, measure: Callable[[Sequence[Prompt], MethodChoice], list[Found]]) -> None:
        self.loaded, self.measure = loaded, measure
        self.most: int | None = None

    def outcomes(self, prompts: Sequence[Prompt], choice: MethodChoice) -> list[tuple[Found, int]]:
        """Each prompt's outcome and how many ran with it. All prompts must be of one shape.

        Raises UserError where one prompt alone does not fit; other errors pass.
        """
        done: list[tuple[Found, int]] = []
        while len(done) < len(prompts):
            part = prompts[len(done) : len(done) + min(self.most or len(prompts), len(prompts))]
            found = self._tried(part, choice)
            if found is not None:
                done += [(outcome, len(part)) for outcome in found]
            elif len(part) == 1:
                raise UserError(self._sentence(part[0], choice))
            else:
                self.most = len(part) // 2
        return done

    @property
    def note(self) -> str:
        """A sentence where fewer prompts ran together than asked for; else empty."""
        together = "one prompt" if self.most == 1 else f"{self.most} prompts"
        return f"Memory ran out with more prompts in a batch: {together} ran together." if self.most else ""

    def _tried(self, prompts: Sequence[Prompt], choice: MethodChoice) -> list[Found] | None:
        try:
            return self.measure(prompts, choice)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)  # they hold the tensors that took the memory
            error.__traceback__ = None
        gc.collect()
        release_memory(input_device(self.loaded.model))
        return None

    def _sentence(self, prompt: Prompt, choice: MethodChoice) -> str:
        device = input_device(self.loaded.model).type
        return (
            f"{device} ran out of memory on one prompt of {prompt.prompt_tokens:,} tokens ({choice.label}): give "
            "shorter --lengths, a --prefill-chunk, --dtype bfloat16 or --placement auto; what was measured is kept."
        )
