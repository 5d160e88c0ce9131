"""Mode `memory`: a cache's reported bytes, checked against its tensors and the allocator."""

from collections.abc import Iterator
from typing import Any

import torch

from kvlab.bench.bench import Bench, loads
from kvlab.bench.caches import check_allocated_bytes, tensor_bytes
from kvlab.bench.competitors import Contender, SlotContender, StaticContender, contenders
from kvlab.bench.race import failure
from kvlab.bench.rows import Row
from kvlab.core.budget import Budget
from kvlab.core.cache import CompressedCache
from kvlab.core.table_growth import BLOCK
from kvlab.engine.out_of_memory import release_memory

NO_ALLOCATOR = "the host has no statistics of peak allocation"


def measure(bench: Bench) -> Iterator[Row]:
    """Fill each contender alone, decode `new_tokens` steps (at least one), then read its bytes.

    Raises AssertionError if a cache's reported bytes differ from its tensors'.
    """
    for contender in (one for load in loads(bench.request) for one in contenders(bench.model, load, bench.request)):
        if isinstance(contender, StaticContender):  # its allocation does not depend on its content
            continue
        try:
            figures = _figures(bench, contender)
        except Exception as error:
            status, note = failure(error)
            yield bench.row(contender, "allocated bytes", "bytes", status=status, note=note)
            continue
        finally:
            contender.release()
        token_bytes = float(bench.model.token_bytes * contender.load.batch)
        full = token_bytes * contender.load.context
        kept = contender.load.context
        if isinstance(contender, SlotContender) and not contender.is_baseline:
            kept = min(kept, Budget(contender.choice.budget).slots(contender.load.prompt))
        for figure, value in figures.items():
            unit = {"logical tokens": "tokens", "slots held": "slots"}.get(figure, "bytes")
            if value is None:
                yield bench.row(contender, figure, unit, status="skipped", note=NO_ALLOCATOR)
                continue
            fields: dict[str, Any] = {"repeats": 1, "median": value, "iqr": 0.0}
            if figure in ("live bytes", "allocated bytes"):  # beside all tokens, and the budget's slots alone
                least = token_bytes * kept
                fields |= {"bound": least, "fraction_of_bound": least / value, "ratio_to_full": value / full}
            yield bench.row(contender, figure, unit, is_full=contender.attention == "sdpa", **fields)


def _figures(bench: Bench, contender: Contender) -> dict[str, float | None]:
    device = bench.model.device
    steps = max(1, bench.request.shortened(bench.request.new_tokens))
    on_gpu = device.type == "cuda"
    release_memory(device)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    with contender.at_work():
        contender.prepare()
        prompt_peak = contender.cache.memory().peak_bytes if isinstance(contender.cache, CompressedCache) else 0
        for _ in range(steps):
            contender.step()
    cache = contender.cache
    held = tensor_bytes(cache)
    tokens = contender.load.context + steps
    figures: dict[str, float | None]
    if isinstance(cache, CompressedCache):
        check_allocated_bytes(cache)
        memory = cache.memory()
        if memory.logical_tokens != tokens:
            raise AssertionError(f"the cache reports {memory.logical_tokens:,} tokens, it was given {tokens:,}")
        # One block of slots per head, over all layers.
        by_layer = {layer.layer: layer for layer in memory.layers}
        of_layers = (by_layer[layer.layer_idx] for layer in cache.compressed_layers())
        block = sum(round(BLOCK * layer.live_bytes / max(layer.live_slots, 1e-9)) for layer in of_layers)
        figures = {
            "logical tokens": float(memory.logical_tokens),
            "slots held": memory.live_slots,
            "live bytes": float(memory.live_bytes + memory.sliding_bytes),
            "allocated bytes": float(memory.allocated_bytes + memory.sliding_bytes),
            "one block a head": float(block),
            "peak bytes": float(max(prompt_peak, memory.peak_bytes) + memory.sliding_bytes),
        }
    else:
        figures = {"logical tokens": float(tokens), "slots held": float(tokens)}
        figures |= {"live bytes": float(held), "allocated bytes": float(held)}
    figures["weights and cache"] = float(bench.model.weight_bytes + held)
    figures |= {"allocator: taken by the cache": None, "allocator: peak with weights": None}
    if on_gpu:
        torch.cuda.synchronize(device)
        figures["allocator: taken by the cache"] = float(torch.cuda.memory_allocated(device) - before)
        figures["allocator: peak with weights"] = float(torch.cuda.max_memory_allocated(device))
    return figures
