"""The preset `reasoning`: methods that compress while generating, with as many slots at most, on traced answers.

A method that decides whenever a buffer of generated tokens is full holds budget plus buffer before it decides. So its
budget is what the buffer leaves of the slots asked for; a method that decides at every step has them all.
"""

from __future__ import annotations

from pathlib import Path

from kvlab.core.assets import asset_path
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.method_spec import split_list
from kvlab.core.methods import make_method
from kvlab.core.methods.spec import parse_choices

REASONING = "reasoning"
REASONING_TASKS = "state_tracing:steps=2:others=1,arithmetic_chain:steps=4,list_recall:words=3:count=20"
REASONING_SLOTS = "48,96"
BUFFER = 16  # generated tokens: the answers of these tasks are shorter than the authors' buffer of 128
_BUFFERED = ("rkv", "snapkv:preset=decode", "lazyeviction")
_EVERY_STEP = ("h2o", "raas", "morphkv")


def reasoning_methods(model: str) -> tuple[str, list[str]]:
    """The preset's methods for a model, and a sentence if TriAttention's statistics of it are not at hand."""
    named = [*(f"{spec}:buffer={BUFFER}" for spec in _BUFFERED), *_EVERY_STEP]
    if Path(asset_path("queries") / f"{Path(model).name}.safetensors").is_file():
        return ",".join([*named, f"triattention:queries={model}:buffer={BUFFER}"]), []
    missing = (
        f"triattention is left out, as it needs statistics of {model}: `kvlab fit` makes them, then name all methods "
        f"with --methods, as in triattention:queries=FILE:buffer={BUFFER}."
    )
    return ",".join(named), [missing]


def reasoning_choices(methods: str, slots: str) -> tuple[MethodChoice, ...]:
    """Every method at every number of slots that a KV head may hold at most, its buffer counted.

    Raises UserError for budgets that are not slots, and for fewer slots than twice a method's buffer.
    """
    choices: list[MethodChoice] = []
    for text in split_list(slots):
        if not text.isdecimal():
            raise UserError(f"--preset {REASONING} takes --budgets in slots, such as {REASONING_SLOTS}, not '{text[:40]}'.")
        for choice in parse_choices(methods, text):
            budget = int(text) - _beside(choice)
            if budget < _beside(choice):
                raise UserError(
                    f"{text} slots leave {choice.method} too little beside its buffer of {_beside(choice)} generated "
                    f"tokens: give at least {2 * _beside(choice)}."
                )
            choices.append(choice.model_copy(update={"budget": budget}))
    return tuple(choices)


def _beside(choice: MethodChoice) -> int:
    """Generated tokens that wait beside the budget for the next decision."""
    buffer = make_method(choice.method, **choice.hyper_parameters).pipeline().buffer
    return buffer if buffer > 1 else 0
