"""Evidence frames made by hand: a row a prompt and head."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

WOBBLE = (0.0, 0.01, -0.01, 0.02, -0.02, 0.005, -0.005, 0.0)
ENOUGH, FEW = 8, 3
Value = float | Callable[[int, int], float]


def rows(prompts: int = ENOUGH, per_prompt: int = 2, **columns: Value | str) -> pd.DataFrame:
    """`prompts` x `per_prompt` rows: prompt, layer, head and columns given as a number, or one of (prompt, head)."""

    def one(value: Value | str, prompt: int, head: int) -> float | str:
        return value(prompt, head) if callable(value) else value

    return pd.DataFrame(
        [
            {"prompt": f"p{prompt}", "label": "one", "layer": 0, "head": head}
            | {name: one(value, prompt, head) for name, value in columns.items()}
            for prompt in range(prompts)
            for head in range(per_prompt)
        ]
    )


def near(value: float, size: float = 1.0) -> Callable[[int, int], float]:
    """The value, a little off from prompt to prompt."""
    return lambda prompt, head: value + size * WOBBLE[prompt % len(WOBBLE)]


def either_way(value: float, off: float) -> Callable[[int, int], float]:
    """As far above the value in one prompt as below it in the next."""
    return lambda prompt, head: value + (off if prompt % 2 else -off)


def labelled(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Frames of several runs in one, each under its label."""
    return pd.concat([frame.assign(label=label) for label, frame in frames.items()], ignore_index=True)


def six_times(*frames: pd.DataFrame) -> pd.DataFrame:
    """The rows of one prompt as if six had shown exactly that."""
    return pd.concat([frame.assign(prompt=str(n)) for n in range(6) for frame in frames], ignore_index=True)
