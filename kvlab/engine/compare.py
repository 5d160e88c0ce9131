"""Several methods over one prompt: each decodes the full cache's continuation (recorded) and its own (timed)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from kvlab.cache import make_cache
from kvlab.cache.cache import nothing_to_compress
from kvlab.cache.chunked_prefill import check_chunks
from kvlab.common.errors import UserError
from kvlab.common.limits import TURNS_SHARE
from kvlab.common.validation import in_one_sentence, path_of, shown
from kvlab.engine.environment import model_shape
from kvlab.engine.interleaved_timing import read_in_turns
from kvlab.engine.out_of_memory import room
from kvlab.engine.passes import Passes, cache_of, forced_pass, free_pass
from kvlab.engine.probing.probe import probe
from kvlab.engine.progress import Cancelled, Watch, before_steps
from kvlab.engine.prompt import Reference, encode_prompt, full_cache_reference
from kvlab.engine.record import finished, make_way, record_of, run_id_of
from kvlab.methods import make_method
from kvlab.methods.eviction.gvote import GVote
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel, pick_device
from kvlab.models.model_cache import held_model
from kvlab.requests.budget import Budget
from kvlab.requests.compare import CompareRequest, MethodChoice, Progress, RecordLevel
from kvlab.requests.recording import Recording
from kvlab.trace import Run, RunWriter, open_run, pending_requests
from kvlab.trace.schema import check_id


def compare(
    request: CompareRequest,
    root: Path | str = "runs",
    *,
    comparison_id: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    loaded: LoadedModel | None = None,
    resume: bool = False,
) -> list[Path]:
    """Run every choice of `request` over its prompt and return the run folders, in order.

    With more than one choice the full cache is always run too, first. A stop (`cancelled`, or Ctrl-C) leaves the
    finished runs complete and the current one marked cancelled, then returns or re-raises. With `resume` the finished
    runs of `comparison_id` stay, and only the others are made.
    Raises UserError for bad input before anything is run or written, and where memory runs out: the finished runs
    stay, the current one is marked failed, and the device has its memory back.
    """
    if not isinstance(request, CompareRequest):
        raise UserError(
            f"A comparison cannot be made of {shown(request)}: give a kvlab.requests.compare.CompareRequest."
        )
    root = path_of(root, "The folder of runs")
    if request.is_batch:
        raise UserError(
            "A request with repeats or several prompts makes several comparisons: give it to "
            "kvlab.jobs.batch.run_batch."
        )
    comparison_id = check_id(comparison_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}")
    choices = request.runs
    there = finished(request, root, comparison_id) if resume else {}
    if len(there) == len(choices):
        pending_requests.remove_request(root, comparison_id)
        return list(there.values())
    for choice in choices:
        make_method(choice.method, **choice.hyper_parameters)
        Budget(choice.budget)
    if loaded is None:
        with room(request, pick_device(request.device), 1, root, "loading the model"):
            loaded = held_model(request, before_steps(progress, cancelled))
    chat = chat_of(request, loaded.tokenizer)
    ids = encode_prompt(loaded, request.prompt, request.max_new_tokens, chat)
    for choice in choices:  # what a method or a model refuses is said before anything runs
        if not make_cache(loaded, make_method(choice.method, **choice.hyper_parameters), choice.budget).has_compressed:
            raise UserError(nothing_to_compress(loaded.model.config.get_text_config(decoder=True)))
    _check_positions(choices, ids.shape[1])
    shape = model_shape(loaded)
    request.record.check(shape.num_hidden_layers, shape.num_key_value_heads)
    if request.prefill_chunk is not None:
        for choice in choices:
            pipeline = make_method(choice.method, **choice.hyper_parameters).pipeline()
            check_chunks(pipeline, ids.shape[1], request.prefill_chunk)
    torch.manual_seed(request.seed)
    begun = time.perf_counter()
    steps = 1 + request.max_new_tokens
    watch = Watch(steps * (1 + 2 * len(choices)), progress, cancelled)
    paths: list[Path] = []
    if request.repeat is None:  # a batch goes on by itself
        pending_requests.save_request(root, comparison_id, request)
    try:
        with room(request, loaded.device, ids.shape[1], root, "full cache"):
            reference = full_cache_reference(
                loaded, ids, request.max_new_tokens, watch, request.prefill_chunk, request.generation_config
            )
        for index, choice in enumerate(choices):
            watch.reach(steps * (1 + 2 * index), choice.label)
            if index in there:
                paths.append(there[index])
                continue
            if resume:
                make_way(root / run_id_of(request, comparison_id, index))
            record = record_of(request, choice, loaded, ids, comparison_id, index, len(reference.ids), len(choices))
            with RunWriter(root, record) as writer:
                paths.append(writer.path)
                watch.run_id = record.run_id
                with room(request, loaded.device, ids.shape[1], root, choice.label):
                    if index == 0 and request.level == "full":
                        _probe(request, loaded, ids, reference, writer, watch)
                    _run_one(Passes(request, choice, loaded, ids, writer, watch), reference)
        makers = [partial(cache_of, request, choice, loaded) for choice in choices]
        with room(request, loaded.device, ids.shape[1], root, "timing in turns"):
            allowed = TURNS_SHARE * (time.perf_counter() - begun)
            read_in_turns(paths, makers, loaded, ids, request.prefill_chunk, allowed, watch)
        watch.reach(watch.total, "done")
        pending_requests.remove_request(root, comparison_id)
    except Cancelled:
        pass
    return paths


def run(
    prompt: str,
    method: str = "keepkv",
    budget: float | int | str = 0.2,
    *,
    model: str | LoadedModel = "mini",
    max_new_tokens: int = 64,
    level: RecordLevel = "full",
    root: Path | str = "runs",
    compress_every: int = 1,
    record: Recording | str = "",
    seed: int = 0,
    **hyper_parameters: Any,
) -> Run:
    """Run one method over one prompt, record it, and return the opened run.

    Its tables are pandas frames: `.tokens`, `.steps`, `.events`, `.memory`. `record` bounds its arrays, such as
    "layers=0-3,8,heads=0,every=4". Raises UserError for bad input.
    """
    amount = Budget.parse(budget) if isinstance(budget, str) else Budget(budget)
    loaded = model if isinstance(model, LoadedModel) else None
    try:
        request = CompareRequest(
            prompt=prompt,
            model=model.name if isinstance(model, LoadedModel) else model,
            choices=(MethodChoice(method=method, budget=amount.amount, hyper_parameters=hyper_parameters),),
            max_new_tokens=max_new_tokens,
            level=level,
            compress_every=compress_every,
            record=Recording.parse(record) if isinstance(record, str) else record,
            seed=seed,
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from None
    return open_run(compare(request, root, loaded=loaded)[0])


def _check_positions(choices: tuple[MethodChoice, ...], tokens: int) -> None:
    for choice in choices:
        kept = (*choice.force_keep, *(choice.returned.tokens if choice.returned else ()))
        if kept and max(kept) >= tokens:
            raise UserError(f"Token {max(kept)} cannot be kept: the prompt has {tokens:,} tokens, counted from 0.")


def _run_one(run: Passes, reference: Reference) -> None:
    try:
        recorded = forced_pass(run, reference)
        timings = free_pass(run)
        run.writer.finish("complete", recorded_tokens_per_second=recorded, **timings)
    except Cancelled:
        run.writer.finish("cancelled", "stopped by the user")
        raise


def _probe(
    request: CompareRequest, loaded: LoadedModel, ids: Tensor, reference: Reference, writer: RunWriter, watch: Watch
) -> None:
    """Once a comparison: how Gaussian its hidden states are, and how good the queries GVote would sample."""
    asked = next((choice.hyper_parameters for choice in request.choices if choice.method == GVote.name), {})
    watch.advance("probing the full cache", 0)
    voting = make_method(GVote.name, **asked)
    assert isinstance(voting, GVote)
    probe(loaded, ids, reference.ids, writer, voting, request.seed, request.prefill_chunk, request.record)
