"""Running out of memory: told from other errors, said in the words of the plan, and given back."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from kvlab.errors import UserError
from kvlab.methods import make_method
from kvlab.planning import find_model, make_plan, this_machine
from kvlab.planning.holds import Holds
from kvlab.requests import CompareRequest, MethodChoice


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device or the host has no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and ("can't allocate memory" in said or "out of memory" in said)


def give_back(device: torch.device) -> None:
    """Return what nobody holds any more to the device, so that whoever comes next finds it."""
    if device.type == "cuda":  # the host takes freed memory back by itself
        gc.collect()
        torch.cuda.empty_cache()


@contextmanager
def room(request: CompareRequest, device: torch.device, tokens: int, root: Path, stage: str) -> Iterator[None]:
    """Work on one stage of a request. Where memory runs out, it is given back, and the plan's sentence is the error.

    Raises UserError in place of any out-of-memory error; others pass.
    """
    said = None
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        said = sentence(request, device, tokens, root, stage)
        # The frames of what failed hold its tensors for as long as the error is known.
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
    if said is not None:
        gc.collect()
        give_back(device)
        raise UserError(said)


def sentence(request: CompareRequest, device: torch.device, tokens: int, root: Path, stage: str) -> str:
    """What ran out, what the request was planned to need, and what would make it fit."""
    began = f"{device.type} ran out of memory ({stage})"
    try:
        machine = this_machine(str(device), root)
        plan = make_plan(request, tokens, find_model(request.model), holds_of, machine, root, timed=False)
    except UserError:
        return f"{began}: use level light, a prefill chunk, or a shorter prompt."
    if plan.fits:
        return (
            f"{began}, though by the plan there was room ({plan.verdict[:-1]}): end what else uses the device's "
            "memory, or use level light, a prefill chunk or a shorter prompt."
        )
    return f"{began}. {plan.verdict}"


def holds_of(choice: MethodChoice) -> Holds:
    """What a choice's method holds with these settings. Raises UserError for an unknown method or setting."""
    return Holds.model_validate(make_method(choice.method, **choice.hyper_parameters).holds())
