"""Running out of memory: told from other errors, said in the words of the plan, and given back."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from kvlab.common.errors import UserError
from kvlab.methods import make_method
from kvlab.planning import Machine, find_model, make_plan, this_machine
from kvlab.planning.footprint import Footprint
from kvlab.planning.machine import SHARE
from kvlab.requests.compare import CompareRequest, MethodChoice


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
        machine = machine_of(device, root)
        plan = make_plan(request, tokens, find_model(request.model), holds_of, machine, root, timed=False)
    except UserError:
        return f"{began}: use level light, a prefill chunk, or a shorter prompt."
    if plan.fits:
        return (
            f"{began}, though by the plan there was room ({plan.verdict[:-1]}): end what else uses the device's "
            "memory, or use level light, a prefill chunk or a shorter prompt."
        )
    return f"{began}. {plan.verdict}"


def machine_of(device: torch.device, root: Path) -> Machine:
    """What this machine has beside what this process holds already; of a GPU torch says it, as it sees it."""
    machine = this_machine("cpu" if device.type == "cuda" else device.type, root)
    if device.type != "cuda":
        return machine
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    name = torch.cuda.get_device_name(device)
    return replace(machine, device="cuda", name=name, device_bytes=int(SHARE * free), devices=torch.cuda.device_count())


def holds_of(choice: MethodChoice) -> Footprint:
    """What a choice's method holds with these settings. Raises UserError for an unknown method or setting."""
    return Footprint.model_validate(make_method(choice.method, **choice.hyper_parameters).holds(choice.budget))
