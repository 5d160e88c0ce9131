"""Run prompts in batches and halve the batch size when memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from kvlab.common.errors import UserError
from kvlab.common.memory_errors import is_out_of_memory
from kvlab.engine.out_of_memory import drop_frames, release_memory
from kvlab.evaluate.results.outcome import Loaded
from kvlab.models.placement import input_device
from kvlab.requests.compare import MethodChoice


class Sized(Protocol):
    """Anything with a prompt length."""

    @property
    def prompt_tokens(self) -> int: ...


Prompt = TypeVar("Prompt", bound=Sized)
Result = TypeVar("Result")


class Backoff(Generic[Prompt, Result]):
    """Batch prompts, and remember the largest batch that fits for the rest of the evaluation."""

    def __init__(self, loaded: Loaded, measure: Callable[[Sequence[Prompt], MethodChoice], list[Result]]) -> None:
        self.loaded, self.measure = loaded, measure
        self.most: int | None = None

    def outcomes(self, prompts: Sequence[Prompt], choice: MethodChoice) -> list[tuple[Result, int]]:
        """Each prompt's outcome and its batch size. All prompts must have one shape.

        Raises UserError if a single prompt does not fit; other errors pass through.
        """
        done: list[tuple[Result, int]] = []
        while len(done) < len(prompts):
            part = prompts[len(done) : len(done) + min(self.most or len(prompts), len(prompts))]
            outcomes = self._try(part, choice)
            if outcomes is not None:
                done += [(outcome, len(part)) for outcome in outcomes]
            elif len(part) == 1:
                raise UserError(self._message(part[0], choice))
            else:
                self.most = len(part) // 2
        return done

    @property
    def note(self) -> str:
        """A sentence if the batch size had to be reduced; else empty."""
        together = "one prompt" if self.most == 1 else f"{self.most} prompts"
        return f"The batch size was reduced to {together} because memory ran out." if self.most else ""

    def _try(self, prompts: Sequence[Prompt], choice: MethodChoice) -> list[Result] | None:
        try:
            return self.measure(prompts, choice)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            drop_frames(error)
        gc.collect()
        release_memory(input_device(self.loaded.model))
        return None

    def _message(self, prompt: Prompt, choice: MethodChoice) -> str:
        device = input_device(self.loaded.model).type
        return (
            f"{device} ran out of memory on one prompt of {prompt.prompt_tokens:,} tokens ({choice.label}): use "
            "shorter --lengths, a --prefill-chunk, --dtype bfloat16 or --placement auto; measured rows are kept."
        )
