"""Recognise out-of-memory errors, free the memory, and report them."""

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from kvlab.core import MethodChoice, UserError, is_out_of_memory
from kvlab.core.methods import make_method
from kvlab.planning.choices import Footprint
from kvlab.planning.plan import SHARE, Machine, this_machine


def release_memory(device: torch.device) -> None:
    """Restore unreferenced memory to the device."""
    if device.type == "cuda":  # the host reclaims freed memory by itself
        gc.collect()
        torch.cuda.empty_cache()


def drop_frames(error: BaseException) -> None:
    """Clear the frames of an error: they hold the tensors that did not fit for as long as it is referenced."""
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None


@contextmanager
def memory_guard(device: torch.device, stage: str) -> Iterator[None]:
    """Turn an out-of-memory error in one stage of a request into a UserError with advice.

    The failed work's memory is freed; other errors pass through.
    """
    ran_out = False
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        ran_out = True
        drop_frames(error)
    if ran_out:
        gc.collect()
        release_memory(device)
        raise UserError(
            f"{device.type} ran out of memory ({stage}): use level light, a prefill chunk or a shorter prompt, or stop "
            "other programs that use its memory."
        )


def machine_of(device: torch.device) -> Machine:
    """This machine with the memory that is free for this process; torch reports that of a GPU."""
    machine = this_machine("cpu" if device.type == "cuda" else device.type)
    if device.type != "cuda":
        return machine
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    name = torch.cuda.get_device_name(device)
    return replace(machine, device="cuda", name=name, device_bytes=int(SHARE * free), devices=torch.cuda.device_count())


def footprint_of(choice: MethodChoice) -> Footprint:
    """What a choice's cache holds. Raises UserError for an unknown method or setting."""
    return Footprint.model_validate(make_method(choice.method, **choice.hyper_parameters).footprint(choice.budget))
