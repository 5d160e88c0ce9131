"""The steps of a run as a reader moves through them: which are recorded, where anything left, what each one read."""

from __future__ import annotations

import pandas as pd


def steps_with_events(steps: pd.DataFrame) -> tuple[list[int], list[int]]:
    """(recorded steps, those after the prefill in which any slot left), from `steps` of any layers and heads."""
    left = steps.assign(left=steps["evicted"].fillna(0) + steps["merged"].fillna(0)).groupby("step")["left"].sum()
    return left.index.tolist(), left.index[(left > 0) & (left.index > 0)].tolist()


def step_words(tokens: pd.DataFrame, prompt_tokens: int, steps: list[int]) -> list[str]:
    """What each step read: the prompt, or a token of the forced continuation, in a few words."""
    texts = tokens[tokens["phase"] == "forced"].set_index("position")["text"]
    words = []
    for step in steps:
        text = texts.get(prompt_tokens + step - 1, "").replace("\n", "⏎").strip(" ") or "␣"
        words.append("the prompt was read" if step == 0 else f"after “{text}”")
    return words
