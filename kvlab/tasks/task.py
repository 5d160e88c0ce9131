"""The type of a task: its generator, default lengths and difficulty parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvlab.common.errors import UserError
from kvlab.tasks.sample import Sample

DEFAULT_LENGTHS = (1024,)
Depth = float | None  # position of the requested information in the context, 0 to 1; None: random


@dataclass(frozen=True)
class Task:
    """A named generator. `ruler` is RULER's name for the same kind of task, if it has one.

    `generate(tokenizer, length, seed, index, **difficulty)` returns the sample; with `uses_depth` it also takes
    `depth` (0 to 1, None for random).
    """

    name: str
    summary: str
    generate: Callable[..., Sample]
    uses_depth: bool = False
    ruler: str | None = None
    lengths: tuple[int, ...] = DEFAULT_LENGTHS

    @property
    def parameters(self) -> dict[str, int]:
        """The difficulty parameters with their defaults: the generator's keyword-only arguments except depth."""
        arguments = inspect.signature(self.generate).parameters.values()
        kinds = [argument for argument in arguments if argument.kind is inspect.Parameter.KEYWORD_ONLY]
        return {argument.name: argument.default for argument in kinds if argument.name != "depth"}

    def resolve(self, difficulty: Mapping[str, object]) -> dict[str, object]:
        """Return every parameter with its value; raises UserError for an unknown name or a non-positive value."""
        for name, value in difficulty.items():
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise UserError(f"{self.name} has no parameter '{name}': it takes {known}.")
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{self.name}: {name}={value} cannot be used: give a whole number of at least 1.")
        return {**self.parameters, **difficulty}
